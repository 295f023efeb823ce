# SPDX-License-Identifier: Apache-2.0
"""The strides of dense tensors, by the order in which their dimensions lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch


def memory_order(tensor: torch.Tensor) -> list[int]:
    """The dimensions of a dense tensor from the innermost in memory to the outermost."""
    return sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), tensor.shape[d] != 1, -d))


def dense_strides(sizes: Sequence[Any], inner_to_outer: Iterable[int]) -> list[Any]:
    """The strides, in elements, of a dense tensor whose dimensions lie in memory in this order; sizes may be
    symbols."""
    strides: list[Any] = [1] * len(sizes)
    step: Any = 1
    for dim in inner_to_outer:
        strides[dim] = step
        is_empty = isinstance(sizes[dim], (int, sympy.Integer)) and sizes[dim] == 0
        step = step * (1 if is_empty else sizes[dim])
    return strides
