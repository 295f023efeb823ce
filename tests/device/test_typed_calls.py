# SPDX-License-Identifier: Apache-2.0
"""Operators of the commonest schemas take their tensors as a loan: however a call ends, each has the owners it had."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Call = Callable[[Tensor, Tensor], object]

CALLS: dict[str, Call] = {
    "(Tensor) -> Tensor": lambda x, y: x.exp(),
    "(Tensor, Tensor) -> Tensor": lambda x, y: x * y,
    "(Tensor, Tensor, Scalar) -> Tensor": lambda x, y: torch.add(x, y, alpha=3),
    "(Tensor, Scalar) -> Tensor": lambda x, y: x.pow(1.5),
    "(Tensor, Tensor, Tensor) -> Tensor": lambda x, y: torch.where(x > 0, x, y),
    "(Tensor, int, bool) -> Tensor": lambda x, y: torch.softmax(x, 1),
    "(Tensor!) -> Tensor!": lambda x, y: x.relu_(),
    "(Tensor!, Tensor) -> Tensor!": lambda x, y: x.mul_(y),
    "(Tensor!, Tensor, Scalar) -> Tensor!": lambda x, y: x.sub_(y, alpha=0.5),
    "(Tensor!, Tensor, Tensor, Scalar) -> Tensor!": lambda x, y: x.addcmul_(y, y, value=2),
    "a number from the CPU": lambda x, y: x + torch.tensor(2.0),
    "no plan: the CPU's kernel": lambda x, y: torch.special.i0e(x),
}


@pytest.mark.filterwarnings("ignore:The operator")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_its_tensors_back(device: str, name: str) -> None:
    values = torch.rand(4, 4) + 0.5, torch.rand(4, 4) + 0.5
    x, y = (value.to(device) for value in values)
    for _ in range(3):  # compiled, found, found again
        before = x._use_count(), y._use_count()
        result = CALLS[name](x, y)
        expected = CALLS[name](*values)
        torch.testing.assert_close(result.cpu(), expected)  # type: ignore[attr-defined]
        del result
        assert (x._use_count(), y._use_count()) == before
    torch.testing.assert_close(x.cpu(), values[0])


def test_a_refused_call_gives_its_tensors_back(device: str) -> None:
    x, y = torch.ones(4, 4, device=device), torch.ones(3, device=device)
    before = x._use_count(), y._use_count()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="must match"):
            torch.mul(x, y)
        with pytest.raises(RuntimeError, match="same device"):
            torch.mul(x, torch.ones(4, 4))
        with pytest.raises(RuntimeError, match="single memory location"):
            x[:3].add_(x[1:])
    assert (x._use_count(), y._use_count()) == before


def test_a_result_keeps_only_what_it_views(device: str) -> None:
    x = torch.ones(4, device=device)
    result = x.add_(1)
    assert result is x
    total = x + x
    assert total.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert total._use_count() == x._use_count()
