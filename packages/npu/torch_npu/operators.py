# SPDX-License-Identifier: Apache-2.0
"""Operators of Ascend's extension that models and libraries call by name, in terms of PyTorch's own.

Names and arguments are those that the extension publishes. What an argument asks for and these do not do raises
NotImplementedError.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

__all__ = [
    "fast_gelu",
    "get_npu_format",
    "npu_dtype_cast",
    "npu_fast_gelu",
    "npu_format_cast",
    "npu_fusion_attention",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_swiglu",
]

#: The one format that tensors here have: the order of the CPU's.
_ND = 2

#: How ``sparse_mode`` reads a mask: as it is, not at all, causal from the top left, causal to the bottom right.
_AS_IS, _ALL, _TOP_LEFT, _BOTTOM_RIGHT = range(4)

#: Where batch, sequence and head are, by layout, as a permutation to (batch, head, sequence, size).
_FOUR_DIMENSIONS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3)}


def npu_rms_norm(self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalises over the dimensions of ``gamma``: the result and the reciprocal root mean square, in float32."""
    dims = tuple(range(self.dim() - gamma.dim(), self.dim()))
    values = self.float()
    scale = torch.rsqrt(values.square().mean(dims, keepdim=True) + epsilon)
    return (values * scale * gamma.float()).to(self.dtype), scale


def npu_swiglu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """SiLU of the first half of ``dim``, times the second half."""
    gate, value = self.chunk(2, dim)
    return F.silu(gate) * value


def npu_rotary_mul(input: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half") -> torch.Tensor:
    """``input * r1 + rotated(input) * r2``: rotary position embedding with cosines and sines.

    Args:
        rotary_mode: ``"half"`` pairs the two halves of the last dimension, ``"interleave"`` its neighbours.

    Raises:
        ValueError: for another mode.
    """
    if rotary_mode == "half":
        first, second = input.chunk(2, -1)
        rotated = torch.cat((-second, first), -1)
    elif rotary_mode == "interleave":
        rotated = torch.stack((-input[..., 1::2], input[..., ::2]), -1).flatten(-2)
    else:
        raise ValueError(f"rotary_mode is 'half' or 'interleave', not {rotary_mode!r}")
    return input * r1 + rotated * r2


def fast_gelu(self: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(1.702 * x)``, an approximation of GELU."""
    return self * torch.sigmoid(1.702 * self)


npu_fast_gelu = fast_gelu


def npu_dtype_cast(input: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in another dtype."""
    return input.to(dtype)


def npu_format_cast(self: torch.Tensor, acl_format: int, customize_dtype: int | None = None) -> torch.Tensor:
    """The tensor itself: formats are Ascend's ways to lay out memory, and change no value."""
    return self


def get_npu_format(self: torch.Tensor) -> int:
    """The number of the format ND, which every tensor here has."""
    return _ND


def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
) -> tuple[torch.Tensor]:
    """Attention, ``softmax(scale * query @ key.T + pse) @ value``, of which only the result is returned.

    Args:
        head_num: heads of the query.
        input_layout: BNSD, BSND, BSH, SBH (batch, sequence, heads, size of a head), or TND for sequences of several
            lengths one after the other.
        pse: added to the scaled products.
        atten_mask: boolean, true where attention is left out. With a ``sparse_mode`` of 2 or 3 it only says that
            attention is causal, aligned to the top left or to the bottom right.
        keep_prob: one minus the probability of dropout.
        actual_seq_qlen: with TND, where each query sequence ends; ``actual_seq_kvlen`` the same for keys.

    Raises:
        NotImplementedError: for ``prefix``, ``padding_mask``, windows (``pre_tockens``, ``next_tockens`` with
            ``sparse_mode`` 4 and above), and other layouts.
    """
    if prefix is not None or padding_mask is not None or sparse_mode > _BOTTOM_RIGHT:
        raise NotImplementedError("npu_fusion_attention: prefix, padding_mask and sparse_mode above 3 are not there")
    if sparse_mode == _AS_IS and min(pre_tockens, next_tockens) < max(query.shape[0], key.shape[0], 65536):
        raise NotImplementedError("npu_fusion_attention: windows (pre_tockens, next_tockens) are not there")

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        bias = _bias(q, k, pse, atten_mask, sparse_mode)
        return F.scaled_dot_product_attention(
            q, k, v, bias, dropout_p=1 - keep_prob, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )

    if input_layout == "TND":
        if actual_seq_qlen is None or actual_seq_kvlen is None:
            raise ValueError("npu_fusion_attention: TND needs actual_seq_qlen and actual_seq_kvlen")
        return (_attend_each(attend, query, key, value, actual_seq_qlen, actual_seq_kvlen),)
    if (order := _FOUR_DIMENSIONS.get(input_layout)) is not None:
        result = attend(query.permute(order), key.permute(order), value.permute(order))
        return (result.permute(order),)
    if input_layout not in ("BSH", "SBH"):
        raise NotImplementedError(f"npu_fusion_attention: the layout {input_layout!r} is not there")
    size = query.shape[-1] // head_num
    flip = input_layout == "SBH"

    def split(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.transpose(0, 1) if flip else tensor
        return tensor.view(*tensor.shape[:2], -1, size).transpose(1, 2)

    joined = attend(split(query), split(key), split(value)).transpose(1, 2).flatten(2)
    return (joined.transpose(0, 1) if flip else joined,)


def _bias(
    q: torch.Tensor, k: torch.Tensor, pse: torch.Tensor | None, left_out: torch.Tensor | None, sparse_mode: int
) -> torch.Tensor | None:
    """What is added to the products: ``pse``, and minus infinity where attention is left out."""
    rows, columns = q.shape[-2], k.shape[-2]
    if sparse_mode in (_TOP_LEFT, _BOTTOM_RIGHT):
        offset = columns - rows if sparse_mode == _BOTTOM_RIGHT else 0
        left_out = torch.ones(rows, columns, dtype=torch.bool, device=q.device).triu(offset + 1)
    elif sparse_mode == _ALL:
        left_out = None
    if left_out is None:
        return pse
    if pse is None:
        return ~left_out.bool()
    return pse.masked_fill(left_out.bool(), float("-inf"))


def _attend_each(
    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: Sequence[int],
    key_ends: Sequence[int],
) -> torch.Tensor:
    """Attention within each of several sequences that lie one after the other: (all positions, heads, size)."""
    results = []
    for (q0, q1), (k0, k1) in zip(
        itertools.pairwise((0, *query_ends)), itertools.pairwise((0, *key_ends)), strict=True
    ):
        q, k, v = (part.transpose(0, 1)[None] for part in (query[q0:q1], key[k0:k1], value[k0:k1]))
        results.append(attend(q, k, v)[0].transpose(0, 1))
    return torch.cat(results)
