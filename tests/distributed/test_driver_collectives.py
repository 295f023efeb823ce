# SPDX-License-Identifier: Apache-2.0
"""Collectives of the device's own driver, which the simulator has, between real processes."""

from __future__ import annotations

import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from processes import run_program

from outboard import drivers
from tests.conftest import FULL
from tests.distributed.launch import free_port, run_ranks, start


def strict_around_sim() -> dict[str, str]:
    return {"OUTBOARD_DRIVER": "strict", "OUTBOARD_STRICT_DRIVER": drivers.sim()}


@pytest.mark.parametrize("transport", ["driver", "gloo"])
def test_who_carries_out_what(transport: str) -> None:
    run_ranks("driver_collectives", OUTBOARD_DRIVER="sim", OUTBOARD_TRANSPORT=transport)


def test_within_the_contract() -> None:
    run_ranks("driver_collectives", **strict_around_sim())


def test_all_collectives() -> None:
    run_ranks("collectives", OUTBOARD_DRIVER="sim")


def test_long_tensors() -> None:
    run_ranks("staged", OUTBOARD_DRIVER="sim")


def run(program: str, fault: str, *killed: int, **environment: str) -> list[str]:
    """Runs a fault between two ranks, of which some are ``killed``; the others must end by themselves, and well."""
    group = {"OUTBOARD_DRIVER": "sim", "VARIANT": fault} | environment
    results = start(["-m", f"tests.distributed.programs.{program}"], 2, 150, **group)
    for rank, result in enumerate(results):
        wanted = -signal.SIGKILL if rank in killed else 0
        assert result.returncode == wanted, f"rank {rank}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return [result.stdout for result in results]


@pytest.mark.parametrize("fault", ["killed_peer", "stalled_peer"])
def test_lost_peers(fault: str) -> None:
    run("faults", fault, 1)


@pytest.mark.parametrize("fault", ["late_peer", "aborted", "wrong_world_size", "interrupted_messages"])
def test_faults_as_with_other_transports(fault: str) -> None:
    run("faults", fault)


def test_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run("faults", "port_in_use", MASTER_PORT=str(taken.getsockname()[1]))


@pytest.mark.parametrize("fault", ["mismatched_shapes", "mismatched_order"])
def test_mismatches_are_found_in_debug_mode(fault: str) -> None:
    run("faults", fault, TORCH_DISTRIBUTED_DEBUG="DETAIL")


@pytest.mark.parametrize("driver", ["sim", "strict"])
def test_what_ends_the_first_call(driver: str) -> None:
    """A timeout, an abort and Ctrl-C, each told to the rank that comes later."""
    run("driver_faults", "first_call", **(strict_around_sim() if driver == "strict" else {}))


def test_unlike_calls() -> None:
    run("driver_faults", "unlike_calls")


def test_a_part_that_the_driver_refuses() -> None:
    faults = Path(drivers.sim()).with_name("liboutboard_faults.so")
    run("driver_faults", "refused_call", OUTBOARD_DRIVER=str(faults), OUTBOARD_FAULTS_DRIVER=drivers.sim())


@pytest.mark.parametrize(
    ("fault", "killed"),
    [("lost_store", 0), ("stopped_in_a_call", 1), ("killed_before_first_call", 1), ("killed_before_later_call", 1)],
)
def test_peers_lost_without_a_word(fault: str, killed: int) -> None:
    run("driver_faults", fault, killed)


@pytest.mark.parametrize("fault", ["exits_in_first_call", "exits_in_later_call"])
def test_a_peer_that_exits_in_a_call(fault: str) -> None:
    run("driver_faults", fault)


def test_groups_come_and_go() -> None:
    run("driver_faults", "many_groups", OUTBOARD_TEST_GROUPS="500" if FULL else "20")


def test_groups_of_unlike_devices() -> None:
    """Ranks agree when the group is made: with one whose driver has no collectives, or those of another driver, they
    use the transport that every device can. A rank may use any of its devices, and keeps to it."""
    two = {"OUTBOARD_DRIVER": "sim", "OUTBOARD_NUM_DEVICES": "2"}
    ranks = [two, {"OUTBOARD_DRIVER": "sim"}, strict_around_sim(), {"OUTBOARD_DRIVER": "host"}]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(ranks))}

    def one(rank: int) -> CompletedProcess[str]:
        program = ["-m", "tests.distributed.programs.unlike_devices"]
        return run_program(program, environment=group | ranks[rank] | {"RANK": str(rank)}, timeout=200)

    with ThreadPoolExecutor(len(ranks)) as pool:
        for rank, result in enumerate(pool.map(one, range(len(ranks)))):
            assert result.returncode == 0, f"rank {rank}: {result.stdout}\n{result.stderr}"
