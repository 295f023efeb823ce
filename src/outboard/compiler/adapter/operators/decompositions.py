# SPDX-License-Identifier: Apache-2.0
"""How operators are broken into simpler ones before Inductor lowers them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.lowering import fallbacks, lowerings

from ...operators import facts
from . import additions, random, recurrent, rounding
from .corrections import corrected

aten = torch.ops.aten


def _index_put_impl_(
    x: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
) -> torch.Tensor:
    return x.copy_(aten.index_put(x, indices, values, accumulate))


def _index_put_impl(
    x: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
) -> torch.Tensor:
    return aten.index_put(x, indices, values, accumulate)


def _batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Batch norm; without training nothing is saved for the backward pass, as on the CPU."""
    out, saved_mean, saved_scale, _, _ = torch._decomp.decompositions.native_batch_norm_helper(
        x, weight, bias, mean, var, training, momentum, eps, functional=False
    )
    if not training:
        return out, *_no_statistics(x, weight, bias, mean, var)
    return out, saved_mean, saved_scale


def _no_statistics(x: torch.Tensor, *parameters: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What is saved where nothing is: of the parameters' dtype, which may be wider than a half's."""
    dtype = next((each.dtype for each in parameters if each is not None), x.dtype)
    return x.new_empty((0,), dtype=dtype), x.new_empty((0,), dtype=dtype)


def _batch_norm_without_training(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _batch_norm(x, weight, bias, mean, var, False, momentum, eps)


def _batch_norm_no_update(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[torch.Tensor, ...]:
    return *_batch_norm(x, weight, bias, mean, var, False, momentum, eps), x.new_empty((0,), dtype=torch.uint8)


def _batch_norm_with_update(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[torch.Tensor, ...]:
    return *_batch_norm(x, weight, bias, mean, var, True, momentum, eps), x.new_empty((0,), dtype=torch.uint8)


def _batch_norm_functional(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[torch.Tensor | None, ...]:
    """As ``_batch_norm``, with the new running statistics as results."""
    out, saved_mean, saved_scale, new_mean, new_var = torch._decomp.decompositions.native_batch_norm_helper(
        x, weight, bias, mean, var, training, momentum, eps, functional=True
    )
    if not training:
        saved_mean, saved_scale = _no_statistics(x, weight, bias, mean, var)
    return out, saved_mean, saved_scale, new_mean, new_var


def _linear_backward(
    x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, mask: list[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of ``x`` (..., in), ``weight`` (out, in) and the bias (out), of those that are asked for."""
    rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return (
        aten.mm(grads, weight).reshape(x.shape) if mask[0] else None,
        aten.mm(grads.t(), rows) if mask[1] else None,
        grads.sum(0) if mask[2] else None,
    )


def cumulative_sum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """``cumsum`` in ``dtype`` as one of what is converted first. Inductor knows what sums of equal numbers are, but not
    that they may have a dtype of their own. Truth values become bytes, where it would make integers of 64 bits."""
    is_integer = not x.dtype.is_floating_point and not x.dtype.is_complex
    if is_integer and dtype in (None, torch.int64) and (x.dtype == torch.bool or dtype is not None):
        return torch.ops.aten.cumsum.default(x.to(torch.uint8) if x.dtype == torch.bool else x, dim)
    if dtype is None:
        return NotImplemented
    wide = dtype if dtype.is_floating_point or dtype.is_complex else torch.int64
    return torch.ops.aten.cumsum.default(x.to(wide), dim).to(dtype)


def embedding_gradient(
    grad: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    """Leaves the usual case to its kernel, which adds in one order where the decomposition's atomics do not."""
    if not scale_grad_by_freq:
        return NotImplemented
    whole: Callable[..., torch.Tensor] = torch._decomp.decomposition_table[aten.embedding_dense_backward.default]
    return whole(grad, indices, num_weights, padding_idx, scale_grad_by_freq)


def _floor_divide(a: Any, b: Any) -> Any:
    return torch.div(a, b, rounding_mode="floor")


def _left_whole(overload: Any) -> bool:
    """Whether Inductor lowers an operator well itself, so that its decomposition is not wanted."""
    if overload not in lowerings or overload in fallbacks:
        return False
    return not facts.of(overload._schema.name).decomposed or overload not in select_decomp_table()


@functools.cache
def eager_decompositions() -> dict[Any, Callable[..., Any]]:
    """The decompositions for single operators: what Inductor lowers itself stays whole."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    table.update(select_decomp_table())
    table = {
        overload: function
        for overload, function in table.items()
        if isinstance(overload, torch._ops.OpOverload)
        and not _left_whole(overload)
        and facts.of(overload._schema.name).decomposed
    }
    table.update(random.DECOMPOSITIONS)
    table[aten.native_batch_norm.default] = _batch_norm
    table[aten._native_batch_norm_legit.default] = _batch_norm
    table[aten._native_batch_norm_legit_no_training.default] = _batch_norm_without_training
    table[aten._batch_norm_no_update.default] = _batch_norm_no_update
    table[aten._batch_norm_with_update.default] = _batch_norm_with_update
    table[aten._native_batch_norm_legit_functional.default] = _batch_norm_functional
    table[aten.floor_divide.default] = _floor_divide
    table[aten._index_put_impl_.default] = _index_put_impl_
    table[aten._index_put_impl.default] = _index_put_impl
    table[aten.embedding_dense_backward.default] = embedding_gradient
    table[aten.linear_backward.default] = _linear_backward
    table.update(additions.DECOMPOSITIONS)
    table.update(recurrent.CELLS)
    table.update(rounding.DECOMPOSITIONS)
    table.update(corrected(table))
    table.update(rounding.rounding_numbers(table))
    return table
