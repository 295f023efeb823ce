# SPDX-License-Identifier: Apache-2.0
"""Moving modules keeps what parameters are: tied weights stay tied, optimizers stay valid."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(x)))


def test_tied_weights_stay_tied(device: str) -> None:
    model = Tied()
    weight = model.embed.weight
    for target in (device, "cpu", device):
        model.to(target)
        assert model.head.weight is model.embed.weight is weight
        assert weight.device.type == target
        assert len(list(model.parameters())) == 3
    assert isinstance(weight, nn.Parameter) and weight.requires_grad and weight.is_leaf


def test_what_is_written_on_parameters_stays(device: str) -> None:
    """DDP and others mark parameters by attributes: which to leave out, how they are split."""
    model = Tied()
    model.head.weight.left_out = "marked"  # type: ignore[attr-defined]
    for target in (device, "cpu"):
        model.to(target)
        assert vars(model.embed.weight) == {"left_out": "marked"}
        assert not vars(model.norm.weight)


def test_training_tied_weights_agrees_with_the_cpu(device: str) -> None:
    theirs = Tied()
    ours = copy.deepcopy(theirs)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.05) for model in (theirs, ours)]  # before the move
    ours.to(device)
    x, y = torch.randint(0, 11, (6,)), torch.randint(0, 11, (6,))
    for _ in range(5):
        for model, optimizer, where in ((theirs, optimizers[0], "cpu"), (ours, optimizers[1], device)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(where)), y.to(where)).backward()
            optimizer.step()
    torch.testing.assert_close(ours.embed.weight.detach().cpu(), theirs.embed.weight.detach(), rtol=1e-3, atol=1e-4)
    assert ours.head.weight is ours.embed.weight


def test_gradients_and_hooks_move_along(device: str) -> None:
    model = Tied()
    calls: list[str] = []
    model.embed.weight.register_hook(lambda grad: calls.append(grad.device.type))
    model(torch.tensor([1, 2])).sum().backward()
    gradient = model.embed.weight.grad.clone()
    getattr(model, device)()
    torch.testing.assert_close(model.embed.weight.grad.cpu(), gradient)
    model(torch.tensor([1, 2], device=device)).sum().backward()
    assert calls == ["cpu", device]


@pytest.mark.parametrize(
    "move", [lambda m, d: m.to(d, torch.float64), lambda m, d: m.half().to(d), lambda m, d: m.to_empty(device=d)]
)
def test_other_ways_to_move(device: str, move) -> None:  # type: ignore[no-untyped-def]
    model = Tied()
    weight = model.embed.weight
    move(model, device)
    assert model.head.weight is model.embed.weight is weight and weight.device.type == device


def test_the_usual_case_is_left_alone(device: str) -> None:
    model = nn.Linear(3, 3)
    weight = model.weight
    model.double()
    model.share_memory()
    assert model.weight is weight and not torch.__future__.get_swap_module_params_on_conversion()
    meta = nn.Linear(3, 3, device="meta")
    assert meta.to_empty(device=device).weight.device.type == device


def test_parameters_that_something_holds_are_replaced_with_a_warning(device: str) -> None:
    model = nn.Linear(3, 3)
    held = weakref.ref(model.weight)
    with pytest.warns(UserWarning, match="something else holds"):
        model.to(device)
    assert model.weight.device.type == device and model.bias.device.type == device
    assert model(torch.ones(1, 3, device=device)).device.type == device
    assert held() is not model.weight


def test_a_graph_from_before_the_move_does_not_go_on_in_silence(device: str) -> None:
    model = nn.Linear(3, 3)
    loss = model(torch.ones(1, 3)).sum()
    model.to(device)
    assert model.weight.device.type == device
    with pytest.raises(RuntimeError, match="swap"):
        loss.backward()
    model(torch.ones(1, 3, device=device)).sum().backward()
    assert model.weight.grad.device.type == device
