# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's that a program implements for the device: single calls and graphs call the implementation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import outboard

calls: list[str] = []


def silu(x: Tensor) -> Tensor:
    """Twice what PyTorch has, so that nobody takes one for the other."""
    calls.append("silu")
    return 2 * x * torch.sigmoid(x)


def mm(a: Tensor, b: Tensor) -> Tensor:
    """A product of sums."""
    calls.append("mm")
    return (a[:, :, None] * b).sum(1)


@contextlib.contextmanager
def implemented(
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({"silu": silu, "mm": mm}),
) -> Iterator[None]:
    torch._dynamo.reset()
    library = torch.library.Library("aten", "IMPL")
    for name, function in functions.items():
        library.impl(name, function, "PrivateUse1")
    yield
    library._destroy()
    torch._dynamo.reset()


@pytest.fixture
def implementations() -> Iterator[None]:
    calls.clear()
    with implemented():
        yield


@pytest.mark.usefixtures("implementations")
@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_call_them(dynamic: bool, device: str, device_module: ModuleType) -> None:
    device_module.reset_fallbacks()
    x, w, bias = torch.randn(4, 5), torch.randn(5, 3), torch.randn(3)

    def function(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return F.silu(torch.mm(x, w) + bias).sin()  # the sum is none of a product that PyTorch knows

    compiled = torch.compile(function, dynamic=dynamic, fullgraph=True)
    found = compiled(x.to(device), w.to(device), bias.to(device))
    assert calls == ["mm", "silu"]
    torch.testing.assert_close(found.cpu(), (2 * F.silu(x @ w + bias)).sin())
    torch.testing.assert_close(compiled(x, w, bias), F.silu(x @ w + bias).sin())  # on the CPU there is none
    assert calls == ["mm", "silu"]
    assert not device_module.fallbacks()


@pytest.mark.usefixtures("implementations")
def test_gradients_are_pytorchs_of_the_operator(device: str) -> None:
    x = torch.randn(4, 5, device=device, requires_grad=True)
    single = torch.autograd.grad(F.silu(x).sum(), x)[0]
    compiled = torch.autograd.grad(torch.compile(lambda x: F.silu(x).sum())(x), x)[0]
    assert calls == ["silu", "silu"]
    torch.testing.assert_close(compiled, single)


def test_caches_tell_graphs_with_and_without_apart(device: str) -> None:
    x = torch.randn(4, device=device)
    for _ in range(2):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(F.silu)(x), x * torch.sigmoid(x))
        with implemented():
            torch.testing.assert_close(torch.compile(F.silu)(x), 2 * x * torch.sigmoid(x))


def test_operators_made_of_others_stay_whole(device: str) -> None:
    torch._dynamo.reset()
    library = torch.library.Library("aten", "IMPL")
    library.impl("selu", lambda x: x + 5, "PrivateUse1")
    x = torch.randn(4)
    torch.testing.assert_close(torch.compile(lambda x: F.selu(x) * 2)(x.to(device)).cpu(), 2 * (x + 5))
    library._destroy()


@pytest.mark.usefixtures("implementations")
def test_export_refuses_and_names_them(device: str, tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="outboard_program::silu"):
        outboard.export(torch.nn.SiLU().to(device), torch.randn(3, device=device), path=tmp_path / "model")


def native_dropout(x: Tensor, p: float, train: bool) -> tuple[Tensor, Tensor]:
    mask = torch.rand(x.shape, device=x.device) > p
    return x * mask / (1 - p), mask


def test_each_call_draws_anew_and_checkpoints_draw_the_same(device: str) -> None:
    x = torch.full((32, 32), 0.5, device=device, requires_grad=True)

    def both(x: Tensor) -> Tensor:
        return (2 * F.dropout(x) + 3 * F.dropout(x)).exp()

    with implemented({"native_dropout": native_dropout}):
        y = torch.compile(lambda x: checkpoint(both, x, use_reentrant=False))(x)
        y.sum().backward()
    factors = y.detach().log() / 0.5
    assert factors.round().unique().tolist() == [0, 4, 6, 10]
    torch.testing.assert_close(x.grad, factors * y.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_numbers_are_operands_of_sums(dtype: torch.dtype, device: str) -> None:
    x = torch.arange(6).to(device, dtype)
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda x: x + 2,
        lambda x: 2.5 + x,
        lambda x: torch.add(2, x, alpha=3),
        lambda x: x + x.shape[0],
        lambda x: x + x,
    ]
    with implemented({"add.Tensor": lambda a, b, alpha=1: torch.sub(a, b, alpha=alpha)}):
        for function in functions:
            torch.testing.assert_close(torch.compile(function, dynamic=True)(x), function(x))


def test_results_may_lie_in_any_way(device: str) -> None:
    x = torch.randn(4, 5)
    with implemented({"silu": lambda x: (x + 1).t().contiguous().t()}):
        found = torch.compile(lambda x: F.silu(x) * 2)(x.to(device))
    torch.testing.assert_close(found.cpu(), (x + 1) * 2)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (lambda x: x.half(), AssertionError, "aten.silu.default gave torch.float16, but in graphs it is torch.float32"),
        (lambda x: x[:3].clone(), AssertionError, "(?s)expected size 3==4.*aten.silu"),
        (lambda x: None, TypeError, "aten.silu"),
    ],
    ids=["dtype", "sizes", "nothing"],
)
def test_results_of_another_kind_are_refused(wrong: Any, error: type[Exception], says: str, device: str) -> None:
    with implemented({"silu": wrong}), pytest.raises(error, match=says):
        torch.compile(lambda x: F.silu(x) + 1)(torch.randn(4, 5, device=device))
