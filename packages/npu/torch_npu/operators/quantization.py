# SPDX-License-Identifier: Apache-2.0
"""Numbers as integers with a scale, and products of such."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu.operators.dtypes import dtype_of
from torch_npu.operators.integers import rounded, unpacked

#: The bits of a float32 that a packed scale keeps.
_PACKED_BITS = 0xFFFFE000


def npu_quantize(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    dtype: torch.dtype | int,
    axis: int = 1,
    div_mode: bool = True,
) -> torch.Tensor:
    """``input / scales + zero_points``, rounded to the nearest integer (ties to even) within the dtype's range.

    Args:
        scales: one for all, or one for each position of ``axis``; ``zero_points`` the same.
        div_mode: whether to divide by the scales; if not, to multiply.
    """
    scale = _along(scales, input, axis)
    scaled = input.float() / scale if div_mode else input.float() * scale
    if zero_points is not None:
        scaled = scaled + _along(zero_points, input, axis)
    return rounded(scaled, dtype_of(dtype, torch.int8))


def npu_anti_quant(
    x: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    dst_dtype: torch.dtype | int | None = None,
    src_dtype: torch.dtype | int | None = None,
) -> torch.Tensor:
    """``(x + offset) * scale``, in float16 unless ``dst_dtype`` says otherwise."""
    dtype_of(src_dtype, torch.int8)
    values = x.float() if offset is None else x.float() + offset
    return (values * scale).to(dtype_of(dst_dtype, torch.float16))


def npu_dynamic_quant(
    input: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: torch.dtype | int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers for each row (last dimension), and in float32 what each row's are to be multiplied by.

    Args:
        smooth_scales: what the row is multiplied by before, one for each position; with ``group_index`` a row of them
            for each group of rows, and where each group ends.
        dst_type: int8 unless it says otherwise.

    Raises:
        NotImplementedError: for another ``quant_mode``, and for ``dst_type_max``.
    """
    _only_by_row("npu_dynamic_quant", quant_mode, dst_type_max)
    dtype = dtype_of(dst_type, torch.int8)
    values = _smoothed(input, smooth_scales, group_index)
    largest = torch.iinfo(dtype).max if not dtype.is_floating_point else torch.finfo(dtype).max
    scale = values.abs().amax(-1) / largest
    return rounded(values / scale[..., None], dtype), scale


def npu_dynamic_quant_asymmetric(
    input: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: torch.dtype | int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`npu_dynamic_quant` from the row's smallest number to its largest, with what was added before rounding."""
    _only_by_row("npu_dynamic_quant_asymmetric", quant_mode, dst_type_max)
    dtype = dtype_of(dst_type, torch.int8)
    values = _smoothed(input, smooth_scales, group_index)
    limits = torch.iinfo(dtype)
    largest = values.amax(-1)
    scale = (largest - values.amin(-1)) / (limits.max - limits.min)
    offset = limits.max - largest / scale
    return rounded(values / scale[..., None] + offset[..., None], dtype), scale, offset


def npu_trans_quant_param(
    scale: torch.Tensor, offset: torch.Tensor | None = None, round_mode: int | None = 0
) -> torch.Tensor:
    """Scales in float32 as :func:`npu_quant_matmul` takes them packed, in int64: the upper 19 bits of each.

    Raises:
        NotImplementedError: for an ``offset``, and for a ``round_mode`` other than 0.
    """
    if offset is not None or round_mode:
        raise NotImplementedError("npu_trans_quant_param: offset and round_mode are not there")
    return scale.float().view(torch.int32).long() & _PACKED_BITS


def npu_quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: torch.dtype | int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    scale_dtype: int | None = None,
    group_sizes: Sequence[int] | None = None,
    y_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """``(x1 @ x2 + bias) * scale * pertoken_scale + offset`` of integers; a ``bias`` of floating point is added last.

    Args:
        scale: one, or one for each column, in float32 or packed by :func:`npu_trans_quant_param`.
        pertoken_scale: one for each row.
        output_dtype: int8 unless it says otherwise.

    Raises:
        NotImplementedError: for numbers of four bits, groups, and ``y_scale``.
    """
    if y_scale is not None or group_sizes or any((x1_dtype, x2_dtype, pertoken_scale_dtype, scale_dtype)):
        raise NotImplementedError("npu_quant_matmul: formats of Ascend's own, group_sizes and y_scale are not there")
    dtype = dtype_of(output_dtype, torch.int8)
    product = torch.matmul(x1.int(), x2.int())
    if bias is not None and not bias.is_floating_point():
        product = product + bias
    if dtype == torch.int32:
        return product.int()
    result = product.float() * unpacked(scale)
    if pertoken_scale is not None:
        result = result * pertoken_scale[..., None]
    if bias is not None and bias.is_floating_point():
        result = result + bias
    if offset is not None:
        result = result + offset
    return result.to(dtype) if dtype.is_floating_point else rounded(result, dtype)


def npu_weight_quant_batchmatmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    antiquant_scale: torch.Tensor,
    antiquant_offset: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: int | None = None,
) -> torch.Tensor:
    """``x @ ((weight + antiquant_offset) * antiquant_scale) + bias``, with a weight of integers (rows, columns).

    Args:
        antiquant_scale: one, one for each column, or one for each column of each ``antiquant_group_size`` rows.
        quant_scale: what the result is multiplied by before it is rounded to int8, with ``quant_offset`` added.

    Raises:
        NotImplementedError: for formats of Ascend's own.
    """
    if weight_dtype is not None or weight.dtype != torch.int8:
        raise NotImplementedError("npu_weight_quant_batchmatmul: only weights of int8 are there")
    scale, offset = antiquant_scale, antiquant_offset
    if antiquant_group_size:
        scale = _for_each_row(scale, antiquant_group_size, len(weight))
        offset = None if offset is None else _for_each_row(offset, antiquant_group_size, len(weight))
    real = weight.to(x.dtype) if offset is None else weight.to(x.dtype) + offset
    result = x @ (real * scale)
    if bias is not None:
        result = result + bias
    if quant_scale is None:
        return result.to(x.dtype)
    scaled = result.float() * unpacked(quant_scale)
    return rounded(scaled if quant_offset is None else scaled + quant_offset, torch.int8)


def _along(value: torch.Tensor, input: torch.Tensor, axis: int) -> torch.Tensor:
    """One number for each position of a dimension, shaped to be broadcast."""
    if value.dim() != 1 or len(value) == 1:
        return value.float()
    shape = [1] * input.dim()
    shape[axis] = -1
    return value.float().view(shape)


def _for_each_row(value: torch.Tensor, size: int, rows: int) -> torch.Tensor:
    """The row of each group, for each of the group's ``size`` rows."""
    return value.repeat_interleave(size, 0)[:rows]


def _smoothed(input: torch.Tensor, scales: torch.Tensor | None, group_ends: torch.Tensor | None) -> torch.Tensor:
    values = input.float()
    if scales is None:
        return values
    if group_ends is None:
        return values * scales
    rows = values.flatten(0, -2)
    groups = torch.searchsorted(group_ends.long(), torch.arange(len(rows), device=rows.device), right=True)
    return (rows * scales[groups]).view(values.shape)


def _only_by_row(operator: str, quant_mode: str, dst_type_max: float) -> None:
    if quant_mode != "pertoken" or dst_type_max:
        raise NotImplementedError(f"{operator}: quant_mode and dst_type_max are not there")
