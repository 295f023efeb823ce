# SPDX-License-Identifier: Apache-2.0
"""Devices that hang: they are named on the standard error, and Ctrl-C ends the wait for them."""

from __future__ import annotations

import re

import pytest
from processes import INTERRUPTED, run_program

PROGRAM = """
import ctypes, os, signal, sys, threading, time
import outboard.drivers, torch
name = torch._C._get_privateuse1_backend_name()
hang = ctypes.CDLL(outboard.drivers.sim()).outboard_sim_hang
x = torch.randn(3, 4, device=name)
torch.relu(x).cpu()  # compiled
"""
PROGRAM += INTERRUPTED


def run(code: str, **environment: str) -> str:
    """Runs code on the simulator with its compiler of graphs; returns what it wrote to the standard error."""
    settings = {"OUTBOARD_SIM_COMPILER": "1", "OUTBOARD_DRIVER": "sim"} | environment
    result = run_program(["-c", PROGRAM + code], environment=settings, timeout=180)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stderr


STRICT = {"OUTBOARD_DRIVER": "strict", "OUTBOARD_STRICT_DRIVER": "sim"}


@pytest.mark.parametrize("driver", [{}, STRICT], ids=["sim", "strict"])
def test_an_executable_that_hangs_is_named_once(driver: dict[str, str]) -> None:
    """Whether the device hangs or the driver's call; not what waits behind it."""
    errors = run(
        """
for where in (1, 2):
    hang(where)
    y = torch.relu(x)
    other = torch.Stream(name)
    other.wait_stream(torch.accelerator.current_stream())
    with other: z = torch.relu(x)
    time.sleep(1.5)
    assert not other.query()
    hang(0)
    torch.accelerator.synchronize()
    assert torch.equal(y.cpu(), z.cpu())
""",
        OUTBOARD_WATCHDOG="0.4",
        **driver,
    )
    warnings = [line for line in errors.splitlines() if "warning" in line]
    assert len(warnings) == 2, errors
    for warning in warnings:
        named = r"device 0 \(.*simulated device\), stream 0: the function 'relu' has been running for 0\.\d s"
        assert re.search(named, warning), errors


def test_what_is_slow_and_what_waits_for_it_is_no_hang() -> None:
    errors = run(
        """
other = torch.Stream(name)
for _ in range(10):
    hang(1)
    torch.relu(x)
    other.wait_stream(torch.accelerator.current_stream())
    with other: torch.relu(x)
    time.sleep(0.1)
    hang(0)
    time.sleep(0.01)
torch.accelerator.synchronize()
""",
        OUTBOARD_WATCHDOG="0.5",
    )
    assert "warning" not in errors


def test_without_the_variable_nobody_watches() -> None:
    errors = run("""
hang(1)
torch.relu(x)
time.sleep(0.5)
threads = {open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")}
assert "ob watchdog" not in threads and "ob submission" in threads, threads
hang(0)
""")
    assert "warning" not in errors


def test_a_time_that_is_none_is_refused() -> None:
    settings = {"OUTBOARD_DRIVER": "sim", "OUTBOARD_WATCHDOG": "soon"}
    result = run_program(["-c", "import torch; torch.ones(3, device='ocl')"], environment=settings)
    assert "use a number of seconds, such as 30" in result.stderr


@pytest.mark.parametrize("driver", [{}, STRICT], ids=["sim", "strict"])
def test_ctrl_c_ends_each_wait_for_an_executable(driver: dict[str, str]) -> None:
    """And the end of the process does not wait for it either."""
    run(
        """
graph = torch.compile(lambda x: torch.relu(x) + 1)
graph(x)
for make, where in ((torch.relu, 1), (torch.relu, 2), (graph, 1), (graph, 2)):
    event = torch.Event(name)
    hang(where)
    y = make(x)
    event.record()
    for wait in (torch.accelerator.synchronize, y.cpu, y[0, 0].item, event.synchronize, lambda: print(y)):
        assert interrupted(wait) < 1
    hang(0)
    torch.testing.assert_close(y.cpu(), torch.relu(x.cpu()) + (make is graph))
hang(2)
torch.relu(x)
""",
        **driver,
    )
