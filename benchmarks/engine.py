# SPDX-License-Identifier: Apache-2.0
"""One workload, several ways: first every way's result is checked against float64, then all ways are timed in turns."""

from __future__ import annotations

import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.results import Row
from benchmarks.roofline import Phase, Roofs
from examples.measure import format_seconds, interleave, synchronize
from examples.variant import CPU

CPU_EAGER, CPU_COMPILED = "CPU eager", "CPU Inductor"

# A way may be this many times as far from float64 as CPU eager is.
ERROR_FACTOR = 3.0
# A scalar, or a sum of few terms, can be right to the last bit on the CPU by luck. Below this relative error nobody is
# asked for better; one wrong element of typical size among 16 million still is 25 times as large.
ERROR_FLOOR = 1e-5

#: What a way computed, by name. All tensors of a name are compared as one vector.
Answer = dict[str, list[Tensor]]


@dataclass(frozen=True)
class Way:
    """A device, and whether ``torch.compile`` is used on it."""

    name: str
    device: torch.device
    compiled: bool = False


def all_ways(device: torch.device) -> list[Way]:
    """CPU and device, each eager and compiled; CPU eager first, because it is the yardstick."""
    return [
        Way(CPU_EAGER, CPU),
        Way(CPU_COMPILED, CPU, compiled=True),
        Way(f"{device.type} eager", device),
        Way(f"{device.type} compiled", device, compiled=True),
    ]


@dataclass(frozen=True)
class Job:
    """A workload made ready on one way.

    ``answer`` is called once, on fresh state, and returns what is compared. ``run`` is what is timed; it waits for its
    own results, unless the workload measures only submission.
    """

    answer: Callable[[], Answer]
    run: Callable[[], object]


class Workload(ABC):
    """Something to compute on each way from the same weights and inputs."""

    #: Operations in one run; times are given per operation.
    calls = 1
    #: Times are compared with a bandwidth floor that counts as a target.
    memory_bound = False
    #: How many times as many repeats as a model; short runs need more and cost less.
    more_repeats = 1
    #: Seconds for which a way runs untimed before each timed run. Short runs would otherwise meet caches that the way
    #: before them left behind, and processors that have slept.
    rehearsal = 0.0
    #: Seconds of silence before a way's turn. OpenMP's threads, which compute for the CPU, look for more work for
    #: milliseconds after they have done theirs, and would hold the cores while the next way is timed.
    silence = 0.02

    name: str

    def ways(self, device: torch.device) -> list[Way]:
        """The ways to measure, CPU eager first."""
        return all_ways(device)

    @abstractmethod
    def job(self, way: Way, dtype: torch.dtype) -> Job:
        """Copies weights and inputs to the way's device. float64 is asked for on CPU eager only."""

    @abstractmethod
    def phases(self, flops: int) -> list[Phase]:
        """What has to be moved and computed at least, one after the other. ``flops`` were counted in one answer."""


_BOUND = "memory"  # takes turns with the ways


@dataclass
class Runner:
    """Measures workloads and collects rows. ``repeats`` is the number of timed runs of a model."""

    device: torch.device
    repeats: int
    roofs: Roofs
    rows: list[Row] = field(default_factory=list)
    _floors: list[tuple[Row, torch.device, Sequence[Phase], int]] = field(default_factory=list)

    def measure(self, section: str, workload: Workload) -> list[Row]:
        """Adds and returns the workload's rows. A way that raises gives a row that says so, the others go on."""
        _progress(f"{workload.name}: float64 reference")
        exact, flops = _reference(workload)
        attempts = [_Attempt(way, Row(section, workload.name, way.name)) for way in workload.ways(self.device)]
        limits: dict[str, float] = {}
        for attempt in attempts:
            limits = attempt.prepare(workload, exact, limits)
        del exact
        phases = workload.phases(flops)
        self._time(workload, phases, [attempt for attempt in attempts if attempt.works])
        self._set_floors(workload, phases, attempts)
        rows = [attempt.row for attempt in attempts]
        _set_ratios(rows)
        self.rows += rows
        torch._dynamo.reset()
        return rows

    def _set_floors(self, workload: Workload, phases: Sequence[Phase], attempts: Sequence[_Attempt]) -> None:
        for device in {attempt.way.device for attempt in attempts}:
            self.roofs.measure(device, phases)
        for attempt in attempts:
            attempt.row.memory_bound = workload.memory_bound
            self._floors.append((attempt.row, attempt.way.device, phases, workload.calls))
        # All rows again: the roofs may have risen.
        for row, device, phases_of_row, calls in self._floors:
            row.floor = self.roofs.floor(device, phases_of_row) / calls
            if row.memory_bound:
                row.memory_floor = self.roofs.memory_floor(device, phases_of_row) / calls

    def _time(self, workload: Workload, phases: Sequence[Phase], attempts: Sequence[_Attempt]) -> None:
        repeats = self.repeats * workload.more_repeats
        _progress(f"{workload.name}: timing {repeats} rounds")
        calls = {attempt.way.name: partial(attempt.run, workload.calls) for attempt in attempts}
        before = {attempt.way.name: attempt.settle(workload) for attempt in attempts}
        # What memory gives changes with what others do on the machine: the bound is measured in the same rounds.
        bound = [*phases, *(phase.in_memory() for phase in phases)] if workload.memory_bound else []
        with self.roofs.searching([attempt.way.device for attempt in attempts], bound) as search:
            timings = interleave({**calls, _BOUND: search}, repeats, warm_up=2, before=before)
        for attempt in attempts:
            if attempt.works:
                times = timings[attempt.way.name].seconds
                attempt.row.seconds = [seconds / workload.calls for seconds in times]
        _progress("")


class _Attempt:
    """One way through one workload. After a failure it does nothing more."""

    def __init__(self, way: Way, row: Row) -> None:
        self.way, self.row = way, row
        self.job: Job | None = None

    @property
    def works(self) -> bool:
        return self.job is not None

    def prepare(self, workload: Workload, exact: Answer, limits: dict[str, float]) -> dict[str, float]:
        """Makes the job, calls it once, compares; returns the limits for the ways that follow."""
        _progress(f"{workload.name}: {self.way.name}, first call")
        start = time.perf_counter()
        try:
            self.job = workload.job(self.way, torch.float32)
            answer = self.job.answer()
        except Exception:  # noqa: BLE001 - whatever one way raises, the others are still to be measured
            self._fail()
            return limits
        self.row.first_seconds = time.perf_counter() - start
        self.row.errors = {name: deviation(answer[name], exact[name]) for name in exact}
        if not limits:
            limits = {name: max(ERROR_FACTOR * error, ERROR_FLOOR) for name, error in self.row.errors.items()}
        self.row.limits = limits
        _progress("")
        print(f"  {workload.name}, {self.way.name}: first call {format_seconds(self.row.first_seconds)}", flush=True)
        return limits

    def run(self, calls: int) -> None:
        """Runs once, which counts for the best time of ``calls`` operations."""
        if self.job is None:
            return
        start = time.perf_counter()
        try:
            self.job.run()
            self.row.best = min(self.row.best, (time.perf_counter() - start) / calls)
        except Exception:  # noqa: BLE001 - as above
            self._fail()

    def settle(self, workload: Workload) -> Callable[[], None]:
        """What happens before each timed run: the ways before it come to rest, this one gets into its stride, and the
        device becomes idle."""

        def settle() -> None:
            time.sleep(workload.silence)
            end = time.perf_counter() + workload.rehearsal
            while self.works and time.perf_counter() < end:
                self.run(workload.calls)
            if self.works:
                synchronize(self.way.device)

        return settle

    def _fail(self) -> None:
        self.job = None
        self.row.failure = traceback.format_exc()
        _progress("")
        print(f"FAILED {self.row.workload}, {self.way.name}\n{self.row.failure}", file=sys.stderr, flush=True)


def deviation(values: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """2-norm of the difference relative to the 2-norm of the exact values, over all tensors as one vector."""
    difference = sum(
        (value.detach().cpu().double() - right).square().sum().item()
        for value, right in zip(values, exact, strict=True)
    )
    size = sum(right.square().sum().item() for right in exact)
    return float((difference / size) ** 0.5)


def _reference(workload: Workload) -> tuple[Answer, int]:
    """The answer in float64 and the floating-point operations that it took."""
    job = workload.job(Way(CPU_EAGER, CPU), torch.float64)
    with FlopCounterMode(display=False) as counter:
        answer = job.answer()
    exact = {name: [value.detach().double() for value in values] for name, values in answer.items()}
    return exact, counter.get_total_flops()


def _set_ratios(rows: Sequence[Row]) -> None:
    """Relates each row to CPU eager and to CPU Inductor, where these were measured."""
    medians = {row.way: row.median for row in rows if row.good}
    for row in rows:
        if not row.good:
            continue
        for base in (CPU_EAGER, CPU_COMPILED):
            if base in medians:
                row.ratios[base] = row.median / medians[base]


def _progress(text: str) -> None:
    """Shows, on a terminal only, what is going on; the empty text clears the line."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)
