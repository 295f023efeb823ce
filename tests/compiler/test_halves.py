# SPDX-License-Identifier: Apache-2.0
"""Layers of models under autocast, forward and backward, eager and compiled: as near to float64 as on the CPU."""

from __future__ import annotations

import contextlib
import copy
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional


class EncoderLayer(nn.Module):
    """A layer of BERT."""

    def __init__(self, width: int = 96, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.into = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in self.into)
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.out(mixed))
        return self.norms[1](x + self.narrow(functional.gelu(self.wide(x))))


class Bottleneck(nn.Module):
    """A block of ResNet-50 that halves the image."""

    def __init__(self, inputs: int = 24, inner: int = 20, outputs: int = 48) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(inputs, inner, 1, bias=False), nn.Conv2d(inner, outputs, 1, bias=False)
        self.middle = nn.Conv2d(inner, inner, 3, stride=2, padding=1, bias=False)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in (inner, inner, outputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[0](self.first(x)).relu()
        inner = self.norms[1](self.middle(inner)).relu()
        return (self.norms[2](self.last(inner)) + self.norms[3](self.skip(x))).relu()


CASES: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "encoder layer": (EncoderLayer, (2, 37, 96)),
    "bottleneck": (Bottleneck, (2, 24, 14, 14)),
}


def results(model: nn.Module, x: Tensor, half: torch.dtype | None, compiled: bool = False) -> dict[str, Tensor]:
    """Output and all gradients, in float64 on the CPU."""
    x = x.detach().requires_grad_()
    function = torch.compile(model) if compiled else model
    with torch.autocast(x.device.type, half) if half is not None else contextlib.nullcontext():
        y = function(x)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).to(y))
    found = {"output": y, "input": x.grad, **{name: p.grad for name, p in model.named_parameters()}}
    return {name: tensor.detach().cpu().double() for name, tensor in found.items()}


def distance(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Norms of the differences, relative to the exact results'."""
    return {name: ((found[name] - exact[name]).norm() / exact[name].norm()).item() for name in exact}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_autocast(case: str, half: torch.dtype, compiled: bool, device: str, device_module: ModuleType) -> None:
    make, size = CASES[case]
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = make(), torch.randn(size)
    exact = results(copy.deepcopy(model).double(), x.double(), None)
    theirs = distance(results(copy.deepcopy(model), x, half), exact)
    device_module.reset_fallbacks()
    ours = distance(results(copy.deepcopy(model).to(device), x.to(device), half, compiled), exact)
    assert device_module.fallbacks() == {}
    for name, error in ours.items():
        assert error <= 1.25 * theirs[name] + torch.finfo(half).eps / 4, (name, error, theirs[name])
