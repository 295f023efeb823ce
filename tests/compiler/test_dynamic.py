# SPDX-License-Identifier: Apache-2.0
"""Sizes that change: one compilation serves them all, asked for with ``dynamic=True`` or found out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.source import ConstantSource
from torch._dynamo.utils import counters
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """A layer of a transformer with tokens in and logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(self.embedding(tokens)))
        return result


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 5))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


SIZES = [(4, 17), (7, 17), (7, 33), (3, 24), (12, 40), (5, 31), (2, 65)]

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Tensor]]] = {
    "mlp": (mlp, lambda batch, length: torch.randn(batch, length, 12)),
    "transformer": (Block, lambda batch, length: torch.randint(50, (batch, length))),
    "cnn": (cnn, lambda batch, length: torch.randn(batch, 3, length, length + 3)),
}


def compilations() -> int:
    """Graphs that Inductor was given, counted once where both directions belong to one."""
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dynamic", "most"), [(True, 1), (None, 3)])
def test_inference(device: str, name: str, dynamic: bool | None, most: int) -> None:
    """Automatic: the first sizes, and once for each of the two that are seen to change."""
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    reference = make().eval()
    compiled = torch.compile(copy.deepcopy(reference).to(device), dynamic=dynamic, fullgraph=True)
    with torch.no_grad():
        for batch, length in SIZES:
            x = inputs(batch, length)
            torch.testing.assert_close(compiled(x.to(device)).cpu(), reference(x), rtol=1e-3, atol=1e-4)
    assert compilations() <= most


@pytest.mark.parametrize("name", MODELS)
def test_training(device: str, name: str) -> None:
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    reference = make()
    ours = copy.deepcopy(reference).to(device)
    compiled = torch.compile(ours, dynamic=True, fullgraph=True)
    for batch, length in SIZES[:4]:
        x = inputs(batch, length)
        for network, where in ((reference, "cpu"), (compiled, device)):
            network(x.to(where)).square().mean().backward()
        for a, b in zip(ours.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-2, atol=1e-4)
    assert compilations() + counters["dynamo_cache"]["dynamo_cache_hit"] == 1
    # AOTAutograd may have kept both directions of an earlier process, and then Inductor is not asked.
    asked = counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_hit"]
    assert asked == 2 * compilations() or counters["aot_autograd"]["autograd_cache_hit"] == compilations() == 1


@pytest.mark.parametrize("mode", ["nearest", "bicubic"])
def test_sides_grow_by_a_fraction(mode: str, device: str) -> None:
    def grow(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=(1.7, 0.6), mode=mode) * 2

    compiled = torch.compile(grow, dynamic=True)
    for sides in ((10, 8), (7, 11), (20, 20)):
        x = torch.arange(2.0 * sides[0] * sides[1]).view(1, 2, *sides).sin()
        torch.testing.assert_close(compiled(x.to(device)).cpu(), grow(x))


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear"])
def test_gradient_of_sides_that_grow_by_a_fraction(mode: str, device: str) -> None:
    factors = (1.7, 0.6, 1.3)[: ["linear", "bilinear", "trilinear"].index(mode) + 1]

    def grow(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=factors, mode=mode)

    compiled = torch.compile(grow, dynamic=True)
    for sides in ((3, 4, 5), (4, 3, 6)):
        x = torch.arange(2.0 * math.prod(sides[: len(factors)])).view(1, 2, *sides[: len(factors)]).sin()
        ours, theirs = x.to(device).requires_grad_(), x.clone().requires_grad_()
        for each, function in ((ours, compiled), (theirs, grow)):
            function(each).square().sum().backward()
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def one_of(x: Tensor) -> int:
    """1, which the compiler learns only when something is broadcast."""
    return (x.shape[0] + 1) // x.shape[0]


BROADCASTS: dict[str, Callable[[Tensor], Tensor]] = {
    "computed": lambda x: (x[:, : one_of(x)] + 1).expand(x.shape) * 2,
    "softmax": lambda x: x[:, : one_of(x)].softmax(1) + x,
    "index": lambda x: x[torch.arange(len(x), device=x.device)[: one_of(x)], torch.arange(len(x), device=x.device)],
    "norm": lambda x: F.layer_norm(x[:, : one_of(x)], [one_of(x)]) + x,
    "mask": lambda x: x.masked_fill(x[:, : one_of(x)] > 0, 3),
    "weight": lambda x: torch.lerp(x, x * 2, x[: one_of(x)]),
    "product": lambda x: torch.addmm(x[: one_of(x)], x, x),
    "parts": lambda x: x.unflatten(1, (-1, 2)).add(-x.unflatten(1, (-1, 2))[:, :, : x.shape[1] // (len(x) // 2) // 2]),
    "changes": lambda x: x + x[:, : max(x.shape[1] - 6, 1)],
}


@pytest.mark.parametrize("kind", BROADCASTS)
def test_sizes_that_are_known_to_be_1_are_broadcast(kind: str, device: str) -> None:
    function = BROADCASTS[kind]
    compiled = torch.compile(function, dynamic=True)
    for size in (6, 16) if kind != "changes" else (6, 7):
        x = torch.arange(float(size * size)).view(size, size) % 11 - 5
        torch.testing.assert_close(compiled(x.to(device)).cpu(), function(x))


def test_a_cached_graph_serves_sizes_for_which_all_of_its_guards_hold(device: str) -> None:
    """Also those before one with an ``or``, which PyTorch does not put in parentheses."""
    torch.compile(lambda x: x + 1)(torch.ones(2, device=device))  # what is replaced has been
    env = ShapeEnv()
    fixed, free = (
        env.create_symintnode(env.create_symbol(size, ConstantSource(f"size {size}")), hint=size) for size in (58, 46)
    )
    assert fixed == 58 and bool(torch.sym_not(torch.sym_not((free == 2) | (free % 2 == 0))))
    text = env.produce_guards_expression([fixed, free], guards=env.guards)
    assert text is not None and " or " in text
    for sizes, hold in (((58, 46), True), ((58, 44), True), ((46, 46), False), ((58, 45), False)):
        assert env.evaluate_guards_expression(text, sizes) is hold, text
