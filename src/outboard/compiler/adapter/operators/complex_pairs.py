# SPDX-License-Identifier: Apache-2.0
"""Arithmetic with complex numbers as pairs of real ones, [..., 2], of which PyTorch's compiler has loops: operators of
our own that ``csrc/torch/eager/complex_arithmetic.cpp`` calls. Rounded as PyTorch's kernels of the CPU do it."""

from __future__ import annotations

import math
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


def _parts(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts, [..., 1] each."""
    return pairs[..., :1], pairs[..., 1:]


def _joined(real: Tensor, imaginary: Tensor) -> Tensor:
    return torch.where(_is_real_part(real), real, imaginary)


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


def _quotient(x: Tensor, y: Tensor) -> Tensor:
    """As R. Smith divides ("Algorithm 116: Complex division", 1962), with the CPU's quotients by zero."""
    is_real = _is_real_part(x)
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
    return torch.where(is_zero, x / sizes, quotient)


def pairs_div_(out: Tensor, self: Operand, other: Operand, re: float, im: float) -> None:
    """``out = self / other``."""
    out.copy_(_quotient(_pairs(self, re, im, out), _pairs(other, re, im, out)))


def pairs_eq_(out: Tensor, self: Operand, other: Operand, re: float, im: float) -> None:
    """``out = self == other``, bools [..., 1]."""
    like = self if other is None else other
    assert like is not None
    real, imaginary = _parts(_pairs(self, re, im, like) == _pairs(other, re, im, like))
    out.copy_(real & imaginary)


def pairs_pow_(out: Tensor, self: Operand, other: Operand, re: float, im: float) -> None:
    """``out = self ** other``, as C defines it: ``exp(other * log(self))``."""
    power = _product(_pairs(other, re, im, out), _log(_pairs(self, re, im, out)))
    out.copy_(_exp(power))


def pairs_function_(out: Tensor, self: Tensor, function: str) -> None:
    """``out = function(self)``, a function of ``OF_ONE``."""
    out.copy_(OF_ONE[function](self))


def _exp(x: Tensor) -> Tensor:
    """As C's ``cexp``: no part of a result is infinite because the other is, and ``exp(-inf)`` is 0."""
    real, imaginary = _parts(x)
    is_large = real > 80  # the root of the factor is finite for any that the result may be finite for
    factor = torch.where(is_large, real / 2, real).exp()
    turn = _joined(imaginary.cos(), imaginary.sin())
    result = factor * turn * torch.where(is_large, factor, 1)
    is_real = _is_real_part(x)
    result = torch.where(real == -math.inf, 0, result)
    result = torch.where((real == math.inf) & ~imaginary.isfinite() & is_real, math.inf, result)
    return torch.where((imaginary == 0) & ~is_real, imaginary, result)


def _scaled(x: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Sizes of both parts, where huge or tiny times a power of four, for hypotenuses that neither overflow nor
    lose digits; and which are huge and tiny, [..., 1]; and the exponent of two of the root of that power."""
    sizes = x.abs()
    limits, steps = torch.finfo(x.dtype), 32
    larger = torch.maximum(*_parts(sizes))
    is_huge, is_tiny = larger > limits.max * 2.0 ** (-2 * steps), larger < limits.tiny * 2.0 ** (2 * steps)
    scale = torch.where(is_huge, 4.0**-steps, torch.where(is_tiny, 4.0**steps, 1.0)).to(x.dtype)
    return sizes * scale, is_huge, is_tiny, steps


def _log(x: Tensor) -> Tensor:
    """The logarithm of the absolute value, near 1 by what it is above it, and the angle."""
    (first, second), sizes = _parts(x), x.abs()
    larger, smaller = torch.maximum(*_parts(sizes)), torch.minimum(*_parts(sizes))
    above = (larger - 1) * (larger + 1) + smaller * smaller
    scaled, is_huge, is_tiny, steps = _scaled(x)
    shift = 2 * steps * math.log(2)
    far = torch.hypot(*_parts(scaled)).log() + torch.where(is_huge, shift, torch.where(is_tiny, -shift, 0.0))
    return _joined(torch.where(above.abs() < 0.5, above.log1p() / 2, far), torch.atan2(second, first))


def _sqrt(x: Tensor) -> Tensor:
    """The root whose real part is not negative (W. Kahan, "Branch cuts for complex elementary functions", 1987)."""
    real, imaginary = _parts(x)
    scaled, is_huge, is_tiny, steps = _scaled(x)
    larger = ((scaled[..., :1] + torch.hypot(*_parts(scaled))) / 2).sqrt()
    back = torch.where(is_huge, 2.0**steps, torch.where(is_tiny, 2.0**-steps, 1.0)).to(x.dtype)
    larger, second = larger * back, imaginary.abs()
    smaller = torch.where(second == 0, second, second / (2 * larger))
    is_right = real >= 0
    root, other = torch.where(is_right, larger, smaller), torch.where(is_right, smaller, larger)
    is_infinite = imaginary.abs() == math.inf
    root, other = torch.where(is_infinite, math.inf, root), torch.where(is_infinite, math.inf, other)
    is_nan = real.isnan() & ~is_infinite
    return torch.where(is_nan, math.nan, _joined(root, other.copysign(imaginary)))


def _sgn(x: Tensor) -> Tensor:
    size = torch.hypot(*_parts(x))
    return torch.where(size == 0, 0, x / size)


def _one(x: Tensor) -> Tensor:
    return _is_real_part(x).to(x.dtype).expand_as(x)


def _inverse(x: Tensor) -> Tensor:
    return _quotient(_one(x), x)


def _square(x: Tensor) -> Tensor:
    return _product(x, x)


#: Functions of one number, pairs [..., 2] in and out, by name: as in ``complex_arithmetic.cpp``.
OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "conj_physical": lambda x: torch.where(_is_real_part(x), x, -x),
    "cube": lambda x: _product(_square(x), x),
    "exp": _exp,
    "inverse square": lambda x: _inverse(_square(x)),
    "itself": lambda x: x,
    "log": _log,
    "log10": lambda x: _log(x) / math.log(10),
    "log2": lambda x: _log(x) / math.log(2),
    "one": _one,
    "reciprocal": _inverse,
    "rsqrt": lambda x: _inverse(_sqrt(x)),
    "sgn": _sgn,
    "sqrt": _sqrt,
    "square": _square,
}

#: Operator -> its decomposition.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.outboard.pairs_add_.default: pairs_add_,
    torch.ops.outboard.pairs_mul_.default: pairs_mul_,
    torch.ops.outboard.pairs_div_.default: pairs_div_,
    torch.ops.outboard.pairs_pow_.default: pairs_pow_,
    torch.ops.outboard.pairs_eq_.default: pairs_eq_,
    torch.ops.outboard.pairs_function_.default: pairs_function_,
}
for _operator, _function in FUNCTIONS.items():
    _LIBRARY.impl(_operator._schema.name, _function, "CPU")
