# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: which experts a row goes to, rows in the order of experts, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: How :func:`npu_moe_gating_top_k` turns scores into shares.
_SOFTMAX, _SIGMOID = range(2)

_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def npu_moe_gating_top_k_softmax(x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1) -> _Three:
    """The ``k`` experts (last dimension) with the largest softmax.

    Args:
        finished: rows that take no part: their experts have the number of experts as theirs.

    Returns:
        The shares, the experts' numbers and the rows' numbers, column by column; the latter two in int32.
    """
    shares, experts = x.softmax(-1, torch.float32).topk(k, -1)
    if finished is not None:
        experts = experts.masked_fill(finished[..., None], x.shape[-1])
    return shares.to(x.dtype), experts.int(), _row_numbers(experts)


def npu_moe_gating_top_k_softmax_v2(
    x: torch.Tensor,
    *,
    k: int = 1,
    finished: torch.Tensor | None = None,
    renorm: int | None = 0,
    output_softmax: bool | None = False,
) -> _Three:
    """:func:`npu_moe_gating_top_k_softmax`, whose third result is the softmax of all, or empty.

    Args:
        renorm: 1 for the softmax of the ``k`` largest scores, 0 for the largest of the softmax.
        output_softmax: whether the third result is there; only with a ``renorm`` of 0.
    """
    everything = x.softmax(-1, torch.float32)
    if renorm:
        scores, experts = x.float().topk(k, -1)
        shares = scores.softmax(-1)
    else:
        shares, experts = everything.topk(k, -1)
    if finished is not None:
        experts = experts.masked_fill(finished[..., None], x.shape[-1])
    third = everything if output_softmax and not renorm else everything.new_empty(0)
    return shares.to(x.dtype), experts.int(), third


def npu_moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    input_ids: torch.Tensor | None = None,
    tid2eid: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> _Three:
    """The ``k`` experts of each row (rows, experts) with the largest shares, out of the best groups of experts.

    Args:
        bias: added to the shares for the choice alone.
        k_group: out of how many groups experts are chosen; ``group_count`` how many there are.
        group_select_mode: whether a group counts as its best expert (0) or its best two (1).
        norm_type: 0 for softmax, 1 for sigmoid, whose chosen shares are divided by their sum plus ``eps``.
        out_flag: whether the third result is all shares, in float32; if not, it is empty.
        routed_scaling_factor: what the chosen shares are multiplied by.

    Returns:
        The shares, the experts' numbers in int32, and the third.

    Raises:
        NotImplementedError: for ``input_ids``, ``tid2eid``, and a ``renorm`` other than 0.
    """
    if input_ids is not None or tid2eid is not None or renorm:
        raise NotImplementedError("npu_moe_gating_top_k: input_ids, tid2eid and renorm are not there")
    everything = x.float().sigmoid() if norm_type == _SIGMOID else x.softmax(-1, torch.float32)
    scores = everything if bias is None else everything + bias.float()
    if group_count > 1:
        groups = scores.unflatten(-1, (group_count, -1))
        best = groups.topk(2, -1).values.sum(-1) if group_select_mode == 1 else groups.amax(-1)
        chosen = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best.topk(k_group, -1).indices, True)
        scores = groups.masked_fill(~chosen[..., None], float("-inf")).flatten(-2)
    experts = scores.topk(k, -1).indices
    shares = everything.gather(-1, experts)
    if norm_type == _SIGMOID:
        shares = shares / (shares.sum(-1, keepdim=True) + eps)
    third = everything if out_flag else everything.new_empty(0)
    return (shares * routed_scaling_factor).to(x.dtype), experts.int(), third


def npu_moe_init_routing(x: torch.Tensor, row_idx: torch.Tensor, expert_idx: torch.Tensor, active_num: int) -> _Three:
    """Rows (rows, size) once for each of their experts, in the order of experts.

    Args:
        row_idx: (rows, k), the third result of :func:`npu_moe_gating_top_k_softmax`; ``expert_idx`` the second.
        active_num: how many rows are taken at most, each with its ``k``.

    Returns:
        The rows, where each went (rows * k,) and the experts of each, in int32.
    """
    experts, order = expert_idx.flatten().sort(dim=0, stable=True)
    rows = row_idx.flatten()[order].long()
    places = torch.empty_like(rows).scatter_(0, rows, torch.arange(len(rows), device=x.device))
    taken = min(len(x), active_num) * expert_idx.shape[1]
    return x[rows[:taken] % len(x)], places.int(), experts.int()


def npu_moe_compute_expert_tokens(sorted_expert_for_source_row: torch.Tensor, num_expert: int) -> torch.Tensor:
    """Where each expert's rows end, in a sorted list of the rows' experts."""
    experts = sorted_expert_for_source_row
    numbers = torch.arange(num_expert, device=experts.device, dtype=experts.dtype)
    return torch.searchsorted(experts, numbers, right=True).to(experts.dtype)


def npu_moe_finalize_routing(
    expanded_permuted_rows: torch.Tensor,
    skip1: torch.Tensor | None,
    skip2: torch.Tensor | None,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    expanded_src_to_dst_row: torch.Tensor,
    export_for_source_row: torch.Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> torch.Tensor:
    """The sum of each row's results from its experts, weighted by ``scales``, and of ``skip1`` and ``skip2``.

    Args:
        expanded_permuted_rows: (rows * k, size), in the order of experts.
        bias: (experts, size), added to an expert's results.
        scales: (rows, k).
        expanded_src_to_dst_row: where each row's results are, the second result of :func:`npu_moe_init_routing`.
        export_for_source_row: each row's experts (rows, k), for the ``bias``.

    Raises:
        NotImplementedError: for a ``drop_pad_mode`` other than 0.
    """
    if drop_pad_mode:
        raise NotImplementedError("npu_moe_finalize_routing: drop_pad_mode is not there")
    count = scales.shape[1] if scales is not None else k or 1
    results = expanded_permuted_rows[expanded_src_to_dst_row.long().view(count, -1)]  # (k, rows, size)
    if bias is not None and export_for_source_row is not None:
        results = results + bias[export_for_source_row.long().T]
    if scales is not None:
        results = results * scales.T[..., None]
    total = results.sum(0)
    for skip in (skip1, skip2):
        total = total if skip is None else total + skip
    return total


def npu_moe_token_permute(
    tokens: torch.Tensor, indices: torch.Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (rows, size) once for each of their experts, in the order of experts.

    Args:
        indices: each row's experts, (rows,) or (rows, k).
        num_out_tokens: how many rows are kept; None or 0 for all, and as many fewer if negative.

    Returns:
        The rows, and where each went (rows * k,) in int32.

    Raises:
        NotImplementedError: for ``padded_mode``.
    """
    if padded_mode:
        raise NotImplementedError("npu_moe_token_permute: padded_mode is not there")
    experts = indices[:, None] if indices.dim() == 1 else indices
    order = experts.flatten().argsort(dim=0, stable=True)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    kept = order[: num_out_tokens or None]
    return tokens[kept // experts.shape[1]], places.int()


def npu_moe_token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """The sum of each row's results from its experts, weighted by ``probs``.

    Args:
        permuted_tokens: (rows * k, size), in the order of experts; what was not kept counts as zero.
        sorted_indices: the second result of :func:`npu_moe_token_permute`.
        probs: (rows, k); None for a ``k`` of 1.

    Raises:
        NotImplementedError: for ``padded_mode``.
    """
    if padded_mode:
        raise NotImplementedError("npu_moe_token_unpermute: padded_mode is not there")
    missing = len(sorted_indices) - len(permuted_tokens)
    results = torch.cat((permuted_tokens, permuted_tokens.new_zeros(missing, permuted_tokens.shape[1])))
    results = results[sorted_indices.long()]
    if probs is None:
        return results
    return (results.unflatten(0, (-1, probs.shape[1])) * probs[..., None]).sum(1).to(permuted_tokens.dtype)


def npu_moe_token_permute_with_routing_map(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    *,
    probs: torch.Tensor | None = None,
    num_out_tokens: int | None = None,
    drop_and_pad: bool = False,
) -> _Three:
    """Rows (rows, size) once for each of their experts, in the order of experts, which a map (rows, experts) names.

    Args:
        routing_map: true or 1 where a row goes to an expert; as many for each row.
        probs: (rows, experts), shares to be taken along.
        num_out_tokens: how many rows there are in the result; None for as many as there are.
        drop_and_pad: whether each expert takes equally many rows: its first ones, and then others that do not go to it.

    Returns:
        The rows, their shares (empty without ``probs``), and in int32 where each row's results are, row by row; with
        ``drop_and_pad`` which row each is.
    """
    rows, experts = routing_map.shape
    goes = routing_map.bool().T
    wanted = rows if num_out_tokens is None else num_out_tokens
    if drop_and_pad:
        chosen = goes.int().argsort(dim=-1, descending=True, stable=True)[:, : wanted // experts]
        places = (torch.arange(experts, device=tokens.device)[:, None] * rows + chosen).flatten()
    else:
        places = (~goes).flatten().int().argsort(stable=True)[: wanted // rows * rows]
    row = places % rows
    shares = tokens.new_empty(0) if probs is None else probs.T.flatten()[places]
    return tokens[row], shares, (row if drop_and_pad else row.argsort(stable=True)).int()


def npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    restore_shape: Sequence[int],
    *,
    probs: torch.Tensor | None = None,
    routing_map: torch.Tensor | None = None,
    drop_and_pad: bool = False,
) -> torch.Tensor:
    """The sum of each row's results from its experts, weighted by ``probs`` (rows, experts).

    Args:
        permuted_tokens: results, in the order of experts.
        sorted_indices: the third result of :func:`npu_moe_token_permute_with_routing_map`; -1 for none, behind a row's
            others.
        restore_shape: (rows, size).
        routing_map: (rows, experts), needed with ``probs`` unless ``drop_and_pad``.

    Raises:
        ValueError: without a ``routing_map`` that is needed.
    """
    rows = restore_shape[0]
    if drop_and_pad:
        results = permuted_tokens.float()
        if probs is not None:
            expert = torch.arange(probs.shape[1], device=probs.device)
            expert = expert.repeat_interleave(len(sorted_indices) // probs.shape[1])
            results = results * probs[sorted_indices.long(), expert][:, None]
        total = results.new_zeros(list(restore_shape)).index_add(0, sorted_indices.long(), results)
        return total.to(permuted_tokens.dtype)
    results = permuted_tokens[sorted_indices.clamp(min=0).long()].masked_fill((sorted_indices < 0)[:, None], 0)
    results = results.unflatten(0, (rows, -1))
    if probs is not None:
        if routing_map is None:
            raise ValueError("npu_moe_token_unpermute_with_routing_map: probs need a routing_map")
        expert = (~routing_map.bool()).int().argsort(dim=-1, stable=True)[:, : results.shape[1]]
        results = results * probs.gather(-1, expert)[..., None]
    return results.sum(1).to(permuted_tokens.dtype)


def npu_moe_re_routing(
    tokens: torch.Tensor,
    expert_token_num_per_rank: torch.Tensor,
    *,
    per_token_scales: torch.Tensor | None = None,
    expert_token_num_type: int = 1,
    idx_type: int = 0,
    tokens_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows (rows, size) in the order of experts, which came in the order of ranks and then of experts.

    Args:
        expert_token_num_per_rank: (ranks, experts), how many rows of each rank are for each expert.
        per_token_scales: (rows,), to be moved along.

    Returns:
        The rows, their scales (zeros without any), which row each was in int32, and how many each expert has.

    Raises:
        NotImplementedError: for other types of results than 1 and 0, and ``tokens_dtype``.
    """
    if expert_token_num_type != 1 or idx_type != 0 or tokens_dtype is not None:
        raise NotImplementedError("npu_moe_re_routing: expert_token_num_type, idx_type and tokens_dtype are not there")
    counts = expert_token_num_per_rank.long()
    begins = (counts.flatten().cumsum(0) - counts.flatten()).view(counts.shape).T.flatten()
    sizes = counts.T.flatten()
    ends = sizes.cumsum(0)
    rows = torch.arange(len(tokens), device=tokens.device)
    part = torch.searchsorted(ends, rows, right=True)
    sources = rows + (begins - ends + sizes)[part]
    scales = torch.zeros(len(tokens), device=tokens.device) if per_token_scales is None else per_token_scales[sources]
    return tokens[sources], scales, sources.int(), counts.sum(0).to(expert_token_num_per_rank.dtype)


def _row_numbers(experts: torch.Tensor) -> torch.Tensor:
    """Numbers of rows and their experts (..., k), column by column, in int32."""
    count, k = experts[..., 0].numel(), experts.shape[-1]
    numbers = torch.arange(k * count, dtype=torch.int32, device=experts.device)
    return numbers.view(k, count).T.reshape(experts.shape)
