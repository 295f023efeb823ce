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
