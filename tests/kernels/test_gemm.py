# SPDX-License-Identifier: Apache-2.0
"""Matrix products (by kernels of our own unless OUTBOARD_LIBRARY=driver)."""

from __future__ import annotations

import pytest
import torch

from .conftest import Agree

SIZES = [(3, 5, 7), (70, 65, 130), (1, 9, 300), (9, 1, 300), (128, 96, 64), (2, 2, 0), (0, 4, 3)]
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(-4, 5, shape).to(dtype)


@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.int64, torch.int32])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products(agree: Agree, m: int, n: int, k: int, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE.get(dtype, 0.0)
    a, b = _random(m, k, dtype=dtype), _random(k, n, dtype=dtype)
    agree(torch.mm, a, b, rtol=tolerance, atol=tolerance)
    agree(torch.mm, a.t().contiguous().t(), b.t().contiguous().t(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", [96, 200])
def test_large_transposed_operand(agree: Agree, n: int) -> None:
    """A copy of it by rows pays for the wider ones, and is made by the same program or not."""
    a, b = torch.randn(2, 300, 700), torch.randn(2, 300, n)
    agree(lambda a, b: a.t() @ b, a[0].clone(), b[0].clone(), rtol=1e-3, atol=1e-3)
    agree(lambda a, b: a.mT @ b, a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (2, 3), (0.5, -1.5)])
def test_scaled_sums(agree: Agree, beta: float, alpha: float) -> None:
    a, b = torch.randn(3, 20, 30), torch.randn(3, 30, 25)
    scalars = {"beta": beta, "alpha": alpha, "rtol": 1e-4, "atol": 1e-4}
    agree(torch.addmm, torch.randn(25), a[0].clone(), b[0].clone(), **scalars)
    agree(torch.addmm, torch.randn(20, 1), a[0].clone(), b[0].clone(), **scalars)
    agree(torch.addmv, torch.randn(20), a[0].clone(), torch.randn(30), **scalars)


def test_beta_zero_ignores_nan(agree: Agree) -> None:
    agree(
        torch.addmm,
        torch.full((4, 5), float("nan")),
        torch.randn(4, 6),
        torch.randn(6, 5),
        beta=0,
        rtol=1e-4,
        atol=1e-4,
    )


def test_batches_and_vectors(agree: Agree) -> None:
    agree(torch.bmm, torch.randn(3, 20, 30), torch.randn(3, 30, 25), rtol=1e-4, atol=1e-4)
    agree(torch.mv, torch.randn(40, 300), torch.randn(300), rtol=1e-4, atol=1e-4)
    agree(torch.mv, torch.randn(300, 40).t(), torch.randn(300), rtol=1e-4, atol=1e-4)
    agree(torch.dot, torch.randn(5000), torch.randn(5000), rtol=1e-3, atol=1e-3)
    agree(torch.matmul, torch.randn(2, 3, 4, 5), torch.randn(5, 6), rtol=1e-4, atol=1e-4)
    agree(torch.nn.functional.linear, torch.randn(2, 9, 30), torch.randn(7, 30), torch.randn(7), rtol=1e-4, atol=1e-4)


def test_sum_of_batches(agree: Agree) -> None:
    agree(torch.addbmm, torch.randn(20, 25), torch.randn(3, 20, 30), torch.randn(3, 30, 25), rtol=1e-4, atol=1e-4)


def test_many_sizes(agree: Agree) -> None:
    for n in (11, 12, 13, 40):
        agree(torch.mm, torch.randn(n, n + 1), torch.randn(n + 1, n + 2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize(("k", "n"), [(300, 7), (77, 16), (64, 130), (33, 300), (5, 1), (0, 20)])
def test_one_row_or_column(agree: Agree, k: int, n: int, dtype: torch.dtype) -> None:
    """Whichever way the matrix lies, and the vector with gaps between its elements."""
    tolerance = TOLERANCE.get(dtype, 0.0)
    x, matrix = _random(3, 1, k, dtype=dtype), _random(3, k, n, dtype=dtype)
    for gap in (1, 2):
        spread = torch.zeros(3, 1, k * gap, dtype=dtype)[..., ::gap].copy_(x)
        for lies in (matrix, matrix.transpose(1, 2).contiguous().transpose(1, 2)):
            agree(torch.bmm, spread, lies, rtol=tolerance, atol=tolerance)
            agree(torch.bmm, lies.transpose(1, 2), spread.transpose(1, 2), rtol=tolerance, atol=tolerance)
            bias = _random(3, 1, n, dtype=dtype)
            agree(torch.baddbmm, bias, spread, lies, beta=2, alpha=3, rtol=tolerance, atol=tolerance)
            agree(torch.mv, lies[0].t(), spread[0, 0], rtol=tolerance, atol=tolerance)
