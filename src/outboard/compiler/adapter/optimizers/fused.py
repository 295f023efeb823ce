# SPDX-License-Identifier: Apache-2.0
"""Fused optimizers: how one parameter is updated, as one pointwise graph; and the arithmetic of GradScaler.

``csrc/torch/operators/optimizers.cpp`` declares these operators and calls them for each parameter. Numbers that lose
digits when they are computed in the precision of the device come ready made: ``rest`` is one minus its coefficient,
``log`` a logarithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .chains import chain_, wide


def _number(x: Tensor, like: Tensor) -> Tensor:
    """A tensor of one element, as a factor for others."""
    return x.reshape(()).to(wide(like).dtype)


class _Step:
    """What all updates share: the scaled gradient, the parameter and the step size in the precision of computing, and
    steps that are left out because a gradient was not finite."""

    def __init__(
        self,
        parameter: Tensor,
        grad: Tensor,
        lr: Tensor | None,
        rate: float,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
        maximize: bool,
    ) -> None:
        self._skipped = None if found_inf is None else found_inf.reshape(()) != 0
        gradient = wide(grad)
        if grad_scale is not None:
            gradient = gradient / _number(grad_scale, parameter)
            self.write(grad, gradient)  # the gradient is also kept without the factor of the loss, as on CUDA
        self.gradient = -gradient if maximize else gradient
        self.parameter = wide(parameter)
        self.size: Any = rate if lr is None else _number(lr, parameter)

    def write(self, target: Tensor, value: Tensor) -> None:
        """Gives a tensor its new value, unless the step is left out."""
        target.copy_(value if self._skipped is None else torch.where(self._skipped, wide(target), value))


def adam_step_(
    self: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    largest: Tensor | None,
    step: Tensor,
    lr: Tensor | None,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    rate: float,
    beta1: float,
    rest1: float,
    log1: float,
    beta2: float,
    rest2: float,
    log2: float,
    decay: float,
    eps: float,
    decays: bool,
    decoupled: bool,
    maximize: bool,
) -> None:
    """Adam (Kingma and Ba 2014), with weight decay as L2 penalty or decoupled (Loshchilov and Hutter 2017).

    ``lr`` is the step size if it is on the device, else ``rate`` is; ``step`` counts from 1."""
    update = _Step(self, grad, lr, rate, grad_scale, found_inf, maximize)
    gradient, parameter, size = update.gradient, update.parameter, update.size
    if decays and decoupled:
        parameter = parameter - parameter * decay * size
    elif decays:
        gradient = gradient + parameter * decay
    new_mean = wide(mean) * beta1 + gradient * rest1
    new_square = wide(square) * beta2 + gradient * gradient * rest2
    count = _number(step, self)
    correction1, correction2 = -torch.expm1(count * log1), -torch.expm1(count * log2)
    bound = new_square
    if largest is not None:
        bound = torch.maximum(wide(largest), new_square)
        update.write(largest, bound)
    denominator = bound.sqrt() * correction2.rsqrt() + eps
    update.write(mean, new_mean)
    update.write(square, new_square)
    update.write(self, parameter - new_mean / denominator * (correction1.reciprocal() * size))


def adagrad_step_(
    self: Tensor,
    grad: Tensor,
    sum: Tensor,
    step: Tensor,
    lr: Tensor | None,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    rate: float,
    rate_decay: float,
    decay: float,
    eps: float,
    decays: bool,
    maximize: bool,
) -> None:
    """Adagrad (Duchi, Hazan and Singer 2011), whose step size shrinks by ``rate_decay``; ``step`` counts from 1."""
    update = _Step(self, grad, lr, rate, grad_scale, found_inf, maximize)
    gradient, parameter = update.gradient, update.parameter
    if decays:
        gradient = gradient + parameter * decay
    new_sum = wide(sum) + gradient * gradient
    size = update.size / (1 + (_number(step, self) - 1) * rate_decay)
    update.write(sum, new_sum)
    update.write(self, parameter - gradient / (new_sum.sqrt() + eps) * size)


def sgd_step_(
    self: Tensor,
    grad: Tensor,
    buffer: Tensor | None,
    lr: Tensor | None,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    rate: float,
    decay: float,
    momentum: float,
    rest: float,
    decays: bool,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
) -> None:
    """Gradient descent with momentum in PyTorch's form: ``rest`` is one minus the dampening."""
    update = _Step(self, grad, lr, rate, grad_scale, found_inf, maximize)
    gradient, parameter, size = update.gradient, update.parameter, update.size
    if decays:
        gradient = gradient + parameter * decay
    if buffer is not None:
        velocity = gradient if is_first_step else wide(buffer) * momentum + gradient * rest
        update.write(buffer, velocity)
        gradient = gradient + velocity * momentum if nesterov else velocity
    update.write(self, parameter - gradient * size)


def flag_nonfinite_(flag: Tensor, grad: Tensor) -> None:
    """Makes ``flag``, one number, 1 if any element of the gradient is infinite or NaN, else 0."""
    flag.copy_((wide(grad) * 0).sum() != 0)  # a sum of zeros, or NaN


def unscale_(grad: Tensor, factor: Tensor) -> None:
    """Multiplies a gradient by one number."""
    value, number = wide(grad), _number(factor, grad)
    grad.copy_(torch.where(number == 1, value, value * number))


def update_scale(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> tuple[Tensor, Tensor]:
    """The scale of the loss for the next step, and how many steps in a row have been finite: ``_amp_update_scale``."""
    is_infinite = found_inf != 0
    finite_steps = growth_tracker + 1
    grows = finite_steps == growth_interval
    grown = scale * scale_growth_factor
    kept = torch.where(grows & torch.isfinite(grown), grown, scale)
    new_scale = torch.where(is_infinite, scale * scale_backoff_factor, kept)
    return new_scale, torch.where(is_infinite | grows, 0, finite_steps).to(growth_tracker.dtype)


#: Operator -> its decomposition.
STEPS: dict[Any, Callable[..., None]] = {
    torch.ops.outboard.adam_step_.default: adam_step_,
    torch.ops.outboard.adagrad_step_.default: adagrad_step_,
    torch.ops.outboard.sgd_step_.default: sgd_step_,
    torch.ops.outboard.flag_nonfinite_.default: flag_nonfinite_,
    torch.ops.outboard.unscale_.default: unscale_,
    torch.ops.outboard.chain_.default: chain_,
}
