# SPDX-License-Identifier: Apache-2.0
"""Where the maximum of a window is: of equal elements the first, of NaN the last, and never in the padding.

The kernels of the CPU and of CUDA say so. Inductor takes the first NaN, and a place in the padding where no element is
greater than it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._inductor import inductor_prims, ir, lowering
from torch._inductor.virtualized import V, ops
from torch.utils._sympy.functions import CeilDiv

aten = torch.ops.aten


def _adaptive(x: Tensor, output_size: Sequence[int]) -> Any:
    """Maxima of whole images, and their places; NotImplemented of other windows. Integers are refused, as on the
    CPU."""
    rank = len(output_size)
    if not x.is_floating_point():
        raise NotImplementedError(f"adaptive_max_pool{rank}d is not implemented for {x.dtype}")
    if any(size != 1 for size in output_size) or not all(x.shape[-rank:]):
        return NotImplemented
    flat = x.flatten(-rank)
    is_nan = torch.isnan(flat)
    last = torch.where(is_nan, torch.arange(flat.shape[-1], device=x.device), -1).amax(-1, keepdim=True)
    places = torch.where(last < 0, flat.argmax(-1, keepdim=True), last)
    size = [*x.shape[:-rank], *output_size]
    return flat.amax(-1).view(size), places.view(size)


#: Overload -> its decomposition in whole graphs.
DECOMPOSITIONS = {aten.adaptive_max_pool2d.default: _adaptive, aten.adaptive_max_pool3d.default: _adaptive}


def register(name: str) -> None:
    """Has maxima of windows on the device called ``name`` be found as on the CPU."""
    table: Any = lowering.lowerings
    prim = inductor_prims._low_memory_max_pool_with_offsets
    table[prim] = _on(name, _maximum_and_offsets, table[prim])
    for overload in (aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default):
        table[overload] = _on(name, _fractional, table[overload])


def _on(name: str, ours: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def lower(x: Any, *args: Any, **kwargs: Any) -> Any:
        device = x.get_device()
        is_ours = device is not None and device.type == name
        return ours(original, x, *args, **kwargs) if is_ours else original(x, *args, **kwargs)

    return lower


def _maximum_and_offsets(
    original: Callable[..., Any],
    x: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool = False,
) -> tuple[Any, Any]:
    """Maxima, and their offsets in the window. A window begins with its first element beside the padding."""
    rank = len(kernel_size)
    result, _ = original(x, kernel_size, stride, padding, dilation, ceil_mode)
    load: Any = lowering.constant_boundary_condition(x, _least(x.get_dtype()), dim=rank)

    def starts(index: Sequence[Any]) -> list[Any]:
        return [at * step - pad for at, step, pad in zip(index[-rank:], stride, padding, strict=True)]

    def value(index: Sequence[Any], tap: Sequence[int]) -> Any:
        places = zip(starts(index), tap, dilation, strict=True)
        return load([*index[:-rank], *(start + number * step for start, number, step in places)])

    def first(index: Sequence[Any]) -> list[Any]:
        pairs = zip(starts(index), dilation, strict=True)
        return [CeilDiv(sympy.Max(0, -start), sympy.sympify(step)) for start, step in pairs]

    offsets = _offsets(x, result.get_size(), kernel_size, value, first)
    return result, lowering.to_dtype(offsets, torch.int8)


def _fractional(
    original: Callable[..., Any],
    x: Any,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    random_samples: Any,
) -> tuple[Any, Any]:
    """Maxima of windows at random places, and their places in an image."""
    rank = len(kernel_size)
    result, _ = original(x, kernel_size, output_size, random_samples)
    load, sizes = x.make_loader(), x.get_size()[-rank:]
    start = [
        lowering._fractional_pooling_offsets(random_samples, sizes, output_size, kernel_size, dim, rank)
        for dim in range(rank)
    ]

    def places(index: Sequence[Any], tap: Sequence[Any]) -> list[Any]:
        return [start[dim](index[:-rank], index[dim - rank]) + tap[dim] for dim in range(rank)]

    def value(index: Sequence[Any], tap: Sequence[int]) -> Any:
        return load([*index[:-rank], *places(index, tap)])

    offsets = _offsets(x, result.get_size(), kernel_size, value, lambda _: [sympy.Integer(0)] * rank)
    to_indices: Any = lowering._pool_offsets_to_indices
    return result, to_indices(offsets, kernel_size, sizes, places)


def _offsets(
    x: Any,
    size: Sequence[Any],
    kernel_size: Sequence[int],
    value: Callable[..., Any],
    first: Callable[..., list[Any]],
) -> Any:
    """int64 of ``size``: the number in its window of each maximum of ``x``, by the value at an index and a place in the
    window, and the place that the window begins at."""
    kernel = V.graph.sizevars.guard_int_seq(kernel_size)

    def offset(index: Sequence[Any]) -> Any:
        best = ops.constant(_least(x.get_dtype()), x.get_dtype())
        chosen = ops.index_expr(inductor_prims._flatten_index(first(index), kernel), torch.int64)
        for number, tap in enumerate(itertools.product(*map(range, kernel))):
            found = value(index, tap)
            is_better = ops.gt(found, best)
            if x.get_dtype().is_floating_point:
                is_better = ops.logical_or(is_better, ops.ne(found, found))
            best = ops.where(is_better, found, best)
            chosen = ops.where(is_better, ops.constant(number, torch.int64), chosen)
        return chosen

    return ir.Pointwise.create(device=x.get_device(), dtype=torch.int64, inner_fn=offset, ranges=[*size])


def _least(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point:
        return -float("inf")
    return False if dtype is torch.bool else torch.iinfo(dtype).min
