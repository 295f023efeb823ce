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
    assert model.weight is weight
    meta = nn.Linear(3, 3, device="meta")
    assert meta.to_empty(device=device).weight.device.type == device


@pytest.mark.filterwarnings("error")
def test_parameters_that_something_holds_stay_what_they_are(device: str) -> None:
    """Weak references, views, and graphs of calls before: as on CUDA, nothing keeps a parameter from moving."""
    model = nn.Linear(3, 3)
    weight, held, view = model.weight, weakref.ref(model.weight), model.weight.view(9)
    loss = model(torch.ones(1, 3)).sum()
    for target in (device, "cpu", device):
        model.to(target)
        assert model.weight is weight is held() and weight.device.type == target
    assert view.device.type == "cpu"
    loss.backward()  # of the call on the CPU: its gradients are there
    assert weight.grad.device.type == "cpu"
    model.zero_grad()
    model(torch.ones(1, 3, device=device)).sum().backward()
    assert weight.grad.device.type == device


def test_data_is_assigned_across_devices(device: str) -> None:
    """What libraries do that move parameters by themselves."""
    parameter = nn.Parameter(torch.zeros(3))
    parameter.data = torch.arange(4.0, device=device)
    assert parameter.device.type == device and parameter.tolist() == [0, 1, 2, 3] and parameter.is_leaf
    (parameter * 2).sum().backward()
    parameter.data, parameter.grad.data = parameter.data.cpu(), parameter.grad.data.cpu()
    assert parameter.tolist() == [0, 1, 2, 3] and parameter.grad.tolist() == [2, 2, 2, 2]
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        parameter.data = torch.eye(4, device=device).to_sparse()


LAZY = {
    "linear": (lambda: nn.LazyLinear(3), (2, 4)),
    "in a container": (lambda: nn.Sequential(nn.LazyLinear(3, bias=False), nn.ReLU()), (2, 4)),
    "conv": (lambda: nn.LazyConv1d(4, 3), (2, 3, 8)),
    "conv_transpose": (lambda: nn.LazyConvTranspose2d(4, 3), (2, 3, 5, 5)),
    "batch_norm": (lambda: nn.LazyBatchNorm2d(), (2, 3, 5, 5)),
    "instance_norm": (lambda: nn.LazyInstanceNorm1d(affine=True, track_running_stats=True), (2, 3, 5)),
}


@pytest.mark.parametrize("kind", LAZY)
def test_lazy_modules_stay_lazy_until_their_first_call(device: str, kind: str) -> None:
    make, shape = LAZY[kind]
    model = make().to(device)
    waiting = [*model.parameters(), *model.buffers()]
    lazy = [each for each in waiting if nn.parameter.is_lazy(each)]
    assert lazy and all(each.device.type == device for each in waiting)
    x = torch.randn(shape)
    y = model(x.to(device))
    now = [*model.parameters(), *model.buffers()]
    assert all(a is b for a, b in zip(waiting, now, strict=True)) and not any(map(nn.parameter.is_lazy, now))
    torch.testing.assert_close(y.cpu(), model.cpu()(x), rtol=1e-4, atol=1e-4)


def test_lazy_modules_take_weights_of_the_device(device: str) -> None:
    model, loaded = nn.LazyLinear(3).to(device), nn.Linear(4, 3, device=device)
    model.load_state_dict(loaded.state_dict())
    assert torch.equal(model.weight, loaded.weight) and model.in_features == 0
    x = torch.randn(2, 4, device=device)
    assert torch.equal(model(x), loaded(x)) and model.in_features == 4


def test_statistics_of_equal_batches() -> None:
    x, means = torch.randn(4, 3, 5), torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.0, 3.0]])
    deviations = torch.tensor([[1.0, 2.0, 0.5], [3.0, 1.0, 1.5]])
    running = torch.zeros(3, device="ocl"), torch.ones(3, device="ocl")
    arguments = [each.to("ocl") for each in (x, means, (deviations**2 + 1e-5).rsqrt())]
    mean, inverse = torch.batch_norm_gather_stats(*arguments, *running, 0.1, 1e-5, 20)
    variance = (deviations**2 + means**2).mean(0) - means.mean(0) ** 2
    torch.testing.assert_close(mean.cpu(), means.mean(0))
    torch.testing.assert_close(inverse.cpu(), (variance + 1e-5).rsqrt())
    torch.testing.assert_close(running[0].cpu(), 0.1 * means.mean(0))
    torch.testing.assert_close(running[1].cpu(), 0.9 + 0.1 * variance * 40 / 39)
