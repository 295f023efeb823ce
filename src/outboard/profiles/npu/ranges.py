# SPDX-License-Identifier: Apache-2.0
"""``torch.npu.mstx``: ranges of a program's own, which ``torch.profiler`` shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from outboard.device import ranges


class mstx:  # noqa: N801 - the extension's name
    """Marks and ranges by name. Streams are accepted and not recorded: a range is one of the host."""

    @staticmethod
    def mark(message: str = "") -> None:
        """A point in time."""
        ranges.mark(message)

    @staticmethod
    def range_start(message: str, stream: torch.Stream | None = None) -> int:
        """Begins a range, and returns the number by which :meth:`range_end` ends it."""
        return ranges.range_start(message)

    @staticmethod
    def range_end(range_id: int) -> None:
        """Ends a range; no-op for a number that names none."""
        ranges.range_end(range_id)

    @staticmethod
    def mstx_range(message: str, stream: torch.Stream | None = None) -> Callable[[Callable[..., Any]], Any]:
        """A decorator: each call of the function is a range."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.profiler.record_function(message)(function)

        return decorate
