# SPDX-License-Identifier: Apache-2.0
"""Attention in the extension's layouts, by ``torch.nn.functional.scaled_dot_product_attention``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from torch_npu.operators.masks import Mask, mask_of
from torch_npu.operators.sequences import VARYING, Layout

#: How often statistics of a row are in their last dimension.
_COPIES = 8
#: Modes of masks that operators for inference know, and from which on a mask says no more than that there is one.
_MODES_OF_INFERENCE, _FIRST_WITHOUT_CONTENTS = 4, 2
#: Whether ``pse`` is added to the products of queries and keys after they are scaled or before.
_AFTER_SCALE, _BEFORE_SCALE = 0, 1
#: How many scores are in memory at a time for the statistics of rows.
_SCORES = 1 << 24


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
    """Attention, ``softmax(scale * (query @ key.T + pse)) @ value``, and the maxima and sums of its rows.

    Gradients come of PyTorch's operators. The maxima and sums are for :func:`npu_fusion_attention_grad` and
    :func:`npu_ring_attention_update`, and have none.

    Args:
        head_num: heads of the query.
        input_layout: BNSD, BSND, BSH, SBH (batch, sequence, heads, size of a head), or TND for sequences of several
            lengths one after the other.
        pse: added to the products before they are scaled.
        atten_mask: true where attention is left out. With a ``sparse_mode`` of 2, 3, 4 or 6 it only says that attention
            is causal, aligned to the top left or to the bottom right, or a band, or causal but for the first keys; with
            7 and 8, that of several sequences the last one or the first one is a band and the others are causal.
            Without it, all keys take part.
        keep_prob: one minus the probability of dropout.
        pre_tockens: of a band, how many keys before the diagonal take part; ``next_tockens`` behind.
        prefix: with a ``sparse_mode`` of 6, how many of each batch's first keys take part.
        actual_seq_qlen: with TND, where each query sequence ends; ``actual_seq_kvlen`` the same for keys.
        softmax_layout: with TND, ``"TND"`` for maxima and sums (positions, heads, 8); else those of each sequence lie
            (heads, positions, 8) one after the other, in a tensor of that shape.

    Returns:
        The result; in float32 each row's largest score and the sum of ``exp(score - largest)``, eight times, (batch,
        heads, positions, 8); an empty tensor and three zeros.

    Raises:
        NotImplementedError: for ``padding_mask``, ``sink``, ``dropout_mask``, ``pse`` with TND, and other layouts.
        ValueError: for an unknown ``sparse_mode``, or TND without the ends of sequences.
    """
    name = "npu_fusion_attention"
    _refuse(name, padding_mask=padding_mask, sink=sink, dropout_mask=dropout_mask)
    attention = _fusion(name, pse, atten_mask, scale, 1 - keep_prob, sparse_mode, pre_tockens, next_tockens, prefix)
    ends = actual_seq_qlen, actual_seq_kvlen
    return *_with_statistics(attention, query, key, value, head_num, input_layout, ends, softmax_layout), 0, 0, 0


def npu_fusion_attention_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = _BEFORE_SCALE,
    q_start_idx: Sequence[int] | None = None,
    kv_start_idx: Sequence[int] | None = None,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    dropout_mask: torch.Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]:
    """:func:`npu_fusion_attention` with more to say.

    Args:
        query_rope: with ``key_rope``, further elements of each query and key, of the layout of the others (BNSD, BSND
            or TND), whose products are added.
        pse_type: 1: ``pse`` is added before the products are scaled, 0: after that.

    Raises:
        NotImplementedError: also for another ``pse_type``, and with it ``q_start_idx`` and ``kv_start_idx``.
        ValueError: also for one of ``query_rope`` and ``key_rope`` without the other, or in a layout without heads.
    """
    name = "npu_fusion_attention_v2"
    _refuse(name, padding_mask=padding_mask, sink=sink, dropout_mask=dropout_mask)
    _refuse(name, q_start_idx=q_start_idx, kv_start_idx=kv_start_idx)
    if pse_type not in (_AFTER_SCALE, _BEFORE_SCALE):
        raise NotImplementedError(f"{name}: a pse_type of {pse_type} is not there")
    if query_rope is not None and key_rope is not None and "H" not in input_layout:
        query, key = torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1)
    elif query_rope is not None or key_rope is not None:
        raise ValueError(f"{name} takes query_rope and key_rope together, in the layouts BNSD, BSND and TND")
    after_scale = pse_type == _AFTER_SCALE
    attention = _fusion(
        name, pse, atten_mask, scale, 1 - keep_prob, sparse_mode, pre_tokens, next_tokens, prefix, after_scale
    )
    ends = actual_seq_qlen, actual_seq_kvlen
    return *_with_statistics(attention, query, key, value, head_num, input_layout, ends, softmax_layout), 0, 0, 0


def npu_fusion_attention_v3(
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
    actual_seq_qlen: torch.Tensor | None = None,
    actual_seq_kvlen: torch.Tensor | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`npu_fusion_attention`, whose ends of sequences are tensors, which the host reads.

    Returns:
        The first four of its results, and two zeros, int64.
    """
    name = "npu_fusion_attention_v3"
    _refuse(name, padding_mask=padding_mask, sink=sink)
    attention = _fusion(name, pse, atten_mask, scale, 1 - keep_prob, sparse_mode, pre_tockens, next_tockens, prefix)
    ends = tuple(None if each is None else each.tolist() for each in (actual_seq_qlen, actual_seq_kvlen))
    parts = _with_statistics(attention, query, key, value, head_num, input_layout, ends, softmax_layout)
    return *parts, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)


def npu_fusion_attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    softmax_max: torch.Tensor | None = None,
    softmax_sum: torch.Tensor | None = None,
    softmax_in: torch.Tensor | None = None,
    attention_in: torch.Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of :func:`npu_fusion_attention`, whose other arguments are the same, by its maxima, sums and result.

    Maxima, sums and result may be those of attention to more keys than ``key`` has: then these are its share of the
    gradients, as ring attention takes them.

    Args:
        dy: the gradient of the result.
        softmax_max: its second result; ``softmax_sum`` its third, ``attention_in`` its first.

    Returns:
        The gradients of query, key, value and ``pse`` (empty without one), and an empty tensor.

    Raises:
        NotImplementedError: for dropout, whose numbers are gone, and what :func:`npu_fusion_attention` refuses.
        ValueError: without ``softmax_max``, ``softmax_sum`` or ``attention_in``.
    """
    name = "npu_fusion_attention_grad"
    _refuse(name, padding_mask=padding_mask, sink=sink, keep_prob=None if keep_prob == 1 else keep_prob)
    if softmax_max is None or softmax_sum is None or attention_in is None:
        raise ValueError(f"{name} needs softmax_max, softmax_sum and attention_in")
    attention = _fusion(name, pse, atten_mask, scale_value, 0.0, sparse_mode, pre_tockens, next_tockens, prefix)
    of_queries, of_keys = Layout(input_layout, actual_seq_qlen), Layout(input_layout, actual_seq_kvlen)
    sequences = _sequences(attention, query, key, value, head_num, 0, of_queries, of_keys)
    maxima, sums = (_by_sequence(part, of_queries, softmax_layout) for part in (softmax_max, softmax_sum))
    size = sequences[0].v.shape[-1]
    given = (of_queries.split(part, size) for part in (dy, attention_in))
    gradients = [one.gradients(*parts) for one, *parts in zip(sequences, *given, maxima, sums, strict=True)]
    queries, keys, values, scores = zip(*gradients, strict=True)
    of_pse = query.new_empty(0) if pse is None else (scores[0] * scale_value).sum_to_size(pse.shape).to(pse.dtype)
    return (
        of_queries.join(queries, len(query)).to(query.dtype),
        of_keys.join(keys, len(key)).to(key.dtype),
        of_keys.join(values, len(value)).to(value.dtype),
        of_pse,
        query.new_empty(0),
    )


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
    mask = _infer_mask(name, pse_shift, atten_mask, sparse_mode, pre_tokens, next_tokens)
    lengths, heads = (actual_seq_lengths, actual_seq_lengths_kv), (num_heads, num_key_value_heads)
    return _infer(mask, query, key, value, None, lengths, *heads, input_layout, scale_value)


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
    mask = Mask(pse_shift, atten_mask)
    lengths, heads = (None, actual_seq_lengths), (num_heads, num_key_value_heads)
    return _infer(mask, query, key, value, block_table, lengths, *heads, input_layout, scale_value)


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
    mask = _infer_mask(name, pse_shift, atten_mask, sparse_mode, pre_tokens, next_tokens)
    lengths, heads = (actual_seq_lengths, actual_seq_lengths_kv), (num_heads, num_key_value_heads)
    result = _infer(mask, query, key, value, block_table, lengths, *heads, input_layout, scale)
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
    mask = _infer_mask(name, pse_shift, atten_mask, sparse_mode, pre_tokens, next_tokens)
    lengths, heads = (actual_seq_qlen, actual_seq_kvlen), (num_query_heads, num_key_value_heads)
    result = _infer(mask, query, key, value, block_table, lengths, *heads, input_layout, softmax_scale)
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
        prev_attn_out: (sequence, batch, heads * size), as ``cur_attn_out``; with TND (positions, heads, size).
        prev_softmax_max: (batch, heads, sequence, 8), as the other three; with TND as :func:`npu_fusion_attention` has
            them with the ``softmax_layout`` that is ``input_softmax_layout``.
        actual_seq_qlen: with TND, where each sequence ends, with or without a zero before the first. The host reads it
            unless ``input_softmax_layout`` is TND.

    Returns:
        The attention over both parts, its maxima and its sums.

    Raises:
        ValueError: for another layout, and TND without ``actual_seq_qlen``.
    """
    if input_layout not in ("SBH", VARYING) or input_softmax_layout not in ("", "SBH", VARYING):
        raise ValueError(f"layouts are SBH and TND, not {input_layout!r} with {input_softmax_layout!r}")
    if input_layout == VARYING and actual_seq_qlen is None:
        raise ValueError("the layout TND needs actual_seq_qlen")
    largest = torch.maximum(prev_softmax_max, cur_softmax_max)
    before = prev_softmax_sum * (prev_softmax_max - largest).exp()
    now = cur_softmax_sum * (cur_softmax_max - largest).exp()
    total = before + now

    def weighted(result: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        share = (weight / total)[..., :1]
        if input_layout == "SBH":
            share = share.permute(2, 0, 1, 3)  # (sequence, batch, heads, 1)
            return result.unflatten(-1, (share.shape[2], -1)) * share
        if actual_seq_qlen is not None and input_softmax_layout != VARYING:
            ends = [int(end) for end in actual_seq_qlen]
            layout = Layout(VARYING, ends[1:] if ends[0] == 0 else ends)
            share = layout.join(_by_sequence(share, layout, ""), len(share))
        return result * share

    joined = weighted(prev_attn_out, before) + weighted(cur_attn_out, now)
    joined = joined.flatten(-2) if input_layout == "SBH" else joined
    return joined.to(prev_attn_out.dtype), largest, total


def _refuse(operator: str, **arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{operator}: {name} is not there")


@dataclass(frozen=True)
class _Attention:
    """How scores become shares.

    Attributes:
        mask: which keys take part.
        scale: what products of queries and keys are multiplied by.
        dropout: the probability that a share is dropped.
        row_lengths: how many of each batch's rows count, or None for all; the others are zero.
    """

    mask: Mask
    scale: float
    dropout: float = 0.0
    row_lengths: Sequence[int] | None = None


@dataclass(frozen=True)
class _Sequence:
    """Attention of queries to keys and values, each (batch, heads, sequence, size)."""

    how: _Attention
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def result(self) -> torch.Tensor:
        bias, grouped = self.how.mask.bias(self.q, self.k), self.q.shape[1] != self.k.shape[1]
        result = F.scaled_dot_product_attention(
            self.q, self.k, self.v, bias, dropout_p=self.how.dropout, scale=self.how.scale, enable_gqa=grouped
        )
        if self.how.row_lengths is None:
            return result
        ends = torch.tensor(list(self.how.row_lengths), device=result.device).view(-1, 1, 1, 1)
        return result.masked_fill(torch.arange(result.shape[-2], device=result.device)[:, None] >= ends, 0)

    def statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Each row's largest score and the sum of ``exp(score - largest)``, (batch, heads, sequence, 1), in float32."""
        rows, bias = self.q.shape[-2], self.how.mask.bias(self.q, self.k)
        at_a_time = rows  # where a compiler decides what is in memory
        if not torch.compiler.is_compiling():
            at_a_time = max(1, _SCORES // max(1, self.q.shape[:2].numel() * self.k.shape[-2]))
        maxima, sums = [], []
        for begin in range(0, max(rows, 1), at_a_time):
            part = slice(begin, begin + at_a_time)
            rows_bias = bias[..., part, :] if bias is not None and bias.shape[-2] != 1 else bias
            scores = self._scores(self.q[..., part, :], rows_bias)
            maxima.append(scores.amax(-1, keepdim=True))
            sums.append((scores - maxima[-1]).exp().sum(-1, keepdim=True))
        return torch.cat(maxima, -2), torch.cat(sums, -2)

    def gradients(
        self, dy: torch.Tensor, result: torch.Tensor, maxima: torch.Tensor, sums: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of queries, keys, values and scores, in float32."""
        scores = self._scores(self.q, self.how.mask.bias(self.q, self.k))
        shares = ((scores - maxima).exp() / sums).nan_to_num(0.0)
        dy, q, k, v = dy.float(), self.q.float(), self._for_each_head(self.k), self._for_each_head(self.v)
        of_scores = shares * (dy @ v.transpose(-1, -2) - (dy * result.float()).sum(-1, keepdim=True))
        of_q = of_scores @ k * self.how.scale
        of_k = of_scores.transpose(-1, -2) @ q * self.how.scale
        of_v = shares.transpose(-1, -2) @ dy
        heads = self.k.shape[1]
        of_k, of_v = (part.unflatten(1, (heads, -1)).sum(2) for part in (of_k, of_v))
        return of_q, of_k, of_v, of_scores

    def _scores(self, q: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        scores = q.float() @ self._for_each_head(self.k).transpose(-1, -2) * self.how.scale
        if bias is None:
            return scores
        return scores.masked_fill(~bias, float("-inf")) if bias.dtype == torch.bool else scores + bias

    def _for_each_head(self, tensor: torch.Tensor) -> torch.Tensor:
        """Keys or values in float32, once for each head of the query."""
        return tensor.float().repeat_interleave(self.q.shape[1] // tensor.shape[1], 1)


def _fusion(
    operator: str,
    pse: torch.Tensor | None,
    left_out: torch.Tensor | None,
    scale: float,
    dropout: float,
    sparse_mode: int,
    before: int,
    after: int,
    prefix: Sequence[int] | None,
    after_scale: bool = False,
) -> _Attention:
    added = pse if pse is None or after_scale else pse * scale
    return _Attention(mask_of(operator, added, left_out, sparse_mode, before, after, prefix), scale, dropout)


def _sequences(
    attention: _Attention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: int,
    key_heads: int,
    of_queries: Layout,
    of_keys: Layout,
) -> list[_Sequence]:
    """Attention of all sequences at once, or with TND of each by itself. ``key_heads`` may be 0 for as the key has."""
    size = of_queries.head_size(query, heads)
    value_size = of_keys.head_size(value, key_heads or max(1, key.shape[-1] // size))
    parts = (of_queries.split(query, size), of_keys.split(key, size), of_keys.split(value, value_size))
    if of_queries.name != VARYING:
        return [_Sequence(attention, *one) for one in zip(*parts, strict=True)]
    _refuse("attention in the layout TND", pse=attention.mask.added)
    count = len(parts[0])
    return [
        _Sequence(replace(attention, mask=attention.mask.of_sequence(i, count)), *one)
        for i, one in enumerate(zip(*parts, strict=True))
    ]


def _with_statistics(
    attention: _Attention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: int,
    input_layout: str,
    ends: tuple[Sequence[int] | None, ...],
    softmax_layout: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result, the maxima and sums of its rows, and an empty tensor. ``ends``: of the sequences of queries and of
    keys."""
    layouts = Layout(input_layout, ends[0]), Layout(input_layout, ends[1])
    sequences = _sequences(attention, query, key, value, heads, 0, *layouts)
    result = layouts[0].join([one.result() for one in sequences], len(query))
    with torch.no_grad():
        statistics = [one.statistics() for one in sequences]
    maxima, sums = (_row_by_row(part, layouts[0], softmax_layout, query) for part in zip(*statistics, strict=True))
    return result, maxima, sums, query.new_empty(0)


def _row_by_row(
    statistics: Sequence[torch.Tensor], layout: Layout, softmax_layout: str, query: torch.Tensor
) -> torch.Tensor:
    """Statistics of sequences, each (batch, heads, sequence, 1), as the operators return them."""
    if layout.name != VARYING:
        return statistics[0].expand(-1, -1, -1, _COPIES).contiguous()
    joined = layout.join(statistics, len(query))
    if softmax_layout != VARYING:
        lying = torch.cat([part.flatten() for part in statistics])
        joined = F.pad(lying, (0, joined.numel() - len(lying))).view(joined.shape)
    return joined.expand(-1, -1, _COPIES).contiguous()


def _by_sequence(statistics: torch.Tensor, layout: Layout, softmax_layout: str) -> list[torch.Tensor]:
    """The inverse of :func:`_row_by_row`."""
    statistics = statistics[..., :1]
    if layout.name != VARYING:
        return [statistics]
    parts = layout.split(statistics, 1)
    if softmax_layout == VARYING:
        return parts
    sizes = [part.numel() for part in parts]
    lying = statistics.flatten()[: sum(sizes)].split(sizes)
    return [one.view(part.shape) for one, part in zip(lying, parts, strict=True)]


def _infer_mask(
    operator: str,
    added: torch.Tensor | None,
    left_out: torch.Tensor | None,
    sparse_mode: int,
    before: int,
    after: int,
) -> Mask:
    """The mask of an operator that takes modes up to 4, and a mask with those from 2 on.

    Raises:
        NotImplementedError: for higher modes.
        ValueError: without a mask.
    """
    if sparse_mode > _MODES_OF_INFERENCE:
        raise NotImplementedError(f"{operator}: a sparse_mode of {sparse_mode} is not there")
    if sparse_mode >= _FIRST_WITHOUT_CONTENTS and left_out is None:
        raise ValueError(f"{operator}: a sparse_mode of {sparse_mode} needs an atten_mask")
    return mask_of(operator, added, left_out, sparse_mode, before, after)


def _infer(
    mask: Mask,
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
    """Attention in a layout, to keys and values in a row or in blocks; ``lengths`` are those of queries and of keys.

    A layout may be two, the second that of the result: BNSD_BSND.
    """
    rows, columns = lengths
    given, _, wanted = layout.partition("_")
    if layout == VARYING:
        columns = rows if columns is None else columns
        if block_table is not None and columns is not None:
            key, value = (_rows_of_blocks(cache, block_table, columns, query) for cache in (key, value))
            columns = list(itertools.accumulate(columns))
        attention = _Attention(mask, scale)
    else:
        if block_table is not None:
            key, value = (_from_blocks(cache, block_table, layout) for cache in (key, value))
        attention = _Attention(replace(mask, key_lengths=columns), scale, row_lengths=rows)
    of_queries, of_keys = Layout(given, rows), Layout(given, columns)
    sequences = _sequences(attention, query, key, value, heads, key_heads, of_queries, of_keys)
    results = [one.result() for one in sequences]
    return Layout(wanted or given, rows).join(results, len(query))


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
