# SPDX-License-Identifier: Apache-2.0
"""Operators that programs define (``torch.library``) in graphs of ``torch.compile``: called through the dispatcher."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import outboard

ours = torch.ops.outboard_test


@torch.library.custom_op("outboard_test::scale", mutates_args=())
def scale(x: Tensor, factor: float) -> Tensor:
    """x * factor."""
    return x * factor


@scale.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


scale.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("outboard_test::swap_", mutates_args=("x", "y"))
def swap_(x: Tensor, y: Tensor, n: int) -> None:
    """Swaps the first n elements of two tensors."""
    kept = x[:n].clone()
    x[:n] = y[:n]
    y[:n] = kept


@torch.library.custom_op("outboard_test::accumulate_", mutates_args=("total",))
def accumulate_(total: Tensor, parts: list[Tensor]) -> Tensor:
    """Adds parts to a total; returns the number of parts as a tensor."""
    for part in parts:
        total.add_(part)
    return torch.full_like(total, len(parts))


@accumulate_.register_fake
def _(total: Tensor, parts: list[Tensor]) -> Tensor:
    return torch.empty_like(total)


@torch.library.custom_op("outboard_test::chosen", mutates_args=())
def chosen(x: Tensor) -> Tensor:
    """As many elements of x as only a call can tell."""
    return x.flatten()[: x.shape[1]].clone()


@chosen.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty([torch.library.get_ctx().new_dynamic_size()])


Impl = Callable[..., object]
_SCHEMAS: dict[str, tuple[str, dict[str, Impl], Impl]] = {
    "both": (
        "(Tensor x, SymInt n) -> (Tensor, Tensor)",
        {"CompositeExplicitAutograd": lambda x, n: (x * n, x + n)},
        lambda x, n: (torch.empty_like(x), torch.empty_like(x)),
    ),
    "of_host": ("(Tensor x) -> Tensor", {"CPU": torch.neg}, torch.empty_like),
    "of_device": ("(Tensor x) -> Tensor", {"PrivateUse1": torch.neg, "CPU": torch.neg}, torch.empty_like),
    "of_parts": ("(Tensor x) -> Tensor", {"CompositeImplicitAutograd": lambda x: x.sin().cos()}, torch.empty_like),
    "maybe": (
        "(Tensor x, bool wanted) -> (Tensor, Tensor?)",
        {"CompositeExplicitAutograd": lambda x, wanted: (x + 1, x * 2 if wanted else None)},
        lambda x, wanted: (torch.empty_like(x), torch.empty_like(x) if wanted else None),
    ),
}


@pytest.fixture(autouse=True, scope="module")
def library() -> Iterator[None]:
    with torch.library._scoped_library("outboard_test", "FRAGMENT") as made:
        for name, (schema, kernels, fake) in _SCHEMAS.items():
            made.define(name + schema)
            for key, kernel in kernels.items():
                made.impl(name, kernel, key)
            if "CompositeImplicitAutograd" not in kernels:
                torch.library.register_fake(f"outboard_test::{name}", fake, lib=made)
        yield


def functional(x: Tensor) -> Tensor:
    return scale(x * 2, 3.0) + 1


def mutating(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x * 2, x - 1
    swap_(y, z, x.shape[0] // 2)
    return y + 1, z * y


def mutating_input(x: Tensor) -> Tensor:
    y = x.sin()
    swap_(x, y, 2)
    return x * y


def with_list(x: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.zeros_like(x)
    count = accumulate_(total, [x.sin(), x.cos(), x])
    return total * 2, count + 1


def with_both(x: Tensor) -> tuple[Tensor, ...]:
    y, z = ours.both(x.exp(), x.shape[0])
    return y - z, z * 2


def without_one(x: Tensor) -> tuple[Tensor, Tensor | None]:
    y, z = ours.maybe(x * 2, False)
    return y + 1, z


def with_maybe(x: Tensor) -> Tensor:
    y, z = ours.maybe(x * 2, True)
    return y + z


def data_dependent(x: Tensor) -> Tensor:
    return chosen(x * 2) + 1


def on_a_view(x: Tensor) -> Tensor:
    return scale((x + 1).t()[1:], 2.0).sum(0)


def of_device(x: Tensor) -> Tensor:
    return ours.of_device(x * 2) + 1


def of_parts(x: Tensor) -> Tensor:
    return ours.of_parts(x * 2) + 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        *(functional, mutating, mutating_input, with_list, with_both, without_one, with_maybe, data_dependent),
        *(on_a_view, of_device, of_parts),
    ],
)
def test_in_graphs(function: Callable[[Tensor], object], dynamic: bool, device: str, device_module: ModuleType) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=dynamic, fullgraph=True)
    device_module.reset_fallbacks()
    for rows in (4, 6) if dynamic else (4,):
        x = torch.randn(rows, 5)
        moved = x.to(device)
        torch.testing.assert_close(compiled(moved), function(x), check_device=False)
        torch.testing.assert_close(moved, x, check_device=False)  # what was written to
    assert not device_module.fallbacks()


def test_operators_of_the_host_are_counted(device: str, device_module: ModuleType) -> None:
    torch._dynamo.reset()
    device_module.reset_fallbacks()
    x = torch.randn(4, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.compile(lambda x: ours.of_host(x * 2) + 1)(x.to(device))
    torch.testing.assert_close(found, 1 - x * 2, check_device=False)
    assert device_module.fallbacks() == {"outboard_test::of_host": 1}


def test_gradients(device: str) -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 5, device=device, requires_grad=True)
    torch.compile(functional, fullgraph=True)(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[6.0] * 5] * 4


def test_reduced_overhead(device: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(functional, mode="reduce-overhead")
    for _ in range(4):
        x = torch.randn(4, 5)
        torch.testing.assert_close(compiled(x.to(device)), functional(x), check_device=False)


class Model(torch.nn.Module):
    """Calls an operator that a program defines."""

    def forward(self, x: Tensor) -> Tensor:
        """6 * x + 1."""
        return functional(x)


def test_export_names_the_operator(device: str, tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="outboard_test::scale"):
        outboard.export(Model().to(device), torch.randn(4, 5, device=device), path=tmp_path / "model")
