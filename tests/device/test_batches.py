# SPDX-License-Identifier: Apache-2.0
"""Updates of many parameters go to the device together: the bits are those of one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outboard import _C

#: Name -> optimizer.
WAYS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam, foreach": (torch.optim.Adam, {"foreach": True}),
    "adam, fused": (torch.optim.Adam, {"fused": True}),
    "adamw, amsgrad, foreach": (torch.optim.AdamW, {"foreach": True, "amsgrad": True}),
    "adamw, amsgrad, fused": (torch.optim.AdamW, {"fused": True, "amsgrad": True}),
    "sgd, nesterov, foreach": (torch.optim.SGD, {"foreach": True, "momentum": 0.9, "nesterov": True}),
    "sgd, nesterov, fused": (torch.optim.SGD, {"fused": True, "momentum": 0.9, "nesterov": True}),
    "rmsprop, foreach": (torch.optim.RMSprop, {"foreach": True, "centered": True}),
    "adam, capturable, foreach": (torch.optim.Adam, {"foreach": True, "capturable": True}),
}
#: Some go to threads in pieces, some are a piece of their own.
SHAPES = ((300, 257), (5,), (256, 256), (), (1,), (70_001,), (64, 33), (0, 4), (200_000,))
COUNT = 90
STEPS = 4


def make_parameters(device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [SHAPES[i % len(SHAPES)] for i in range(COUNT)]
    parameters = [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(device)
    return parameters


def trained(device: str, way: str, together: bool) -> list[Tensor]:
    """What some steps make, between which other operators change parameters and gradients. Nobody waits meanwhile."""
    kind, options = WAYS[way]
    parameters = make_parameters(device)
    groups = [parameters] if together else [[parameter] for parameter in parameters]
    optimizers = [kind(group, lr=1e-2, **options) for group in groups]
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.mul_(0.75)
                parameter.add_(parameter.grad, alpha=0.5)
    found = list(parameters)
    for optimizer in optimizers:
        found += [x for state in optimizer.state.values() for x in state.values() if isinstance(x, Tensor)]
    return [x.detach().cpu() for x in found]


@pytest.mark.parametrize("way", WAYS)
def test_bits_are_those_of_one_parameter_at_a_time(device: str, way: str) -> None:
    expected, found = trained(device, way, False), trained(device, way, True)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def batches(graph: torch.accelerator.Graph, path: Path) -> list[str | None]:
    """The batch of each launch of a graph."""
    graph.enable_debug_mode()
    graph.debug_dump(str(path))
    launches = [line for line in path.read_text().splitlines() if line.startswith("launch")]
    found = [re.search(r" batch (\d+)$", line) for line in launches]
    return [None if match is None else match[1] for match in found]


@pytest.mark.parametrize("fused", [False, True])
def test_updates_are_one_batch(device: str, tmp_path: Path, fused: bool) -> None:
    way: dict[str, Any] = {"fused": True} if fused else {"foreach": True}
    parameters = [torch.ones(500 + i, device=device, requires_grad=True) for i in range(20)]
    reference = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    for parameter, other in zip(parameters, reference, strict=True):
        parameter.grad = torch.full_like(parameter, 0.5)
        other.grad = parameter.grad.clone()
    optimizer, expected = (torch.optim.SGD(each, lr=0.1, **way) for each in (parameters, reference))
    optimizer.step()
    graph = torch.accelerator.Graph()
    with graph:
        optimizer.step()
    of_launches = batches(graph, tmp_path / "graph")
    assert len(of_launches) == len(parameters)
    assert len({batch for batch in of_launches if batch is not None}) == 1
    assert of_launches.count(None) <= 1  # one looks for the plan of all
    for _ in range(30):
        graph.replay()  # each behind the one before, not among it
    for _ in range(31):
        expected.step()
    for one, other in zip(reference, parameters, strict=True):
        assert torch.equal(one, other)


def overlapping(x: Tensor) -> list[Tensor]:
    return [x[:600], x[300:900], x[:600], x[900:]]


def strided(x: Tensor) -> list[Tensor]:
    return [x[::2], x[1::2]]


@pytest.mark.parametrize("parts", [overlapping, strided])
def test_parameters_that_share_memory_take_turns(
    device: str, tmp_path: Path, parts: Callable[[Tensor], list[Tensor]]
) -> None:
    def step(xs: list[Tensor], gradients: list[Tensor]) -> None:
        torch._fused_sgd_(
            xs, gradients, [], weight_decay=0.5, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False,
            is_first_step=False,
        )  # fmt: skip

    x = torch.linspace(1, 2, 1200).to(device)
    y = x.clone()
    gradients = parts(x.clone())
    for _ in range(3):
        step(parts(x), gradients)
        for part, gradient in zip(parts(y), gradients, strict=True):
            step([part], [gradient])
    assert torch.equal(x, y)
    graph = torch.accelerator.Graph()
    with graph:
        step(parts(x), gradients)
    assert set(batches(graph, tmp_path / "graph")) == {None}


@pytest.mark.parametrize("fused", [False, True])
def test_more_parameters_than_memory(device: str, fused: bool) -> None:
    """Some move to the host and back between launches of a batch."""
    size, count = 1 << 18, 12
    way: dict[str, Any] = {"fused": True} if fused else {"foreach": True}
    limit = _C.memory_limit(0)
    results = []
    for tight in (False, True):
        parameters = [torch.full((size,), float(i), device=device, requires_grad=True) for i in range(count)]
        for i, parameter in enumerate(parameters):
            parameter.grad = torch.full((size,), 0.1 * i, device=device)
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **way)
        _C.set_memory_limit(0, 10 * 4 * size if tight else limit)
        try:
            for _ in range(4):
                optimizer.step()
            results.append([parameter.detach().cpu() for parameter in parameters])
        finally:
            _C.set_memory_limit(0, limit)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
