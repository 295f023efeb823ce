# SPDX-License-Identifier: Apache-2.0
"""Distances, masked_scatter, scatter_reduce, index_reduce, grid sampling, isin, embeddings, what is covered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from outboard.compiler import kernels
from outboard.compiler.target import target_of

from .conftest import Agree


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
def test_cdist(agree: Agree, exponent: float) -> None:
    agree(torch.cdist, torch.randn(2, 5, 7), torch.randn(2, 6, 7), exponent, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, 3.0])
def test_distances_from_what_is_no_number(agree: Agree, exponent: float) -> None:
    """Not of infinite order: there PyTorch's CPU drops NaN in ``cdist`` and keeps it in ``pdist``."""
    rows = torch.tensor([[2.0, 2.0], [torch.nan, 1.0], [3.0, 4.0], [torch.inf, -torch.inf]])
    agree(torch.cdist, rows[:3], rows, exponent, rtol=1e-4, atol=1e-4)
    agree(torch.pdist, rows, exponent, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0])
def test_cdist_gradient(agree: Agree, exponent: float) -> None:
    def run(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        leaves = [a.clone().requires_grad_(), b.clone().requires_grad_()]
        torch.cdist(*leaves, exponent).square().sum().backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    agree(run, torch.randn(5, 7), torch.randn(6, 7), rtol=1e-3, atol=1e-3)


def test_pdist(agree: Agree) -> None:
    agree(torch.pdist, torch.randn(9, 4), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_masked_scatter(agree: Agree, dtype: torch.dtype) -> None:
    tensor, source = (torch.randn(40, 60) * 9).to(dtype), (torch.randn(2400) * 9).to(dtype)
    agree(torch.masked_scatter, tensor, torch.rand(40, 60) > 0.5, source)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduction", ["prod", "mean", "amax", "amin"])
def test_index_reduce(agree: Agree, reduction: str, include_self: bool) -> None:
    index = torch.tensor([0, 3, 3, 5, 0])
    agree(
        lambda tensor, places, source: tensor.index_reduce(1, places, source, reduction, include_self=include_self),
        torch.randn(4, 6),
        index,
        torch.randn(4, 5),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("reduction", ["prod", "mean", "amax", "amin"])
def test_index_reduce_without_dimensions(agree: Agree, reduction: str) -> None:
    for include_self in (True, False):
        numbers = (torch.tensor(2.0), 0, torch.tensor([0]), torch.tensor(3.0), reduction)
        agree(torch.index_reduce, *numbers, include_self=include_self)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("reduction", ["prod", "mean", "amax", "amin"])
def test_index_reduce_of_rows_and_columns(agree: Agree, reduction: str, dtype: torch.dtype) -> None:
    """More places than one work-item's, more lines than one's vectors, places that nothing or much meets, NaN."""
    index = torch.cat([torch.randint(0, 90, (300,)), torch.full((40,), 7)])
    for dim, shape, added in [(0, (90, 3, 70), (340, 3, 70)), (1, (2, 90, 5), (2, 340, 5)), (1, (9, 90), (9, 340))]:
        tensor, source = ((torch.randn(size) * 3 + 3).to(dtype) for size in (shape, added))
        if dtype.is_floating_point:
            source.flatten()[::77] = torch.nan
        for include_self in (True, False):
            agree(
                lambda x, places, y, at=dim, both=include_self: x.index_reduce(
                    at, places, y, reduction, include_self=both
                ),
                tensor,
                index,
                source,
            )


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduction", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(agree: Agree, reduction: str, include_self: bool) -> None:
    agree(
        lambda tensor, places, source: tensor.scatter_reduce(1, places, source, reduction, include_self=include_self),
        torch.randn(4, 6),
        torch.randint(0, 6, (3, 9)),
        torch.randn(3, 9),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sampling(agree: Agree, mode: str, padding: str, align: bool) -> None:
    def run(source: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        leaves = [source.clone().requires_grad_(), grid.clone().requires_grad_()]
        result = torch.nn.functional.grid_sample(*leaves, mode=mode, padding_mode=padding, align_corners=align)
        result.square().sum().backward()
        return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    agree(run, torch.randn(2, 3, 5, 6), torch.rand(2, 4, 7, 2) * 2.6 - 1.3, rtol=1e-3, atol=1e-3)
    agree(run, torch.randn(2, 3, 5, 6, 4), torch.rand(2, 4, 7, 3, 3) * 2.6 - 1.3, rtol=1e-3, atol=1e-3)


def test_isin(agree: Agree) -> None:
    agree(torch.isin, torch.randint(0, 50, (7, 9)), torch.randint(0, 50, (11,)))


def test_coverage_is_listed() -> None:
    names = kernels.covered()
    assert names == sorted(set(names))
    assert {"aten::sort", "aten::mm", "aten::convolution"} <= set(names)


@pytest.mark.parametrize("width", [1, 5, 64, 130])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}])
def test_embedding_gradient(device: str, width: int, options: dict[str, Any]) -> None:
    places = torch.randint(0, 9, (4, 33))
    weight = torch.randn(9, width)
    upstream = torch.randn(4, 33, width)

    def gradient(where: str) -> torch.Tensor:
        leaf = weight.to(where, copy=True).requires_grad_()
        F.embedding(places.to(where), leaf, **options).backward(upstream.to(where))
        assert leaf.grad is not None
        return leaf.grad.cpu()

    torch.testing.assert_close(gradient(device), gradient("cpu"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("count", "rows", "width"), [(0, 3, 4), (1, 3, 4), (3000, 1, 70), (3000, 7, 130), (5000, 400, 1), (64, 900, 33)]
)
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_sums_of_halves_are_rounded_once(
    device: str, dtype: torch.dtype, count: int, rows: int, width: int, index: torch.dtype
) -> None:
    """Eager and compiled. Rounded after each addition, a sum of equal numbers ends at 256 times one of them."""
    places, upstream = torch.randint(0, rows, (count,), dtype=index), torch.rand(count, width).to(dtype)
    expected = torch.zeros(rows, width).index_add(0, places, upstream.float())
    expected[rows // 2] = 0
    backward = torch.ops.aten.embedding_dense_backward
    for function in (backward, torch.compile(backward)):
        found = function(upstream.to(device), places.to(device), rows, rows // 2, False)
        assert torch.equal(found.cpu(), expected.to(dtype))


def test_embedding_gradient_has_one_result(device: str) -> None:
    """Rows that are looked up many times are added in one order."""
    places, weight = torch.randint(0, 50, (3000,), device=device), torch.randn(50, 64, device=device)
    upstream = torch.randn(3000, 64, device=device)
    results = []
    for _ in range(20):
        leaf = weight.clone().requires_grad_()
        F.embedding(places, leaf).backward(upstream)
        results.append(leaf.grad)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_embedding_gradient_of_an_expanded_result_and_in_a_graph(device: str) -> None:
    places, weight = torch.randint(0, 50, (3, 7)), torch.randn(50, 16)

    def gradient(where: str, wrap: Any) -> torch.Tensor:
        leaf = weight.to(where, copy=True).requires_grad_()
        wrap(lambda leaf, places: F.embedding(places, leaf).sum())(leaf, places.to(where)).backward()
        assert leaf.grad is not None
        return leaf.grad.cpu()

    expected = gradient("cpu", lambda function: function)
    torch.testing.assert_close(gradient(device, lambda function: function), expected)
    torch.testing.assert_close(gradient(device, torch.compile), expected)


def _added(x: torch.Tensor, kind: str, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """``source`` added to rows of dimension 1."""
    if kind == "index_add":
        return x.index_add(1, index, source)
    if kind == "scatter_add":
        return x.scatter_add(1, index[None, :, None].expand(source.shape), source)
    return x.index_put((torch.arange(x.shape[0], device=x.device)[:, None], index[None, :]), source, accumulate=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("kind", ["index_add", "scatter_add", "index_put"])
def test_sums_have_one_order(agree: Agree, device: str, kind: str, dtype: torch.dtype) -> None:
    """Where many sources meet in few places, and in places that are further apart than a work-item's. Halves are
    rounded after each addition, where the CPU's ``scatter_add`` sums in float32: few meet."""
    many = 20 if dtype == torch.bfloat16 else 700
    for rows, count, width in [(3, many, 70), (90, 40, 5), (7, many // 2, 1)]:
        tensor, source = ((torch.randn(2, n, width) * 9).to(dtype) for n in (rows, count))
        index = torch.randint(0, rows, (count,))
        agree(_added, tensor, kind, index, source, rtol=5e-2 if dtype == torch.bfloat16 else 1e-5, atol=0.5)
        ours = [value.to(device) for value in (tensor, index, source)]
        first, second = (_added(ours[0], kind, *ours[1:]) for _ in range(2))
        assert torch.equal(first, second) or not target_of(0).tuning.vectors


@pytest.mark.parametrize("compiled", [False, True])
def test_indices_of_what_is_added_to(device: str, compiled: bool) -> None:
    """Negative, broadcast, of int32, behind other dimensions, apart from each other, of no elements."""
    x, i, j = torch.randn(4, 5, 6, 3), torch.tensor([[0, -1, 2]]), torch.tensor([[3], [-2]], dtype=torch.int32)
    places: list[Any] = [(i,), (i, j), (None, i), (None, j, i), (i, None, j), (None, None, None, i[0] % 3)]
    places += [(torch.zeros(0, dtype=torch.int64),), (i, j, i, i % 3)]

    def put(x: torch.Tensor, indices: Any, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten.index_put(x, indices, values, True)
        return result

    ours = torch.compile(put) if compiled else put
    for each in places:
        rows = x[tuple(slice(None) if index is None else index for index in each)]
        for values in (torch.randn(rows.shape), torch.randn(())):
            expected = put(x, each, values)
            moved = [None if index is None else index.to(device) for index in each]
            torch.testing.assert_close(ours(x.to(device), moved, values.to(device)).cpu(), expected)
            strided = x.to(device).transpose(0, 3).contiguous().transpose(0, 3)
            torch.testing.assert_close(
                torch.ops.aten.index_put_(strided, moved, values.to(device), True).cpu(), expected
            )
