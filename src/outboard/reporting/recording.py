# SPDX-License-Identifier: Apache-2.0
"""Runs a program under PyTorch's profiler and gathers what a report shows."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import profile

from outboard.reporting import roofline
from outboard.reporting.findings import Finding, find
from outboard.reporting.watch import Watch

#: Events of memory that are kept.
_MOST_EVENTS = 1 << 20
#: How PyTorch's profiler calls what compiling an operator is (csrc/torch/eager/eager_call.cpp).
_COMPILING = "outboard::compile"


@dataclass
class OperatorTime:
    """What calls of an operator that had kernels took in all; times are seconds."""

    name: str
    calls: int = 0
    on_device: float = 0.0
    on_host: float = 0.0
    floor: float | None = 0.0  # of those calls; None where it is not known


@dataclass
class KernelTime:
    """What launches of a kernel took in all."""

    name: str
    launches: int = 0
    on_device: float = 0.0
    operators: set[str] = field(default_factory=set)


@dataclass
class Report:
    """All that the page shows. Times are seconds, sizes bytes."""

    command: str
    device: str
    exit_code: int = 0
    wall: float = 0.0
    roof: roofline.Roof | None = None
    operators: list[OperatorTime] = field(default_factory=list)
    kernels: list[KernelTime] = field(default_factory=list)
    moves: list[KernelTime] = field(default_factory=list)
    compiling: list[tuple[str, int, float]] = field(default_factory=list)
    compile_stats: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)  # since the start; in use
    memory_limit: int = 0

    @property
    def busy(self) -> float:
        """Seconds in which the device computed."""
        return sum(kernel.on_device for kernel in self.kernels)

    @property
    def peak(self) -> int:
        """The most memory in use."""
        return max((size for _, size in self.memory), default=0)


def record(program: Callable[[], int], command: str, trace: Path | None = None) -> Report:
    """Runs a program, which returns its exit code, and tells what it did on device 0. ``trace``: a file for the
    profiler's own trace, too."""
    device = torch.device(torch._C._get_privateuse1_backend_name(), 0)
    module = torch.get_device_module(device)
    report = Report(command, f"{device}: {module.get_device_name(device)}")
    report.memory_limit = module.mem_get_info(device)[1]
    report.roof = roofline.measure(device)
    compiled = module.compile_stats()
    threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    profiler = profile(record_shapes=True, profile_memory=True, experimental_config=threads)
    # Profilers take a while to begin and to end, which is no time of the program's.
    with Watch() as watch, profiler as profiled, _memory(module, report):
        begin = time.perf_counter()
        report.exit_code = program()
        module.synchronize()
        report.wall = time.perf_counter() - begin
    report.compile_stats = {key: value - compiled.get(key, 0) for key, value in module.compile_stats().items()}
    events = list(profiled.events())
    report.findings = find(events, watch.notes, report.wall)
    _count(report, events, device)
    if trace is not None:
        profiled.export_chrome_trace(str(trace))
    return report


# ---- time ----


def _count(report: Report, events: list[Any], device: torch.device) -> None:
    """Adds up the profiler's events by operator and by kernel."""
    assert report.roof is not None
    own = [event for event in events if event.device_type == DeviceType.CPU and event.kernels]
    multiplied = {event.input_dtypes[0] for event in own if event.input_dtypes and roofline.flops_of(event)}
    report.roof = roofline.with_peaks(report.roof, device, multiplied)
    operators: dict[str, OperatorTime] = {}
    for event in own:
        name = _short(event.name)
        operator = operators.setdefault(name, OperatorTime(name))
        operator.calls += 1
        operator.on_host += event.self_cpu_time_total / 1e6
        computed = sum(kernel.duration for kernel in event.kernels) / 1e6
        operator.on_device += computed
        floor = _floor(report.roof, event)
        operator.floor = None if floor is None or operator.floor is None else operator.floor + min(floor, computed)
    report.operators = sorted(operators.values(), key=lambda one: -one.on_device)
    names = {event.external_id: _short(event.name) for event in own}
    report.kernels = _kernels(events, names, {"kernel"})
    report.moves = _kernels(events, names, {"gpu_memcpy", "gpu_memset"})
    report.compiling = _compiling(events)


def _kernels(events: list[Any], operators: dict[int, str], types: set[str]) -> list[KernelTime]:
    """What the device did of some types, with the names of the operators that asked for it, where one did."""
    totals: dict[str, KernelTime] = {}
    for event in events:
        if event.device_type != DeviceType.PrivateUse1 or event.activity_type not in types:
            continue
        total = totals.setdefault(event.name, KernelTime(event.name))
        total.launches += 1
        total.on_device += event.time_range.elapsed_us() / 1e6
        if (name := operators.get(event.linked_correlation_id)) is not None:
            total.operators.add(name)
    return sorted(totals.values(), key=lambda one: -one.on_device)


def _floor(roof: roofline.Roof, event: Any) -> float | None:
    """An operator that reads a part of its inputs alone may be faster: the caller takes the less of both."""
    if not event.input_shapes or not event.name.startswith("aten::"):
        return None
    return roof.floor(roofline.bytes_moved(event), roofline.flops_of(event), (event.input_dtypes or [""])[0])


def _compiling(events: list[Any]) -> list[tuple[str, int, float]]:
    totals: dict[str, list[float]] = collections.defaultdict(list)
    for event in events:
        if event.name == _COMPILING:
            caller = event.cpu_parent.name if event.cpu_parent is not None else "a thread of its own"
            totals[caller].append(event.cpu_time_total / 1e6)
    return sorted(((name, len(times), sum(times)) for name, times in totals.items()), key=lambda one: -one[2])


def _short(name: str) -> str:
    """Graphs of ``torch.compile`` have names of a hundred characters."""
    return "torch.compile: " + name.split()[2][:12] if name.startswith("## Call CompiledFxGraph") else name


# ---- memory ----


@contextlib.contextmanager
def _memory(module: Any, report: Report) -> Iterator[None]:
    """Fills in the memory in use after each change."""
    in_use = module.memory_stats(0).get("active.current", 0)
    module.memory._record_memory_history(context=None, max_entries=_MOST_EVENTS, device=0, clear_history=True)
    start = time.time()
    yield
    entries = module.memory._snapshot(device=0)["device_traces"][0]
    module.memory._record_memory_history(None, device=0)
    changes = [(entry["time_us"] / 1e6, _change(entry)) for entry in entries]
    if len(entries) == _MOST_EVENTS:  # the beginning is lost: count from the end
        in_use = module.memory_stats(0).get("active.current", 0) - sum(size for _, size in changes)
    report.memory.append((0.0, in_use))
    for moment, size in changes:
        in_use += size
        report.memory.append((moment - start, in_use))


def _change(entry: dict[str, Any]) -> int:
    sign = {"alloc": 1, "free_completed": -1}.get(entry["action"], 0)
    return sign * int(entry["size"])
