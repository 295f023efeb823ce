# SPDX-License-Identifier: Apache-2.0
"""What sanitizers wrote, and which of it is about code of this project.

AddressSanitizer and UBSan see what instrumented code does, and what they say counts. ThreadSanitizer has to see how
threads wait for each other as well, and of libraries that are not instrumented (PyTorch, OpenMP, PoCL, LLVM) it sees
only what goes through pthreads: what they hand over by atomics looks like a race to it. So a race counts if both
accesses were made by code that was built here; another finding of ThreadSanitizer, if such code has part in it.
"""

from __future__ import annotations

import re

_UNDEFINED = re.compile(r"^.*: runtime error: .*\n(?: +#.*\n)*", re.MULTILINE)
_SEPARATOR = re.compile(r"^={18}\n", re.MULTILINE)
#: A stack of ThreadSanitizer's, with the line above that says what it is of.
_STACK = re.compile(r"^  (\S.*):\n((?: {4}#\d+ .*\n)+)", re.MULTILINE)
_MODULE = re.compile(r"^ +#\d+ .*\(([^()+]+)\+0x[0-9a-f]+\)", re.MULTILINE)
#: Libraries whose functions read, write and wait for who calls them.
_SHARED = re.compile(r"lib(?:tsan|stdc\+\+|c|m)\.so")


def ours(text: str, modules: set[str]) -> list[str]:
    """The reports in a log that count. ``modules``: names of the libraries and programs that were built here."""
    found = [part for part in _SEPARATOR.split(text) if "Sanitizer" in part]
    counting = [report for report in found if "ThreadSanitizer" not in report or _counts(report, modules)]
    return counting + _UNDEFINED.findall(text)


def _counts(report: str, modules: set[str]) -> bool:
    stacks = [(title, _actor(frames) in modules) for title, frames in _STACK.findall(report)]
    if "data race" not in report:
        return any(here for _, here in stacks)
    return all(here for title, here in stacks if " of size " in title)


def _actor(frames: str) -> str:
    """The module of the innermost frame that acts for itself."""
    return next((name for name in _MODULE.findall(frames) if not _SHARED.match(name)), "")
