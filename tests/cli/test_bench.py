# SPDX-License-Identifier: Apache-2.0
"""The benchmark: what it writes, which workloads it selects, and that it does not hide what went wrong."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.bench import main, options_from, selected
from benchmarks.engine import CPU_COMPILED, CPU_EAGER, Answer, Job, Runner, Way, Workload, deviation
from benchmarks.probes import Probe, Traffic
from benchmarks.results import Results, Row
from benchmarks.roofline import Phase, Roofs
from benchmarks.targets import targets
from examples.measure import synchronize

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
REPOSITORY = Path(__file__).resolve().parents[2]


class Doubling(Workload):
    """Twice a vector, or whatever ``function`` makes of it."""

    name = "doubling"

    def __init__(self, function: Callable[[Way, Tensor], Tensor] = lambda way, x: x + x) -> None:
        self.function = function

    def ways(self, device: torch.device) -> list[Way]:
        return [way for way in super().ways(device) if not way.compiled]

    def job(self, way: Way, dtype: torch.dtype) -> Job:
        x = torch.arange(1.0, 65.0, device=way.device, dtype=dtype)

        def run() -> Tensor:
            result = self.function(way, x)
            synchronize(way.device)
            return result

        def answer() -> Answer:
            return {"result": [run()]}

        return Job(answer, run)

    def phases(self, flops: int) -> list[Phase]:
        return [Phase(Traffic(reads=64 * 4, writes=64 * 4))]


def measured(workload: Workload, device: str) -> tuple[Results, Row, Row]:
    """The results of a run, its CPU row and its device row."""
    where = torch.device(device)
    runner = Runner(where, repeats=2, roofs=Roofs(where))
    host, ours = runner.measure("micro", workload)
    return Results({}, runner.rows), host, ours


def test_one_operator_writes_json_markdown_and_chart(device: str, tmp_path: Path) -> None:
    arguments = ["bench", "--only", "tiny add, finish", "--repeats", "1", "--output", str(tmp_path)]
    command = [sys.executable, "-m", "outboard.cli", *arguments]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    written = json.loads((tmp_path / "bench.json").read_text())
    rows = {row["way"]: row for row in written["rows"]}
    assert set(rows) == {CPU_EAGER, f"{device} eager"}
    for row in rows.values():
        assert row["status"] == "right"
        assert len(row["seconds"]) == 5 and all(seconds > 0 for seconds in row["seconds"])
    ours = rows[f"{device} eager"]
    assert ours["ratios"][CPU_EAGER] == pytest.approx(ours["median"] / rows[CPU_EAGER]["median"])
    assert written["targets"][0]["name"] == "tiny add, finish, against CPU eager"
    assert "tiny add, finish" in (tmp_path / "bench.md").read_text()
    assert (tmp_path / "bench.png").read_bytes().startswith(PNG_SIGNATURE)


def test_a_right_result(device: str) -> None:
    results, host, ours = measured(Doubling(), device)
    assert host.status == ours.status == "right"
    assert results.bad() == []
    assert host.ratios == {CPU_EAGER: 1.0}
    assert ours.floor == host.floor > 0


def test_a_wrong_result_is_told_and_counts_nowhere(device: str) -> None:
    def wrong_on_device(way: Way, x: Tensor) -> Tensor:
        return x + x + (0.0 if way.device.type == "cpu" else 1e-2)

    results, host, ours = measured(Doubling(wrong_on_device), device)
    assert (host.status, ours.status) == ("right", "WRONG")
    assert ours.ratios == {}
    assert "WRONG result" in results.bad()[0]


def test_nan_is_wrong(device: str) -> None:
    def nan_on_device(way: Way, x: Tensor) -> Tensor:
        return x + x if way.device.type == "cpu" else x * math.nan

    assert measured(Doubling(nan_on_device), device)[2].status == "WRONG"


@pytest.mark.parametrize("good_calls", [0, 3])
def test_a_failure_is_told_and_the_others_go_on(device: str, good_calls: int) -> None:
    calls = []

    def fails_on_device(way: Way, x: Tensor) -> Tensor:
        if way.device.type != "cpu":
            calls.append(way)
            if len(calls) > good_calls:
                raise RuntimeError("no such kernel")
        return x + x

    results, host, ours = measured(Doubling(fails_on_device), device)
    assert (host.status, ours.status) == ("right", "FAILED")
    assert host.seconds and not ours.seconds
    assert results.bad() == ["doubling, " + ours.way + ": FAILED with RuntimeError: no such kernel"]


def test_deviation_is_relative_to_all_tensors_together() -> None:
    exact = [torch.tensor([3.0], dtype=torch.float64), torch.tensor([4.0], dtype=torch.float64)]
    assert deviation([torch.tensor([3.0]), torch.tensor([4.5])], exact) == pytest.approx(0.1)
    with pytest.raises(ValueError):
        deviation([torch.tensor([3.0])], exact)


@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(64, 64),
        Traffic(64 * 1001, 0),
        Traffic(0, 64 * 1001),
        Traffic(64 * 100, 64 * 4001),
        Traffic(64 * 4001, 64 * 100),
        Traffic(64 * 4001, 64 * 3001, in_place=True),
        Traffic(3072 * 50, 3072 * 50, row=3072, table=3072 * 7),
    ],
    ids=str,
)
def test_any_amounts_can_be_moved(traffic: Traffic) -> None:
    assert traffic.scaled(1.0) == traffic
    probe = Probe(traffic, threads=2)
    try:
        first = probe.search(0.01)
        assert 0 < probe.search(0.01) <= first < 1.0
        assert probe.describe()
    finally:
        probe.close()


def test_more_takes_longer() -> None:
    roofs = Roofs(torch.device("cpu"))
    small, large = Phase(Traffic(reads=1 << 20)), Phase(Traffic(reads=1 << 30))  # as in benchmarks, a part is measured
    roofs.measure(torch.device("cpu"), [small, large])
    times = [roofs.floor(torch.device("cpu"), [phase]) for phase in (small, large)]
    assert 100 * times[0] < times[1]
    assert roofs.floor(torch.device("cpu"), [small, large]) == pytest.approx(sum(times))


def test_the_best_time_is_held_against_the_floors() -> None:
    row = Row("micro", "a", "ocl eager", [3.0, 2.0], best=1.5, floor=1.0, memory_floor=2.0)
    assert (row.over_floor, row.over_memory) == (1.5, 0.75)
    assert Row("micro", "a", "ocl eager", [3.0], best=1.5, floor=1.0).cells()[5:7] == ["-", "1.50"]


def test_two_floors_of_what_a_cache_holds() -> None:
    cpu, phase = torch.device("cpu"), Phase(Traffic(1 << 20, 1 << 20))
    large = phase.in_memory().traffic
    assert large == Traffic(96 << 20, 96 << 20)
    roofs = Roofs(cpu, moves={"cpu": {phase.traffic: (1.0, "a cache"), large: (480.0, "memory")}})
    assert (roofs.floor(cpu, [phase, phase]), roofs.memory_floor(cpu, [phase, phase])) == (2.0, 10.0)


def test_targets_relate_eager_to_eager_and_compiled_to_inductor() -> None:
    rows = [
        Row("models", "a", "ocl eager", [1.0], ratios={CPU_EAGER: 0.5, CPU_COMPILED: 0.9}),
        Row("models", "b", "ocl eager", [1.0], ratios={CPU_EAGER: 2.0, CPU_COMPILED: 0.9}),
        Row("models", "a", "ocl compiled", [1.0], ratios={CPU_EAGER: 0.1, CPU_COMPILED: 0.6}),
        Row("models", "b", "ocl compiled"),
        Row("gemm", "c", CPU_EAGER, [4.0]),
        Row("gemm", "c", "CPU oneDNN", [2.0]),
        Row("gemm", "c", "ocl eager", [2.5]),
    ]
    steps = {"ocl eager": {"step": 10.0, "device": 8.0, "token": 12.0, "overhead": 0.2, "beside": 0.33}}
    found = {target.name: target for target in targets(rows, "ocl", {}, steps)}
    decode = found["launch overhead of a decoding step, share of its time"]
    assert decode.value == 0.2 and not decode.met and decode.detail == "ocl eager"
    assert found["eager against CPU eager, geometric mean"].value == pytest.approx(1.0)
    assert found["eager against CPU eager, worst"].detail == "b"
    compiled = found["compiled against CPU Inductor, geometric mean"]
    assert compiled.value == pytest.approx(0.6) and compiled.detail == "1 of 2 model workloads"
    gemm = found["GEMM rate over the best library's, worst shape"]
    assert gemm.value == pytest.approx(0.8) and not gemm.met


def test_quick_leaves_out_what_takes_minutes() -> None:
    names = ["BERT-base forward, 4x128", "BERT-base AdamW step, 4x128"]
    assert selected("models", names, options_from(["--quick"])) == names[:1]
    assert selected("models", names, options_from(["--only", "*AdamW*"])) == names[1:]
    assert selected("models", names, options_from(["--sections", "micro"])) == []


@pytest.mark.parametrize("arguments", [["--repeats", "0"], ["--sections", "no-such-section"], ["--only"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


def test_outside_a_source_tree_the_command_says_where_to_go(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "outboard.cli", "bench", "--quick"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "Clone Outboard's source repository" in result.stderr


@pytest.mark.full("compiles two hundred kernels' graph three times")
def test_costs_of_launching_are_written(device: str, tmp_path: Path) -> None:
    arguments = ["--only", "200 small kernels", "--repeats", "1", "--output", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.bench", *arguments]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    chain = json.loads((tmp_path / "bench.json").read_text())["chain"]
    assert set(chain) == {"eager", "compiled", "compiled, reduce-overhead"}
    for times in chain.values():
        assert 0 < times["submitted"] <= times["finished"]
    assert "reduce-overhead" in (tmp_path / "bench.md").read_text()
