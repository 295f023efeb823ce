# SPDX-License-Identifier: Apache-2.0
"""Which functions of Python run during a call: what they read beside their arguments decides what the call does."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

#: Where values come from that are new with each call.
_CLOCKS = frozenset({"time", "_time"})
#: Begins frames below which everything is ours: the compiler, which runs when an operator is new.
_COMPILER = "outboard.activation"
#: Runs what ``torch.compile`` made of a function. What the function read was read when it was traced.
_COMPILED = "torch._dynamo.eval_frame"

# Packages whose own settings are not looked at; modules of torch.nn have hooks for all modules, as users may.
_TRUSTED = (sys.stdlib_module_names | {"torch", "outboard", "numpy"}) - {"os", "__main__"}
_TORCH_NN = "torch.nn."

_watching = threading.local()


def is_trusted(module: object) -> bool:
    """Whether what a module of this name keeps for itself decides nothing about a call."""
    if not isinstance(module, str):
        return False
    return module.partition(".")[0] in _TRUSTED and not module.startswith(_TORCH_NN)


def is_observed_here() -> bool:
    """Whether this thread is inside an :class:`Observation`: calls must run, in Python, as without any replays."""
    return getattr(_watching, "depth", 0) > 0


def _is_clock(function: Any) -> bool:
    return getattr(function, "__module__", None) in _CLOCKS


class Observation:
    """A context in which the functions that this thread calls are written down.

    Attributes:
        codes: the code of functions, by ``id``, with the globals that it runs in.
        compiled: whether something that ``torch.compile`` compiled ran, whose own functions are not seen.
        obstacle: why a call like this cannot be repeated, or ''.
    """

    def __init__(self) -> None:
        self.codes: dict[int, tuple[types.CodeType, dict[str, Any]]] = {}
        self.compiled = False
        self.obstacle = ""
        self._hidden: types.FrameType | None = None

    def __enter__(self) -> Observation:
        _watching.depth = getattr(_watching, "depth", 0) + 1
        if sys.getprofile() is None:
            sys.setprofile(self._see)
            self._sees = True
        else:
            self._sees = False
            self.obstacle = "a profiler of Python watches this thread"
        return self

    def __exit__(self, *unused: object) -> None:
        if self._sees:
            sys.setprofile(None)
        _watching.depth -= 1

    def _see(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if self._hidden is not None:
            if frame is self._hidden and event == "return":
                self._hidden = None
        elif event == "call":
            self._see_call(frame)
        elif event == "c_call" and _is_clock(argument) and not is_trusted(frame.f_globals.get("__name__")):
            self.obstacle = "it looks at the clock"

    def _see_call(self, frame: types.FrameType) -> None:
        name = frame.f_globals.get("__name__")
        if name == _COMPILER:
            self._hidden = frame
            return
        self.compiled = self.compiled or name == _COMPILED
        self.codes.setdefault(id(frame.f_code), (frame.f_code, frame.f_globals))

    def scopes(self) -> Iterator[tuple[dict[str, Any], frozenset[str], frozenset[str]]]:
        """The globals that functions ran in, each with the names that they may have read there, and what they may have
        given to ``getattr`` and ``hasattr``. One function after the other, as the same names after a module's mean what
        is inside of it."""
        for code, scope in self.codes.values():
            if not is_trusted(scope.get("__name__")):
                texts = (text for text in code.co_consts if isinstance(text, str) and text.isidentifier())
                yield scope, frozenset(code.co_names), frozenset(texts)

    def made_here(self) -> set[int]:
        """The ``id`` of all code of functions that the functions seen make when they run."""
        found: set[int] = set()
        work = [code for code, _ in self.codes.values()]
        while work:
            for constant in work.pop().co_consts:
                if isinstance(constant, types.CodeType) and id(constant) not in found:
                    found.add(id(constant))
                    work.append(constant)
        return found
