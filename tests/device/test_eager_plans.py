# SPDX-License-Identifier: Apache-2.0
"""Eager operators run compiled plans: sizes and scalars are run-time values, writes go where they should."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from outboard import _C


@pytest.fixture
def namespace(device: str) -> ModuleType:
    """The module torch.<device>."""
    module: ModuleType = getattr(torch, torch.device(device).type)
    return module


def _misses(namespace: ModuleType) -> int:
    return int(namespace.compile_stats()["misses"])


def _variants(namespace: ModuleType) -> int:
    return int(namespace.compile_stats()["plans"])


def test_adam_compiles_nothing_after_its_second_step(device: str, namespace: ModuleType) -> None:
    model = nn.Linear(7, 5).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(4, 7, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    step()
    before = _misses(namespace)
    for _ in range(998):
        step()
    assert _misses(namespace) == before


def test_batch_sizes_share_plans(device: str, namespace: ModuleType) -> None:
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)).to(device)

    def step(batch: int) -> None:
        loss = nn.functional.cross_entropy(
            model(torch.randn(batch, 6, device=device)), torch.zeros(batch, dtype=torch.long, device=device)
        )
        loss.backward()

    step(2)
    after_first = _variants(namespace)
    step(1)  # size 1 broadcasts, so it may be a variant of its own
    step(20)  # columns long enough to fill vectors may be, too
    after_third = _variants(namespace)
    assert after_third <= 3 * after_first
    for batch in range(3, 40):
        step(batch)
    assert _variants(namespace) == after_third


def test_scalars_are_run_time_values(device: str, namespace: ModuleType) -> None:
    x = torch.arange(5.0, device=device)
    results = [(x * 1.5 + 2).cpu()]
    before = _misses(namespace)
    for k in range(50):
        results.append((x * (0.1 * k) + (k + 0.5)).cpu())
    assert _misses(namespace) - before <= 1  # `+ 2` is an integer, `+ 2.5` is not
    for k, result in enumerate(results[1:]):
        torch.testing.assert_close(result, torch.arange(5.0) * (0.1 * k) + (k + 0.5))


def test_a_hit_enters_no_python(device: str) -> None:
    x, y = torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)
    x + y
    calls = []

    def watch(frame: object, event: str, argument: object) -> None:
        if event == "call":
            calls.append(frame)

    gc.disable()  # other libraries hang Python callbacks on collections
    sys.setprofile(watch)
    try:
        with torch._C.DisableTorchFunction():  # set_default_device, once used, is a Python mode around every call
            torch.add(x, y)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert calls == []


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 3), (0, 3)])
def test_in_place_writes_in_place(device: str, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, device=device)
    alias = x.view(-1)
    address = x.untyped_storage().data_ptr()
    assert x.add_(2).mul_(x) is x
    assert x.untyped_storage().data_ptr() == address
    torch.testing.assert_close(alias.cpu(), torch.full(shape, 9.0).view(-1))


def test_in_place_on_views(device: str) -> None:
    base = torch.zeros(4, 6, device=device)
    base[1:3, ::2].add_(5)
    base.t()[3].fill_(7)
    expected = torch.zeros(4, 6)
    expected[1:3, ::2].add_(5)
    expected.t()[3].fill_(7)
    torch.testing.assert_close(base.cpu(), expected)


def test_out_writes_in_place_and_resizes(device: str) -> None:
    x, y = torch.rand(3, 4, device=device), torch.rand(3, 4, device=device)
    out = torch.empty(3, 4, device=device)
    assert torch.add(x, y, out=out) is out
    torch.testing.assert_close(out.cpu(), x.cpu() + y.cpu())
    grown = torch.empty(0, device=device)
    torch.mul(x, y, out=grown)
    torch.testing.assert_close(grown.cpu(), x.cpu() * y.cpu())
    strided = torch.zeros(4, 3, device=device).t()
    torch.sub(x, y, out=strided)
    torch.testing.assert_close(strided.cpu(), x.cpu() - y.cpu())
    with pytest.warns(UserWarning, match="resized"):
        wrong = torch.empty(2, device=device)
        torch.add(x, y, out=wrong)
    torch.testing.assert_close(wrong.cpu(), x.cpu() + y.cpu())
    lower = torch.empty(3, 4, dtype=torch.float16, device=device)
    torch.add(x, y, out=lower)
    torch.testing.assert_close(lower.cpu(), torch.add(x.cpu(), y.cpu(), out=torch.empty(3, 4, dtype=torch.float16)))


def test_aliased_arguments(device: str) -> None:
    for run in (
        lambda t: t.add_(t),
        lambda t: torch.add(t, t, out=t),
        lambda t: t.copy_(t.flip(0)),
        lambda t: t.index_add_(0, torch.tensor([1, 0], device=t.device), t[:2].clone()),
        lambda t: torch.cumsum(t, 0, out=t),
        lambda t: t.t().copy_(t.clone()),
        lambda t: t.mul_(t.t().clone()),
    ):
        x = torch.arange(9.0).view(3, 3)
        y = x.clone().to(device)
        run(x)
        run(y)
        torch.testing.assert_close(y.cpu(), x)


def test_many_layouts(device: str) -> None:
    base = torch.randn(4, 5, 6)
    other = torch.randn(6, 5, 4)
    views = [
        lambda t: t,
        lambda t: t.transpose(0, 2).contiguous().transpose(0, 2),
        lambda t: t[::2],
        lambda t: t[:, 1:4, ::3],
        lambda t: t[:, :1].expand(-1, 5, -1),
        lambda t: t.permute(2, 0, 1),
        lambda t: t[0, 0, 0],
        lambda t: t[:, :0],
    ]
    for view in views:
        x = view(base)
        for partner in (x, x.clone(), torch.tensor(2.0), x[..., :1] if x.dim() else x):
            expected = x.exp() * partner - x
            on_device = view(base.to(device))
            moved = partner.to(device)
            torch.testing.assert_close((on_device.exp() * moved - on_device).cpu(), expected)
    torch.testing.assert_close(
        (base.to(device) + other.to(device).permute(2, 1, 0)).cpu(), base + other.permute(2, 1, 0)
    )


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    ],
)
def test_dtypes_promote_as_on_cpu(device: str, dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 3]).to(dtype)
    for other in (
        torch.tensor([1, 2, 1, 3]),
        torch.tensor([0.5, 1.5, 2.5, 3.5]),
        torch.tensor([True, False, True, True]),
    ):
        for number in (2, 1.5, True):
            expected = x * other + number
            actual = x.to(device) * other.to(device) + number
            assert actual.dtype == expected.dtype
            torch.testing.assert_close(actual.cpu(), expected)


def test_the_costs_of_a_hit_add_up(device: str) -> None:
    a = torch.ones(4, 4, device=device)
    costs = _C.hit_costs(a, a, 5)
    assert all(cost > 0 for cost in costs.values())
    assert costs["call"] > costs["plan"]
    assert a.sum().item() == 16
    with pytest.raises(RuntimeError, match="bursts"):
        _C.hit_costs(a, a, 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, number: x.clamp(number),
        lambda x, number: x.clamp(None, number),
        lambda x, number: x.clone().clamp_(number, 2 * number),
        lambda x, number: x.var(0, correction=number),
        lambda x, number: torch.std_mean(x, 0, correction=number)[0],
        lambda x, number: torch.logit(x, eps=number / 10),
        lambda x, number: torch.norm(x, number, 0),
    ],
)
def test_optional_numbers_are_those_of_the_call(device: str, function: Callable[[Tensor, float], Tensor]) -> None:
    x = torch.rand(6, 5)
    for number in (0.25, 0.5, 1.5, 2, 3):
        torch.testing.assert_close(function(x.to(device), number).cpu(), function(x, number))
