# SPDX-License-Identifier: Apache-2.0
"""The cost model of collectives and of training steps: known parameters come out again, and limits are right."""

from __future__ import annotations

import json
import os
import random

import pytest
from processes import run_program

from examples.size_a_cluster import __main__ as size_a_cluster
from examples.size_a_cluster import costs, step_times
from examples.size_a_cluster.costs import ALGORITHMS, DEVICES, Cluster, Link, Sample
from examples.size_a_cluster.step_times import Transformer

MODEL = Transformer(layers=32, width=4096, hidden=14336, vocabulary=128256, sequence=8192)


def synthetic(collective: str, link: Link, noise: float = 0.0) -> list[Sample]:
    generator = random.Random(7)
    return [
        Sample(ranks, size, link.time(collective, ranks, size) * (1 + noise * generator.uniform(-1, 1)))
        for ranks in (2, 3, 4, 8, 16)
        for size in (1 << 10, 1 << 16, 1 << 20, 1 << 24)
    ]


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_fit_recovers_what_made_the_samples(collective: str) -> None:
    link = Link(alpha=50e-6, beta=1 / 2.5e9)
    found = costs.fit(collective, synthetic(collective, link))
    assert found.alpha == pytest.approx(link.alpha, rel=1e-9)
    assert found.beta == pytest.approx(link.beta, rel=1e-9)


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_fit_bears_noise(collective: str) -> None:
    link = Link(alpha=50e-6, beta=1 / 2.5e9)
    samples = synthetic(collective, link, noise=0.1)
    found = costs.fit(collective, samples)
    assert found.alpha == pytest.approx(link.alpha, rel=0.1)
    assert found.beta == pytest.approx(link.beta, rel=0.1)
    assert 0 < costs.mean_error(costs.errors(collective, found, samples)) < 0.1


def test_fit_is_never_negative() -> None:
    growing = [Sample(2, size, (size / 1e6) ** 2) for size in (1 << 20, 1 << 24)]
    assert costs.fit("all_reduce", growing) == Link(0.0, pytest.approx(costs.fit("all_reduce", growing).beta))
    shrinking = [Sample(2, 1 << 10, 1.0), Sample(2, 1 << 24, 0.1)]
    assert costs.fit("all_reduce", shrinking).beta == 0.0


def test_fit_wants_several_sizes() -> None:
    with pytest.raises(ValueError, match="samples of several sizes are needed"):
        costs.fit("send_recv", [Sample(2, 1024, 1e-3), Sample(4, 1024, 1e-3)])


def test_costs_of_algorithms() -> None:
    link = Link(alpha=1.0, beta=1.0)
    assert link.time("all_reduce", 4, 8) == 6 + 12
    assert link.time("all_gather", 4, 8) == 3 + 6
    assert link.time("broadcast", 8, 1) == 3 + 6
    assert link.time("all_reduce", 1, 8) == 0


def test_devices_are_data_sheets() -> None:
    h100 = DEVICES["h100"]
    assert (h100.flops, h100.bandwidth, h100.memory) == (989.4e12, 3.35e12, 80e9)
    assert 1 / h100.inside.beta == pytest.approx(450e9)
    assert all(device.source and device.inside.beta < device.outside.beta for device in DEVICES.values())


def test_collectives_of_two_levels() -> None:
    device = DEVICES["h100"]
    cluster = Cluster(device, 64)
    assert cluster.collective("all_reduce", 8, 1e9) == device.inside.time("all_reduce", 8, 1e9)
    expected = device.inside.time("all_reduce", 8, 1e9) + device.outside.time("all_reduce", 8, 1e9 / 8)
    assert cluster.collective("all_reduce", 64, 1e9) == pytest.approx(expected)
    # Eight apart: a device in each machine.
    assert cluster.collective("all_gather", 8, 1e9, stride=8) == device.outside.time("all_gather", 8, 1e9)
    assert cluster.collective("broadcast", 64, 1e9) == device.outside.time("broadcast", 64, 1e9)


def test_a_model_counts_its_parameters() -> None:
    assert MODEL.parameters / 1e9 == pytest.approx(8.8, abs=0.1)
    # Six FLOPs a parameter and token, in the textbook's count of a forward and a backward pass.
    assert 3 * MODEL.forward_flops(1) > 6 * MODEL.layers * MODEL.layer_parameters


def test_one_device_waits_for_nobody() -> None:
    alone = Cluster(DEVICES["h100"], 1)
    for strategy in (step_times.ddp, step_times.fsdp, step_times.tensor):
        step = strategy(MODEL, alone, 8192)
        assert step.exposed == 0
        assert step.seconds == step.compute


def test_steps_on_a_slow_network_wait() -> None:
    fast, slow = Cluster(DEVICES["h100"], 64), Cluster(DEVICES["h100"], 1024)
    assert step_times.ddp(MODEL, slow, 512).exposed > step_times.ddp(MODEL, fast, 512).exposed > 0
    assert step_times.fsdp(MODEL, slow, 512).exposed > step_times.fsdp(MODEL, fast, 512).exposed > 0
    # A part of the parameters on each: what fits is the difference between the two.
    assert step_times.fsdp(MODEL, fast, 8192).memory < 80e9 < step_times.ddp(MODEL, fast, 8192).memory


def test_tensor_parallelism_divides_work_and_not_sums() -> None:
    two, eight = (step_times.tensor(MODEL, Cluster(DEVICES["h100"], count), 8192) for count in (2, 8))
    assert eight.compute < two.compute / 3
    assert eight.exposed > two.exposed
    with pytest.raises(ValueError, match="3 does not divide 8 devices"):
        step_times.fsdp(MODEL, Cluster(DEVICES["h100"], 8), 8192, split=3)


def test_a_ring_that_was_measured_exactly_is_predicted_exactly() -> None:
    link = Link(alpha=1e-3, beta=4e-8)
    samples = [
        {"collective": name, "ranks": s.ranks, "bytes": s.size, "seconds": s.seconds}
        for name in ALGORITHMS
        for s in synthetic(name, link)
    ]
    for _, errors in size_a_cluster.held_out({"samples": samples}).values():
        assert max(map(abs, errors.values())) < 1e-9
    step = {"ranks": 4, "alone": 0.5, "bytes": 4 << 20, "seconds": 1.0}
    expected = 0.5 + link.time("all_reduce", 4, 1 << 20) + link.time("all_reduce", 4, 3 << 20)
    assert size_a_cluster.predicted_step(step, link) == pytest.approx(expected)


def test_example_runs_on_stored_measurements(tmp_path: os.PathLike[str]) -> None:
    picture = os.path.join(tmp_path, "steps.png")
    run = run_program(["-m", "examples.size_a_cluster", "--device", "mi300x", "--output", picture], timeout=60)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert sum(line.startswith(("| 8 |", "| 1,024 |")) for line in lines) >= 2
    assert [line for line in lines if line.startswith("| all_reduce | ring |")]
    with open(picture, "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    measured = json.loads(size_a_cluster.MEASURED.read_text())
    assert {row["ranks"] for row in measured["samples"]} == {2, 4, 8}
    assert [step["ranks"] for step in measured["steps"]] == [1, 2, 4, 8]
