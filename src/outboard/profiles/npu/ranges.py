# SPDX-License-Identifier: Apache-2.0
"""``torch.npu.mstx``: ranges of a program's own, which ``torch.profiler`` shows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

_open: dict[int, torch.profiler.record_function] = {}
_numbers = itertools.count(1)


class mstx:  # noqa: N801 - the extension's name
    """Marks and ranges by name. Streams are accepted and not recorded: a range is one of the host."""

    @staticmethod
    def mark(message: str = "") -> None:
        """A point in time."""
        with torch.profiler.record_function(message):
            pass

    @staticmethod
    def range_start(message: str, stream: torch.Stream | None = None) -> int:
        """Begins a range, and returns the number by which :meth:`range_end` ends it."""
        number = next(_numbers)
        _open[number] = torch.profiler.record_function(message)
        _open[number].__enter__()  # type: ignore[no-untyped-call]
        return number

    @staticmethod
    def range_end(range_id: int) -> None:
        """Ends a range; no-op for a number that names none."""
        if (opened := _open.pop(range_id, None)) is not None:
            opened.__exit__(None, None, None)

    @staticmethod
    def mstx_range(message: str, stream: torch.Stream | None = None) -> Callable[[Callable[..., Any]], Any]:
        """A decorator: each call of the function is a range."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.profiler.record_function(message)(function)

        return decorate
