# SPDX-License-Identifier: Apache-2.0
"""The device's backend of torch.distributed: every collective, between real processes."""

from __future__ import annotations

import pytest

from tests.distributed.launch import run_ranks, start


def test_collectives_of_two_ranks() -> None:
    run_ranks("collectives")


def test_collectives_without_shared_memory() -> None:
    run_ranks("collectives", OUTBOARD_SHARED_MEMORY="0")


@pytest.mark.full("as with two ranks, but slower")
def test_collectives_of_four_ranks() -> None:
    run_ranks("collectives", ranks=4)


def test_collectives_on_a_discrete_device() -> None:
    run_ranks("collectives", OUTBOARD_DRIVER="strict")


@pytest.mark.parametrize(
    ("driver", "shared_memory"),
    [
        ("host", "1"),
        ("strict", "1"),
        pytest.param("strict", "0", marks=pytest.mark.full("as through shared memory, but slower")),
    ],
)
def test_long_tensors_go_in_parts(driver: str, shared_memory: str) -> None:
    run_ranks("staged", OUTBOARD_DRIVER=driver, OUTBOARD_SHARED_MEMORY=shared_memory)


@pytest.mark.parametrize("profile", ["npu", "rbln", "ve"])
def test_backends_of_profiles(profile: str) -> None:
    run_ranks("collectives", OUTBOARD_PROFILE=profile, VARIANT="backend")


def test_collectives_as_users_of_rbln_write_them() -> None:
    cards = {"OUTBOARD_PROFILE": "rbln", "OUTBOARD_NUM_DEVICES": "2", "RBLN_VISIBLE_DEVICES": "0,1"}
    for rank, text in enumerate(run_ranks("cards", **cards)):
        assert text.splitlines()[-1] == f"rank {rank} of 2: done"


@pytest.mark.parametrize(("stages", "parts"), [(2, 1), (1, 2), (2, 2)])
def test_stages_and_parts_as_users_of_rbln_write_them(stages: int, parts: int) -> None:
    """Pipeline and tensor parallelism, with two and four ranks."""
    numbers = ",".join(map(str, range(stages * parts)))
    cards = {
        "OUTBOARD_PROFILE": "rbln",
        "OUTBOARD_NUM_DEVICES": str(stages * parts),
        "RBLN_VISIBLE_DEVICES": numbers,
    }
    program = ["-m", "tests.distributed.programs.grid", str(stages), str(parts)]
    for rank, result in enumerate(start(program, stages * parts, **cards)):
        assert result.returncode == 0, f"rank {rank}: {result.stdout}\n{result.stderr}"
        assert result.stdout.splitlines()[-1] == f"rank {rank}: done"
