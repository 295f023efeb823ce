# SPDX-License-Identifier: Apache-2.0
"""What the device is to reach, computed from the rows of a run. A target whose rows were not measured is left out."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engine import CPU_COMPILED, CPU_EAGER
from benchmarks.micro import FINISH, GEMM_LIBRARIES, SUBMIT
from benchmarks.results import Row, Target, geometric_mean
from benchmarks.startup import BERT, RESNET


def targets(
    rows: Sequence[Row],
    device: str,
    startup: dict[str, dict[str, dict[str, float]]],
    decode: dict[str, dict[str, float]] | None = None,
) -> list[Target]:
    """All targets that this run can judge."""
    eager = [row for row in rows if row.way == f"{device} eager"]
    compiled = [row for row in rows if row.way == f"{device} compiled"]
    return [
        *_models("eager against CPU eager", _section(eager, "models"), CPU_EAGER, 0.65),
        *_models("compiled against CPU Inductor", _section(compiled, "models"), CPU_COMPILED, 0.70),
        *_memory_bound(_section(eager, "micro")),
        *_gemm(_section(rows, "gemm"), device),
        *_tiny(eager),
        *_decode(decode or {}),
        *_startup(startup, device),
    ]


def _section(rows: Sequence[Row], section: str) -> list[Row]:
    return [row for row in rows if row.section == section]


def _models(name: str, rows: Sequence[Row], base: str, limit: float) -> list[Target]:
    good = {row.workload: row.ratios[base] for row in rows if base in row.ratios}
    if not good:
        return []
    worst = max(good, key=lambda workload: good[workload])
    count = f"{len(good)} of {len(rows)} model workloads"
    return [
        Target(f"{name}, geometric mean", geometric_mean(list(good.values())), limit, count),
        Target(f"{name}, worst", good[worst], 1.0, worst),
    ]


def _memory_bound(rows: Sequence[Row]) -> list[Target]:
    bound = [row for row in rows if row.memory_bound and row.good]
    if not bound:
        return []
    memory = max(bound, key=lambda row: row.over_memory)
    caches = max(bound, key=lambda row: row.over_floor)
    return [
        Target("memory-bound operators over memory's bandwidth, worst", memory.over_memory, 1.15, memory.workload),
        Target("memory-bound operators over that of caches, worst", caches.over_floor, 1.15, caches.workload),
    ]


def _gemm(rows: Sequence[Row], device: str) -> list[Target]:
    shares: dict[str, float] = {}
    for workload in dict.fromkeys(row.workload for row in rows):
        mine = {row.way: row.median for row in rows if row.workload == workload and row.good}
        libraries = [mine[library] for library in GEMM_LIBRARIES if library in mine]
        if libraries and f"{device} eager" in mine:
            shares[workload] = min(libraries) / mine[f"{device} eager"]
    if not shares:
        return []
    worst = min(shares, key=lambda workload: shares[workload])
    return [Target("GEMM rate over the best library's, worst shape", shares[worst], 0.85, worst, at_least=True)]


def _tiny(rows: Sequence[Row]) -> list[Target]:
    limits = {SUBMIT: 1.0, FINISH: 1.5}
    return [
        Target(f"{row.workload}, against CPU eager", row.ratios[CPU_EAGER], limits[row.workload])
        for row in rows
        if row.workload in limits and CPU_EAGER in row.ratios
    ]


def _decode(decode: dict[str, dict[str, float]]) -> list[Target]:
    name = "launch overhead of a decoding step, share of its time"
    return [Target(name, times["overhead"], 0.15, way) for way, times in decode.items()]


def _startup(startup: dict[str, dict[str, dict[str, float]]], device: str) -> list[Target]:
    found = []
    cold_name, warm_name = "seconds to the first result, empty caches", "seconds of the first call over a steady one"
    cold_limits = {RESNET: 15.0, BERT: 25.0}
    for job, ways in startup.items():
        for way, times in ways.items():
            if not way.startswith(device):
                continue
            if way.endswith("cold") and job in cold_limits:
                found.append(Target(cold_name, times["process"], cold_limits[job], f"{job}, {way}"))
            if way.endswith("warm"):
                overhead = times["first"] - times["steady"]
                found.append(Target(warm_name, overhead, 1.0, f"{job}, {way}"))
    return found
