# SPDX-License-Identifier: Apache-2.0
"""Stores that go past the caches and rows that are asked for ahead: the same results, wherever memory begins."""

from __future__ import annotations

import pytest
import torch

from outboard.compiler.target import target_of

#: Bytes of results that are written past the caches.
FAR = target_of(0).tuning.far


@pytest.mark.parametrize("offset", [0, 1, 16], ids=["aligned", "not aligned", "aligned inside"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bool], ids=str)
def test_large_results(dtype: torch.dtype, offset: int, device: str) -> None:
    count = FAR // dtype.itemsize + 100 + offset
    x = torch.tensor([0, 1, 2], dtype=torch.uint8).repeat(count // 3 + 1)[:count]
    result = torch.empty(count, dtype=dtype, device=device)
    result[offset:].copy_(x.to(device)[offset:])  # a kernel, because the dtypes differ
    assert torch.equal(result[offset:].cpu(), x[offset:].to(dtype))


@pytest.mark.parametrize("width", [1024, 1021])
def test_large_results_row_by_row(width: int, device: str) -> None:
    rows = FAR // 4 // width + 3
    x = torch.randn(rows, width)
    result = torch.nn.functional.layer_norm(x.to(device), (width,))
    torch.testing.assert_close(result.cpu(), torch.nn.functional.layer_norm(x, (width,)), rtol=1e-4, atol=1e-5)


def test_a_large_tensor_in_place(device: str) -> None:
    x = torch.ones(FAR // 4 + 7, device=device)
    x.mul_(3).add_(1)
    assert bool((x == 4).all())


@pytest.mark.parametrize("rows", [1, 2, 500])
def test_the_last_row_has_no_next(rows: int, device: str) -> None:
    table, places = torch.randn(rows, 100), torch.randint(rows, (41,))
    places[-1] = rows - 1
    result = torch.nn.functional.embedding(places.to(device), table.to(device))
    assert torch.equal(result.cpu(), table[places])


def test_large_results_of_known_size(device: str) -> None:
    torch._dynamo.reset()
    x = torch.randn(FAR // 4 // 64 + 1, 64)
    result = torch.compile(lambda x: (x * 2).relu(), dynamic=False)(x.to(device))
    assert torch.equal(result.cpu(), (x * 2).relu())
