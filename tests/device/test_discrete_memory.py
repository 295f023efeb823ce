# SPDX-License-Identifier: Apache-2.0
"""The same tests on a device whose memory the host cannot address and that has no compiler: the simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_program

# Of random numbers, what kernels of ours promise beyond the CPU's, which draws here; random orders refuse it.
WITHOUT = "not (random_orders or have_their_digits or are_as_rare or two_random_parts)"
FILES = ("copies", "factories", "serialization", "streams", "random", "accelerator", "devices")


@pytest.mark.skipif(os.environ.get("OUTBOARD_DRIVER") == "sim", reason="this process runs on the simulator already")
def test_on_the_simulator() -> None:
    here = Path(__file__).parent
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-k",
            WITHOUT,
            *(f"{here}/test_{f}.py" for f in FILES),
        ],
        env=os.environ | {"OUTBOARD_DRIVER": "sim"},
        cwd=here.parents[1],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


#: Written by the CPU's kernel, of which its schema does not tell.
STATISTICS = """
import torch
x, norms = torch.randn(4, 3, 5, 5), [torch.nn.BatchNorm2d(3) for _ in range(2)]
norms[1].to(torch._C._get_privateuse1_backend_name())
for norm in norms:
    norm(x.to(norm.weight.device))
for one, other in zip(*(norm.buffers() for norm in norms)):
    torch.testing.assert_close(other.cpu(), one)
"""


#: What is read is written, too.
IN_PLACE = """
import torch
device = torch._C._get_privateuse1_backend_name()
for function in (
    lambda a, b: torch.maximum(a, b, out=a), lambda a, b: torch.mul(b, a, out=a), lambda a, b: torch.add(a, a, out=a),
    lambda a, b: torch.addcmul(a, b, b, out=a), lambda a, b: a.add_(a),
):
    a, b = torch.arange(4.0), torch.tensor([3.0, 0.0, 5.0, 1.0])
    there = a.to(device)
    found, wanted = function(there, b.to(device)), function(a, b)
    assert found is there and torch.equal(there.cpu(), wanted), (there, wanted)
"""


#: Operators that PyTorch calls on every device but the CPU.
CELLS = """
import copy
import torch
device = torch._C._get_privateuse1_backend_name()
x = torch.randn(3, 4, 6)
for kind, bias in ((torch.nn.LSTM, True), (torch.nn.LSTM, False), (torch.nn.GRU, True), (torch.nn.GRU, False)):
    network, found = kind(6, 5, bias=bias), []
    for each, source in ((network, x.clone()), (copy.deepcopy(network).to(device), x.to(device))):
        out, state = each(source.requires_grad_())
        (out.square().sum() + sum(part.sum() for part in torch.utils._pytree.tree_leaves(state))).backward()
        found.append([out, source.grad, *(parameter.grad for parameter in each.parameters())])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)
with torch.autocast(device, torch.float16):
    assert torch.nn.LSTMCell(6, 5).to(device)(x[0].to(device))[1].dtype == torch.float16
"""


def test_cells_are_taken_apart_for_the_cpu() -> None:
    result = run_program(["-c", CELLS], environment={"OUTBOARD_DRIVER": "sim"})
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("program", [STATISTICS, IN_PLACE], ids=["statistics", "in place"])
def test_what_the_cpu_wrote_comes_back(program: str) -> None:
    result = run_program(["-c", program], environment={"OUTBOARD_DRIVER": "sim"})
    assert result.returncode == 0, result.stdout + result.stderr
