# SPDX-License-Identifier: Apache-2.0
"""Choices of tokens by their scores."""

from __future__ import annotations

import torch

#: More best tokens than this are all tokens, for :func:`npu_top_k_top_p_sample`.
_MOST = 1024


def npu_top_k_top_p(logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None) -> torch.Tensor:
    """Scores (rows, tokens) with minus infinity for all but the ``k`` best, of these the best that sum up to ``p``.

    Args:
        p: (rows,), the sum; None for all.
        k: (rows,), how many; None for all.
    """
    values, order = logits.sort(dim=-1, stable=True)
    if k is not None:
        least = values.gather(-1, (values.shape[-1] - k.long())[:, None])
        values = values.masked_fill(values < least, float("-inf"))
    if p is not None:
        beyond = values.softmax(-1, torch.float32).cumsum(-1) <= (1 - p.float())[:, None]
        beyond = beyond & (torch.arange(values.shape[-1], device=values.device) < values.shape[-1] - 1)
        values = values.masked_fill(beyond, float("-inf"))
    return torch.empty_like(values).scatter(-1, order, values)


def npu_top_k_top_p_sample(
    logits: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    q: torch.Tensor | None = None,
    eps: float | None = 1e-8,
    is_need_logits: bool | None = False,
    top_k_guess: int | None = 32,
    min_ps: torch.Tensor | None = None,
    ks_max: int | None = 1024,
    input_is_logits: bool | None = True,
    post_sample: str | None = "qSample",
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row of scores (rows, tokens), out of the best ``k``, of these the best that sum up to ``p``.

    Args:
        top_k: (rows,). Outside of 1 to ``ks_max`` (at most 1024) and the number of tokens, all are in the choice.
        top_p: (rows,), the sum. From 1 on all are in the choice, at 0 and below the best alone.
        q: (rows, tokens) exponential random numbers, which shares are divided by before the largest is taken: those of
            the best tokens come first, or in the order of tokens where neither ``k`` nor ``p`` chooses.
        min_ps: (rows,): tokens with less than this part of the largest share are out of the choice.
        input_is_logits: whether scores become shares by softmax, or are shares.
        post_sample: with ``"multiNomial"`` the token is drawn, by ``generator``. Without ``q``, or with ``"None"``, it
            is the best one.
        top_k_guess: a matter of speed, of Ascend's.

    Returns:
        The tokens in int64, and in float32 the scores in which those out of the choice are minus infinity (or 0, if
        they are shares), which are empty unless ``is_need_logits``.

    Raises:
        NotImplementedError: for ``"multiNomial"`` with seeds in ``q``, which are for Ascend's generator.
        ValueError: for another ``post_sample``.
    """
    if post_sample not in (None, "None", "qSample", "multiNomial"):
        raise ValueError(f"post_sample is 'qSample', 'multiNomial' or 'None', not {post_sample!r}")
    if post_sample == "multiNomial" and q is not None:
        raise NotImplementedError("npu_top_k_top_p_sample: seeds by row are not there; give a generator")
    lowest = float("-inf") if input_is_logits else 0.0
    values, order = logits.float().sort(dim=-1, descending=True, stable=True)
    best = torch.arange(values.shape[-1], device=values.device)

    def shares(kept: torch.Tensor) -> torch.Tensor:
        left = values.masked_fill(~kept, lowest)
        return left.softmax(-1) if input_is_logits else left

    most = min(values.shape[-1], -(-(ks_max or _MOST) // 8) * 8, _MOST)
    by_k = ((top_k >= 1) & (top_k <= most))[:, None]
    kept = ~by_k | (best < top_k[:, None])
    by_p = top_p.float()[:, None]
    before = shares(kept)
    before = before.cumsum(-1) - before
    kept = kept & ((by_p >= 1) | ((by_p > 0) & (before <= by_p)) | (best == 0))
    if min_ps is not None:
        by_least = min_ps.float()[:, None]
        likely = shares(kept)
        kept = kept & ((by_least <= 0) | ((by_least < 1) & (likely >= by_least * likely[:, :1])) | (best == 0))
    likely = shares(kept)
    if post_sample == "multiNomial":
        place = torch.multinomial(likely, 1, generator=generator)
    elif post_sample == "qSample" and q is not None:
        weights = torch.where(by_k | (by_p < 1), q, q.gather(-1, order))
        place = (likely / (weights.abs() + (eps or 0.0))).argmax(-1, keepdim=True)
    else:
        place = torch.zeros_like(order[:, :1])
    chosen = order.gather(-1, place)[:, 0]
    if not is_need_logits:
        return chosen, values.new_empty(0)
    return chosen, torch.empty_like(values).scatter(-1, order, values.masked_fill(~kept, lowest))
