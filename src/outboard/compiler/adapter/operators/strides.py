# SPDX-License-Identifier: Apache-2.0
"""The strides of dense tensors, by the order in which their dimensions lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false


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


def iterated_order(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions of what PyTorch's ``TensorIterator`` makes, from the innermost in memory to the outermost, for
    operands with these strides, of which those that are broadcast are 0: the first operand that moves along two
    dimensions says which of them is the inner one."""
    order = [*reversed(range(len(sizes)))]
    for place in range(1, len(order)):
        for lower in reversed(range(place)):
            comparison = _outer(order[lower], order[lower + 1], sizes, strides)
            if comparison < 0:
                break
            if comparison > 0:
                order[lower : lower + 2] = [order[lower + 1], order[lower]]
    return order


def _outer(first: int, second: int, sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> int:
    """Above 0 if dimension ``first`` lies outside of ``second``, below 0 if inside, 0 if no operand tells. Sizes that
    only data decide do not tell."""
    for stride in strides:
        if guard_or_false(stride[first] == 0) or guard_or_false(stride[second] == 0):
            continue
        if guard_or_false(stride[first] != stride[second]):
            return 1 if guard_or_false(stride[first] > stride[second]) else -1
        if guard_or_false(sizes[first] > sizes[second]):
            return 1
    return 0
