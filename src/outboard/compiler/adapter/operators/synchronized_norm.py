# SPDX-License-Identifier: Apache-2.0
"""The parts of ``nn.SyncBatchNorm``, for which PyTorch has kernels of CUDA's alone: statistics of one process's batch,
those of all, and what is computed with them. ``x`` is (N, C, ...), statistics are (C,), in float32 for halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..optimizers.chains import wide

aten = torch.ops.aten


def _others(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _along_channels(x: Tensor, values: Tensor) -> Tensor:
    return wide(values).view([1, -1] + [1] * (x.dim() - 2))


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean, and one over the standard deviation."""
    variance, mean = torch.var_mean(wide(x), _others(x), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _gather_stats(
    x: Tensor,
    means: Tensor,
    inverses: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Statistics of all batches: those of each are a row of ``means`` and ``inverses``, with its ``counts``."""
    weights = wide(counts).view(-1, 1)
    total = weights.sum()
    mean = (wide(means) * weights).sum(0) / total
    variances = 1 / (wide(inverses) * wide(inverses)) - eps
    distances = wide(means) - mean
    variance = ((variances + distances * distances) * weights).sum(0) / total
    if running_mean is not None:
        running_mean.copy_((1 - momentum) * running_mean + momentum * mean)
    if running_var is not None:
        running_var.copy_((1 - momentum) * running_var + momentum * variance * (total / (total - 1)))
    return mean, torch.rsqrt(variance + eps)


def _gather_stats_of_equal_batches(
    x: Tensor,
    means: Tensor,
    inverses: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    counts = torch.full((means.shape[0],), count, dtype=wide(means).dtype, device=means.device)
    return _gather_stats(x, means, inverses, running_mean, running_var, momentum, eps, counts)


def _apply(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse: Tensor, eps: float) -> Tensor:
    result = (wide(x) - _along_channels(x, mean)) * _along_channels(x, inverse)
    if weight is not None:
        result = result * _along_channels(x, weight)
    if bias is not None:
        result = result + _along_channels(x, bias)
    return result.to(x.dtype)


def _backward_reduce(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    needs_input: bool,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[Tensor | None, ...]:
    """Sums of the gradient and of its products with ``x - mean``, and the gradients of weight and bias."""
    dims = _others(x)
    sums = wide(grad).sum(dims)
    products = (wide(grad) * (wide(x) - _along_channels(x, mean))).sum(dims)
    dtype = sums.dtype if weight is None else weight.dtype
    return (
        sums if needs_input else None,
        products if needs_input else None,
        (products * wide(inverse)).to(dtype) if needs_weight else None,
        sums.to(dtype) if needs_bias else None,
    )


def _backward_apply(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    sums: Tensor,
    products: Tensor,
    counts: Tensor,
) -> Tensor:
    """The gradient of ``x`` from the sums over all batches."""
    total = counts.sum()
    scale = _along_channels(x, inverse)
    centred = wide(x) - _along_channels(x, mean)
    result = wide(grad) - _along_channels(x, sums / total)
    result = (result - centred * scale * scale * _along_channels(x, products / total)) * scale
    if weight is not None:
        result = result * _along_channels(x, weight)
    return result.to(x.dtype)


#: Operator -> what it computes.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.batch_norm_stats.default: _stats,
    aten.batch_norm_gather_stats.default: _gather_stats_of_equal_batches,
    aten.batch_norm_gather_stats_with_counts.default: _gather_stats,
    aten.batch_norm_elemt.default: _apply,
    aten.batch_norm_backward_reduce.default: _backward_reduce,
    aten.batch_norm_backward_elemt.default: _backward_apply,
}
