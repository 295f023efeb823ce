# SPDX-License-Identifier: Apache-2.0
"""Ranges of a program's own, which ``torch.profiler`` shows, under the names of ``torch.cuda.nvtx``."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]

_numbers = itertools.count(1)
_open: dict[int, torch.profiler.record_function] = {}
_nested = threading.local()


def mark(msg: str) -> None:
    """A point in time."""
    with torch.profiler.record_function(msg):
        pass


def range_start(msg: str) -> int:
    """Begins a range, and returns the number by which :func:`range_end` ends it."""
    number = next(_numbers)
    _open[number] = torch.profiler.record_function(msg)
    _open[number].__enter__()  # type: ignore[no-untyped-call]
    return number


def range_end(range_id: int) -> None:
    """Ends a range; no-op for a number that names none."""
    if (opened := _open.pop(range_id, None)) is not None:
        opened.__exit__(None, None, None)


def range_push(msg: str) -> int:
    """Begins a range inside those of this thread, and returns how many it lies in."""
    stack = _stack()
    stack.append(range_start(msg))
    return len(stack) - 1


def range_pop() -> int:
    """Ends the last range of this thread, and returns how many it lay in; -1 where there is none."""
    stack = _stack()
    if stack:
        range_end(stack.pop())
        return len(stack)
    return -1


def _stack() -> list[int]:
    if not hasattr(_nested, "stack"):
        _nested.stack = []
    stack: list[int] = _nested.stack
    return stack


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:  # noqa: A001 - the name of PyTorch
    """A range as long as the context; ``msg`` is formatted with what follows it."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
