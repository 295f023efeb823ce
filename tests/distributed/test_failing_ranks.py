# SPDX-License-Identifier: Apache-2.0
"""Groups in which something goes wrong: a clear error within the timeout on every rank, and nobody hangs."""

from __future__ import annotations

import signal
import socket

import pytest

from tests.conftest import FULL
from tests.distributed.launch import start

PROGRAM = ["-m", "tests.distributed.programs.faults"]


def run(fault: str, killed: tuple[int, ...] = (), **environment: str) -> list[str]:
    """Runs a fault between two ranks, of which some are ``killed``; the others must end by themselves, and well."""
    results = start(PROGRAM, 2, timeout=150, VARIANT=fault, **environment)
    for rank, result in enumerate(results):
        wanted = -signal.SIGKILL if rank in killed else 0
        assert result.returncode == wanted, f"rank {rank}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return [result.stdout for result in results]


@pytest.mark.parametrize(
    ("fault", "shared_memory"), [("killed_peer", "1"), ("killed_peer", "0"), ("stalled_peer", "1")]
)
def test_lost_peers(fault: str, shared_memory: str) -> None:
    run(fault, killed=(1,), OUTBOARD_SHARED_MEMORY=shared_memory)


@pytest.mark.parametrize(
    "fault", ["late_peer", "aborted", "wrong_world_size", "failed_kernel", "unlike_calls", "interrupted"]
)
def test_faults(fault: str) -> None:
    run(fault)


@pytest.mark.parametrize("shared_memory", ["1", "0"])
def test_ctrl_c_ends_waits_for_messages(shared_memory: str) -> None:
    run("interrupted_messages", OUTBOARD_SHARED_MEMORY=shared_memory)


@pytest.mark.parametrize("fault", ["mismatched_shapes", "mismatched_order"])
def test_mismatches_are_found_in_debug_mode(fault: str) -> None:
    run(fault, TORCH_DISTRIBUTED_DEBUG="DETAIL")


@pytest.mark.parametrize("driver", ["host", "strict"])
def test_unlike_sizes_over_sockets(driver: str) -> None:
    """gloo would end the process of a rank that gets too much, and leave in place what another one lacks."""
    run("unlike_sizes", OUTBOARD_SHARED_MEMORY="0", TORCH_DISTRIBUTED_DEBUG="DETAIL", OUTBOARD_DRIVER=driver)


@pytest.mark.parametrize("driver", ["host", "strict"])
def test_messages_of_unlike_lengths(driver: str) -> None:
    run("unlike_messages", OUTBOARD_DRIVER=driver)


def test_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run("port_in_use", MASTER_PORT=str(taken.getsockname()[1]))


def test_groups_come_and_go() -> None:
    run("many_groups", OUTBOARD_TEST_GROUPS="500" if FULL else "40")
