# SPDX-License-Identifier: Apache-2.0
"""Attention in the extension's layouts, by ``torch.nn.functional.scaled_dot_product_attention``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

#: How ``sparse_mode`` reads a mask: as it is, not at all, causal from the top left, causal to the bottom right, a band
#: along the diagonal to the bottom right.
_AS_IS, _ALL, _TOP_LEFT, _BOTTOM_RIGHT, _BAND = range(5)

#: Where batch, sequence and head are, by layout, as a permutation to (batch, head, sequence, size).
_FOUR_DIMENSIONS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3)}

#: A function of query, key and value, each (batch, heads, sequence, size).
_Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class _Masking:
    """What is added to the products of queries and keys, and what is left out.

    Attributes:
        added: added to the scaled products, or None.
        left_out: true where attention is left out, or None.
        sparse_mode: see ``_AS_IS`` and the following.
        before: with ``_BAND``, how many keys before the diagonal take part; ``after`` the same behind it.
        key_lengths: how many of each batch's keys count, or None for all.
    """

    added: torch.Tensor | None = None
    left_out: torch.Tensor | None = None
    sparse_mode: int = _AS_IS
    before: int = 0
    after: int = 0
    key_lengths: Sequence[int] | None = None

    def bias(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
        """What ``scaled_dot_product_attention`` takes as its mask: None, booleans (true: takes part) or numbers."""
        left_out = self._pattern(q, k)
        if self.key_lengths is not None:
            ends = torch.tensor(list(self.key_lengths), device=q.device).view(-1, 1, 1, 1)
            beyond = torch.arange(k.shape[-2], device=q.device) >= ends
            left_out = beyond if left_out is None else left_out | beyond
        if left_out is None:
            return self.added
        if self.added is None:
            return ~left_out
        return self.added.masked_fill(left_out, float("-inf"))

    def _pattern(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
        rows, columns = q.shape[-2], k.shape[-2]
        if self.sparse_mode == _ALL:
            return None
        if self.sparse_mode == _AS_IS:
            mask = None if self.left_out is None else self.left_out.bool()
            return mask if mask is None or mask.dim() != 3 else mask[:, None]
        # How far each key is behind the diagonal, which ends at the bottom right.
        ahead = torch.arange(columns, device=q.device) - torch.arange(rows, device=q.device)[:, None]
        if self.sparse_mode == _TOP_LEFT:
            return ahead > 0
        ahead = ahead - (columns - rows)
        return ahead > 0 if self.sparse_mode == _BOTTOM_RIGHT else (ahead > self.after) | (ahead < -self.before)


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
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    dropout_mask: torch.Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]:
    """Attention, ``softmax(scale * query @ key.T + pse) @ value``, as the first of seven results.

    The others are for the extension's own backward pass: empty tensors and zeros.

    Args:
        head_num: heads of the query.
        input_layout: BNSD, BSND, BSH, SBH (batch, sequence, heads, size of a head), or TND for sequences of several
            lengths one after the other.
        pse: added to the scaled products.
        atten_mask: boolean, true where attention is left out. With a ``sparse_mode`` of 2, 3 or 4 it only says that
            attention is causal, aligned to the top left or to the bottom right, or a band.
        keep_prob: one minus the probability of dropout.
        pre_tockens: with a ``sparse_mode`` of 4, how many keys before the diagonal take part; ``next_tockens`` behind.
        actual_seq_qlen: with TND, where each query sequence ends; ``actual_seq_kvlen`` the same for keys.

    Raises:
        NotImplementedError: for ``prefix``, ``padding_mask``, ``sink``, ``dropout_mask``, a ``sparse_mode`` above 4,
            and other layouts.
    """
    _refuse("npu_fusion_attention", prefix=prefix, padding_mask=padding_mask, sink=sink, dropout_mask=dropout_mask)
    masking = _masking("npu_fusion_attention", pse, atten_mask, sparse_mode, pre_tockens, next_tockens)
    attend = _attention(masking, scale, 1 - keep_prob)
    result = _in_layout(attend, query, key, value, head_num, 0, input_layout, actual_seq_qlen, actual_seq_kvlen)
    largest, total, shares = (query.new_empty(0) for _ in range(3))
    return result, largest, total, shares, 0, 0, 0


def npu_prompt_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    deq_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    deq_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    sparse_mode: int = 0,
) -> torch.Tensor:
    """Attention of whole sequences. Rows beyond ``actual_seq_lengths`` are zero, keys beyond theirs take no part.

    Args:
        atten_mask: see :func:`npu_fusion_attention`.
        num_heads: heads of the query; ``num_key_value_heads`` of keys and values, 0 for as many.
        input_layout: BSH, BSND, BNSD, BNSD_BSND (the result is BSND), or TND with where each sequence ends.

    Raises:
        NotImplementedError: for what is quantised, ``padding_mask``, a ``sparse_mode`` above 4, and other layouts.
    """
    name = "npu_prompt_flash_attention"
    _refuse(name, deq_scale1=deq_scale1, quant_scale1=quant_scale1, deq_scale2=deq_scale2, quant_scale2=quant_scale2)
    _refuse(name, quant_offset2=quant_offset2, padding_mask=padding_mask)
    masking = _masking(name, pse_shift, atten_mask, sparse_mode, pre_tokens, next_tokens)
    lengths, heads = (actual_seq_lengths, actual_seq_lengths_kv), (num_heads, num_key_value_heads)
    return _infer(masking, query, key, value, None, lengths, *heads, input_layout, scale_value)


def npu_incre_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    antiquant_scale: torch.Tensor | None = None,
    antiquant_offset: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    dequant_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    dequant_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    kv_padding_size: torch.Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    block_size: int = 0,
    inner_precise: int = 1,
) -> torch.Tensor:
    """Attention of one new position of each sequence, to keys and values that are kept, in a row or in blocks.

    Args:
        actual_seq_lengths: how many of each sequence's keys count.
        block_table: (batch, blocks): which blocks of the cache a sequence has. Keys and values are (blocks, block_size,
            heads * size) or (blocks, heads, block_size, size) then.
        num_heads: heads of the query; ``num_key_value_heads`` of keys and values, 0 for as many.

    Raises:
        NotImplementedError: for what is quantised, ``padding_mask``, ``kv_padding_size``, and other layouts.
    """
    name = "npu_incre_flash_attention"
    _refuse(name, antiquant_scale=antiquant_scale, antiquant_offset=antiquant_offset, padding_mask=padding_mask)
    _refuse(name, dequant_scale1=dequant_scale1, quant_scale1=quant_scale1, dequant_scale2=dequant_scale2)
    _refuse(name, quant_scale2=quant_scale2, quant_offset2=quant_offset2, kv_padding_size=kv_padding_size)
    masking = _Masking(pse_shift, atten_mask)
    lengths, heads = (None, actual_seq_lengths), (num_heads, num_key_value_heads)
    return _infer(masking, query, key, value, block_table, lengths, *heads, input_layout, scale_value)


def npu_fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    dequant_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    dequant_scale2: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    antiquant_scale: torch.Tensor | None = None,
    antiquant_offset: torch.Tensor | None = None,
    key_antiquant_scale: torch.Tensor | None = None,
    key_antiquant_offset: torch.Tensor | None = None,
    value_antiquant_scale: torch.Tensor | None = None,
    value_antiquant_offset: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    query_padding_size: torch.Tensor | None = None,
    kv_padding_size: torch.Tensor | None = None,
    key_shared_prefix: torch.Tensor | None = None,
    value_shared_prefix: torch.Tensor | None = None,
    actual_shared_prefix_len: Sequence[int] | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    key_rope_antiquant_scale: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of whole sequences or of new positions, to keys and values in a row or in blocks, as the first result.

    The second one is a zero. Arguments are those of :func:`npu_prompt_flash_attention`, and ``block_table`` that of
    :func:`npu_incre_flash_attention`. With the layout TND ``actual_seq_lengths`` says where each sequence ends, and
    ``actual_seq_lengths_kv`` the same of keys, or how many of each sequence's blocks count.

    Raises:
        NotImplementedError: for what is quantised, padding, prefixes, rotary parts, ``softmax_lse_flag``, a
            ``sparse_mode`` above 4, and other layouts.
    """
    name = "npu_fused_infer_attention_score"
    _refuse(name, dequant_scale1=dequant_scale1, quant_scale1=quant_scale1, dequant_scale2=dequant_scale2)
    _refuse(name, quant_scale2=quant_scale2, quant_offset2=quant_offset2, antiquant_scale=antiquant_scale)
    _refuse(name, antiquant_offset=antiquant_offset, key_antiquant_scale=key_antiquant_scale)
    _refuse(name, key_antiquant_offset=key_antiquant_offset, value_antiquant_scale=value_antiquant_scale)
    _refuse(name, value_antiquant_offset=value_antiquant_offset, query_padding_size=query_padding_size)
    _refuse(name, kv_padding_size=kv_padding_size, key_shared_prefix=key_shared_prefix, query_rope=query_rope)
    _refuse(name, key_rope=key_rope, softmax_lse_flag=softmax_lse_flag or None)
    masking = _masking(name, pse_shift, atten_mask, sparse_mode, pre_tokens, next_tokens)
    lengths, heads = (actual_seq_lengths, actual_seq_lengths_kv), (num_heads, num_key_value_heads)
    result = _infer(masking, query, key, value, block_table, lengths, *heads, input_layout, scale)
    return result, query.new_zeros(1, dtype=torch.float32)


def npu_fused_infer_attention_score_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    block_table: torch.Tensor | None = None,
    dequant_scale_query: torch.Tensor | None = None,
    dequant_scale_key: torch.Tensor | None = None,
    dequant_offset_key: torch.Tensor | None = None,
    dequant_scale_value: torch.Tensor | None = None,
    dequant_offset_value: torch.Tensor | None = None,
    dequant_scale_key_rope: torch.Tensor | None = None,
    quant_scale_out: torch.Tensor | None = None,
    quant_offset_out: torch.Tensor | None = None,
    quant_scale_p: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    value_quant_mode: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
    query_rope_dtype: int | None = None,
    key_rope_dtype: int | None = None,
    key_shared_prefix_dtype: int | None = None,
    value_shared_prefix_dtype: int | None = None,
    dequant_scale_query_dtype: int | None = None,
    dequant_scale_key_dtype: int | None = None,
    dequant_scale_value_dtype: int | None = None,
    dequant_scale_key_rope_dtype: int | None = None,
    out_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`npu_fused_infer_attention_score`, with other names of arguments.

    Raises:
        NotImplementedError: for what is quantised, rotary parts, ``learnable_sink``, ``return_softmax_lse``, a
            ``sparse_mode`` above 4, and other layouts.
    """
    name = "npu_fused_infer_attention_score_v2"
    _refuse(name, query_rope=query_rope, key_rope=key_rope, dequant_scale_query=dequant_scale_query)
    _refuse(name, dequant_scale_key=dequant_scale_key, dequant_scale_value=dequant_scale_value)
    _refuse(name, quant_scale_out=quant_scale_out, quant_scale_p=quant_scale_p, learnable_sink=learnable_sink)
    _refuse(name, return_softmax_lse=return_softmax_lse or None, out_dtype=out_dtype, query_dtype=query_dtype)
    masking = _masking(name, pse_shift, atten_mask, sparse_mode, pre_tokens, next_tokens)
    lengths, heads = (actual_seq_qlen, actual_seq_kvlen), (num_query_heads, num_key_value_heads)
    result = _infer(masking, query, key, value, block_table, lengths, *heads, input_layout, softmax_scale)
    return result, query.new_zeros(1, dtype=torch.float32)


def npu_scaled_masked_softmax(
    x: torch.Tensor, mask: torch.Tensor, scale: float = 1, fixed_triu_mask: bool = False
) -> torch.Tensor:
    """Softmax of ``scale * x`` over the last dimension, with -10000 where ``mask`` is true.

    Args:
        fixed_triu_mask: whether the mask is what is above the diagonal, instead of ``mask``.
    """
    if fixed_triu_mask:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return (x * scale).masked_fill(mask, -10000.0).softmax(-1)


def npu_attention_update(
    lse: Sequence[torch.Tensor], local_out: Sequence[torch.Tensor], update_type: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Joins attention over parts of the keys: results (rows, size), by the logarithms of their sums (rows,).

    Returns:
        The attention over all keys, and the logarithm of its sum, which is empty unless ``update_type`` is 1.
    """
    parts = torch.stack(list(lse))
    total = parts.logsumexp(0)
    joined = (torch.stack(list(local_out)).float() * (parts - total).exp()[..., None]).sum(0)
    return joined.to(local_out[0].dtype), total if update_type == 1 else total.new_empty(0)


def npu_ring_attention_update(
    prev_attn_out: torch.Tensor,
    prev_softmax_max: torch.Tensor,
    prev_softmax_sum: torch.Tensor,
    cur_attn_out: torch.Tensor,
    cur_softmax_max: torch.Tensor,
    cur_softmax_sum: torch.Tensor,
    *,
    actual_seq_qlen: torch.Tensor | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Joins attention over two parts of the keys, by the maxima and sums of their softmax.

    Args:
        prev_attn_out: (sequence, batch, heads * size), as ``cur_attn_out``.
        prev_softmax_max: (batch, heads, sequence, copies), as the other three.

    Returns:
        The attention over both parts, its maxima and its sums.

    Raises:
        NotImplementedError: for another layout than SBH.
    """
    if input_layout != "SBH":
        raise NotImplementedError(f"npu_ring_attention_update: the layout {input_layout!r} is not there")
    largest = torch.maximum(prev_softmax_max, cur_softmax_max)
    before = prev_softmax_sum * (prev_softmax_max - largest).exp()
    now = cur_softmax_sum * (cur_softmax_max - largest).exp()
    total = before + now

    def weighted(result: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        share = (weight / total)[..., :1].permute(2, 0, 1, 3)  # (sequence, batch, heads, 1)
        return result.unflatten(-1, (share.shape[2], -1)) * share

    joined = weighted(prev_attn_out, before) + weighted(cur_attn_out, now)
    return joined.flatten(-2).to(prev_attn_out.dtype), largest, total


def _refuse(operator: str, **arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{operator}: {name} is not there")


def _masking(
    operator: str,
    added: torch.Tensor | None,
    left_out: torch.Tensor | None,
    sparse_mode: int,
    before: int,
    after: int,
) -> _Masking:
    if sparse_mode > _BAND:
        raise NotImplementedError(f"{operator}: a sparse_mode of {sparse_mode} is not there")
    return _Masking(added, left_out, sparse_mode, before, after)


def _attention(masking: _Masking, scale: float, dropout: float = 0.0) -> _Attend:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(
            q, k, v, masking.bias(q, k), dropout_p=dropout, scale=scale, enable_gqa=grouped
        )

    return attend


def _shortened(attend: _Attend, lengths: Sequence[int] | None) -> _Attend:
    """Attention whose rows beyond the lengths are zero."""
    if lengths is None:
        return attend

    def shortened(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor(list(lengths), device=q.device).view(-1, 1, 1, 1)
        beyond = torch.arange(q.shape[-2], device=q.device)[:, None] >= ends
        return attend(q, k, v).masked_fill(beyond, 0)

    return shortened


def _in_layout(
    attend: _Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: int,
    key_heads: int,
    layout: str,
    query_ends: Sequence[int] | None = None,
    key_ends: Sequence[int] | None = None,
) -> torch.Tensor:
    """Attention of tensors in a layout, with its result in the same."""
    if layout == "TND":
        if query_ends is None or key_ends is None:
            raise ValueError("the layout TND needs where sequences of queries and of keys end")
        return _attend_each(attend, query, key, value, query_ends, key_ends)
    given, _, wanted = layout.partition("_")
    if (order := _FOUR_DIMENSIONS.get(given)) is not None and (wanted or given) in _FOUR_DIMENSIONS:
        result = attend(query.permute(order), key.permute(order), value.permute(order))
        return result.permute(_FOUR_DIMENSIONS[wanted or given])
    if layout not in ("BSH", "SBH"):
        raise NotImplementedError(f"the layout {layout!r} of attention is not there")
    size = query.shape[-1] // heads

    def split(tensor: torch.Tensor, size: int) -> torch.Tensor:
        tensor = tensor.transpose(0, 1) if layout == "SBH" else tensor
        return tensor.unflatten(-1, (-1, size)).transpose(1, 2)

    value_size = value.shape[-1] // key_heads if key_heads else value.shape[-1] // (key.shape[-1] // size)
    joined = attend(split(query, size), split(key, size), split(value, value_size)).transpose(1, 2).flatten(2)
    return joined.transpose(0, 1) if layout == "SBH" else joined


def _infer(
    masking: _Masking,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_table: torch.Tensor | None,
    lengths: tuple[Sequence[int] | None, Sequence[int] | None],
    heads: int,
    key_heads: int,
    layout: str,
    scale: float,
) -> torch.Tensor:
    """Attention in a layout, to keys and values in a row or in blocks; ``lengths`` are those of queries and of keys."""
    rows, columns = lengths
    if layout == "TND":
        columns = rows if columns is None else columns
        if block_table is not None and columns is not None:
            key, value = (_rows_of_blocks(cache, block_table, columns, query) for cache in (key, value))
            columns = list(itertools.accumulate(columns))
        return _in_layout(_attention(masking, scale), query, key, value, heads, key_heads, layout, rows, columns)
    if block_table is not None:
        key, value = (_from_blocks(cache, block_table, layout) for cache in (key, value))
    attend = _attention(replace(masking, key_lengths=columns), scale)
    return _in_layout(_shortened(attend, rows), query, key, value, heads, key_heads, layout)


def _rows_of_blocks(
    cache: torch.Tensor, table: torch.Tensor, lengths: Sequence[int], query: torch.Tensor
) -> torch.Tensor:
    """Keys or values of the sequences one after the other, (all positions, heads, size), from the blocks of a cache."""
    if cache.dim() == 4:
        cache = cache.transpose(1, 2).flatten(2)
    sequences = cache[table.long()].flatten(1, 2)  # (batch, positions, heads * size)
    parts = [sequence[:length] for sequence, length in zip(sequences, lengths, strict=True)]
    return torch.cat(parts).unflatten(-1, (-1, query.shape[-1]))


def _from_blocks(cache: torch.Tensor, table: torch.Tensor, layout: str) -> torch.Tensor:
    """Keys or values of each sequence, from the blocks of a cache, in the layout of the query."""
    blocks = cache[table.long()]  # (batch, blocks, ...)
    if cache.dim() == 3:
        return blocks.flatten(1, 2)
    in_row = blocks.transpose(1, 2).flatten(2, 3)  # (batch, heads, positions, size)
    if layout == "BNSD":
        return in_row
    return in_row.transpose(1, 2) if layout == "BSND" else in_row.transpose(1, 2).flatten(2)


def _attend_each(
    attend: _Attend,
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
