# SPDX-License-Identifier: Apache-2.0
"""``torch.compile`` without ``backend=``: as right as eager, forward and backward, and cached across processes."""

from __future__ import annotations

import base64
import copy
import re
import zlib
from pathlib import Path

import pytest
import torch
import torch._inductor.utils
from processes import run_program
from torch import nn


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 5))


@pytest.mark.parametrize("dynamic", [None, True])
def test_training_equals_the_cpus(dynamic: bool | None, device: str) -> None:
    torch._dynamo.reset()
    reference = model()
    ours = copy.deepcopy(reference).to(device)
    compiled = torch.compile(ours, dynamic=dynamic, fullgraph=True)
    for batch in (8, 11):
        x, y = torch.randn(batch, 12), torch.arange(batch) % 5
        expected = nn.functional.cross_entropy(reference(x), y)
        result = nn.functional.cross_entropy(compiled(x.to(device)), y.to(device))
        expected.backward()
        result.backward()
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-3, atol=1e-5)


def test_random_numbers_differ_between_calls_and_follow_the_seed(device: str) -> None:
    torch._dynamo.reset()
    dropout = torch.compile(lambda x: nn.functional.dropout(x, 0.5))
    x = torch.ones(1000, device=device)
    torch.manual_seed(1)
    first, second = dropout(x).cpu(), dropout(x).cpu()
    torch.manual_seed(1)
    assert torch.equal(dropout(x).cpu(), first)
    assert not torch.equal(first, second)
    assert 0.8 < float(first.mean()) < 1.2


def test_numbers_and_cpu_scalars_mix(device: str) -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x, n, s: x * n + s)
    x = torch.randn(9)
    for number in (2.5, 3.5, 4.5):
        result = function(x.to(device), number, torch.tensor(0.25))
        torch.testing.assert_close(result.cpu(), x * number + 0.25)


def test_graphs_with_work_on_the_cpu_run(device: str) -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + 1).sin() + (y * 2).cos().to(x.device)

    x, y = torch.randn(20), torch.randn(20)
    torch.testing.assert_close(torch.compile(function)(x.to(device), y).cpu(), function(x, y))


SCRIPT = """
import torch
from torch._dynamo.utils import counters
f = torch.compile(lambda x: (x.exp() + 1).sum(0))
print(f(torch.zeros(6, 7, device=torch._C._get_privateuse1_backend_name())).cpu().tolist()[0])
print(counters["inductor"]["fxgraph_cache_miss"])
"""


def test_a_second_process_compiles_nothing(device: str, tmp_path: Path) -> None:
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    program = tmp_path / "program.py"  # a file: Dynamo's caches key on it
    program.write_text(SCRIPT)
    runs = [run_program([str(program)], environment=caches) for _ in range(2)]
    assert runs[0].stdout.split() == ["12.0", "1"]
    assert runs[1].stdout.split() == ["12.0", "0"]


def test_optimizer_with_step_counts_on_the_cpu(device: str) -> None:
    torch.manual_seed(0)
    start = [torch.randn(8, 8) for _ in range(2)]
    gradients = [torch.randn(8, 8) for _ in range(2)]

    def train(where: str, compiled: bool) -> list[torch.Tensor]:
        parameters = [tensor.to(where).requires_grad_() for tensor in start]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.to(where)
        step = torch.optim.Adam(parameters, lr=1e-2, foreach=True).step
        step = torch.compile(step) if compiled else step
        for _ in range(3):
            step()
        return [parameter.detach().cpu() for parameter in parameters]

    torch.testing.assert_close(train(device, True), train("cpu", False))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"), [(6, 3, 2, 1), (7, 3, 2, 1), (8, 2, 2, 0), (5, 3, 1, 1)]
)
def test_gradient_of_a_strided_convolution(device: str, size: int, kernel: int, stride: int, padding: int) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, 8, size, size), torch.randn(16, 8, kernel, kernel)]

    def gradients(where: str, compiled: bool) -> list[torch.Tensor]:
        def convolve(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv2d(x, weight, stride=stride, padding=padding)

        function = torch.compile(convolve, dynamic=False) if compiled else convolve
        leaves = [tensor.to(where).requires_grad_() for tensor in tensors]
        function(*leaves).square().sum().backward()
        return [leaf.grad.cpu() for leaf in leaves if leaf.grad is not None]

    torch.testing.assert_close(gradients(device, True), gradients("cpu", False), rtol=1e-4, atol=1e-3)


def test_kernels_that_differ_in_sizes_only_are_launched_with_their_own(device: str) -> None:
    compiled = torch.compile(lambda x, y: (x.sin(), y.sin()), dynamic=True)
    for sizes in ((5, 200_000), (100_000, 7)):
        x, y = (torch.rand(size) for size in sizes)
        for found, given in zip(compiled(x.to(device), y.to(device)), (x, y), strict=True):
            torch.testing.assert_close(found.cpu(), given.sin())


def test_a_long_cache_is_not_computed_anew(device: str) -> None:
    """The new part of a concatenation has a kernel of its own: not every element of the old part pays for it."""

    def function(old: torch.Tensor, new: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        return torch.cat((old, new * angle.cos() + new.exp() * angle.sin()), 1) * 2

    tensors = [torch.randn(4, 33, 20), torch.randn(4, 1, 20), torch.randn(1, 20)]
    ours = [tensor.to(device) for tensor in tensors]
    found, (text,) = torch._inductor.utils.run_and_get_code(torch.compile(function, dynamic=True), *ours)
    torch.testing.assert_close(found.cpu(), function(*tensors))
    plan = zlib.decompress(base64.b85decode(re.search(r"load\('(.*)', ", text)[1]))
    kernels = plan.decode(errors="replace").split("\nOB_KERNEL ")[1:]
    assert len(kernels) == 3
    assert sum(bool(re.search(r"cos(_float)?\(", kernel)) for kernel in kernels) == 1


@pytest.mark.parametrize("name", ["bessel_j1", "i1e", "ndtri"])
def test_functions_that_loops_do_not_have_are_called(device: str, name: str) -> None:
    function = getattr(torch.special, name)
    x = torch.linspace(0.1, 0.9, 12).reshape(3, 4)
    torch._dynamo.reset()
    result = torch.compile(lambda x: function(x) * 2 + 1)(x.to(device))
    torch.testing.assert_close(result.cpu(), function(x) * 2 + 1)
