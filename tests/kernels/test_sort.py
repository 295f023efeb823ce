# SPDX-License-Identifier: Apache-2.0
"""Sorting and searching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .conftest import Agree

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]
SHAPES = [((5, 7), 1), ((5, 7), 0), ((2, 5000), 1), ((40000,), 0), ((2, 3, 4, 5), 1), ((), 0), ((0, 3), 0), ((2, 1), 1)]


def _values(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.randn(shape) * 20
    if not dtype.is_floating_point:
        return values.to(torch.int8).to(dtype)
    values = values.to(dtype)
    if values.numel() > 20:
        values.view(-1)[:8] = torch.tensor([float("nan"), 1, float("inf"), -float("inf"), 0, -0.0, float("nan"), 1])
    return values


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_sort_is_stable_and_puts_nan_last(agree: Agree, shape: tuple[int, ...], dim: int, descending: bool) -> None:
    agree(torch.sort, _values(shape), dim=dim, descending=descending, stable=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sort_dtypes(agree: Agree, dtype: torch.dtype) -> None:
    agree(torch.sort, _values((3, 1500), dtype), stable=True)
    agree(torch.sort, _values((50, 7), dtype).t(), stable=True, descending=True)
    agree(torch.argsort, _values((3, 40), dtype), stable=True)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "dim"), [case for case in SHAPES if case[0] not in ((), (0, 3), (2, 1))])
def test_topk(agree: Agree, shape: tuple[int, ...], dim: int, largest: bool) -> None:
    agree(lambda values: torch.topk(values, 2, dim, largest).values, _values(shape))


def test_topk_places_hold_the_values(device: str) -> None:
    values = torch.randn(6, 300).to(device)
    found, places = values.topk(9)
    torch.testing.assert_close(values.cpu().gather(1, places.cpu()), found.cpu())


def _rows(dtype: torch.dtype) -> list[torch.Tensor]:
    """Rows that a selection may find hard: random, sorted both ways, of few values, of one, of NaN alone."""
    values = _values((3, 1500), dtype)
    ascending = values.sort(dim=1, stable=True)[0]
    few = torch.randint(0, 3, (2, 333)).to(dtype)
    rows = [values, ascending, ascending.flip(1), few, torch.ones((2, 200), dtype=dtype), values[:, :65].t()]
    return [*rows, torch.full((2, 90), torch.nan, dtype=dtype)] if dtype.is_floating_point else rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_selection_is_what_a_stable_sort_begins_with(device: str, dtype: torch.dtype) -> None:
    for row in _rows(dtype):
        n = row.shape[1]
        for descending in (False, True):
            values, places = torch.sort(row, dim=1, descending=descending, stable=True)
            for k in sorted({0, 1, 7, n // 2, n} & set(range(n + 1))):
                found = torch.topk(row.to(device), k, largest=descending)
                torch.testing.assert_close(found.values.cpu(), values[:, :k], rtol=0, atol=0, equal_nan=True)
                assert torch.equal(found.indices.cpu(), places[:, :k])
        values, places = torch.sort(row, dim=1, stable=True)
        for k in {1, n // 3 + 1, n}:
            value, place = torch.kthvalue(row.to(device), k)
            torch.testing.assert_close(value.cpu(), values[:, k - 1], rtol=0, atol=0, equal_nan=True)
            assert torch.equal(place.cpu(), places[:, k - 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operation", [torch.median, torch.nanmedian])
def test_medians_of_rows(device: str, dtype: torch.dtype, operation: Callable[..., Any]) -> None:
    for row in _rows(dtype):
        values, places = operation(row.to(device), 1)
        expected = operation(row, 1).values
        torch.testing.assert_close(values.cpu(), expected, rtol=0, atol=0, equal_nan=True)
        chosen = row.gather(1, places.cpu()[:, None])[:, 0]
        torch.testing.assert_close(chosen, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("operation", [torch.median, torch.nanmedian])
def test_medians(agree: Agree, operation: object) -> None:
    values = torch.randn(4, 333)
    values[1, 5] = float("nan")
    values[2] = float("nan")
    agree(operation, values)
    agree(lambda data: operation(data, 1).values, values)  # type: ignore[operator]
    agree(lambda data: operation(data, 0).values, values)  # type: ignore[operator]


def test_order_statistics(agree: Agree) -> None:
    agree(torch.kthvalue, torch.randperm(3000).view(3, 1000).float(), 77)
    agree(lambda values: torch.mode(values, 1).values, torch.randint(0, 9, (5, 40)))
    agree(torch.msort, torch.randn(30, 5))


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_search(agree: Agree, dtype: torch.dtype, right: bool) -> None:
    edges = (torch.randn(4, 30) * 10).to(dtype).sort().values
    values = (torch.randn(4, 50) * 10).to(dtype)
    agree(torch.searchsorted, edges, values, right=right)
    agree(torch.searchsorted, edges[0].clone(), values, right=right, out_int32=True)
    agree(torch.bucketize, values, edges[1].clone(), right=right)


def test_search_for_nan_ends_behind_all_edges(agree: Agree) -> None:
    edges = torch.tensor([0.0, 1.0, 2.0])
    values = torch.tensor([float("nan"), 0.5, 7.0])
    agree(torch.searchsorted, edges, values)
    agree(torch.searchsorted, edges, values, right=True)
