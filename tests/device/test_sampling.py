# SPDX-License-Identifier: Apache-2.0
"""multinomial, and normal with tensors for its parameters: on the device, distributed as they should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch


@pytest.fixture(autouse=True)
def _no_fallbacks(device_module: ModuleType) -> Iterator[None]:
    device_module.set_fallback_policy("error")
    torch.manual_seed(0)
    yield
    device_module.set_fallback_policy("allow")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("replacement", [False, True])
def test_frequencies(device: str, dtype: torch.dtype, replacement: bool) -> None:
    weights = torch.tensor([0.0, 1.0, 2.0, 0.0, 5.0, 0.0], dtype=dtype)
    draws = 20_000
    if replacement:
        found = torch.multinomial(weights.to(device), draws, replacement=True)
    else:
        found = torch.multinomial(weights.to(device).expand(draws, 6), 1).flatten()
    assert found.dtype == torch.int64 and found.device.type == device and found.shape == (draws,)
    counts = torch.bincount(found.cpu(), minlength=6).double() / draws
    torch.testing.assert_close(counts, weights.double() / 8, rtol=0, atol=0.015)
    assert counts[[0, 3, 5]].eq(0).all()  # what has no weight is never drawn


def test_without_replacement_each_is_drawn_once(device: str) -> None:
    weights = torch.rand(50, 8).to(device)
    found = torch.multinomial(weights, 8).cpu()
    assert torch.equal(found.sort(-1).values, torch.arange(8).expand(50, 8))
    first = torch.multinomial(torch.tensor([1.0, 3.0]).to(device).expand(20_000, 2), 2)[:, 0]
    assert abs(first.double().mean().item() - 0.75) < 0.015


def test_generators_repeat(device: str) -> None:
    weights, generator = torch.rand(10).to(device), torch.Generator(device)
    for replacement in (False, True):
        generator.manual_seed(7)
        a = torch.multinomial(weights, 5, replacement, generator=generator)
        generator.manual_seed(7)
        b = torch.multinomial(weights, 5, replacement, generator=generator)
        assert torch.equal(a.cpu(), b.cpu())


def test_given_results(device: str) -> None:
    out = torch.empty(0, dtype=torch.int64, device=device)
    torch.multinomial(torch.tensor([0.0, 1.0]).to(device), 3, replacement=True, out=out)
    assert out.tolist() == [1, 1, 1]
    kept = torch.empty(4, device=device)
    torch.normal(torch.full((4,), 2.0).to(device), torch.zeros(4).to(device), out=kept)
    assert kept.tolist() == [2.0] * 4


def test_normal(device: str) -> None:
    mean, std = torch.tensor([-3.0, 0.0, 5.0]), torch.tensor([0.5, 1.0, 4.0])
    wide_mean, wide_std = mean.to(device).expand(20_000, 3), std.to(device).expand(20_000, 3)
    for found, deviation in (
        (torch.normal(wide_mean, wide_std), std),
        (torch.normal(wide_mean, 2.0), torch.full((3,), 2.0)),
        (torch.normal(wide_mean, std.to(device)), std),
    ):
        assert found.device.type == device
        torch.testing.assert_close(found.cpu().mean(0), mean, rtol=0, atol=0.15)
        torch.testing.assert_close(found.cpu().std(0), deviation, rtol=0.05, atol=0)
    assert abs(torch.normal(1.0, wide_std).cpu().mean().item() - 1.0) < 0.1


WRONG: dict[str, Callable[[str], object]] = {
    "negative weight": lambda d: torch.multinomial(torch.tensor([1.0, -1.0], device=d), 1),
    "infinite weight": lambda d: torch.multinomial(torch.tensor([1.0, float("inf")], device=d), 1),
    "nan": lambda d: torch.multinomial(torch.tensor([1.0, float("nan")], device=d), 1, replacement=True),
    "no weight": lambda d: torch.multinomial(torch.zeros(3, device=d), 1),
    "a row without weight": lambda d: torch.multinomial(torch.tensor([[1.0, 1.0], [0.0, 0.0]], device=d), 1),
    "too many draws": lambda d: torch.multinomial(torch.ones(3, device=d), 4),
    "no draws": lambda d: torch.multinomial(torch.ones(3, device=d), 0),
    "three dimensions": lambda d: torch.multinomial(torch.ones(2, 2, 2, device=d), 1),
    "integers": lambda d: torch.multinomial(torch.ones(3, dtype=torch.int64, device=d), 1),
    "negative deviation": lambda d: torch.normal(torch.zeros(2, device=d), -1.0),
    "a negative deviation": lambda d: torch.normal(torch.zeros(2, device=d), torch.tensor([1.0, -1.0], device=d)),
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_wrong_arguments(device: str, what: str) -> None:
    with pytest.raises(Exception) as expected:  # noqa: B017, PT011 - whatever the CPU raises
        WRONG[what]("cpu")
    with pytest.raises(expected.type):
        WRONG[what](device)
