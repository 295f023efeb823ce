# SPDX-License-Identifier: Apache-2.0
"""Operators of our own behind the loss of connectionist temporal classification (``csrc/torch/operators/ctc.cpp``):
shapes, and what they do where the device has no compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_LIBRARY = torch.library.Library("outboard", "IMPL")


def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    lengths: Tensor,
    losses: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    """The gradient of ``log_probs`` (times, batch, labels); 0 past the end of a sequence."""
    sums = torch.ops.outboard.ctc_sums(log_probs, targets, lengths, log_alpha, blank)
    loss = losses[:, None]
    result = (log_probs.exp() - (sums + loss - log_probs).exp()) * grad[:, None]
    time = torch.arange(log_probs.shape[0], device=log_probs.device)
    is_over = time[:, None, None] >= lengths[0][:, None]
    if zero_infinity:
        is_over = is_over | (loss == torch.inf)
    return torch.where(is_over, 0.0, result)


#: What of these is made of PyTorch's operators and others of our own.
FUNCTIONS: dict[Any, Callable[..., Any]] = {torch.ops.outboard.ctc_loss_backward.default: ctc_loss_backward}


def _shape_of_loss(
    log_probs: Tensor, targets: Tensor, lengths: Tensor, like: Tensor, blank: int
) -> tuple[Tensor, Tensor]:
    return log_probs.new_empty((log_probs.shape[1],)), torch.empty_like(like)


def _on_cpu(targets: Tensor, lengths: Tensor) -> tuple[Tensor, list[int], list[int]]:
    """Labels and lengths as PyTorch takes them, also where all lengths are made up and 0."""
    inputs, labels = lengths[:2].tolist()
    return targets[: sum(labels)] if targets.dim() == 1 else targets, inputs, labels


def _loss(log_probs: Tensor, targets: Tensor, lengths: Tensor, like: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = aten._ctc_loss(log_probs, *_on_cpu(targets, lengths), blank)
    return result


def _loss_backward(grad: Tensor, log_probs: Tensor, targets: Tensor, lengths: Tensor, *rest: Any) -> Tensor:
    result: Tensor = aten._ctc_loss_backward(grad, log_probs, *_on_cpu(targets, lengths), *rest)
    return result


_LIBRARY.impl("ctc_loss", _shape_of_loss, "Meta")
_LIBRARY.impl("ctc_loss", _loss, "CPU")
_LIBRARY.impl(
    "ctc_sums",
    lambda log_probs, *_: torch.empty_like(log_probs, memory_format=torch.contiguous_format),
    "Meta",
)
_LIBRARY.impl("ctc_loss_backward", _loss_backward, "CPU")
