# SPDX-License-Identifier: Apache-2.0
"""Operators that only move elements, on complex numbers: the CPU's results, forms and bits, without the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

Call = Callable[[Tensor, Callable[[Any], Tensor]], Any]

#: Each gets a tensor of shape (3, 4), and what puts indices and masks beside it.
MOVES: dict[str, Call] = {
    "cat": lambda x, put: torch.cat([x, x[:1].conj(), x[:0]]),
    "stack": lambda x, put: torch.stack([x, x], 1),
    "index_select": lambda x, put: x.index_select(1, put([2, 0, 2])),
    "gather": lambda x, put: x.gather(1, put([[3, 0], [1, 1]])),
    "index": lambda x, put: x[put([2, -1])],
    "mask": lambda x, put: x[put([True, False, True])],
    "where": lambda x, put: torch.where(put([True, False, True, False]), x, x.flip(1)),
    "where a number": lambda x, put: torch.where(put([True, False, True, False]), x, 2 - 1j),
    "flip": lambda x, put: x.t().flip(0),
    "roll": lambda x, put: x.roll((1, -2), (0, 1)),
    "repeat": lambda x, put: x.repeat(2, 1, 2),
    "masked_select": lambda x, put: x.masked_select(put([True, False, True, True])),
    "masked_fill": lambda x, put: x.masked_fill(put([True, False, True, True]), 1 - 2j),
    "masked_scatter": lambda x, put: x.masked_scatter(put([True, False, True, True]), x.flip(0)),
    "index_put": lambda x, put: x.index_put((put([0, 2]),), x[1]),
    "index_put_": lambda x, put: x.clone().index_put_((put([0, 2]), put([1, 1])), x[1, :2]),
    "index_fill": lambda x, put: x.index_fill(1, put([0, 3]), -1.5),
    "index_copy": lambda x, put: x.index_copy(0, put([2, 0]), x[:2]),
    "scatter": lambda x, put: x.scatter(1, put([[1, 0], [2, 3]]), x),
    "scatter a number": lambda x, put: x.scatter(1, put([[1, 0], [2, 3]]), 3j),
    "pad": lambda x, put: F.pad(x, (1, 2, 0, 1), value=7.0),
    "reflect": lambda x, put: F.pad(x[None], (1, 2), mode="reflect"),
    # PyTorch has it for floats alone: the numbers' parts move.
    "unfold": lambda x, put: F.unfold(x[None, None], (2, 3), padding=1, stride=(1, 2)),
    "triu": lambda x, put: x.triu(1),
    "take": lambda x, put: x.take(put([5, 0, 11])),
    "embedding": lambda x, put: F.embedding(put([2, 0]), x),
    "view written": lambda x, put: x.clone().t()[1:].masked_fill_(put([False, True, True]), 0.5),
    "into an empty one": lambda x, put: torch.cat([x, x], out=torch.empty(0, dtype=x.dtype, device=x.device)),
    "into gaps": lambda x, put: torch.index_select(
        x, 0, put([2]), out=torch.zeros(1, 8, dtype=x.dtype).to(x.device)[:, ::2]
    ),
}


def test_conjugates_in_place(device: str) -> None:
    x = torch.tensor([1 + 2j, -3j])
    assert torch.equal(x.to(device).conj_physical_().cpu(), x.conj())


def _numbers(dtype: torch.dtype) -> Tensor:
    numbers = torch.complex(torch.arange(12.0).double(), torch.arange(12.0).double().neg()).to(dtype)
    numbers[3] = complex("nan")
    numbers[4] = complex(-0.0, float("inf"))
    return numbers.view(3, 4)


def _bits(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj().cpu()).contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_complex_numbers_move_on_the_device(
    device: str, device_module: ModuleType, name: str, dtype: torch.dtype
) -> None:
    expected = MOVES[name](_numbers(dtype), torch.tensor)
    x = _numbers(dtype).to(device)
    device_module.reset_fallbacks()
    result = MOVES[name](x, lambda values: torch.tensor(values, device=device))
    assert device_module.fallbacks() == {}
    assert (result.dtype, result.shape, result.stride()) == (dtype, expected.shape, expected.stride())
    assert torch.equal(_bits(result), _bits(expected))


@pytest.mark.parametrize("name", ["cat", "where", "gather"])
def test_their_gradients(device: str, name: str) -> None:
    def gradient(place: str) -> Tensor:
        x = torch.view_as_complex(torch.arange(24.0).view(3, 4, 2)).to(place).requires_grad_()
        MOVES[name](x, lambda values: torch.tensor(values, device=place)).abs().sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    torch.testing.assert_close(gradient(device), gradient("cpu"))


def test_what_computes_is_not_moved(device: str) -> None:
    """Promotion, sums of what meets, and factors."""
    x, index = _numbers(torch.complex64), torch.tensor([0, 0])
    calls: tuple[Callable[[str], Tensor], ...] = (
        lambda d: torch.cat([x.to(d), torch.ones(1, 4, dtype=torch.int64, device=d)]),
        lambda d: torch.where(torch.tensor(True, device=d), x.to(d), torch.ones(4, dtype=torch.float64, device=d)),
        lambda d: x.to(d).index_put((index.to(d),), x.to(d)[1:], accumulate=True),
        lambda d: torch.zeros(3, 4, dtype=x.dtype, device=d).scatter(0, index.view(1, 2).to(d), x.to(d), reduce="add"),
    )
    for call in calls:
        torch.testing.assert_close(call(device).cpu(), call("cpu"), equal_nan=True)
