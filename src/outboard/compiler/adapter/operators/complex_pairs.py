# SPDX-License-Identifier: Apache-2.0
"""Arithmetic with complex numbers as pairs of real ones, [..., 2], of which PyTorch's compiler has loops: operators of
our own that ``csrc/torch/eager/complex_arithmetic.cpp`` calls. Rounded as PyTorch's kernels of the CPU do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("outboard", "IMPL")

#: An operand: pairs [..., 2], real numbers [..., 1], or none for the number that is given beside.
Operand = Tensor | None


def _is_real_part(like: Tensor) -> Tensor:
    return torch.arange(2, device=like.device) == 0


def _pairs(operand: Operand, re: float, im: float, like: Tensor) -> Tensor:
    """Pairs that broadcast to those of ``like``."""
    is_real = _is_real_part(like)
    if operand is None:
        real, imaginary = (torch.full((), part, dtype=like.dtype, device=like.device) for part in (re, im))
        return torch.where(is_real, real, imaginary)
    return torch.where(is_real, operand, 0) if operand.shape[-1] == 1 else operand


def _product(a: Tensor, b: Tensor) -> Tensor:
    is_real = _is_real_part(a)
    crossed = a[..., 1:] * b.flip(-1)
    return a[..., :1] * b + torch.where(is_real, -crossed, crossed)


def pairs_add_(
    out: Tensor, self: Operand, other: Operand, re: float, im: float, alpha_re: float, alpha_im: float
) -> None:
    """``out = self + alpha * other``."""
    alpha = _pairs(None, alpha_re, alpha_im, out)
    out.copy_(_pairs(self, re, im, out) + _product(_pairs(other, re, im, out), alpha))


def pairs_mul_(out: Tensor, self: Operand, other: Operand, re: float, im: float) -> None:
    """``out = self * other``."""
    out.copy_(_product(_pairs(self, re, im, out), _pairs(other, re, im, out)))


def pairs_div_(out: Tensor, self: Operand, other: Operand, re: float, im: float) -> None:
    """``out = self / other`` (Smith, Algorithm 116: Complex division, 1962), with the CPU's quotients by zero."""
    x, y = _pairs(self, re, im, out), _pairs(other, re, im, out)
    is_real = _is_real_part(out)
    sizes = y.abs()
    real_is_larger = sizes[..., :1] >= sizes[..., 1:]
    larger = torch.where(real_is_larger, y[..., :1], y[..., 1:])
    smaller = torch.where(real_is_larger, y[..., 1:], y[..., :1])
    ratio = smaller / larger
    scale = 1 / (larger + smaller * ratio)
    crossed = x.flip(-1)
    plain = torch.where(real_is_larger, x, x * ratio)
    turned = torch.where(real_is_larger, crossed * ratio, crossed)
    quotient = (plain + torch.where(is_real, turned, -turned)) * scale
    is_zero = (sizes[..., :1] == 0) & (sizes[..., 1:] == 0)
    out.copy_(torch.where(is_zero, x / sizes, quotient))


#: Operator -> its decomposition.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.outboard.pairs_add_.default: pairs_add_,
    torch.ops.outboard.pairs_mul_.default: pairs_mul_,
    torch.ops.outboard.pairs_div_.default: pairs_div_,
}
for _operator, _function in FUNCTIONS.items():
    _LIBRARY.impl(_operator._schema.name, _function, "CPU")
