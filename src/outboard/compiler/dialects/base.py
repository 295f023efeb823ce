# SPDX-License-Identifier: Apache-2.0
"""What a dialect is.

Printers and kernels write one text: C with the words of ``docs/dialects.md`` (``OB_KERNEL``, ``OB_GLOBAL``,
``OB_BARRIER()``, ...) for all that languages of accelerators call by different names. A dialect says what its language
calls them, and every program begins with that.
"""

from __future__ import annotations

import dataclasses
import re


class Unsupported(Exception):
    """An operator, type or dialect for which there is no code; the operator then runs elsewhere."""


@dataclasses.dataclass(frozen=True)
class Dialect:
    """A language of kernels in the family of C."""

    name: str  #: what drivers report as ``ob_device_properties.dialect``
    words: str  #: the text that every program begins with
    vectors: bool  #: whether types of several lanes are a part of the language, as in OpenCL C

    def program(self, text: str) -> str:
        """A whole program: ``text`` is what a printer or kernel has written."""
        return f"{self.words}{text}"


_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DOUBLE = re.compile(r"\bdouble\d*\b")
_LONG_ATOMICS = re.compile(r"\bOB_(ATOMIC_ADD|EXCHANGE)_LONG\b")


def uses_doubles(text: str) -> bool:
    """Whether a text needs double precision: outside of comments and of what ``#ifdef OB_HAS_DOUBLES`` guards."""
    if _DOUBLE.search(text) is None:
        return False
    hidden = 0  # conditions that are open since the one that asks for doubles, itself included
    for line in _COMMENT.sub(" ", text).splitlines():
        words = line.replace("#", "# ", 1).split() if line.lstrip().startswith("#") else []
        kind = words[1] if len(words) > 1 else ""
        if hidden == 0 and kind == "ifdef" and words[2:3] == ["OB_HAS_DOUBLES"]:
            hidden = 1
        elif hidden and kind.startswith("if"):
            hidden += 1
        elif hidden and kind == "endif":
            hidden -= 1
        elif hidden == 1 and kind == "else":
            hidden = 0
        elif not hidden and kind in ("", "define") and _DOUBLE.search(line):
            return True
    return False


def uses_long_atomics(text: str) -> bool:
    """Whether a text needs atomic operations on words of 64 bits."""
    return _LONG_ATOMICS.search(_COMMENT.sub(" ", text)) is not None
