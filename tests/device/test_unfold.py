# SPDX-License-Identifier: Apache-2.0
"""Gradients of windows: the CPU's, and no program for each place of a window."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

CASES = [
    # input, dimension, size, step
    ((9,), 0, 4, 1),
    ((9,), 0, 4, 2),
    ((2, 11, 3), 1, 5, 3),
    ((2, 11), -1, 3, 5),  # elements in no window
    ((7, 2), 0, 7, 1),
    ((4, 3), 0, 1, 1),
]


def gradient(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    x = x.detach().requires_grad_()
    windows = x.unfold(dimension, size, step)
    weights = torch.arange(windows.numel(), dtype=torch.float64).reshape(windows.shape).to(x.dtype)
    (windows * weights.to(x.device)).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize(("shape", "dimension", "size", "step"), CASES)
def test_as_on_the_cpu(
    device: str, shape: tuple[int, ...], dimension: int, size: int, step: int, dtype: torch.dtype
) -> None:
    x = torch.randn(shape, dtype=dtype)
    found = gradient(x.to(device), dimension, size, step)
    torch.testing.assert_close(found.cpu(), gradient(x, dimension, size, step))


def test_second_derivatives_and_graphs(device: str) -> None:
    def total(x: Tensor) -> Tensor:
        return (x.sin().unfold(0, 4, 2) ** 3).sum()

    x = torch.randn(11, dtype=torch.float64)
    expected = torch.autograd.functional.hessian(total, x)
    found = torch.autograd.functional.hessian(total, x.to(device))
    torch.testing.assert_close(found.cpu(), expected)
    leaf = x.to(device).requires_grad_()
    torch.compile(total)(leaf).backward()
    torch.testing.assert_close(leaf.grad.cpu(), torch.func.grad(total)(x))


def test_programs_do_not_grow_with_the_window(device: str, device_module: ModuleType) -> None:
    def programs(size: int) -> int:
        before = device_module.compile_stats()
        torch.ops.aten.unfold_backward(
            torch.randn(3, 5, size, device=device), [3, 2 * size + 8], 1, size, 2 + size // 5
        )
        after = device_module.compile_stats()
        return sum(after[each] - before[each] for each in ("programs_built", "programs_loaded"))

    assert programs(40) <= 2
    assert programs(160) <= 2
