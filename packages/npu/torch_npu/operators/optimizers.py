# SPDX-License-Identifier: Apache-2.0
"""Steps of Adam. The parameter and its two averages are given as ``out``, and changed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def npu_apply_adam(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    use_locking: bool | None,
    use_nesterov: bool | None,
    *,
    out: Sequence[torch.Tensor],
) -> _Three:
    """A step of Adam: ``rate * average / (sqrt(average of squares) + epsilon)`` less.

    Args:
        beta1_power: ``beta1`` to the power of the step's number, from 1 on; ``beta2_power`` the same of ``beta2``.
        use_nesterov: whether the average is looked ahead at.
        out: the parameter, the average of gradients, the average of squares.
    """
    parameter, average, squares = out
    average.lerp_(grad, 1 - beta1)
    squares.lerp_(grad * grad, 1 - beta2)
    rate = lr * math.sqrt(1 - beta2_power) / (1 - beta1_power)
    direction = average * beta1 + grad * (1 - beta1) if use_nesterov else average
    parameter.sub_(rate * direction / (squares.sqrt() + epsilon))
    return parameter, average, squares


def npu_apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    max_grad_norm: torch.Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    out: Sequence[torch.Tensor],
) -> _Three:
    """A step of AdamW.

    Args:
        beta1_power: ``beta1`` to the power of the number of steps before; ``beta2_power`` the same of ``beta2``.
        max_grad_norm: with ``amsgrad``, the largest average of squares so far, which is changed.
        maximize: whether to follow the gradient upwards.
        out: the parameter, the average of gradients, the average of squares.
    """
    parameter, average, squares = out
    gradient = -grad if maximize else grad
    average.lerp_(gradient, 1 - beta1)
    squares.lerp_(gradient * gradient, 1 - beta2)
    largest = squares
    if amsgrad and max_grad_norm is not None:
        largest = max_grad_norm.copy_(torch.maximum(max_grad_norm, squares))
    denominator = (largest / (1 - beta2_power * beta2)).sqrt() + epsilon
    step = average / (1 - beta1_power * beta1) / denominator
    parameter.sub_(lr * (step + weight_decay * parameter))
    return parameter, average, squares


def npu_bert_apply_adam(
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    max_grad_norm: float,
    global_grad_norm: float,
    weight_decay: float,
    step_size: float | None = None,
    adam_mode: int = 0,
    *,
    out: Sequence[torch.Tensor],
) -> _Three:
    """A step of BERT's Adam, whose averages are not corrected for their beginning.

    Args:
        max_grad_norm: gradients are scaled down by how far ``global_grad_norm`` is above it.
        out: the parameter, the average of gradients, the average of squares.

    Raises:
        NotImplementedError: for a ``step_size``, and an ``adam_mode`` other than 0.
    """
    if step_size is not None or adam_mode:
        raise NotImplementedError("npu_bert_apply_adam: step_size and adam_mode are not there")
    parameter, average, squares = out
    gradient = grad / max(1.0, global_grad_norm / max_grad_norm) if max_grad_norm > 0 else grad
    average.lerp_(gradient, 1 - beta1)
    squares.lerp_(gradient * gradient, 1 - beta2)
    parameter.sub_(lr * (average / (squares.sqrt() + epsilon) + weight_decay * parameter))
    return parameter, average, squares
