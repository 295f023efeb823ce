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


def _log(x: Tensor, above: Tensor | None = None) -> Tensor:
    """The logarithm of the absolute value, near 1 by what its square is above it, and the angle."""
    first, second = _parts(x)
    above = -_below_one(x) if above is None else above
    scaled, is_huge, is_tiny, steps = _scaled(x)
    shift = 2 * steps * math.log(2)
    far = torch.hypot(*_parts(scaled)).log() + torch.where(is_huge, shift, torch.where(is_tiny, -shift, 0.0))
    return _joined(torch.where(above.abs() < 0.5, above.log1p() / 2, far), torch.atan2(second, first))


def _below_one(x: Tensor) -> Tensor:
    """1 less the square of the absolute value, [..., 1]."""
    sizes = x.abs()
    larger, smaller = torch.maximum(*_parts(sizes)), torch.minimum(*_parts(sizes))
    return (1 - larger) * (1 + larger) - smaller * smaller


def _log1p(x: Tensor) -> Tensor:
    real, imaginary = _parts(x)
    result = _log(_after_one(x), real * (real + 2) + imaginary * imaginary)
    result = torch.where((real == 0) & (imaginary == 0), x, result)
    return torch.where(x.isnan().any(-1, keepdim=True), math.nan, result)


def _expm1(x: Tensor) -> Tensor:
    """As ATen has it, without rules for what is infinite."""
    real, imaginary = _parts(x)
    half = (imaginary / 2).sin()
    return _joined(real.expm1() * imaginary.cos() - 2 * half * half, real.exp() * imaginary.sin())


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


def _after_one(x: Tensor) -> Tensor:
    """``1 + x``, whose imaginary part keeps the sign of a zero."""
    real, imaginary = _parts(x)
    return _joined(1 + real, imaginary)


def _hyperbolic(real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sine and cosine of real numbers, each divided by the third."""
    size = real.abs()
    is_large = size > 80  # the root of the factor is finite for any that a product with it may be finite for
    large = (size / 2).exp()
    factor = torch.where(is_large, large / 2, 1)
    return (
        torch.where(is_large, large.copysign(real), real.sinh()),
        torch.where(is_large, large, real.cosh()),
        factor,
    )


def _signed_zero(number: Tensor) -> Tensor:
    return torch.zeros_like(number).copysign(number)


def _sinh(x: Tensor) -> Tensor:
    """As C's ``csinh``: a part that is 0 or infinite stays so, whatever the other is."""
    real, imaginary = _parts(x)
    sine, cosine, factor = _hyperbolic(real)
    first, second = sine * imaginary.cos() * factor, cosine * imaginary.sin() * factor
    is_wild = ~imaginary.isfinite()
    first = torch.where(is_wild & ((real == 0) | real.isinf()), real, first)
    return _joined(first, torch.where(imaginary == 0, imaginary, second))


def _cosh(x: Tensor) -> Tensor:
    """As C's ``ccosh``."""
    real, imaginary = _parts(x)
    sine, cosine, factor = _hyperbolic(real)
    first, second = cosine * imaginary.cos() * factor, sine * imaginary.sin() * factor
    is_wild = ~imaginary.isfinite()
    first = torch.where(is_wild & real.isinf(), math.inf, first)
    second = torch.where(is_wild & (real == 0), 0, second)
    is_turned = real.signbit() & ~real.isnan()
    return _joined(first, torch.where(imaginary == 0, torch.where(is_turned, -imaginary, imaginary), second))


def _tanh(x: Tensor) -> Tensor:
    """As C's ``ctanh``; far from 0 only the imaginary part is not 1."""
    real, imaginary = _parts(x)
    is_far = real.abs() > 20
    near, sine, cosine = torch.where(is_far, 0, real), imaginary.sin(), imaginary.cos()
    size = near.sinh() * near.sinh() + cosine * cosine
    shrunk = (-real.abs()).exp()
    first = torch.where(is_far, torch.ones_like(real).copysign(real), near.sinh() * near.cosh() / size)
    second = sine * cosine * torch.where(is_far, 4 * shrunk * shrunk, 1 / size)
    is_wild = ~imaginary.isfinite()
    first = torch.where(is_wild & (real == 0), real, first)
    is_zero = (imaginary == 0) | (is_wild & real.isinf())
    return _joined(first, torch.where(is_zero, _signed_zero(imaginary), second))


def _roots(x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The parts of the roots of ``1 - x`` and of ``1 + x``."""
    return _parts(_sqrt(_after_one(-x))), _parts(_sqrt(_after_one(x)))


def _asin(x: Tensor) -> Tensor:
    """By two roots (W. Kahan, "Branch cuts for complex elementary functions", 1987)."""
    real, imaginary = _parts(x)
    (less, less_i), (more, more_i) = _roots(x)
    first = torch.where(real == 0, real, torch.atan2(real, less * more - less_i * more_i))
    second = (less * more_i - less_i * more).asinh()
    direction, other = _direction(x)
    return _of_infinite(x, torch.atan2(direction, other.abs()), imaginary, _joined(first, second))


def _acos(x: Tensor) -> Tensor:
    """As ``_asin``."""
    real, imaginary = _parts(x)
    (less, less_i), (more, more_i) = _roots(x)
    first = torch.where(real == 0, math.pi / 2, 2 * torch.atan2(less, more))
    second = (more * less_i - more_i * less).asinh()
    direction, other = _direction(x)
    return _of_infinite(x, torch.atan2(other.abs(), direction), -imaginary, _joined(first, second))


def _direction(x: Tensor) -> tuple[Tensor, Tensor]:
    """Parts of 1 for those that are infinite, and of 0 for finite ones."""
    return _parts(torch.where(x.isnan(), x, x.isinf().to(x.dtype).copysign(x)))


def _of_infinite(x: Tensor, angle: Tensor, sign: Tensor, otherwise: Tensor) -> Tensor:
    """An angle, and what is infinite, where a part of ``x`` is."""
    is_infinite = x.isinf().any(-1, keepdim=True)
    infinite = torch.full_like(angle, math.inf).copysign(sign)
    return torch.where(is_infinite, _joined(angle, infinite), otherwise)


def _acosh(x: Tensor) -> Tensor:
    angle, size = _parts(_acos(x))
    return _joined(size.abs(), angle.copysign(x[..., 1:]))


def _atanh(x: Tensor) -> Tensor:
    """As Kahan has it; as C's ``catanh``, of infinite numbers a zero and a right angle."""
    real, imaginary = _parts(x)
    size = real.abs()
    apart = torch.hypot(1 - size, imaginary)
    is_close = apart < 1e-8
    close = (math.log(2) - apart.log()) / 2
    first = torch.where(is_close, close, (4 * (size / apart) / apart).log1p() / 4).copysign(real)
    second = torch.atan2(imaginary, _below_one(x) / 2) / 2
    is_infinite = x.isinf().any(-1, keepdim=True)
    first = torch.where(is_infinite | (real == 0), _signed_zero(real), first)
    right_angle = torch.full_like(second, math.pi / 2).copysign(imaginary)
    return _joined(first, torch.where(is_infinite & ~imaginary.isnan(), right_angle, second))


def _times_i(x: Tensor) -> Tensor:
    real, imaginary = _parts(x)
    return _joined(-imaginary, real)


def _turned(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """``function(i x) / i``."""

    def turned(x: Tensor) -> Tensor:
        real, imaginary = _parts(function(_times_i(x)))
        return _joined(imaginary, -real)

    return turned


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
    "acos": _acos,
    "acosh": _acosh,
    "asin": _asin,
    "asinh": _turned(_asin),
    "atan": _turned(_atanh),
    "atanh": _atanh,
    "conj_physical": lambda x: torch.where(_is_real_part(x), x, -x),
    "cos": lambda x: _cosh(_times_i(x)),
    "cosh": _cosh,
    "cube": lambda x: _product(_square(x), x),
    "exp": _exp,
    "expm1": _expm1,
    "inverse square": lambda x: _inverse(_square(x)),
    "itself": lambda x: x,
    "log": _log,
    "log1p": _log1p,
    "log10": lambda x: _log(x) / math.log(10),
    "log2": lambda x: _log(x) / math.log(2),
    "one": _one,
    "reciprocal": _inverse,
    "rsqrt": lambda x: _inverse(_sqrt(x)),
    "sgn": _sgn,
    "sigmoid": lambda x: _inverse(_one(x) + _exp(-x)),
    "sin": _turned(_sinh),
    "sinh": _sinh,
    "sqrt": _sqrt,
    "square": _square,
    "tan": _turned(_tanh),
    "tanh": _tanh,
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
