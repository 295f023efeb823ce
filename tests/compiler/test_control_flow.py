# SPDX-License-Identifier: Apache-2.0
"""Graphs inside of graphs: ``torch.cond`` and ``while_loop`` compiled for the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import associative_scan, while_loop


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def branch(flag: Tensor, x: Tensor) -> Tensor:
    result: Tensor = torch.cond(flag, lambda x: x.sin() @ x, lambda x: x.cos() + 1, (x,))
    return result * 2


def nested(flag: Tensor, x: Tensor) -> Tensor:
    def outer(x: Tensor) -> Tensor:
        inner: Tensor = torch.cond(x.sum() > 0, lambda x: x.exp(), lambda x: x - 1, (x,))
        return inner.tanh()

    result: Tensor = torch.cond(flag, outer, lambda x: x * 3, (x,))
    return result


@pytest.mark.parametrize("function", [branch, nested])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("flag", [True, False])
def test_cond(device: str, function: Callable[[Tensor, Tensor], Tensor], dynamic: bool, flag: bool) -> None:
    compiled = torch.compile(function, dynamic=dynamic, fullgraph=True)
    for size, sign in ((8, 1), (8, -1), (5, 1)):
        x = torch.rand(size, size) * sign
        found = compiled(torch.tensor(flag, device=device), x.to(device))
        torch.testing.assert_close(found.cpu(), function(torch.tensor(flag), x))


def test_cond_on_a_size_of_its_operand(device: str) -> None:
    def function(flag: Tensor, x: Tensor) -> Tensor:
        result: Tensor = torch.cond(flag, lambda x: x / x.shape[0], lambda x: x + x.shape[1], (x,))
        return result

    compiled = torch.compile(function, dynamic=True, fullgraph=True)
    for shape in ((4, 6), (7, 3)):
        for flag in (True, False):
            x = torch.randn(shape)
            found = compiled(torch.tensor(flag, device=device), x.to(device))
            torch.testing.assert_close(found.cpu(), function(torch.tensor(flag), x))


def test_gradient_of_cond(device: str) -> None:
    compiled = torch.compile(branch, fullgraph=True)
    for flag in (True, False):
        x = torch.rand(6, 6)
        leaves = [x.clone().to(where).requires_grad_() for where in ("cpu", device)]
        branch(torch.tensor(flag), leaves[0]).sum().backward()
        compiled(torch.tensor(flag, device=device), leaves[1]).sum().backward()
        torch.testing.assert_close(leaves[1].grad.cpu(), leaves[0].grad)


def test_a_branch_with_work_of_the_host(device: str) -> None:
    def function(flag: Tensor, x: Tensor) -> Tensor:
        result: Tensor = torch.cond(flag, lambda x: torch.linalg.det(x) * x, lambda x: x + 1, (x,))
        return result

    compiled = torch.compile(function, fullgraph=True)
    x = torch.eye(4) + 0.1 * torch.rand(4, 4)
    for flag in (True, False):
        found = compiled(torch.tensor(flag, device=device), x.to(device))
        torch.testing.assert_close(found.cpu(), function(torch.tensor(flag), x))


def count_up(x: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    def goes_on(count: Tensor, x: Tensor) -> Tensor:
        return count < limit

    def step(count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return count + 1, x * 1.5 + x.sin()

    result: tuple[Tensor, Tensor] = while_loop(goes_on, step, (torch.zeros_like(limit), x))
    return result


def test_while_loop(device: str) -> None:
    compiled = torch.compile(count_up, fullgraph=True)
    for turns in (0, 1, 5):
        x = torch.randn(8, 3)
        found = compiled(x.to(device), torch.tensor(turns, device=device))
        for ours, theirs in zip(found, count_up(x, torch.tensor(turns)), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)


def test_associative_scan(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        result: Tensor = associative_scan(lambda a, b: a * 0.5 + b, x, 0, combine_mode="generic")
        return result

    x = torch.randn(9, 4)
    found = torch.compile(function, fullgraph=True)(x.to(device))
    torch.testing.assert_close(found.cpu(), torch.compile(function, fullgraph=True)(x))
