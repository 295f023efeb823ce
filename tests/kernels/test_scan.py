# SPDX-License-Identifier: Apache-2.0
"""Prefix scans."""

from __future__ import annotations

import pytest
import torch

from .conftest import Agree

SHAPES = [((5, 7), 1), ((5, 7), 0), ((3, 1500), 1), ((1500, 20), 0), ((3, 4, 5), 1), ((9,), 0), ((), 0), ((0, 3), 0)]


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("operation", [torch.cumsum, torch.cumprod, torch.logcumsumexp])
def test_sums(agree: Agree, operation: object, shape: tuple[int, ...], dim: int) -> None:
    agree(operation, torch.randn(shape), dim, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("operation", [torch.cummax, torch.cummin])
def test_extremes_tell_the_last_place(agree: Agree, operation: object, shape: tuple[int, ...], dim: int) -> None:
    agree(operation, torch.randint(-3, 4, shape), dim)


@pytest.mark.parametrize("operation", [torch.cumsum, torch.cummax, torch.cummin, torch.logcumsumexp])
def test_nan_goes_on(agree: Agree, operation: object) -> None:
    values = torch.randn(3, 700)
    values[1, 300] = float("nan")
    agree(operation, values, 1, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_dtypes(agree: Agree, dtype: torch.dtype) -> None:
    values = torch.randint(0, 3, (6, 30)).to(dtype)
    agree(torch.cumsum, values, 1)
    agree(torch.cumsum, values.t(), 1)


def test_other_result_dtype(agree: Agree) -> None:
    agree(torch.cumsum, torch.randint(0, 9, (6, 30)), 1, dtype=torch.float32)


def test_in_place(agree: Agree) -> None:
    agree(lambda values: values.clone().cumsum_(0), torch.randn(2000, 3), rtol=1e-4, atol=1e-3)
