# SPDX-License-Identifier: Apache-2.0
"""``outboard.optimize``: a module like the one given, compiled."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import outboard


class Model(nn.Module):
    """Two layers, a buffer and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 4))
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 8) -> (batch, 4)."""
        return self.layers(x) + self.shift


class Breaking(Model):
    """What Dynamo cannot take in one graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 8) -> (batch, 4), by way of Python."""
        y = super().forward(x)
        scale = 2.0 if y.sum().item() > 0 else 3.0
        return y * scale


def test_same_names_and_parameters() -> None:
    model = Model()
    optimized = outboard.optimize(model, torch.randn(2, 8))
    assert isinstance(optimized, Model) and list(optimized.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(optimized.parameters(), model.parameters(), strict=True))
    optimized.load_state_dict({name: torch.zeros_like(value) for name, value in model.state_dict().items()})
    assert not model.layers[0].weight.any()
    optimized.eval()
    assert not optimized.training and not optimized.layers.training


@pytest.mark.parametrize("kind", [Model, Breaking])
def test_forward_and_backward(device: str, kind: type[Model]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    expected = copy.deepcopy(model)
    x = torch.randn(5, 8)
    optimized = outboard.optimize(model, x).to(device)
    inputs = x.to(device).requires_grad_()
    result = optimized(inputs)
    result.square().sum().backward()
    reference = x.clone().requires_grad_()
    answer = expected(reference)
    answer.square().sum().backward()
    torch.testing.assert_close(result.detach().cpu(), answer.detach())
    torch.testing.assert_close(inputs.grad.cpu(), reference.grad)
    for ours, theirs in zip(optimized.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_modules_of_modules_of_pytorch(device: str) -> None:
    """Dynamo looks into no frame of torch.nn by itself. Each of several such modules has graphs of its own."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    x = torch.randn(5, 8)
    count = torch._dynamo.config.recompile_limit + 1
    for width in range(1, 1 + count):
        model = nn.Sequential(nn.Linear(8, width), nn.Tanh())
        expected = model(x)
        optimized = outboard.optimize(model.to(device), x)
        optimized.register_forward_hook(lambda module, args, result: result + 1)
        for _ in range(2):
            torch.testing.assert_close(optimized(x.to(device)).cpu(), expected + 1)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == count
    assert set(torch._dynamo.utils.counters["frames"].values()) == {count}


def test_train_and_eval_are_told_apart(device: str) -> None:
    optimized = outboard.optimize(Model()).to(device)
    x = torch.ones(64, 8, device=device)
    optimized.train()
    assert not torch.equal(optimized(x).cpu(), optimized(x).cpu())
    optimized.eval()
    assert torch.equal(optimized(x).cpu(), optimized(x).cpu())


def test_copies_and_pickles() -> None:
    optimized = outboard.optimize(Model())
    for again in (copy.deepcopy(optimized), pickle.loads(pickle.dumps(optimized))):
        torch.testing.assert_close(again.state_dict(), optimized.state_dict())


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="expects a torch.nn.Module"):
        outboard.optimize(torch.relu)  # type: ignore[type-var]
    with pytest.raises(TypeError):
        outboard.optimize(Model(), torch.ones(1), torch.ones(1))
