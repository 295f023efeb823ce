# SPDX-License-Identifier: Apache-2.0
"""Numbers as if they had been quantized, for training that is to survive it: ``scale`` times an integer between
``quant_min`` and ``quant_max``, less ``zero_point``. Results are of the input's dtype, with where it was in range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _quantized(x: Tensor, scale: Tensor, zero_point: Tensor | int, low: int, high: int) -> tuple[Tensor, Tensor]:
    scaled = x * scale.to(torch.float32).reciprocal()
    if isinstance(zero_point, Tensor) and zero_point.is_floating_point():
        number = torch.round(scaled + zero_point)
    else:
        number = torch.round(scaled) + zero_point
    is_inside = (number >= low) & (number <= high)
    kept = torch.where(number > high, high, torch.where(number >= low, number, low))  # NaN becomes the least
    return ((kept - zero_point) * scale).to(x.dtype), is_inside


def _per_tensor(x: Tensor, scale: float, zero_point: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    bool(low <= zero_point <= high)  # a guard: the CPU refuses others
    factor = torch.full((), scale, dtype=torch.float32, device=x.device)
    return _quantized(x, factor, zero_point, low, high)


def _by_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    result, is_inside = _quantized(x, scale.reshape(()), zero_point.reshape(()), low, high)
    is_on = enabled.reshape(()) != 0
    return torch.where(is_on, result, x), is_inside | ~is_on


def _per_channel(x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    along = [1] * x.dim()
    along[axis] = -1
    return _quantized(x, scale.view(along), zero_point.view(along), low, high)


#: Operator -> what it computes.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: _per_tensor,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _by_tensors,
    aten.fake_quantize_per_channel_affine_cachemask.default: _per_channel,
}
