# SPDX-License-Identifier: Apache-2.0
"""What calls cost, alone or as alternatives side by side, and the tables that show it."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch


@dataclass
class Timing:
    """Seconds per call, in the order measured."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a fraction of the median: small means a steady machine."""
        if len(self.seconds) < 4:
            return (max(self.seconds) - min(self.seconds)) / 2 / self.median
        quartiles = statistics.quantiles(self.seconds, n=4)
        return (quartiles[2] - quartiles[0]) / 2 / self.median

    def __str__(self) -> str:
        return f"{format_seconds(self.median)} ±{100 * self.spread:.0f} %"


def format_seconds(seconds: float) -> str:
    """A duration with a unit that keeps three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished all queued work. The CPU has no queue, nor what has no data."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds until all work of a call on the current accelerator is finished."""
    torch.accelerator.synchronize()
    start = time.perf_counter()
    call()
    torch.accelerator.synchronize()
    return time.perf_counter() - start


def peak_of(call: Callable[[], object]) -> int:
    """Bytes of the accelerator's memory that a call takes at most in steady state, beyond those held between calls."""
    for _ in range(3):
        call()
    gc.collect()
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    call()
    torch.accelerator.synchronize()
    return int(torch.accelerator.max_memory_allocated() - before)


def interleave(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int = 1,
    before: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, Timing]:
    """Times each call ``repeats`` times, taking turns, so that a change of the machine's speed hits all alike.

    Each call must wait for its own results (see ``synchronize``). ``before`` has what to do, untimed, before each timed
    call of a name.
    """
    before = before or {}
    for call in calls.values():
        for _ in range(warm_up):
            call()
    timings = {name: Timing() for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            if name in before:
                before[name]()
            start = time.perf_counter()
            call()
            timings[name].seconds.append(time.perf_counter() - start)
    return timings


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Text columns: the first flush left, the others flush right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        return "  ".join([first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))])

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])
