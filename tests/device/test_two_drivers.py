# SPDX-License-Identifier: Apache-2.0
"""Streams and events of two drivers in one process: neither driver knows the other's."""

from __future__ import annotations

import pytest
from processes import run_program

PROGRAM = """
import torch
name = torch._C._get_privateuse1_backend_name()
order = [torch.device(name, index) for index in ORDER]
earlier, later = (torch.Stream(device) for device in order)
x = torch.randn(300, 300)
a, b = x.to(order[0]), x.to(order[1])
torch.accelerator.synchronize(order[0])
for _ in range(3):
    event = torch.Event(order[0], enable_timing=True)
    with earlier:
        for _ in range(4):
            result = a @ a
        event.record(earlier)
    later.wait_event(event)
    with later:
        c = b + 1
    later.synchronize()
    assert event.query()
    torch.testing.assert_close(c.cpu(), x + 1)
    torch.testing.assert_close(result.cpu(), x @ x, rtol=1e-4, atol=1e-3)
other = torch.Event(order[1], enable_timing=True)
other.record(later)
other.synchronize()
try:
    event.elapsed_time(other)
    raise SystemExit("a time between the clocks of two drivers")
except RuntimeError as error:
    assert "different drivers" in str(error), error
"""


@pytest.mark.parametrize(
    "order", [(0, 1), pytest.param((1, 0), marks=pytest.mark.full("the same the other way round"))]
)
def test_a_stream_waits_for_an_event_of_another_driver(order: tuple[int, int]) -> None:
    program = PROGRAM.replace("ORDER", str(order))
    settings = {"OUTBOARD_DRIVER": "host,sim", "OUTBOARD_SIM_COMPILER": "1"}
    result = run_program(["-c", program], environment=settings)
    assert result.returncode == 0, result.stdout + result.stderr
