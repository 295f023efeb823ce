# SPDX-License-Identifier: Apache-2.0
"""Tensors in other shapes, dtypes and orders, and writes to parts of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from torch_npu.operators.dtypes import dtype_of

#: The one format that tensors here have: the order of the CPU's.
_ND = 2


def get_npu_format(input: torch.Tensor) -> int:
    """The number of the format ND, which every tensor here has."""
    return _ND


def get_storage_size(input: torch.Tensor) -> int:
    """How many elements the tensor's storage has room for."""
    return input.untyped_storage().nbytes() // input.element_size()


def npu_format_cast(
    input: torch.Tensor, acl_format: int, *, customize_dtype: int | None = None, input_dtype: int | None = None
) -> torch.Tensor:
    """The tensor itself: formats are Ascend's ways to lay out memory, and change no value."""
    return input


def npu_format_cast_(
    input: torch.Tensor,
    src: int | torch.Tensor,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """The tensor itself, or filled with the values of ``src`` where that is no number of a format."""
    return input.copy_(src) if isinstance(src, torch.Tensor) else input


def npu_dtype_cast(input: torch.Tensor, dtype: torch.dtype | int, input_dtype: int | None = None) -> torch.Tensor:
    """The tensor in another dtype."""
    return input.to(dtype_of(dtype, input.dtype))


def npu_dtype_cast_(input: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """Fills the tensor with the values of ``src``."""
    return input.copy_(src)


def copy_memory_(input: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``input.copy_(src)``."""
    return input.copy_(src, non_blocking)


def npu_view_copy(input: torch.Tensor, other: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    """``input.copy_(other)``."""
    return input.copy_(other, non_blocking)


def one_(input: torch.Tensor) -> torch.Tensor:
    """Fills the tensor with ones."""
    return input.fill_(1)


def empty_with_format(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool | None = None,
    acl_format: int = _ND,
    base_addr_aligned_kb: int | None = None,
) -> torch.Tensor:
    """``torch.empty`` on the device: formats are Ascend's ways to lay out memory, and addresses are the allocator's."""
    where = device if device is not None else torch.accelerator.current_accelerator()
    return torch.empty(list(size), dtype=dtype, layout=layout, device=where, pin_memory=bool(pin_memory))


def unsafe_empty_with_format(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool | None = None,
    acl_format: int = _ND,
    keep_format: bool = False,
) -> torch.Tensor:
    """:func:`empty_with_format`."""
    return empty_with_format(size, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory)


def npu_sim_exponential_(
    input: torch.Tensor, lambd: float = 1, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """``input.exponential_(lambd)``."""
    return input.exponential_(lambd, generator=generator)


def npu_prefetch(input: torch.Tensor, dependency: torch.Tensor | None, max_size: int, offset: int = 0) -> None:
    """Nothing: where contents are before they are used is the device's choice."""


def npu_transpose(input: torch.Tensor, perm: Sequence[int], require_contiguous: bool = True) -> torch.Tensor:
    """The dimensions in another order, in memory of its own."""
    return input.permute(list(perm)).contiguous()


def npu_broadcast(input: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """The tensor expanded to a size, in memory of its own."""
    return input.expand(list(size)).contiguous()


def npu_reshape(input: torch.Tensor, shape: Sequence[int], can_refresh: bool = False) -> torch.Tensor:
    """The tensor in another shape, in memory of its own."""
    return input.reshape(list(shape)).clone()


def npu_slice(input: torch.Tensor, offsets: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    """The box of a size that begins at ``offsets``, in memory of its own."""
    for dim, (offset, length) in enumerate(zip(offsets, size, strict=True)):
        input = input.narrow(dim, offset, length)
    return input.clone(memory_format=torch.contiguous_format)


def npu_confusion_transpose(
    input: torch.Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> torch.Tensor:
    """A permutation of dimensions and a change of shape, in the order that ``transpose_first`` says."""
    if transpose_first:
        return input.permute(list(perm)).reshape(list(shape))
    return input.reshape(list(shape)).permute(list(perm))


def npu_stride_copy(
    input: torch.Tensor, shape: Sequence[int], stride: Sequence[int], storage_offset: int
) -> torch.Tensor:
    """``torch.as_strided``, in memory of its own."""
    return input.as_strided(list(shape), list(stride), int(storage_offset)).contiguous()


def npu_pad(input: torch.Tensor, paddings: Sequence[int]) -> torch.Tensor:
    """Zeros around the tensor: ``paddings`` says how many before and behind, for each dimension from the first on."""
    pairs = [list(paddings[i : i + 2]) for i in range(0, len(paddings), 2)]
    return F.pad(input, [count for pair in reversed(pairs) for count in pair])


def npu_one_hot(
    input: torch.Tensor, num_classes: int = -1, depth: int = 1, on_value: float = 1, off_value: float = 0
) -> torch.Tensor:
    """``on_value`` at the positions that ``input`` names and ``off_value`` elsewhere, in float32.

    Args:
        num_classes: the dimension of the result along which positions count.
        depth: how large that dimension is.
    """
    dim = num_classes % (input.dim() + 1)
    places = torch.arange(depth, device=input.device).view([-1] + [1] * (input.dim() - dim))
    return torch.where(input.unsqueeze(dim) == places, float(on_value), float(off_value))


def npu_sort_v2(input: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    """The values of ``torch.sort``."""
    return input.sort(dim, descending).values


def npu_max(input: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest values along a dimension, and where they are, in int32."""
    values, indices = torch.max(input, dim, keepdim)
    return values, indices.int()


def npu_min(input: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest values along a dimension, and where they are, in int32."""
    values, indices = torch.min(input, dim, keepdim)
    return values, indices.int()


def npu_scatter_nd_update(input: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """A copy with ``updates`` at ``indices``, whose last dimension names a position along the first dimensions."""
    return input.index_put(tuple(indices.long().unbind(-1)), updates)


def npu_scatter_nd_update_(input: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """:func:`npu_scatter_nd_update` in place."""
    return input.index_put_(tuple(indices.long().unbind(-1)), updates)


def npu_gather_sparse_index(input: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The rows of ``input`` that ``index`` names."""
    return input[index]


def scatter_update(input: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int) -> torch.Tensor:
    """A copy of ``input`` in which batch ``i`` has ``updates[i]`` from position ``indices[i]`` of ``axis`` on.

    Args:
        indices: (batch,), or pairs of a batch and a position (updates, 2).
    """
    return scatter_update_(input.clone(), indices, updates, axis)


def scatter_update_(input: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int) -> torch.Tensor:
    """:func:`scatter_update` in place."""
    target, source = input.movedim(axis, 1), updates.movedim(axis, 1)
    batches, starts = (
        (torch.arange(len(indices), device=indices.device), indices) if indices.dim() == 1 else indices.unbind(-1)
    )
    places = starts[:, None].long() + torch.arange(source.shape[1], device=indices.device)
    target.index_put_((batches[:, None].long(), places), source)
    return input


def npu_scatter_list(
    input: Sequence[torch.Tensor],
    indices: torch.Tensor,
    updates: torch.Tensor,
    mask: torch.Tensor | None = None,
    reduce: str = "update",
    axis: int = -2,
) -> list[torch.Tensor]:
    """Copies of tensors, in which ``i`` has ``updates[i]`` from position ``indices[i]`` of ``axis`` on.

    Args:
        indices: a number for each tensor.
        updates: (tensors, ...), with as many dimensions behind the first as the tensors have.
        mask: a number for each tensor: 0 leaves it as it is.

    Raises:
        NotImplementedError: for another ``reduce``, and ``indices`` with more than one dimension.
    """
    if reduce != "update" or indices.dim() != 1:
        raise NotImplementedError("npu_scatter_list: only 'update' is there, with one index for each tensor")
    results = []
    for i, (tensor, update) in enumerate(zip(input, updates, strict=True)):
        places = indices[i].long() + torch.arange(update.shape[axis], device=indices.device)
        if mask is not None:
            update = torch.where(mask[i].bool(), update, tensor.index_select(axis, places))
        results.append(tensor.index_copy(axis, places, update))
    return results


def npu_scatter_list_(
    input: Sequence[torch.Tensor],
    indices: torch.Tensor,
    updates: torch.Tensor,
    mask: torch.Tensor | None = None,
    reduce: str = "update",
    axis: int = -2,
) -> None:
    """:func:`npu_scatter_list` in place."""
    for tensor, result in zip(input, npu_scatter_list(input, indices, updates, mask, reduce, axis), strict=True):
        tensor.copy_(result)


def npu_masked_fill_range(
    input: torch.Tensor, start: torch.Tensor, end: torch.Tensor, value: torch.Tensor, axis: int = -1
) -> torch.Tensor:
    """A copy in which row ``i`` has ``value[k]`` from ``start[k, i]`` to before ``end[k, i]``, for each ``k``.

    Args:
        input: two dimensions, of which ``axis`` is the last.

    Raises:
        NotImplementedError: for other shapes.
    """
    if input.dim() != 2 or axis % 2 != 1:
        raise NotImplementedError("npu_masked_fill_range: only matrices, along their last dimension, are there")
    places = torch.arange(input.shape[1], device=input.device)
    for begins, ends, filled in zip(start, end, value, strict=True):
        rows = slice(0, len(begins))
        inside = (places >= begins[:, None]) & (places < ends[:, None])
        input = torch.cat((torch.where(inside, filled, input[rows]), input[len(begins) :]))
    return input


def npu_sign_bits_pack(input: torch.Tensor, size: int) -> torch.Tensor:
    """Whether each number is at least zero, eight in a byte from its lowest bit on: (size, bytes / size), in uint8."""
    bits = F.pad(input, [0, -len(input) % 8], value=-1.0).view(-1, 8) >= 0
    weights = 2 ** torch.arange(8, device=input.device)
    return (bits * weights).sum(1).to(torch.uint8).view(size, -1)


def npu_sign_bits_unpack(input: torch.Tensor, size: int, dtype: torch.dtype | int) -> torch.Tensor:
    """1 for each bit that is set and -1 for each that is not, from each byte's lowest bit on: (size, bits / size)."""
    bits = (input.flatten()[:, None] >> torch.arange(8, device=input.device, dtype=torch.uint8)) & 1
    return (bits.to(dtype_of(dtype, torch.float32)) * 2 - 1).view(size, -1)


def npu_alloc_float_status(input: torch.Tensor) -> torch.Tensor:
    """Eight zeros: there are no flags of overflow. An overflow is an infinity in the result, as on the CPU."""
    return torch.zeros(8, device=input.device)


def npu_get_float_status(input: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Eight zeros: see :func:`npu_alloc_float_status`."""
    return torch.zeros(8, device=input.device)


def npu_clear_float_status(input: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Eight zeros: see :func:`npu_alloc_float_status`."""
    return torch.zeros(8, device=input.device)
