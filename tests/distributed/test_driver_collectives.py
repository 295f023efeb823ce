# SPDX-License-Identifier: Apache-2.0
"""Collectives of the device's own driver, which the simulator has, between real processes."""

from __future__ import annotations

import signal

import pytest

from outboard import drivers
from tests.distributed.launch import run_ranks, start


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


@pytest.mark.parametrize("fault", ["killed_peer", "stalled_peer"])
def test_lost_peers(fault: str) -> None:
    results = start(["-m", "tests.distributed.programs.faults"], 2, 150, VARIANT=fault, OUTBOARD_DRIVER="sim")
    assert results[0].returncode == 0, f"{results[0].stdout}\n{results[0].stderr}"
    assert results[1].returncode == -signal.SIGKILL


def test_a_group_of_unlike_devices() -> None:
    """A rank whose driver has no collectives: all ranks use the transport that every device can."""
    program = (
        "import os; os.environ['OUTBOARD_DRIVER'] = 'sim' if os.environ['RANK'] == '0' else 'strict'\n"
        "import torch, torch.distributed as dist, datetime\n"
        "dist.init_process_group(timeout=datetime.timedelta(seconds=60))\n"
        "tensor = torch.ones(3, device=torch._C._get_privateuse1_backend_name())\n"
        "dist.all_reduce(tensor)\n"
        "assert tensor.tolist() == [2.0] * 3\n"
        "dist.destroy_process_group()\n"
    )
    for result in start(["-c", program], 2, 200):
        assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
