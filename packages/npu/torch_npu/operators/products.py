# SPDX-License-Identifier: Apache-2.0
"""Products of matrices, in groups, in layers, and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from torch_npu.operators.activations import fast_gelu
from torch_npu.operators.dtypes import dtype_of
from torch_npu.operators.integers import rounded, unpacked

#: How ``group_list`` says how large groups are: by where each ends, by their sizes.
_ENDS, _SIZES = range(2)
#: What the groups of a product divide: nothing, the rows of the left side, what is summed over.
_NOTHING, _ROWS, _SUMMED = -1, 0, 2
#: From this ``split_item`` on, results come as one tensor.
_JOINED = 2

#: Activations between the two layers of :func:`npu_ffn`.
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fastgelu": fast_gelu,
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "geglu": lambda x: F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "swiglu": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "reglu": lambda x: F.relu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
}


def npu_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.nn.functional.linear``."""
    return F.linear(input, weight, bias)


def npu_bmmV2(input: torch.Tensor, mat2: torch.Tensor, output_sizes: Sequence[int]) -> torch.Tensor:  # noqa: N802 - the extension's name
    """``torch.matmul``. ``output_sizes`` is for the extension's own backward pass, and not needed here."""
    return torch.matmul(input, mat2)


def npu_transpose_batchmatmul(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
) -> torch.Tensor:
    """A product of batches of matrices, with permutations before and after it.

    Raises:
        NotImplementedError: for a ``scale``, or a ``batch_split_factor`` other than 1.
    """
    if scale is not None or batch_split_factor not in (None, 1):
        raise NotImplementedError("npu_transpose_batchmatmul: scale and batch_split_factor are not there")
    left = input if perm_x1 is None else input.permute(list(perm_x1))
    right = weight if perm_x2 is None else weight.permute(list(perm_x2))
    product = _product(left, right, bias)
    return product if perm_y is None else product.permute(list(perm_y)).contiguous()


def npu_grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    bias: Sequence[torch.Tensor] | None = None,
    scale: Sequence[torch.Tensor] | None = None,
    offset: Sequence[torch.Tensor] | None = None,
    antiquant_scale: Sequence[torch.Tensor] | None = None,
    antiquant_offset: Sequence[torch.Tensor] | None = None,
    per_token_scale: Sequence[torch.Tensor] | None = None,
    group_list: torch.Tensor | Sequence[int] | None = None,
    activation_input: Sequence[torch.Tensor] | None = None,
    activation_quant_scale: Sequence[torch.Tensor] | None = None,
    activation_quant_offset: Sequence[torch.Tensor] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    tuning_config: Sequence[int] | None = None,
    output_dtype: torch.dtype | int | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> list[torch.Tensor]:
    """Products of several pairs of matrices, ``x[i] @ weight[i] + bias[i]``.

    Args:
        x: a matrix for each group, or one that ``group_list`` divides.
        weight: a matrix for each group, or one tensor (groups, rows, columns).
        group_list: where each group of rows ends, or with a ``group_list_type`` of 1 their sizes. The host reads it.
        split_item: 0 or 1 for a tensor for each group, 2 or 3 for one with all of them.
        group_type: -1 for no division, 0 for rows, 2 for what is summed over, which gives a product for each group.

    Raises:
        NotImplementedError: for what is quantised, activations, and other divisions.
    """
    quantised = (scale, offset, antiquant_scale, antiquant_offset, per_token_scale)
    activation = (activation_input, activation_quant_scale, activation_quant_offset, act_type or None)
    if any(value is not None for value in (*quantised, *activation, output_dtype, x_dtype, weight_dtype)):
        raise NotImplementedError("npu_grouped_matmul: quantised products and activations are not there")
    if group_type not in (None, _NOTHING, _ROWS, _SUMMED):
        raise NotImplementedError(f"npu_grouped_matmul: a group_type of {group_type} is not there")
    summed, kind = group_type == _SUMMED, group_list_type or _ENDS
    lefts = _groups(x, group_list, kind, dim=1 if summed else 0)
    rights = _groups(weight, group_list, kind, dim=0) if summed else _slices(weight, 3)
    biases = [None] * len(rights) if not bias else _slices(bias, 2)
    products = [_product(*operands) for operands in zip(lefts, rights, biases, strict=True)]
    if (split_item or 0) < _JOINED:
        return products
    return [torch.stack(products) if summed else torch.cat(products)]


def npu_grouped_matmul_add(
    input: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int | None = 0,
) -> torch.Tensor:
    """``input + x[group].T @ weight[group]`` for each group of rows, in the shape of ``input``.

    Raises:
        NotImplementedError: for other transpositions and divisions.
    """
    if not transpose_x or transpose_weight or group_type != _SUMMED:
        raise NotImplementedError("npu_grouped_matmul_add: only transpose_x=True, group_type=2 are there")
    wide = torch.promote_types(input.dtype, x.dtype)
    (products,) = npu_grouped_matmul(
        [x.to(wide).transpose(0, 1)],
        [weight.to(wide)],
        group_list=group_list,
        split_item=_JOINED,
        group_type=_SUMMED,
        group_list_type=group_list_type,
    )
    return input + products.reshape(input.shape)


def npu_grouped_matmul_add_(
    input: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int | None = 0,
) -> torch.Tensor:
    """:func:`npu_grouped_matmul_add` in place."""
    return input.copy_(
        npu_grouped_matmul_add(
            input,
            x,
            weight,
            group_list,
            transpose_x=transpose_x,
            transpose_weight=transpose_weight,
            group_type=group_type,
            group_list_type=group_list_type,
        )
    )


def npu_batch_gather_matmul(
    input: torch.Tensor,
    x: torch.Tensor,
    weight_b: torch.Tensor,
    indices: torch.Tensor,
    weight_a: torch.Tensor | None = None,
    layer_idx: int = 0,
    scale: float = 1e-3,
    y_offset: int = 0,
    y_slice_size: int = -1,
) -> torch.Tensor:
    """``input + scale * x @ a.T @ b.T`` in some columns, where each row has weights of its own.

    Args:
        input: (rows, columns).
        weight_b: (weights, layers, columns, size); ``weight_a`` (weights, layers, size, columns of x) if any.
        indices: (rows,), which weights a row has; -1 for none.
        y_offset: the first column that changes; ``y_slice_size`` how many do, -1 for all.

    Raises:
        ValueError: for tensors with other numbers of dimensions.
    """
    if (input.dim(), x.dim(), weight_b.dim(), indices.dim()) != (2, 2, 4, 1) or len(input) != len(indices):
        raise ValueError("npu_batch_gather_matmul takes two matrices, weights with four dimensions, an index by row")
    added = x[:, None]
    for weights in (weight_b,) if weight_a is None else (weight_a, weight_b):
        added = added @ weights[indices.clamp(min=0).long(), layer_idx].transpose(1, 2)
    added = (added[:, 0] * scale).masked_fill((indices < 0)[:, None], 0)
    size = input.shape[1] if y_slice_size == -1 else y_slice_size
    behind = input[:, y_offset + size :]
    return torch.cat((input[:, :y_offset], input[:, y_offset : y_offset + size] + added, behind), 1)


def npu_batch_gather_matmul_(
    input: torch.Tensor,
    x: torch.Tensor,
    weight_b: torch.Tensor,
    indices: torch.Tensor,
    weight_a: torch.Tensor | None = None,
    layer_idx: int = 0,
    scale: float = 1e-3,
    y_offset: int = 0,
    y_slice_size: int = -1,
) -> torch.Tensor:
    """:func:`npu_batch_gather_matmul` in place."""
    return input.copy_(
        npu_batch_gather_matmul(input, x, weight_b, indices, weight_a, layer_idx, scale, y_offset, y_slice_size)
    )


def npu_ffn(
    x: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    activation: str,
    *,
    expert_tokens: Sequence[int] | None = None,
    expert_tokens_index: Sequence[int] | None = None,
    bias1: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    deq_scale1: torch.Tensor | None = None,
    deq_scale2: torch.Tensor | None = None,
    antiquant_scale1: torch.Tensor | None = None,
    antiquant_scale2: torch.Tensor | None = None,
    antiquant_offset1: torch.Tensor | None = None,
    antiquant_offset2: torch.Tensor | None = None,
    inner_precise: int | None = None,
    output_dtype: torch.dtype | int | None = None,
) -> torch.Tensor:
    """Two layers, ``activation(x @ weight1 + bias1) @ weight2 + bias2``, by expert if there are any.

    Args:
        activation: gelu, fastgelu, relu, silu, or a gate: geglu, swiglu, reglu.
        expert_tokens: how many rows each expert takes; ``expert_tokens_index`` where each ends.
        deq_scale1: what products of integers are multiplied by, for each column and expert, in float32 or packed by
            ``npu_trans_quant_param``; ``deq_scale2`` the same of the second layer.
        scale: what activations are multiplied by before they are rounded to int8, ``offset`` what is added to them:
            one, or one for each column, and for each expert.
        antiquant_scale1: weights of integers are ``(weight1 + antiquant_offset1) * antiquant_scale1``, for each column
            and expert; ``antiquant_scale2`` the same of the second layer.
        output_dtype: of quantised layers, float16 unless it says otherwise.

    Raises:
        ValueError: for another activation, and integers without the scales that they need.
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"npu_ffn: activation is one of {', '.join(_ACTIVATIONS)}, not {activation!r}")
    if not x.is_floating_point() and (deq_scale1 is None or deq_scale2 is None or scale is None):
        raise ValueError("npu_ffn: rows of integers need scale, deq_scale1 and deq_scale2")
    rows = x.flatten(0, -2)
    ends = expert_tokens if expert_tokens is not None else expert_tokens_index
    if ends is None:
        first, second = [weight1], [weight2]
        parts = [rows]
    else:
        kind = _SIZES if expert_tokens is not None else _ENDS
        first, second = list(weight1), list(weight2)
        parts = _groups([rows], ends, kind, dim=0)
    dtype = dtype_of(output_dtype, x.dtype if x.is_floating_point() else torch.float16)

    def each(value: torch.Tensor | None) -> list[torch.Tensor | None]:
        return [None] * len(first) if value is None else list(value) if ends is not None else [value]

    of_first = zip(first, each(bias1), each(deq_scale1), each(antiquant_scale1), each(antiquant_offset1), strict=True)
    of_second = zip(second, each(bias2), each(deq_scale2), each(antiquant_scale2), each(antiquant_offset2), strict=True)
    results = []
    for part, one, two, by, more in zip(parts, of_first, of_second, each(scale), each(offset), strict=True):
        inner = _ACTIVATIONS[activation](_layer(part, *one, dtype))
        if by is not None:
            inner = rounded(inner * by if more is None else inner * by + more, torch.int8)
        results.append(_layer(inner, *two, dtype))
    return torch.cat(results).view(*x.shape[:-1], -1)


def npu_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """A convolution over as many dimensions as the weight has."""
    dims = weight.dim() - 2
    return torch.convolution(input, weight, bias, stride, padding, dilation, False, [0] * dims, groups)


npu_conv2d = npu_conv3d = npu_convolution


def npu_convolution_transpose(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """A transposed convolution over as many dimensions as the weight has."""
    return torch.convolution(input, weight, bias, stride, padding, dilation, True, output_padding, groups)


npu_conv_transpose2d = npu_convolution_transpose


def _layer(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
    weight_offset: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """A layer of numbers; of integers, whose products have a scale; or of numbers with weights of integers."""
    if scale is not None:
        return (_product(x.int(), weight.int(), bias).float() * unpacked(scale)).to(dtype)
    if weight_scale is not None:
        weight = weight.to(x.dtype)
        weight = (weight if weight_offset is None else weight + weight_offset) * weight_scale
    return _product(x, weight, bias)


def _product(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return left @ right if bias is None else left @ right + bias


def _slices(tensors: Sequence[torch.Tensor], dims: int) -> list[torch.Tensor]:
    """What belongs to each group: the tensors, or the slices of a single one of ``dims`` dimensions."""
    return list(tensors[0]) if len(tensors) == 1 and tensors[0].dim() == dims else list(tensors)


def _groups(
    tensors: Sequence[torch.Tensor], group_list: torch.Tensor | Sequence[int] | None, kind: int, dim: int
) -> list[torch.Tensor]:
    """The tensors, or a single one divided along ``dim`` as ``group_list`` says."""
    if group_list is None or len(tensors) != 1:
        return list(tensors)
    numbers = group_list.tolist() if isinstance(group_list, torch.Tensor) else list(group_list)
    if kind == _ENDS:
        numbers = [end - begin for begin, end in zip([0, *numbers[:-1]], numbers, strict=True)]
    return list(tensors[0].narrow(dim, 0, sum(numbers)).split(numbers, dim))
