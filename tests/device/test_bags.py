# SPDX-License-Identifier: Apache-2.0
"""Bags of embeddings, forward and backward, on the device and as on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

INDICES = [3, 1, 0, 4, 4, 2, 1, 1, 5, 3]
OFFSETS = [0, 3, 3, 7, 10]  # the second bag is empty, and with another after the end the last


@pytest.fixture(autouse=True)
def _no_fallbacks(device_module: ModuleType) -> Iterator[None]:
    device_module.set_fallback_policy("error")
    yield
    device_module.set_fallback_policy("allow")


def results(device: str, dtype: torch.dtype, columns: int, factors: bool, **options: Any) -> list[Tensor]:
    """The bags, and the gradients of the table and of the factors."""
    torch.manual_seed(0)
    table = torch.randn(6, columns).to(dtype).to(device).requires_grad_()
    of_rows = torch.rand(len(INDICES)).to(dtype).to(device).requires_grad_() if factors else None
    indices, offsets = (torch.tensor(numbers, device=device) for numbers in (INDICES, OFFSETS))
    bags = F.embedding_bag(indices, table, offsets, per_sample_weights=of_rows, **options)
    bags.float().square().sum().backward()
    grads = [x.grad for x in (table, of_rows) if x is not None and x.grad is not None]
    with torch.no_grad():
        again = F.embedding_bag(indices, table, offsets, per_sample_weights=of_rows, **options)
    return [bags.detach().cpu(), again.cpu(), *(grad.cpu() for grad in grads)]


@pytest.mark.parametrize("mode", ["sum", "mean", "max", "factors"])
@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("last", [False, True])
def test_bags(device: str, mode: str, padding: int | None, last: bool) -> None:
    options = {"padding_idx": padding, "include_last_offset": last, "mode": "sum" if mode == "factors" else mode}
    for columns in (4, 70):
        expected = results("cpu", torch.float32, columns, mode == "factors", **options)
        found = results(device, torch.float32, columns, mode == "factors", **options)
        for here, there in zip(found, expected, strict=True):
            torch.testing.assert_close(here, there, check_stride=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_dtypes(device: str, dtype: torch.dtype, mode: str) -> None:
    """Halves add up in float32 here, which the CPU does for some of them only."""
    tolerance = {torch.float64: 1e-12, torch.float16: 1e-2, torch.bfloat16: 1e-1}[dtype]
    expected, found = (results(where, dtype, 4, mode == "sum", mode=mode) for where in ("cpu", device))
    for here, there in zip(found, expected, strict=True):
        torch.testing.assert_close(here, there, rtol=tolerance, atol=tolerance)


def test_indices_in_rows(device: str) -> None:
    table, indices = torch.randn(6, 5), torch.tensor([[1, 2, 5], [0, 0, 3]])
    for options in ({}, {"mode": "max"}, {"mode": "sum"}):
        expected = F.embedding_bag(indices, table, **options)
        for kind in (torch.int64, torch.int32):
            found = F.embedding_bag(indices.to(device, kind), table.to(device), **options)
            torch.testing.assert_close(found.cpu(), expected)


def test_layouts(device: str) -> None:
    table, indices, offsets = torch.randn(5, 6).t(), torch.tensor([1, 9, 2, 9, 5, 9])[::2], torch.tensor([0, 9, 1])[::2]
    expected = F.embedding_bag(indices, table, offsets)
    found = F.embedding_bag(indices.to(device), table.to(device), offsets.to(device))
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_that_are_too_long(device: str, dtype: torch.dtype) -> None:
    found = []
    for where in ("cpu", device):
        table, places = torch.arange(12.0).reshape(4, 3).to(where), torch.tensor([3, 1, 3], dtype=dtype).to(where)
        found.append((F.embedding(places, table, max_norm=1.0).cpu(), table.cpu()))
    torch.testing.assert_close(found[1], found[0])


def test_nothing(device: str) -> None:
    table = torch.randn(6, 5)
    for indices, offsets in (([], [0, 0]), ([], [0])):
        numbers = [torch.tensor(x, dtype=torch.int64) for x in (indices, offsets)]
        expected = F.embedding_bag(numbers[0], table, numbers[1])
        found = F.embedding_bag(numbers[0].to(device), table.to(device), numbers[1].to(device))
        assert torch.equal(found.cpu(), expected)


def test_gradients_of_bags_that_the_cpu_made(device: str) -> None:
    """It keeps no list of the bags that indices are in where it can do without."""
    table, indices, offsets = torch.randn(6, 5), torch.tensor(INDICES), torch.tensor(OFFSETS)
    _, *kept = torch.ops.aten._embedding_bag(table, indices, offsets)
    assert kept[0].numel() == 0
    grad = torch.randn(5, 5)
    given = (grad, indices, offsets, *kept)
    expected = torch.ops.aten._embedding_bag_backward(*given, 6, False, 0, False, None)
    found = torch.ops.aten._embedding_bag_backward(*(x.to(device) for x in given), 6, False, 0, False, None)
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_graphs(device: str, mode: str) -> None:
    """Several shapes, one after the other."""
    bag = torch.compile(lambda i, t, o: F.embedding_bag(i, t, o, mode=mode))
    for rows, columns, offsets in ((6, 4, [0, 3, 3]), (8, 70, [0, 3, 3, 7])):
        table = torch.randn(rows, columns)
        numbers = [torch.tensor(x) for x in (INDICES, offsets)]
        results = []
        for where, function in (("cpu", lambda i, t, o: F.embedding_bag(i, t, o, mode=mode)), (device, bag)):
            leaf = table.detach().to(where).requires_grad_()
            found = function(numbers[0].to(where), leaf, numbers[1].to(where))
            found.square().sum().backward()
            assert leaf.grad is not None
            results.append((found.detach().cpu(), leaf.grad.cpu()))
        torch.testing.assert_close(results[1], results[0])
