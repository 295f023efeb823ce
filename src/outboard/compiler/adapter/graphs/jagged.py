# SPDX-License-Identifier: Apache-2.0
"""Attention over jagged tensors (``torch.nested``, layout ``torch.jagged``). PyTorch takes their sequences, which lie
one behind the other, to kernels of CUDA's; here they go to an operator of our own, without padding, eager and in whole
graphs. What it does not compute, such as dropout, is attention over padded sequences."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outboard import patches

aten = torch.ops.aten
_LIBRARY = torch.library.Library("outboard", "IMPL")

#: Widest heads that the kernels take, and their dtypes; as for dense tensors (``csrc/torch/operators/attention.cpp``).
_MOST_WIDTH = 256
_DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})


def install() -> None:
    """Has ``scaled_dot_product_attention`` take jagged tensors of the device."""
    name = torch._C._get_privateuse1_backend_name()
    sdpa: Any = importlib.import_module("torch.nested._internal.sdpa")

    def attending(original: Callable[..., Any]) -> Callable[..., Any]:
        def attend(
            query: Any,
            key: Any,
            value: Any,
            attn_mask: Tensor | None = None,
            dropout_p: float = 0.0,
            is_causal: bool = False,
            scale: float | None = None,
            enable_gqa: bool = False,
        ) -> Any:
            if query.device.type != name or not _is_ragged_in_places(query, key, value):
                return original(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            query, key, value, attn_mask = sdpa._autocast(query, key, value, attn_mask)
            sdpa._validate_sdpa_input(query, key, value, attn_mask, dropout_p, is_causal, scale)
            fused = torch.backends.cuda.flash_sdp_enabled() or torch.backends.cuda.mem_efficient_sdp_enabled()
            if fused and _fits(query, key, value, dropout_p, enable_gqa):
                return _attend_packed(query, key, value, is_causal, scale)
            if not torch.backends.cuda.math_sdp_enabled():
                raise RuntimeError("No viable backend for scaled_dot_product_attention was found.")
            return _attend_padded(query, key, value, dropout_p, is_causal, scale, enable_gqa)

        return attend

    place = "torch.nested._internal.ops.jagged_scaled_dot_product_attention"
    patches.apply("attention takes jagged tensors of the device", {place: attending})


def _is_ragged_in_places(*tensors: Any) -> bool:
    """Whether these are jagged tensors (batch, heads, places, width), whose number of places differs."""
    return all(getattr(tensor, "_ragged_idx", None) == 2 and tensor.dim() == 4 for tensor in tensors)


def _fits(query: Any, key: Any, value: Any, dropout_p: float, enable_gqa: bool) -> bool:
    """Whether the operator computes it."""
    heads, of_keys, of_values = (tensor.size(1) for tensor in (query, key, value))
    shared = of_keys == of_values and (heads % of_keys == 0 if enable_gqa else heads == of_keys)
    width, of_value = query.size(3), value.size(3)
    fits = width == key.size(3) and width <= _MOST_WIDTH and of_value <= _MOST_WIDTH
    return shared and fits and query.dtype in _DTYPES and dropout_p == 0 and query.size(0) == key.size(0)


def _packed(tensor: Any) -> Any:
    """A jagged tensor (batch, places, heads, width) of the same elements, without holes."""
    sequences = tensor.transpose(1, 2)
    return sequences if sequences.lengths() is None else sequences.contiguous()


def _attend_packed(query: Any, key: Any, value: Any, is_causal: bool, scale: float | None) -> Any:
    queries, keys, values = map(_packed, (query, key, value))
    out, _ = torch.ops.outboard.attend_packed(
        queries.values(),
        keys.values(),
        values.values(),
        queries.offsets(),
        keys.offsets(),
        queries._get_max_seqlen(),
        keys._get_max_seqlen(),
        is_causal,
        scale,
    )
    return _like(out, queries)


def _like(rows: Tensor, queries: Any) -> Any:
    """A jagged tensor (batch, heads, places, width) of rows (places, heads, width) for queries."""
    view = torch.nested._internal.nested_tensor.nested_view_from_values_offsets_lengths
    shortest, longest = queries._maybe_min_seqlen, queries._maybe_max_seqlen
    return view(rows, queries.offsets(), None, min_seqlen=shortest, max_seqlen=longest).transpose(1, 2)


def _attend_padded(
    query: Any, key: Any, value: Any, dropout_p: float, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Any:
    queries, keys, values = map(_packed, (query, key, value))
    for each in (queries, keys, values):
        each._get_max_seqlen()  # without it, padding is as long as all sequences together
    dense = [each.to_padded_tensor(0.0).transpose(1, 2) for each in (queries, keys, values)]
    lengths = keys.offsets().diff()[:, None, None, None]
    places, of_keys = (torch.arange(each.size(2), device=query.device) for each in dense[:2])
    # What has no keys at all looks at padding, which adds nothing: a softmax of nothing would be NaN.
    mask = (of_keys < lengths) | (lengths == 0)
    if is_causal:
        mask = mask & (of_keys <= places[:, None])
    rest = {"attn_mask": mask, "dropout_p": dropout_p, "scale": scale, "enable_gqa": enable_gqa}
    out = F.scaled_dot_product_attention(dense[0], dense[1], dense[2], **rest)
    without_padding = torch.nested._internal.nested_tensor.nested_from_padded
    result = without_padding(out.transpose(1, 2), queries.offsets(), ragged_idx=1, sum_S=queries.values().size(0))
    return _like(result.values(), queries)


def _sums(query: Tensor) -> Tensor:
    dtype = torch._prims_common.get_computation_dtype(query.dtype)
    return query.new_empty((query.size(1), query.size(0)), dtype=dtype)


def _shapes(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return query.new_empty((*query.shape[:2], value.size(2))), _sums(query)


def _shapes_of_gradients(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _sequences(query_starts: Tensor, key_starts: Tensor) -> list[tuple[slice, slice]]:
    """The rows of queries and of keys of each sequence that has both."""
    ends = [starts.tolist() for starts in (query_starts, key_starts)]
    queries, keys = ([slice(*pair) for pair in zip(each, each[1:], strict=False)] for each in ends)
    return [pair for pair in zip(queries, keys, strict=True) if all(rows.start < rows.stop for rows in pair)]


def _dense(rows: Tensor) -> Tensor:
    return rows.transpose(0, 1)[None]


def _on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    most_queries: int,
    most_keys: int,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    out, sums = (result.zero_() for result in _shapes(query, key, value))
    for queries, keys in _sequences(query_starts, key_starts):
        of_sequence = [_dense(query[queries]), _dense(key[keys]), _dense(value[keys])]
        part, of_part = aten._scaled_dot_product_flash_attention_for_cpu(*of_sequence, 0.0, is_causal, scale=scale)
        out[queries], sums[:, queries] = part[0].transpose(0, 1), of_part[0]
    return out, sums


def _gradients_on_cpu(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    most_queries: int,
    most_keys: int,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    results = [torch.zeros_like(each) for each in (query, key, value)]
    for queries, keys in _sequences(query_starts, key_starts):
        places = (queries, queries, keys, keys, queries)
        given = [_dense(each[at]) for each, at in zip((grad_out, query, key, value, out), places, strict=True)]
        of_part = logsumexp[:, queries][None]
        parts = aten._scaled_dot_product_flash_attention_for_cpu_backward(*given, of_part, 0.0, is_causal, scale=scale)
        for result, at, part in zip(results, (queries, keys, keys), parts, strict=True):
            result[at] = part[0].transpose(0, 1)
    return results[0], results[1], results[2]


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, query_starts, key_starts, *ctx.numbers = inputs
    ctx.save_for_backward(query, key, value, *output, query_starts, key_starts)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.outboard.attend_packed_backward(grad, *ctx.saved_tensors, *ctx.numbers)
    return (*gradients, *[None] * 6)


_LIBRARY.impl("attend_packed", _shapes, "Meta")
_LIBRARY.impl("attend_packed", _on_cpu, "CPU")
_LIBRARY.impl("attend_packed_backward", _shapes_of_gradients, "Meta")
_LIBRARY.impl("attend_packed_backward", _gradients_on_cpu, "CPU")
torch.library.register_autograd("outboard::attend_packed", _backward, setup_context=_keep_for_backward, lib=_LIBRARY)
