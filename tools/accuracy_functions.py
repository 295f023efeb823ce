# SPDX-License-Identifier: Apache-2.0
"""The pointwise functions whose results ``accuracy.py`` compares, where they branch, and references beyond float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import scipy.special
import torch
from torch.nn import functional as F

special = torch.special
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Function:
    """A pointwise function of ``arity`` tensors.

    ``wide`` maps float64 arrays to float64 where PyTorch's own float64 is not exact enough to judge float32;
    ``long`` maps ``numpy.longdouble`` arrays to such, exactly enough to judge float64; ``exact`` does so for single
    ``mpmath`` numbers. ``branches`` are arguments whose neighbours are tried. ``gradient`` tells whether PyTorch has
    one that is worth comparing. ``jumps``: results jump where a rounding is another, so that the CPU's own are the
    reference. ``cancels``: where terms cancel, the largest error is chance, and only the usual one is judged. ``slope``
    is the derivative as ``wide`` and ``long`` are the function. ``known``: why it is beyond the bounds, if it is."""

    name: str
    call: Callable[..., torch.Tensor]
    arity: int = 1
    wide: Callable[..., Array] | None = None
    long: Callable[..., Array] | None = None
    exact: Callable[..., Any] | None = None
    branches: tuple[float, ...] = ()
    gradient: bool = True
    jumps: bool = False
    cancels: bool = False
    slope: Callable[..., Array] | None = None
    known: str = ""


def _unary(name: str, call: Callable[..., torch.Tensor] | None = None, **more: Any) -> Function:
    return Function(name, call or getattr(torch, name), **more)


def _binary(name: str, call: Callable[..., torch.Tensor] | None = None, **more: Any) -> Function:
    return Function(name, call or getattr(torch, name), arity=2, **more)


def _special(name: str, arity: int = 1, **more: Any) -> Function:
    return Function(f"special.{name}", getattr(special, name), arity=arity, **more)


_EXP = (87.33655, 88.72284, 103.97208, 103.27893, 11.0903, 17.32868, 709.782712893384, 745.1332191019411, 708.396)
_TURNS = tuple(k * math.pi / 2 for k in (1, 2, 3, 4, 5, 6, 10, 100, 1000, 1e4, 1e5, 1e6, 1e7, 1e9, 1e15, 1e30))
_RANGES = (39000.0, 125.0, 15.0, 1e14, 1e7, 105615.0, 71476.0, 48039.0)
_GAMMA = tuple(float(n) / 2 for n in range(-20, 30)) + (1.4616321449683622, -0.504083, -1.573498, -2.6107, -2.457024)
_UNIT = (0.5, 1.0, 1.5, 2.0, 0.25, 0.75)


def _long(name: str) -> Callable[..., Array]:
    function: Callable[..., Array] = getattr(np, name)
    return function


_PI = np.longdouble("3.14159265358979323846264338327950288")
_LN2 = np.log(np.longdouble(2))
_LN10 = np.log(np.longdouble(10))


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gelu_tanh_gate(x: Array) -> Array:
    """(1 + tanh(u)) / 2 without the digits that are lost where the tanh is nearly -1."""
    return _logistic(2 * np.sqrt(2 / _PI).astype(x.dtype) * (x + 0.044715 * x**3))


def _gelu_tanh(x: Array) -> Array:
    return x * _gelu_tanh_gate(x)


def _gelu_tanh_slope(x: Array) -> Array:
    inner = 2 * np.sqrt(2 / _PI).astype(x.dtype) * (1 + 3 * 0.044715 * x**2)
    return _gelu_tanh_gate(x) * (1 + x * _gelu_tanh_gate(-x) * inner)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(x))


def _remainder(a: Array, b: Array) -> Array:
    """Of the divisor's sign, but for zeros, which have the dividend's."""
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _sinc(x: Array) -> Array:
    scaled = _PI * x
    # sin of pi times what is left of a whole number is exact where the product is not.
    rest = x - np.rint(x)
    sign = np.where(np.mod(np.rint(x), 2) == 0, 1, -1)
    value = sign * np.sin(_PI * rest) / scaled
    return np.where(x == 0, np.longdouble(1), np.where(np.isinf(x), np.longdouble(0), value))


UNARY = [
    _unary("abs"),
    _unary("neg"),
    _unary("ceil", gradient=False),
    _unary("floor", gradient=False),
    _unary("round", gradient=False, branches=(0.5, 1.5, 2.5, 8388607.5)),
    _unary("trunc", gradient=False),
    _unary("frac"),
    _unary("sign", gradient=False),
    _unary("sgn", gradient=False),
    _unary("positive"),
    _unary("square", long=lambda x: x * x),
    _unary("reciprocal", long=lambda x: 1 / x),
    _unary("div_3", lambda x: x / 3.0, long=lambda x: x / 3),
    _unary("rsqrt", long=lambda x: 1 / np.sqrt(x), slope=lambda x: -1 / (2 * x * np.sqrt(x))),
    _unary("sqrt", long=_long("sqrt"), slope=lambda x: 1 / (2 * np.sqrt(x))),
    _unary("nan_to_num"),
    _unary("deg2rad", long=lambda x: x * (_PI / 180)),
    _unary("rad2deg", long=lambda x: x * (180 / _PI)),
    _unary("exp", long=_long("exp"), slope=lambda x: np.exp(x), branches=_EXP),
    _unary("exp2", long=_long("exp2"), slope=lambda x: np.exp2(x) * _LN2, branches=(127.0, 128.0, 149.0, 150.0, 126.0)),
    _unary("expm1", long=_long("expm1"), slope=lambda x: np.exp(x), branches=_EXP),
    _unary("log", long=_long("log"), slope=lambda x: 1 / x, branches=_UNIT),
    _unary("log2", long=_long("log2"), slope=lambda x: 1 / (x * _LN2), branches=_UNIT),
    _unary("log10", long=_long("log10"), slope=lambda x: 1 / (x * _LN10), branches=_UNIT),
    _unary("log1p", long=_long("log1p"), slope=lambda x: 1 / (1 + x), branches=(*_UNIT, 0.41421356, 0.29289)),
    _unary("sin", long=_long("sin"), slope=lambda x: np.cos(x), branches=_TURNS + _RANGES),
    _unary("cos", long=_long("cos"), slope=lambda x: -np.sin(x), branches=_TURNS + _RANGES),
    _unary("tan", long=_long("tan"), slope=lambda x: 1 / np.cos(x) ** 2, branches=_TURNS + _RANGES),
    _unary("sinc", long=_sinc, branches=(*_TURNS, 1.0, 2.0, 3.0, 0.5)),
    _unary("asin", long=_long("arcsin"), slope=lambda x: 1 / np.sqrt((1 - x) * (1 + x)), branches=_UNIT),
    _unary("acos", long=_long("arccos"), slope=lambda x: -1 / np.sqrt((1 - x) * (1 + x)), branches=_UNIT),
    _unary("atan", long=_long("arctan"), slope=lambda x: 1 / (1 + x * x), branches=(*_UNIT, 2.414213562, 0.414213562)),
    _unary("sinh", long=_long("sinh"), slope=lambda x: np.cosh(x), branches=_EXP),
    _unary("cosh", long=_long("cosh"), slope=lambda x: np.sinh(x), branches=_EXP),
    _unary("tanh", long=_long("tanh"), slope=lambda x: 1 / np.cosh(x) ** 2, branches=(0.625, 9.0, 8.66, 20.0)),
    _unary("asinh", long=_long("arcsinh"), slope=lambda x: 1 / np.sqrt(1 + x * x), branches=_UNIT),
    _unary("acosh", long=_long("arccosh"), slope=lambda x: 1 / (np.sqrt(x - 1) * np.sqrt(x + 1)), branches=_UNIT),
    _unary("atanh", long=_long("arctanh"), slope=lambda x: 1 / ((1 - x) * (1 + x)), branches=_UNIT),
    _unary("erf", exact=mpmath.erf, branches=(0.927734375, 0.84375, 1.25, 4.0, 3.9, 2.857, 6.0)),
    _unary("erfc", exact=mpmath.erfc, branches=(0.84375, 1.25, 10.0, 9.2, 26.5, 28.0, 2.857)),
    _unary("erfinv", exact=mpmath.erfinv, branches=(*_UNIT, 0.7, 0.9, 0.99)),
    _unary("sigmoid", long=_logistic, slope=lambda x: _logistic(x) * _logistic(-x), branches=_EXP),
    _unary("logit", long=lambda x: np.log(x) - np.log1p(-x), slope=lambda x: 1 / (x * (1 - x)), branches=_UNIT),
    _unary(
        "lgamma",
        wide=scipy.special.gammaln,
        exact=lambda x: mpmath.re(mpmath.loggamma(x)),
        branches=_GAMMA,
        cancels=True,
    ),
    _unary("digamma", exact=mpmath.digamma, branches=_GAMMA, cancels=True),
    _unary("i0", wide=scipy.special.i0, branches=(8.0, 7.75)),
    _special("i0e", wide=scipy.special.i0e, branches=(8.0, 7.75)),
    _special("i1", wide=scipy.special.i1, branches=(8.0, 7.75)),
    _special("i1e", wide=scipy.special.i1e, branches=(8.0, 7.75)),
    _special("entr", branches=_UNIT),
    _special("erfcx", wide=scipy.special.erfcx, branches=(50.0, 10.0, 26.0, 5e7, 9.3)),
    _special("log_ndtr", wide=scipy.special.log_ndtr, branches=(1.0, 5.0, 20.0, 13.0)),
    _special("ndtr", wide=scipy.special.ndtr, branches=(1.0, 13.0, 5.5, 14.0)),
    _special("ndtri", wide=scipy.special.ndtri, branches=(0.1353352832, 0.8646647, *_UNIT)),
    _special("bessel_j0", wide=scipy.special.j0, gradient=False, branches=(5.0, 2.404825, 5.520078)),
    _special("bessel_j1", wide=scipy.special.j1, gradient=False, branches=(5.0, 3.8317059)),
    _special("bessel_y0", wide=scipy.special.y0, gradient=False, branches=(5.0, 0.8935769)),
    _special("bessel_y1", wide=scipy.special.y1, gradient=False, branches=(5.0, 2.197141)),
    _special("airy_ai", wide=lambda x: scipy.special.airy(x)[0], gradient=False, branches=(2.09, 103.892, 5.0)),
    _special("modified_bessel_i0", wide=scipy.special.i0, gradient=False, branches=(8.0,)),
    _special("modified_bessel_i1", wide=scipy.special.i1, gradient=False, branches=(8.0,)),
    _special("modified_bessel_k0", wide=scipy.special.k0, gradient=False, branches=(2.0,)),
    _special("modified_bessel_k1", wide=scipy.special.k1, gradient=False, branches=(2.0,)),
    _special("scaled_modified_bessel_k0", wide=scipy.special.k0e, gradient=False, branches=(2.0,)),
    _special("scaled_modified_bessel_k1", wide=scipy.special.k1e, gradient=False, branches=(2.0,)),
    _special("spherical_bessel_j0", gradient=False, branches=(0.5, *_TURNS)),
    _unary("polygamma1", lambda x: torch.polygamma(1, x), gradient=False, branches=_GAMMA),
    _unary("mvlgamma2", lambda x: torch.mvlgamma(x.abs() + 1, 2), branches=_GAMMA),
    _unary("gelu", F.gelu, branches=(5.42, 5.42 * math.sqrt(2), 1.0)),
    _unary(
        "gelu_tanh",
        lambda x: F.gelu(x, approximate="tanh"),
        wide=_gelu_tanh,
        long=_gelu_tanh,
        slope=_gelu_tanh_slope,
        branches=(1.0, 8.0),
    ),
    _unary("silu", F.silu, long=lambda x: x * _logistic(x), branches=_EXP),
    _unary("mish", F.mish, long=lambda x: x * np.tanh(_softplus(x)), branches=(20.0, *_EXP)),
    _unary("softplus", F.softplus, long=lambda x: np.where(x > 20, x, _softplus(x)), slope=_logistic, branches=(20.0,)),
    _unary("elu", F.elu, long=_elu, branches=_EXP),
    _unary("selu", F.selu),
    _unary("celu", F.celu, long=_elu),
    _unary("hardswish", F.hardswish, branches=(3.0,)),
    _unary("hardsigmoid", F.hardsigmoid, branches=(3.0,)),
    _unary("hardtanh", F.hardtanh),
    _unary("relu", torch.relu),
    _unary("relu6", F.relu6, branches=(6.0,)),
    _unary("leaky_relu", F.leaky_relu),
    _unary(
        "logsigmoid",
        F.logsigmoid,
        long=lambda x: -_softplus(-x),
        slope=lambda x: _logistic(-x),
        branches=_EXP,
    ),
    _unary("softsign", F.softsign, long=lambda x: x / (1 + np.abs(x)), slope=lambda x: 1 / (1 + np.abs(x)) ** 2),
    _unary("tanhshrink", F.tanhshrink, long=lambda x: x - np.tanh(x), slope=lambda x: np.tanh(x) ** 2),
    _unary("hardshrink", F.hardshrink),
    _unary("softshrink", F.softshrink),
    *(
        _unary(f"pow{e}", lambda x, e=e: x.pow(e), long=lambda x, e=e: np.power(x, np.longdouble(e)))
        for e in (2, 3, -1, 0.5, -0.5, 2.5, 7, -3.25)
    ),
    _unary("rpow", lambda x: 2.5**x, long=lambda x: np.power(np.longdouble(2.5), x)),
    *(_unary(f"floordiv_{d}", lambda x, d=d: x // d, gradient=False, jumps=True) for d in (0.1, 0.3, -7.0)),
    *(
        _unary(
            f"remainder_{d}", lambda x, d=d: x % d, long=lambda x, d=d: np.remainder(x, d), gradient=False, jumps=True
        )
        for d in (0.1, 0.3, -7.0)
    ),
    _unary("div_trunc_0.1", lambda x: torch.div(x, 0.1, rounding_mode="trunc"), gradient=False, jumps=True),
    _unary("fmod_0.3", lambda x: torch.fmod(x, 0.3), long=lambda x: np.fmod(x, 0.3), gradient=False, jumps=True),
]

BINARY = [
    _binary("add", long=lambda a, b: a + b),
    _binary("sub", long=lambda a, b: a - b),
    _binary("mul", long=lambda a, b: a * b),
    _binary("div", long=lambda a, b: a / b),
    _binary("div_floor", lambda a, b: torch.div(a, b, rounding_mode="floor"), gradient=False, jumps=True),
    _binary("div_trunc", lambda a, b: torch.div(a, b, rounding_mode="trunc"), gradient=False, jumps=True),
    _binary("floor_divide", gradient=False, jumps=True),
    _binary("fmod", long=_long("fmod"), jumps=True, gradient=False),
    _binary("remainder", long=_remainder, jumps=True, gradient=False),
    _binary("pow", long=_long("power"), branches=(1.0, 2.0, 0.5, 3.0)),
    _binary("atan2", long=_long("arctan2")),
    _binary("hypot", long=_long("hypot")),
    _binary("copysign"),
    _binary("nextafter", gradient=False, jumps=True),
    _binary("logaddexp", long=_long("logaddexp"), cancels=True),
    _binary("logaddexp2", long=_long("logaddexp2"), cancels=True),
    _binary("maximum"),
    _binary("minimum"),
    _binary("fmax"),
    _binary("fmin"),
    _binary("heaviside", gradient=False),
    _binary("xlogy"),
    _special("xlog1py", 2),
    _binary("lerp", lambda a, b: torch.lerp(a, b, 0.3), cancels=True),
    _binary("addcmul", lambda a, b: torch.addcmul(a, a, b), cancels=True),
    _binary("addcdiv", lambda a, b: torch.addcdiv(a, a, b)),
    _special("zeta", 2, wide=scipy.special.zeta, gradient=False),
    _special("gammainc", 2, wide=scipy.special.gammainc, gradient=False),
    _special("gammaincc", 2, wide=scipy.special.gammaincc, gradient=False),
    _binary("ldexp", lambda a, b: torch.ldexp(a, b.round().clamp(-300, 300).to(torch.int32)), gradient=False),
    _binary("mse", lambda a, b: F.mse_loss(a, b, reduction="none")),
    _binary("l1", lambda a, b: F.l1_loss(a, b, reduction="none")),
    _binary("smooth_l1", lambda a, b: F.smooth_l1_loss(a, b, reduction="none")),
    _binary("huber", lambda a, b: F.huber_loss(a, b, reduction="none")),
    _binary(
        "bce_with_logits",
        lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid(), reduction="none"),
        gradient=False,
    ),
    _binary("poisson_nll", lambda a, b: F.poisson_nll_loss(a, b, reduction="none"), gradient=False, cancels=True),
]

FUNCTIONS = {function.name: function for function in (*UNARY, *BINARY)}
