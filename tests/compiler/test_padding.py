# SPDX-License-Identifier: Apache-2.0
"""Graphs made exact for padded sizes: whatever the padding holds, results are those of the CPU without it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.nn.attention import SDPBackend, sdpa_kernel

from outboard.compiler.adapter import executables
from outboard.compiler.adapter.padding import proof as padding
from outboard.compilers.sim import SimCompiler

Function = Callable[..., Any]
SIZES = padding.Terms([])


def traced(function: Function, *args: torch.Tensor) -> list[torch.fx.GraphModule]:
    """The graphs that torch.compile makes of a function: forward, and backward if an input requires grad."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        kept = torch.fx.GraphModule(module, torch.fx.Graph())
        results = kept.graph.graph_copy(module.graph, {})
        is_tensor = [isinstance(each, torch.fx.Node) and isinstance(each.meta["val"], torch.Tensor) for each in results]
        kept.graph.output(tuple(itertools.compress(results, is_tensor)))
        kept.recompile()
        graphs.append(kept)
        return make_boxed_func(module)

    from torch._inductor.decomposition import select_decomp_table

    torch._dynamo.reset()
    table = executables.decompositions_for(SimCompiler(), select_decomp_table(), in_graphs=False)
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, decompositions=table)
    for arg in args:
        for dim in range(2):
            torch._dynamo.maybe_mark_dynamic(arg, dim)
    with sdpa_kernel(SDPBackend.MATH):
        result = torch.compile(function, backend=backend)(*args)
    if result.requires_grad:
        result.sum().backward()
    return graphs


def sizes_of(dim: padding.Dim, sizes: dict[Any, int]) -> list[int]:
    return [int(factor.subs(sizes)) for factor in dim]


def fitted(value: torch.Tensor, dims: padding.Dims, before: dict[Any, int], after: dict[Any, int]) -> torch.Tensor:
    """A tensor in other sizes: new rows hold what would spoil any result."""
    old, new = ([size for dim in dims for size in sizes_of(dim, sizes)] for sizes in (before, after))
    bad = math.nan if value.dtype.is_floating_point else True if value.dtype is torch.bool else -(10**6)
    made = torch.full(new, bad, dtype=value.dtype)
    common = tuple(slice(0, min(pair)) for pair in zip(old, new, strict=True))
    made[common] = value.reshape(old)[common]
    return made.reshape([math.prod(sizes_of(dim, after)) for dim in dims])


def given(what: Any, true: dict[Any, int], wide: dict[Any, int]) -> torch.Tensor:
    """A mask or a number."""
    if len(what) == 2 and isinstance(what[1], torch.dtype):
        return torch.tensor(float(what[0].subs(true)), dtype=what[1])
    rows = torch.ones((), dtype=torch.bool)
    for size, whole in zip(sizes_of(what, true), sizes_of(what, wide), strict=True):
        rows = rows[..., None] & (torch.arange(whole) < size)
    return rows.flatten()


def check(module: torch.fx.GraphModule, args: Sequence[Any]) -> int:
    """Runs a graph padded and not; returns how many of its sizes are padded."""
    padded = padding.padded(module)
    if padded is None:
        return 0
    true = padded.sizes_of(args)
    wide = {symbol: size + 3 if symbol in padded.varying else size for symbol, size in true.items()}
    inputs = [
        fitted(arg, dims, true, wide) if isinstance(arg, torch.Tensor) else int(dims.subs(wide))  # type: ignore[union-attr, arg-type]
        for arg, dims in zip(args, padded.inputs, strict=True)
    ]
    extra = [given(what, true, wide) for what in padded.extra]
    found, expected = padded.module(*inputs, *extra), module(*args)
    for one, other, dims in zip(found, expected, padded.results, strict=True):
        torch.testing.assert_close(fitted(one, dims, wide, true).reshape(other.shape), other, rtol=1e-4, atol=1e-5)
    return len(padded.varying)


def inputs_of(module: torch.fx.GraphModule) -> list[Any]:
    """Random inputs of other sizes than those that were traced."""
    sizes = {}
    for node in module.graph.find_nodes(op="placeholder"):
        for symbol in getattr(padding.expression(node.meta["val"]), "free_symbols", ()):
            sizes.setdefault(symbol, 5 + len(sizes))
        for size in SIZES.shape(node.meta["val"]):
            for symbol in size.free_symbols:
                sizes.setdefault(symbol, 5 + len(sizes))

    def made(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return int(padding.expression(value).subs(sizes))
        shape = [int(size.subs(sizes)) for size in SIZES.shape(value)]
        if value.dtype.is_floating_point:
            return torch.randn(shape, dtype=value.dtype)
        return torch.randint(0, 2, shape).to(value.dtype)

    return [made(node.meta["val"]) for node in module.graph.find_nodes(op="placeholder")]


def attention(x: torch.Tensor) -> torch.Tensor:
    heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
    scores = heads @ heads.transpose(-1, -2)
    places = torch.arange(x.shape[1])
    scores = scores.masked_fill(places[None, :] > places[:, None], float("-inf"))
    return (scores.softmax(-1) @ heads).transpose(1, 2).flatten(2)


#: Functions of (batch, rows, 8), and how many of the two sizes can be padded.
FUNCTIONS: dict[str, tuple[Function, int]] = {
    "pointwise": (lambda x: (x.sin() + x[:1] * 2).relu(), 1),
    "product": (lambda x: x @ torch.ones(8, 3), 2),
    "sum": (lambda x: x.sum(1), 2),
    "sum of all": (lambda x: (x * 2).sum(), 2),
    "mean": (lambda x: x.mean(1, keepdim=True) + x.mean((0, 2)).sum(), 2),
    "mean of halves": (lambda x: x.bfloat16().mean((0, 1)), 2),
    "variance": (lambda x: torch.var_mean(x, (0, 1))[0] + torch.var_mean(x, 1, correction=0)[0], 2),
    "extremes": (lambda x: x.amax((0, 1)) - x.exp().amin(1).max(), 2),
    "extreme of integers": (lambda x: (x * 9).int().amax(1), 2),
    "any": (lambda x: (x > 2).any(1), 2),
    "softmax": (lambda x: x.softmax(1).log_softmax(0), 2),
    "covariance": (lambda x: x.flatten(0, 1).t() @ x.flatten(0, 1), 2),
    "scan": (lambda x: x.cumsum(1), 2),
    "attention": (attention, 2),
    "joined": (lambda x: x.flatten(0, 1).softmax(0).sum(1), 2),
    "joined and taken apart": (lambda x: x.flatten(0, 1).cos().unflatten(0, (x.shape[0], x.shape[1])).mean(0), 2),
    "size as a number": (lambda x: x / x.shape[1], 2),
    "parts": (lambda x: torch.cat([x[..., :3], x[..., 4:] * 2], -1).split(3, -1)[1], 2),
    "first": (lambda x: x[:, 0] + 1, 2),
    "last": (lambda x: x[:, -1] + 1, 1),
    "appended": (lambda x: torch.cat([x, x[:, :1]], 1).sum(0), 1),
    "half": (lambda x: x[:, ::2].sum(1), 1),
    "reversed": (lambda x: x.flip(1), 1),
    "sorted": (lambda x: x.sort(0)[0], 2),
    "maximum with its place": (lambda x: x.max(1)[1], 1),
    "counted": (lambda x: x + torch.arange(x.shape[1])[:, None], 2),
    "counted over both": (lambda x: x.flatten(0, 1) + torch.arange(x.shape[0] * x.shape[1])[:, None], 0),
    "transposed": (lambda x: (x.transpose(0, 1).reshape(-1, 8) * 2).sum(0), 2),
    "norm": (lambda x: nn.functional.layer_norm(x, (8,)), 2),
    "norm over rows": (lambda x: nn.functional.group_norm(x.transpose(1, 2), 4), 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_padding_never_shows(name: str) -> None:
    """Where it can be, and only there."""
    function, count = FUNCTIONS[name]
    torch.manual_seed(0)
    (graph,) = traced(function, torch.randn(3, 4, 8))
    assert check(graph, inputs_of(graph)) == count


#: What chains are made of: functions of a tensor and of a source of choices.
LINKS: list[Callable[[torch.Tensor, random.Random], torch.Tensor]] = [
    lambda x, chance: x.sin() * 2 + 1,
    lambda x, chance: x.softmax(chance.randrange(x.dim())),
    lambda x, chance: x - x.mean(chance.randrange(x.dim()), keepdim=True),
    lambda x, chance: x - x.amax(chance.randrange(x.dim()), keepdim=True),
    lambda x, chance: x / (1 + x.abs().sum(chance.randrange(x.dim()))).mean(),
    lambda x, chance: x + x.var(chance.randrange(x.dim()), correction=0, keepdim=True),
    lambda x, chance: x.transpose(chance.randrange(x.dim()), 0),
    lambda x, chance: x.transpose(chance.randrange(x.dim()), 0).contiguous(),
    lambda x, chance: x.flatten(0, 1) if x.dim() > 2 else x.unsqueeze(0),
    lambda x, chance: x.flatten(-2) if x.dim() > 2 else x.unsqueeze(1),
    lambda x, chance: x.cumsum(chance.randrange(x.dim())),
    lambda x, chance: x.sum(chance.randrange(x.dim())) if x.dim() > 1 else x,
    lambda x, chance: x @ x.transpose(-1, -2) if x.dim() > 1 else x,
    lambda x, chance: torch.where(x > 0, x, -1.0) / x.shape[0],
    lambda x, chance: x + torch.arange(x.shape[-1]),
    lambda x, chance: x[-1] if x.dim() > 1 else x,
    lambda x, chance: torch.cat([x, x * 2], chance.randrange(x.dim())),
]


@pytest.mark.parametrize("seed", range(8))
def test_padding_never_shows_in_chains(seed: int) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        chance = random.Random(seed)
        for _ in range(5):
            x = chance.choice(LINKS)(x, chance)
        return x

    torch.manual_seed(0)
    for graph in traced(chain, torch.randn(3, 4, 8, requires_grad=seed % 2 == 0)):
        check(graph, inputs_of(graph))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 4), nn.LayerNorm(4), nn.Softmax(-1))


def convolutional() -> nn.Module:
    layers = (nn.Unflatten(2, (8, 1)), nn.Conv2d(4, 6, (3, 1)), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(36, 3))


class Classifier(nn.Module):
    """An embedding, attention, and a loss that is a mean over all words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.mix = nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        x = x + self.mix(attention(self.norm(x)))
        logits = x @ self.words.weight.t()
        return nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten(), ignore_index=3)


#: Models with an input for each, and how many sizes of their forward and of their backward pass can be padded.
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, list[int]]] = {
    "perceptron": (perceptron, torch.randn(3, 4, 8), [2, 2]),
    "convolutional": (convolutional, torch.randn(3, 4, 8), [1, 1]),
    "classifier": (Classifier, torch.arange(12).view(3, 4) % 7, [2, 2]),
}


@pytest.mark.parametrize("name", MODELS)
def test_padding_never_shows_in_training(name: str) -> None:
    make, x, counts = MODELS[name]
    torch.manual_seed(0)
    graphs = traced(make(), x)
    assert [check(graph, inputs_of(graph)) for graph in graphs] == counts
