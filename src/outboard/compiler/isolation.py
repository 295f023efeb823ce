# SPDX-License-Identifier: Apache-2.0
"""Compilers at work, spared two costs of CPython that grow with them, what watches the program they work for, and what
has become of its working directory; and the program spared what they set for themselves."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from outboard import _C

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Slots of a frame that fills a piece of Python's stack of its own. Pieces are powers of two, and this is a little more
#: than one: what is left, about 1 MiB, is for the frames above.
_SLOTS = 1 << 17


class Together(contextlib.AbstractContextManager[None]):
    """A context of the whole process: set up for the first thread that enters, taken back when the last one has left.
    ``context`` makes what is entered. In a forked process only the thread that forked is inside."""

    def __init__(self, context: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._context = context
        self._entered: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        self._inside: list[int] = []
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._leave_threads)

    def __call__(self) -> Together:
        """The context itself, to be entered."""
        return self

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._entered = self._context()
                self._entered.__enter__()
            self._inside.append(threading.get_ident())

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside.remove(threading.get_ident())
            if not self._inside:
                self._entered.__exit__(None, None, None)

    def _leave_threads(self) -> None:
        """Forgets the threads that a forked process lacks, one of which may have held the lock."""
        self._lock = threading.Lock()
        others = self._inside
        self._inside = [thread for thread in others if thread == threading.get_ident()]
        if others and not self._inside:
            self._entered.__exit__(None, None, None)


@Together
@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """A context in which the cyclic garbage collector does not run by itself, in all threads."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@Together
@contextlib.contextmanager
def placed() -> Iterator[None]:
    """A context in which Python knows of a working directory, in all threads. That of the process may be deleted, and
    PyTorch's compiler asks for it when it is imported, though it does not use it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        original, os.getcwd = os.getcwd, lambda: os.sep
        try:
            yield
        finally:
            os.getcwd = original
    else:
        yield


@Together
@contextlib.contextmanager
def _recursing_as_before() -> Iterator[None]:
    """A context after which Python's limit of recursion is what it was: Inductor raises it, and leaves it so."""
    limit = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


class _OfCompilers(type):
    """The class of all warnings of threads that are inside :func:`unheard`."""

    def __subclasscheck__(cls, category: type) -> bool:
        return getattr(_thread, "is_unheard", False)


class _Unheard(metaclass=_OfCompilers):
    """What a filter of warnings names."""


_thread = threading.local()
_FILTER: Any = ("ignore", None, _Unheard, None, 0)


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """A context in which this thread's warnings are dropped, and no other's. ``warnings.catch_warnings`` would have
    Python forget which warnings it has given once."""
    before = getattr(_thread, "is_unheard", False)
    _thread.is_unheard = True
    filters: Any = warnings.filters
    filters.insert(0, _FILTER)
    try:
        yield
    finally:
        filters.remove(_FILTER)
        _thread.is_unheard = before


def isolated(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, run without these:

    * Python's frames lie in pieces of memory of 16 KiB, which the system is asked for and given back as calls come and
      go. Where a compiler's innermost loops happen to run at the edge of a piece, each of their calls costs two system
      calls and a page fault. A frame that asks for more stack than it uses has a large piece made for it and for all
      that it calls.
    * Where a program looks for waits for the device (``set_sync_debug_mode``), the compiler's own are none of its.
    * The cyclic garbage collector looks through all that there is again and again, while a compiler makes more and
      more that it keeps until it is done. It is off until then, in all threads; what is garbage is found afterwards.
    * A working directory that was deleted (:func:`placed`).
    * Python's limit of recursion, which compilers raise for themselves, would stay so for the program.
    """

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with uncollected(), placed(), _recursing_as_before(), _C.WaitsUnnoticed():
            return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=_SLOTS)
    return functools.update_wrapper(call, function)
