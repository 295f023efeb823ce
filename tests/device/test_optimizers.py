# SPDX-License-Identifier: Apache-2.0
"""Fused optimizers do what they do on the CPU, in few launches."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import _default_to_fused_or_foreach

from outboard import _C

#: Name -> optimizer. Each option occurs, and the kinds of step sizes.
WAYS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"lr": 1e-2}),
    "adam, decay, maximize": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1, "maximize": True}),
    "adam, amsgrad": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True, "betas": (0.8, 0.99)}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-2}),
    "adamw, amsgrad, maximize": (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True, "maximize": True, "eps": 1e-3}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2, "lr_decay": 0.1}),
    "adagrad, decay, maximize": (torch.optim.Adagrad, {"lr": 1e-2, "weight_decay": 0.1, "maximize": True}),
    "sgd": (torch.optim.SGD, {"lr": 1e-2}),
    "sgd, decay, maximize": (torch.optim.SGD, {"lr": 1e-2, "weight_decay": 0.1, "maximize": True}),
    "sgd, momentum": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.3}),
    "sgd, nesterov": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
}
SHAPES = ((), (5,), (64, 33), (4, 3, 3, 3), (0, 4))
STEPS = 4


def make_parameters(device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The same values on each device."""
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    return [value.to(device).requires_grad_() for value in values]


def set_gradients(parameters: list[Tensor], step: int, scale: float = 1.0, wrong: bool = False) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters:
        value = torch.randn(parameter.shape, generator=generator) * scale
        if wrong and value.numel() > 1:
            value.view(-1)[1] = float("inf")
        parameter.grad = value.to(parameter.device, parameter.dtype)


def everything(parameters: list[Tensor], optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Parameters, gradients, and the optimizer's state, as float64 on the CPU."""
    states = [optimizer.state[p][key] for p in parameters for key in sorted(optimizer.state[p])]
    gradients = [parameter.grad for parameter in parameters]
    found = [x for x in (*parameters, *gradients, *states) if isinstance(x, Tensor)]
    return [x.detach().cpu().double() for x in found]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_the_cpu(device: str, device_module: ModuleType, way: str, dtype: torch.dtype) -> None:
    kind, options = WAYS[way]
    results = []
    device_module.reset_fallbacks()
    for where in ("cpu", device):
        parameters = make_parameters(where, dtype)
        optimizer = kind(parameters, **options, fused=True)
        for step in range(STEPS):
            set_gradients(parameters, step)
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 0.7
        results.append(everything(parameters, optimizer))
    assert not any("fused" in name for name in device_module.fallbacks())
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("way", ["adamw", "adagrad", "sgd, nesterov"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_single_precision(device: str, way: str, dtype: torch.dtype) -> None:
    """The yardstick is float32: the CPU's fused momentum of halves is wrong in PyTorch 2.13."""
    kind, options = WAYS[way]
    results = []
    for where, kept in (("cpu", torch.float32), (device, dtype)):
        parameters = make_parameters(where, kept)
        optimizer = kind(parameters, **options, fused=True)
        for step in range(STEPS):
            set_gradients(parameters, step)
            optimizer.step()
        results.append(everything(parameters, optimizer))
    limit = 8 * torch.finfo(dtype).eps
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("way", ["adam, amsgrad", "adamw", "adagrad", "sgd, momentum"])
@pytest.mark.parametrize("on_device", [False, True])
def test_the_step_size_may_be_a_tensor(device: str, way: str, on_device: bool) -> None:
    kind, options = WAYS[way]
    results = []
    for where in ("cpu", device):
        parameters = make_parameters(where)
        rate = torch.tensor(1e-2, device=where if on_device else "cpu")
        optimizer = kind(parameters, **options | {"lr": rate}, fused=True)
        for step in range(STEPS):
            set_gradients(parameters, step)
            optimizer.step()
            rate.mul_(0.5)
        results.append(everything(parameters, optimizer))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["adam, amsgrad", "adamw", "adagrad", "sgd, momentum", "sgd"])
def test_a_step_with_infinite_gradients_is_left_out(device: str, way: str) -> None:
    """By GradScaler, whose scale and finding the fused step takes."""
    kind, options = WAYS[way]
    results = []
    for where in ("cpu", device):
        parameters = make_parameters(where)
        optimizer = kind(parameters, **options, fused=True)
        scaler = torch.amp.GradScaler(where, init_scale=8.0, growth_interval=2)
        scaler.scale(torch.ones((), device=where))
        states = []
        for step in range(STEPS):
            set_gradients(parameters, step, scaler.get_scale(), wrong=step == 1)
            before = [parameter.detach().clone() for parameter in parameters]
            scaler.step(optimizer)
            scaler.update()
            same = [torch.equal(a, b) for a, b in zip(before, parameters, strict=True)]
            states.append(torch.tensor([scaler.get_scale(), *same]).double())
        finite = [x for x in everything(parameters, optimizer) if bool(x.isfinite().all())]
        results.append([*states, *finite])
        assert states[1][1:].all() and not states[2][1:-1].any()
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_launches_are_few(device: str, device_module: ModuleType) -> None:
    """One for each parameter and one for its count of steps; and one plan for all parameters of a rank."""
    parameters = [torch.ones(8, 8 + i, device=device, requires_grad=True) for i in range(50)]
    optimizer = torch.optim.AdamW(parameters, fused=True)
    set_gradients(parameters, 0)
    optimizer.step()
    device_module.reset_compile_stats()
    set_gradients(parameters, 1)
    optimizer.step()
    stats = device_module.compile_stats()
    assert stats["misses"] == 0
    assert stats["hits"] <= 2 * len(parameters)


def test_nothing_given_is_the_way_of_other_devices(device: str) -> None:
    """PyTorch chooses ``foreach`` on devices that it knows to be fast at it."""
    parameters = make_parameters(device)
    fused, foreach = _default_to_fused_or_foreach(parameters, False)
    assert (fused, foreach) == (False, True)


def test_a_model_learns_the_same(device: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
    x, y = torch.randn(32, 8), torch.randint(2, (32,))
    losses = []
    for where in ("cpu", device):
        own = copy.deepcopy(model).to(where)
        optimizer = torch.optim.AdamW(own.parameters(), lr=1e-2, fused=True)
        for _ in range(10):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(own(x.to(where)), y.to(where))
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_lists_of_different_lengths_are_refused(device: str) -> None:
    x = torch.ones(3, device=device)
    with pytest.raises((RuntimeError, IndexError)):
        torch._fused_sgd_(
            [x, x], [x], [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False,
            is_first_step=False,
        )  # fmt: skip
    assert _C.memory_state(x) == "device"
