# SPDX-License-Identifier: Apache-2.0
"""What ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` call in inference, in terms of products, attention
and norms. Masks are true where nothing may be looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

#: Kinds of masks (``mask_type``): for queries and keys, for the keys of each sequence, for both.
_OF_QUERIES, _OF_KEYS, _OF_BOTH = 0, 1, 2


def _to_scores(mask: Tensor, kind: int | None) -> Tensor:
    """A mask in a form that is broadcast to scores (batch, heads, queries, keys), true where attention goes."""
    mask = mask.to(torch.bool).logical_not()
    if kind == _OF_QUERIES or (kind is None and mask.dim() == 2):
        return mask[None, None]
    return mask[:, None, None, :] if kind == _OF_KEYS else mask


def _projected(query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Queries, keys and values: (batch, places, width) each, by one product if they come from one tensor."""
    if query is key and key is value:
        return list(F.linear(query, weight, bias).chunk(3, -1))
    parts = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
    return [F.linear(source, part, shift) for source, part, shift in parts]


def _weighted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
    """Attention of heads of a width, and its weights, (batch, heads, queries, keys)."""
    scores = (query * width**-0.5) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1)
    return weights @ value, weights


def _blind_rows(result: Tensor, mask: Tensor | None) -> Tensor:
    """What may look at nothing is NaN, as the softmax of nothing is; attention as one operator makes it 0."""
    return result if mask is None else torch.where(mask.any(-1, keepdim=True), result, float("nan"))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``_native_multi_head_attention``: (batch, places, ``embed_dim``), and the weights if they are asked for."""
    batch, places, _ = query.shape
    width = embed_dim // num_head
    heads = [
        x.view(batch, places, num_head, width).transpose(1, 2)
        for x in _projected(query, key, value, qkv_weight, qkv_bias)
    ]
    where = None if mask is None else _to_scores(mask, mask_type)
    weights = None
    if need_weights:
        context, weights = _weighted(heads[0], heads[1], heads[2], where, width)
    else:
        context = _blind_rows(F.scaled_dot_product_attention(heads[0], heads[1], heads[2], where), where)
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    merged = context.transpose(1, 2).reshape(batch, places, embed_dim)
    return F.linear(merged, proj_weight, proj_bias), weights


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """``_transformer_encoder_layer_fwd``: attention, then two linear layers, each beside a skip and with a norm after
    or, with ``norm_first``, before it (Vaswani et al. 2017; Xiong et al. 2020)."""

    def attend(x: Tensor) -> Tensor:
        return attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, False, mask_type
        )[0]

    def feed_forward(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    first = (norm_weight_1, norm_bias_1, eps)
    second = (norm_weight_2, norm_bias_2, eps)
    if norm_first:
        x = src + attend(F.layer_norm(src, [embed_dim], *first))
        return x + feed_forward(F.layer_norm(x, [embed_dim], *second))
    x = F.layer_norm(src + attend(src), [embed_dim], *first)
    return F.layer_norm(x + feed_forward(x), [embed_dim], *second)


#: Operator -> its decomposition.
LAYERS: dict[Any, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: attention,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
}
