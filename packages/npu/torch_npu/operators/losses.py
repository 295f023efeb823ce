# SPDX-License-Identifier: Apache-2.0
"""Losses of classifiers."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def npu_cross_entropy_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``torch.nn.functional.cross_entropy``: the loss (of shape (1,) when reduced) and the logarithms of all shares.

    The third and fourth results are empty.

    Raises:
        NotImplementedError: for ``lse_square_scale_for_zloss`` and ``return_zloss``.
    """
    if lse_square_scale_for_zloss or return_zloss:
        raise NotImplementedError("npu_cross_entropy_loss: zloss is not there")
    logarithms = F.log_softmax(input, -1)
    loss = F.cross_entropy(
        input,
        target,
        weight,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    empty = input.new_empty(0)
    return loss if reduction == "none" else loss.view(1), logarithms, empty, empty.clone()


def npu_softmax_cross_entropy_with_logits(input: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross entropy of each row (rows, classes) and its shares (rows, classes)."""
    return F.cross_entropy(input, labels, reduction="none")


def npu_fused_linear_online_max_sum(
    input: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    vocab_start_index: int,
    vocab_end_index: int,
    return_logits: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores ``input @ weight.T`` by part of the classes: each row's maximum, sum of exponentials and target's score.

    Ranks that have other classes join these before :func:`npu_fused_cross_entropy_loss_with_max_sum`.

    Args:
        target: (rows,), the classes. Those before ``vocab_start_index`` or behind ``vocab_end_index`` are other ranks'.
        return_logits: whether the last result is the scores, in the dtype of ``input``; else it is empty.

    Returns:
        In float32 the maximum, the sum of ``exp(score - maximum)``, and the target's ``score - maximum`` or 0; which
        targets are other ranks', eight in a byte from its lowest bit on, with ones behind the last; targets counted
        from ``vocab_start_index``, 0 for other ranks'; the scores.
    """
    scores = input.float() @ weight.float().T
    largest = scores.amax(-1)
    below = scores - largest[:, None]
    places = target - vocab_start_index
    elsewhere = (places < 0) | (target > vocab_end_index) | (places >= len(weight))
    places = places.masked_fill(elsewhere, 0)
    predicted = below.gather(-1, places.long()[:, None])[:, 0].masked_fill(elsewhere, 0)
    bits = F.pad(elsewhere.int(), [0, -len(target) % 8], value=1).view(-1, 8)
    packed = (bits << torch.arange(8, device=bits.device, dtype=bits.dtype)).sum(1).to(torch.uint8)
    returned = scores.to(input.dtype) if return_logits else input.new_empty(0)
    return largest, below.exp().sum(-1), predicted, packed, places, returned


def npu_fused_cross_entropy_loss_with_max_sum(
    logits_max: torch.Tensor,
    sum_exp_logits: torch.Tensor,
    predicted_logits: torch.Tensor,
    *,
    label_smoothing: float | None = 0.0,
    input: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    vocab_parallel_logits: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``log(sum_exp_logits) - predicted_logits``, and the shares of ``vocab_parallel_logits`` in float32.

    Args:
        logits_max: (rows,), as the next two: the first three results of :func:`npu_fused_linear_online_max_sum`,
            joined over all ranks.
        vocab_parallel_logits: (rows, classes), its last result. Without it the shares are empty.

    Raises:
        NotImplementedError: for ``label_smoothing``, ``input`` and ``weight``.
    """
    if label_smoothing or input is not None or weight is not None:
        raise NotImplementedError(
            "npu_fused_cross_entropy_loss_with_max_sum: label_smoothing, input and weight are not there"
        )
    loss = sum_exp_logits.log() - predicted_logits
    if vocab_parallel_logits is None:
        return loss, loss.new_empty(0)
    return loss, (vocab_parallel_logits.float() - logits_max[:, None]).exp() / sum_exp_logits[:, None]
