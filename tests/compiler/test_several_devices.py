# SPDX-License-Identifier: Apache-2.0
"""Graphs of torch.compile over several devices, of one driver and of two."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import run_program

PROGRAM = """
import torch
from torch import nn
name = torch._C._get_privateuse1_backend_name()
first, second = (torch.device(name, index) for index in range(2))
x, y = torch.randn(6, 8), torch.randn(6, 8)

def on(model, *devices):
    for layer, device in zip(model, devices):
        layer.to(device)
    return model

def check(function, *inputs, devices, **options):
    expected = function(*inputs)
    found = torch.compile(function, **options)(*(each.to(device) for each, device in zip(inputs, devices)))
    for a, b in zip(found, expected):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
    return [each.device for each in found]

def across(a, b):
    c = torch.tanh(a @ a.t()) + 1
    d = (c.sum(1, keepdim=True).to(b.device) * b).softmax(-1)
    return d.to(a.device) + a, d

def apart(a, b):
    return torch.relu(a) + 1, b.sum(0) * 2

assert check(across, x, y, devices=(first, second)) == [first, second]
assert check(across, x, y, devices=(second, first)) == [second, first]
assert check(across, x, y, devices=(first, second), dynamic=True) == [first, second]
assert check(apart, x, y, devices=(first, second)) == [first, second]
assert check(lambda a, number: (a * number, (a + number).sum()), x, torch.tensor(3.0),
             devices=(second, "cpu")) == [second, second]
assert torch.accelerator.current_device_index() == 0

class Halves(nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = layer(x.to(next(layer.parameters()).device))
        return x

def halves():
    torch.manual_seed(2)
    return Halves(nn.Sequential(nn.Linear(8, 16), nn.GELU()), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 3)))

expected = halves()
expected(x).square().sum().backward()
for compiled in (False, True):
    model = on(halves(), first, second)
    (torch.compile(model) if compiled else model)(x.to(first)).square().sum().backward()
    for a, b in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)
assert getattr(torch, name).fallbacks() == {}, getattr(torch, name).fallbacks(reasons=True)
"""


@pytest.mark.parametrize(
    "settings",
    [
        {"OUTBOARD_DRIVER": "host", "OUTBOARD_NUM_DEVICES": "2"},
        {"OUTBOARD_DRIVER": "host,sim", "OUTBOARD_SIM_COMPILER": "1"},
        {"OUTBOARD_DRIVER": "sim", "OUTBOARD_SIM_COMPILER": "1", "OUTBOARD_NUM_DEVICES": "2"},
    ],
    ids=["one driver", "kernels and executables", "executables"],
)
def test_a_graph_over_two_devices(settings: dict[str, str], tmp_path: Path) -> None:
    result = run_program(["-c", PROGRAM], environment=settings | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})
    assert result.returncode == 0, result.stdout + result.stderr
