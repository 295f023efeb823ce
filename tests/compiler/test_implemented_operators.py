# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's that a program implements for the device: single calls and graphs call the implementation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

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
def implemented() -> Iterator[None]:
    torch._dynamo.reset()
    library = torch.library.Library("aten", "IMPL")
    for name, function in (("silu", silu), ("mm", mm)):
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
