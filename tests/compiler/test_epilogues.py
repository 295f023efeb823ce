# SPDX-License-Identifier: Apache-2.0
"""Pointwise work after a product or convolution is done in its store: how many launches are left, and the results."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from outboard.compiler.adapter.graphs import compiled
from outboard.compiler.plans import plan as p


def run(function: Callable[..., Tensor], *inputs: Tensor, dynamic: bool | None = None) -> tuple[Tensor, p.Plan]:
    """The compiled function's result, and its plan."""
    torch._dynamo.reset()
    uncached = torch._inductor.config.patch(force_disable_caches=True)
    with torch.no_grad(), uncached, compiled.capturing() as capture:
        result = torch.compile(function, fullgraph=True, dynamic=dynamic)(*inputs)
    assert capture.plan is not None
    return result, capture.plan


def launches(function: Callable[..., Tensor], *inputs: Tensor, dynamic: bool | None = None) -> tuple[Tensor, list[str]]:
    """The compiled function's result, and the entries of the kernels that its plan launches."""
    result, plan = run(function, *inputs, dynamic=dynamic)
    return result, [plan.kernels[step.kernel][1] for step in plan.steps if isinstance(step, p.Launch)]


TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def check(
    function: Callable[..., Tensor], device: str, *inputs: Tensor, count: int, dynamic: bool | None = None
) -> list[str]:
    """The result is that of float64, and ``count`` kernels have made it."""
    expected = function(*[x.double() for x in inputs])
    found, kernels = launches(function, *[x.to(device) for x in inputs], dynamic=dynamic)
    tolerance = TOLERANCES[inputs[0].dtype]
    torch.testing.assert_close(found.cpu().double(), expected, rtol=tolerance, atol=tolerance)
    assert len(kernels) == count, kernels
    return kernels


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "scaled": lambda x: x * 0.5 + 1,
    "clamped": lambda x: torch.where(x > 0.3, x, -x.exp()).clamp(-2, 2),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(5, 3, 7), (33, 40, 65), (64, 257, 96), (1, 70, 50), (40, 30, 1)])
def test_linear(name: str, shape: tuple[int, int, int], device: str) -> None:
    m, k, n = shape
    x, weight, bias = torch.randn(m, k), torch.randn(n, k) * 0.2, torch.randn(n)
    check(lambda x, w, b: ACTIVATIONS[name](functional.linear(x, w, b)), device, x, weight, bias, count=1)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_residual_of_a_linear(dtype: torch.dtype, device: str) -> None:
    x, weight, residual = (torch.randn(size).to(dtype) for size in ((4, 9, 33), (47, 33), (4, 9, 47)))
    check(lambda x, w, r: r + functional.linear(x, w).tanh(), device, x, weight, residual, count=1)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "scaled"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(33, 40, 65), (64, 257, 96), (1, 70, 50), (40, 30, 1)])
def test_linear_of_halves(name: str, dtype: torch.dtype, shape: tuple[int, int, int], device: str) -> None:
    """Rounded once, when all is computed."""
    m, k, n = shape
    x, weight, bias = (tensor.to(dtype) for tensor in (torch.randn(m, k), torch.randn(n, k) * 0.1, torch.randn(n)))
    check(lambda x, w, b: ACTIVATIONS[name](functional.linear(x, w, b)), device, x, weight, bias, count=1)


def test_halves_become_floats_in_the_store(device: str) -> None:
    """A product of halves that is needed as float32 is not rounded to a half in between."""
    x, weight = torch.randn(20, 300).to(torch.bfloat16), torch.randn(33, 300).to(torch.bfloat16)
    found, kernels = launches(lambda x, w: functional.linear(x, w).float() * 2, x.to(device), weight.to(device))
    assert kernels == ["multiply"] and found.dtype == torch.float32
    torch.testing.assert_close(found.cpu(), functional.linear(x.float(), weight.float()) * 2, rtol=1e-4, atol=1e-4)


def test_batches(device: str) -> None:
    x, y, scale = torch.randn(3, 20, 33), torch.randn(3, 33, 17), torch.randn(20, 1)
    check(lambda x, y, s: torch.bmm(x, y) * s, device, x, y, scale, count=1)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("size", [(7, 7), (5, 33), (1, 1)])
def test_convolution(dtype: torch.dtype, groups: int, size: tuple[int, int], device: str) -> None:
    x, weight, bias = torch.randn(2, 8, *size), torch.randn(16, 8 // groups, 3, 3) * 0.3, torch.randn(16)
    x, weight, bias = (tensor.to(dtype) for tensor in (x, weight, bias))
    kernels = check(
        lambda x, w, b: torch.relu(functional.conv2d(x, w, b, padding=1, groups=groups)),
        device, x, weight, bias, count=1 if groups == 8 else 2,
    )  # fmt: skip
    assert kernels[-1] in ("multiply", "dots", "slide")


class Block(nn.Module):
    """A residual block: the sum may be written where the block's input is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 1, bias=False)
        self.last = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()
        inner = self.norm(self.first(x)).relu()
        return (self.last(self.second(inner)) + x).relu() + self.second(x)


def test_residual_block(device: str) -> None:
    """What a channel's statistics make of its scale is computed once per channel, and x is read until it is not needed:
    with sine, planes, product, scale, product, scale and the last product there are eight launches."""
    torch.manual_seed(0)
    block = Block(20).eval()
    for buffer in block.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    x = torch.randn(2, 20, 9, 11)
    ours = copy.deepcopy(block).to(device)
    with torch.no_grad():
        expected = block(x)
    found, kernels = launches(ours, x.to(device))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    assert kernels.count("multiply") == 3 and len(kernels) <= 8, kernels


def test_memory_of_an_operand_is_not_overwritten_early(device: str) -> None:
    """The product's operand is free after it, and of the result's size."""
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    check(lambda a, b: torch.relu((a.cos() @ b.cos()) + 1).sin() @ a, device, a, b, count=4)


def test_in_place_on_the_operand(device: str) -> None:
    def add(x: Tensor, w: Tensor) -> Tensor:
        return x.add_(x @ w)

    x, w = torch.randn(40, 40), torch.randn(40, 40)
    expected = x + x @ w
    ours = x.to(device)
    found, _ = launches(add, ours, w.to(device))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_a_result_that_is_needed_elsewhere_stays(device: str) -> None:
    def both(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        return y.relu() + y.sum()

    check(both, device, torch.randn(40, 30), torch.randn(30, 20), count=2)


def test_other_orders_are_not_fused(device: str) -> None:
    x, w = torch.randn(40, 30), torch.randn(30, 40)
    check(lambda x, w: (x @ w).t() + torch.arange(40, dtype=x.dtype, device=x.device), device, x, w, count=2)


def test_dynamic_sizes(device: str) -> None:
    x, weight, bias = torch.randn(12, 33), torch.randn(47, 33), torch.randn(47)
    check(lambda x, w, b: functional.gelu(functional.linear(x, w, b)), device, x, weight, bias, count=1, dynamic=True)


@pytest.mark.parametrize("rows", [slice(0, 5), slice(5, None), slice(0, 1)], ids=str)
def test_part_of_a_result(rows: slice, device: str) -> None:
    """The kernel counts the places of a part, which are not those of the product."""
    x, w, bias = torch.randn(40, 30), torch.randn(30, 20), torch.randn(20)
    check(lambda x, w, b: (x @ w)[rows].relu() + b, device, x, w, bias, count=2)


def test_results_side_by_side(device: str) -> None:
    """Parts of a concatenation are places of a larger buffer."""
    x, w = torch.randn(40, 30), torch.randn(30, 20)
    for dim in (0, 1):
        expected = torch.cat([(x @ w).relu(), (x @ w.sin()).tanh()], dim)
        found, _ = launches(
            lambda x, w, d=dim: torch.cat([(x @ w).relu(), (x @ w.sin()).tanh()], d), x.to(device), w.to(device)
        )
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_channels_of_any_number_share_a_program(device: str) -> None:
    """What a channel's variance makes of its scale is computed by one program, for convolutions of all widths."""
    torch.manual_seed(0)
    layers = []
    for fewer, more in ((3, 8), (8, 24), (24, 40)):
        norm = nn.BatchNorm2d(more)
        norm.running_var = torch.rand(more) + 0.5
        layers += [nn.Conv2d(fewer, more, 3), norm, nn.ReLU()]
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 3, 12, 12)
    found, plan = run(copy.deepcopy(model).to(device), x.to(device))
    torch.testing.assert_close(found.cpu(), model(x).detach(), rtol=1e-4, atol=1e-4)
    scales = [source for source, _ in plan.programs if "sqrt" in source]
    assert len(scales) == 1
