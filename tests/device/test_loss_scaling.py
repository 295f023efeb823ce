# SPDX-License-Identifier: Apache-2.0
"""GradScaler: gradients are unscaled and checked, and the scale is updated, on the device and without a wait."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor


@pytest.fixture(autouse=True)
def _no_fallbacks(device_module: ModuleType) -> Iterator[None]:
    device_module.set_fallback_policy("error")
    yield
    device_module.set_fallback_policy("allow")


def gradients(dtype: torch.dtype, wrong: float | None) -> list[Tensor]:
    shapes: list[tuple[int, ...]] = [(5, 7), (300, 41), (0,), (), (6, 7)]
    made = [torch.randn(shape).to(dtype) for shape in shapes]
    made[4] = made[4][:, ::2]
    if wrong is not None:
        made[1][37, 5] = wrong
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wrong", [None, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_unscaling(device: str, dtype: torch.dtype, wrong: float | None, factor: float) -> None:
    results = []
    for where in ("cpu", device):
        torch.manual_seed(0)
        grads = [grad.to(where) for grad in gradients(dtype, wrong)]
        found = torch.zeros(1, device=where)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.tensor([factor], device=where))
        results.append([found.cpu(), *(grad.cpu() for grad in grads)])
    assert results[1][0].item() == (wrong is not None)
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_what_was_found_stays_found(device: str) -> None:
    found = torch.ones(1, device=device)
    for grads in ([torch.ones(3, device=device)], []):
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.ones(1, device=device))
    assert found.item() == 1


def test_wrong_scales(device: str) -> None:
    one, two = torch.ones(1, device=device), torch.ones(2, device=device)
    for arguments in ((two, one), (one, two), (one.double(), one), (one, one.double())):
        with pytest.raises(RuntimeError):
            torch._amp_foreach_non_finite_check_and_unscale_([two], *arguments)


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("scale", [3.0, 2.0**127])
def test_updates(device: str, found: float, steps: int, scale: float) -> None:
    results = []
    for where in ("cpu", device):
        scales = torch.full((1,), scale, device=where)
        tracker = torch.tensor([steps], dtype=torch.int32, device=where)
        torch._amp_update_scale_(scales, tracker, torch.tensor([found], device=where), 2.0, 0.5, 5)
        results.append((scales.item(), tracker.item()))
    assert results[0] == results[1]


@pytest.mark.parametrize("fused", [False, True])
def test_training(device: str, device_module: ModuleType, fused: bool) -> None:
    """The same steps as on the CPU; only GradScaler itself reads a number, and a fused optimizer needs none."""
    results = []
    for where in ("cpu", device):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3).to(where)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        kind = torch.amp.GradScaler if where == "cpu" else lambda _, **options: device_module.amp.GradScaler(**options)
        scaler = kind(where, init_scale=2.0**14, growth_interval=2)
        inputs = [torch.randn(5, 4).to(where) * (1e38 if step == 1 else 1.0) for step in range(4)]
        scaler.scale(torch.ones((), device=where))
        for x in inputs:
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            if where != "cpu":
                device_module.set_sync_debug_mode("error")
            try:
                scaler.unscale_(optimizer)
                if fused:
                    scaler.step(optimizer)
                    scaler.update()
            finally:
                if where != "cpu":
                    device_module.set_sync_debug_mode("default")
            if not fused:
                scaler.step(optimizer)
                scaler.update()
        results.append([torch.tensor(scaler.get_scale()), *(p.detach().cpu() for p in model.parameters())])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
