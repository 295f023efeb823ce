# SPDX-License-Identifier: Apache-2.0
"""Decompositions of operators for which PyTorch has none, or one made for other devices; for calls and for graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ...target import target_of
from ..optimizers.chains import wide
from ..optimizers.fused import update_scale
from . import fake_quantized, padding
from .synchronized_norm import DECOMPOSITIONS as SYNCHRONIZED_NORM
from .transformers import LAYERS

aten = torch.ops.aten


def _assert_async(condition: Tensor) -> None:
    aten._assert_async.msg(condition, "Expected Tensor with single nonzero value, but got zero")


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """``v`` with norms ``g`` over all dimensions but ``dim``, and the norms that it had, those of halves in float32."""
    others = [i for i in range(v.dim()) if i != dim % v.dim()]
    norms = wide(v).norm(2, others, keepdim=True)
    return (wide(v) * (wide(g) / norms)).to(v.dtype), norms


def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of ``v`` and ``g`` (Salimans and Kingma 2016). ``g`` and ``norms`` have one element for each index of
    ``dim`` (0 or the last), and dimensions of 1."""
    others = [i for i in range(v.dim()) if i != dim % v.dim()]
    wide_grad, wide_v, wide_g, wide_norms = (wide(x) for x in (grad, v, g, norms))
    along = (wide_grad * wide_v).sum(others, keepdim=True)
    inverse = 1 / wide_norms
    grad_v = wide_g * inverse * (wide_grad - wide_v * (along * inverse * inverse))
    return grad_v.to(v.dtype), (along * inverse).to(g.dtype)


def _copied(view: Callable[..., Any]) -> Callable[..., Any]:
    """What a view shows, or several, as tensors of their own: what views become where decompositions are traced."""

    def copy(*args: Any, **kwargs: Any) -> Any:
        return tree_map(lambda shown: shown.clone(memory_format=torch.contiguous_format), view(*args, **kwargs))

    return copy


#: How bags of embeddings are reduced.
_SUM, _MEAN, _MAX = range(3)


def _bag_backward(
    grad: Tensor,
    indices: Tensor,
    bag_of: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient of a table, (``num_weights``, columns), from that of its bags. An index in no bag is in bag -1."""
    if mode == _MAX:
        is_filled = bag_size[: grad.shape[0], None] > 0
        table = grad.new_zeros((num_weights, grad.shape[1]))
        return table.scatter_add(0, maximum_indices.to(torch.int64), torch.where(is_filled, grad, 0))
    bag = bag_of.clamp(min=0)
    rows = wide(grad)[bag]
    if mode == _MEAN:
        rows = rows / bag_size[bag, None].clamp(min=1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    rows = torch.where(bag_of[:, None] >= 0, rows, 0)
    result: Tensor = aten.embedding_dense_backward(rows, indices, num_weights, padding_idx, scale_grad_by_freq)
    return result.to(grad.dtype)


def _bags_of(bag_of: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
    """The bag of each index, found again where the forward pass kept none, as the CPU's keeps none of most sums: that
    runs on devices without kernels, whatever sizes were traced."""
    if bag_of.shape[0] == indices.shape[0] and target_of(bag_of.device.index or 0).has_dialect:
        return bag_of
    places = torch.arange(indices.shape[0], dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, places, right=True) - 1


def _embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    """Which layout the gradient will have, which is all that ``sparse`` says, is the backward pass's to know."""
    if not sparse:
        return NotImplemented
    return aten.embedding(weight, indices, padding_idx, scale_grad_by_freq)


def _any_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bag_of: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    *rest: Any,
) -> Any:
    """For graphs. They have no sparse tensors."""
    if sparse:
        return NotImplemented
    bag_of = _bags_of(bag_of, indices, offsets)
    return _bag_backward(grad, indices, bag_of, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, *rest)


def _bag_factors_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag_of: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:
    """The gradient of the factors of looked-up rows."""
    bag_of = _bags_of(bag_of, indices, offsets)
    products = (wide(grad)[bag_of.clamp(min=0)] * wide(weight)[indices]).sum(1)
    return torch.where((bag_of >= 0) & (indices != padding_idx), products, 0).to(grad.dtype)


def _unfold_backward(grad: Tensor, input_size: list[int], dimension: int, size: int, step: int) -> Tensor:
    """The gradient of an input of ``input_size`` from that of its windows, whose places are ``grad``'s last dimension.
    An element sums what the windows that it lies in have for it: one reduction, where PyTorch's decomposition writes
    down an addition for each place of a window."""
    if not input_size:
        return grad.squeeze(0)
    dim = dimension % len(input_size)
    windows = grad.movedim(dim, -2)  # (..., window, place)
    place = torch.arange(input_size[dim], device=grad.device)[:, None]
    most = (size + step - 1) // step  # windows that an element can lie in
    window = place // step + torch.arange(1 - most, 1, device=grad.device)
    offset = place - window * step
    inside = (window >= 0) & (window < grad.shape[dim]) & (offset < size)
    parts = windows[..., window.clamp(0, grad.shape[dim] - 1), offset.clamp(0, size - 1)]
    return torch.where(inside, parts, 0).sum(-1, dtype=grad.dtype).movedim(-1, dim)


#: Operator -> its decomposition.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._amp_update_scale.default: update_scale,
    aten._assert_async.default: _assert_async,
    aten.select_copy.int: _copied(aten.select.int),
    aten.slice_copy.Tensor: _copied(aten.slice.Tensor),
    aten.split_copy.Tensor: _copied(aten.split.Tensor),
    aten.detach_copy.default: _copied(aten.alias.default),
    aten.view_copy.default: _copied(aten.reshape.default),
    aten.embedding.default: _embedding,
    aten._embedding_bag_backward.default: _any_bag_backward,
    aten._embedding_bag_dense_backward.default: _bag_backward,
    aten._embedding_bag_per_sample_weights_backward.default: _bag_factors_backward,
    aten._weight_norm_interface.default: _weight_norm,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten.unfold_backward.default: _unfold_backward,
    **fake_quantized.DECOMPOSITIONS,
    **padding.DECOMPOSITIONS,
    **LAYERS,
    **SYNCHRONIZED_NORM,
}
