# SPDX-License-Identifier: Apache-2.0
"""What tracing is told of results on our device, where PyTorch's shape functions know only other devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table, meta_table
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_impls
from torch.utils import _pytree as pytree

from . import layouts, results

aten = torch.ops.aten

#: Gradients of interpolation whose shape functions take sizes that are known only.
_OF_KNOWN_SIZES = (
    aten.upsample_linear1d_backward.default,
    aten.upsample_bilinear2d_backward.default,
    aten.upsample_bicubic2d_backward.default,
    aten.upsample_trilinear3d_backward.default,
    aten.upsample_nearest1d_backward.default,
    aten.upsample_nearest3d_backward.default,
    aten._upsample_nearest_exact1d_backward.default,
    aten._upsample_nearest_exact3d_backward.default,
    aten._upsample_bicubic2d_aa_backward.default,
)


@functools.cache
def register(name: str) -> None:
    """Has fake tensors of the device ``name`` lie as its results do, once: before anything is traced."""
    table = fake_impls.op_implementations_dict
    for overload in (aten.convolution.default, aten.convolution_backward.default):
        table[overload] = _on(name, table[overload], _laid_out(table[overload]))
    for overload in layouts.described():
        table[overload] = _on(name, table.get(overload, _none), _by_decomposition)
    for overload in _OF_KNOWN_SIZES:
        table[overload] = _on(name, table.get(overload, _none), _of_any_sizes)


def _none(mode: Any, overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Leaves a call to what PyTorch does without a shape function."""
    return NotImplemented


def _by_decomposition(mode: Any, overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The result as the decomposition lays it out, which tracing asks itself only where sizes are symbols; of what has
    none, that of the shape function, laid out as the row says."""
    if overload in decomposition_table:
        function = decomposition_table[overload]
    elif overload in meta_table:
        function = layouts.laid_out(overload, meta_table[overload])
    else:
        return NotImplemented
    with mode:
        return function(*args, **kwargs)


def _of_any_sizes(
    mode: Any, overload: torch._ops.OpOverload, grad: torch.Tensor, output_size: Any, input_size: Any, *_: Any
) -> Any:
    """The gradient of a source of ``input_size``, where a size is a symbol; else PyTorch's own knows, and checks."""
    if not any(isinstance(size, torch.SymInt) for size in (*output_size, *input_size, *grad.shape)):
        return NotImplemented
    with mode:
        return grad.new_empty(input_size).to(memory_format=suggest_memory_format(grad))


def _on(name: str, elsewhere: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` for calls with a tensor on the device, ``elsewhere`` for others."""

    def run(mode: Any, overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if any(x.device.type == name for x in tensors):
            return function(mode, overload, *args, **kwargs)
        return elsewhere(mode, overload, *args, **kwargs)

    return run


def _laid_out(original: Callable[..., Any]) -> Callable[..., Any]:
    """The shape function of a convolution or its gradient, with results in the memory format of the operands."""

    @functools.wraps(original)
    def run(mode: Any, overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        with mode:
            made: Any = original(mode, overload, *args, **kwargs)
            if overload is aten.convolution.default:
                return results.like_channels(made, *args[:2])
            first, second, bias = made
            return results.like_channels(first, *args[1:3]), results.like_channels(second, *args[1:3]), bias

    return run
