# SPDX-License-Identifier: Apache-2.0
"""Integers that wrap, quotients and remainders as PyTorch rounds them, minima, reciprocal roots."""

from __future__ import annotations

import torch

from ..base import Unsupported
from .prelude import Maker, Prelude, builtin_per_lane, choose, helper, per_lane
from .types import LIMITS, UNSIGNED, type_name, unsigned_dtype


@helper("floordiv")
def _helper_floordiv(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    # A zero divisor, and the one overflowing quotient, would trap on some hardware.
    t = type_name(dtype, width)
    one = f"({t})(1)"
    zero = f"({t})(0)"
    if dtype.is_floating_point:
        return _floor_division(prelude, full, dtype, width)
    safe = f"{t} d = {choose(dtype, width, 'b == ' + zero, one, 'b')};"
    if not dtype.is_signed:
        return f"{t} {full}({t} a, {t} b) {{ {safe} return a / d; }}"
    low = f"({t})({LIMITS[dtype][0]})"
    minus = f"({t})(-1)"
    overflow = f"(a == {low}) & (b == {minus})" if width > 1 else f"a == {low} && b == {minus}"
    return (
        f"{t} {full}({t} a, {t} b) {{ {safe} d = {choose(dtype, width, overflow, one, 'd')}; "
        f"{t} q = a / d; {t} r = a - q * d; "
        f"return {choose(dtype, width, _differ('r', 'd', zero, width), f'({t})(q - {one})', 'q')}; }}"
    )


@helper("fmod")
def _helper_fmod(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """fmod. A quotient below half of the integers that the dtype counts is at most one too high when it is rounded, and
    what fma leaves is exact: as is adding the divisor where that is negative. Other quotients, zeros as divisors and
    what is not finite go to the runtime's function, lane by lane, which is slow (and rounds vectors of double in some).
    """
    t, mask = type_name(dtype, width), torch.int64 if dtype == torch.float64 else torch.int32
    far = f"{full}_far"
    limit = f"({t})({float(1 << (52 if dtype == torch.float64 else 23))!r})"
    outside = f"{prelude.use('any', mask, width)}(~(q < {limit}))" if width > 1 else f"!(q < {limit})"
    return (
        f"{builtin_per_lane('fmod', 2)(prelude, far, dtype, width)}\n"
        f"{t} {full}({t} a, {t} b) {{ const {t} x = fabs(a), y = fabs(b); {t} q = x / y; "
        f"if ({outside}) return {far}(a, b); "
        f"q = trunc(q); {t} r = fma(-q, y, x); r = {choose(dtype, width, f'r < ({t})(0)', 'r + y', 'r')}; "
        f"return copysign({choose(dtype, width, f'q == ({t})(0)', 'x', 'r')}, a); }}"
    )


def _floor_division(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Division of floats rounded down, by way of the remainder as in PyTorch: exact where the quotient is not."""
    t = type_name(dtype, width)
    zero = f"({t})(0)"
    down = choose(dtype, width, _differ("r", "b", zero, width), "q - 1", "q")
    nearest = choose(dtype, width, f"q - f > ({t})(0.5f)", "f + 1", "f")
    signed = choose(dtype, width, f"q != {zero}", nearest, f"copysign({zero}, a / b)")
    return (
        f"{t} {full}({t} a, {t} b) {{ const {t} r = {prelude.use('fmod', dtype, width)}(a, b); "
        f"{t} q = (a - r) / b; q = {down}; "
        f"const {t} f = floor(q); return {choose(dtype, width, f'b == {zero}', 'a / b', signed)}; }}"
    )


def _differ(r: str, d: str, zero: str, width: int) -> str:
    """Whether a remainder is not zero and its sign differs from the divisor's."""
    if width == 1:
        return f"{r} != {zero} && (({r} < {zero}) != ({d} < {zero}))"
    return f"({r} != {zero}) & (({r} < {zero}) != ({d} < {zero}))"


@helper("truncdiv")
def _helper_truncdiv(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    t = type_name(dtype, width)
    one, zero = f"({t})(1)", f"({t})(0)"
    body = f"{t} d = {choose(dtype, width, 'b == ' + zero, one, 'b')};"
    if dtype.is_signed:
        low, minus = f"({t})({LIMITS[dtype][0]})", f"({t})(-1)"
        overflow = f"(a == {low}) & (b == {minus})" if width > 1 else f"a == {low} && b == {minus}"
        body += f" d = {choose(dtype, width, overflow, one, 'd')};"
    return f"{t} {full}({t} a, {t} b) {{ {body} return a / d; }}"


@helper("truncmod")
def _helper_truncmod(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    t = type_name(dtype, width)
    divide = prelude.use("truncdiv", dtype, width)
    zero = f"({t})(0)"
    result = choose(dtype, width, f"b == {zero}", zero, f"({t})(a - {divide}(a, b) * b)")
    return f"{t} {full}({t} a, {t} b) {{ return {result}; }}"


@helper("remainder")
def _helper_remainder(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    t = type_name(dtype, width)
    zero = f"({t})(0)"
    if dtype.is_floating_point:
        adjusted = choose(dtype, width, _differ("r", "b", zero, width), "r + b", "r")
        mod = prelude.use("fmod", dtype, width)
        return f"{t} {full}({t} a, {t} b) {{ {t} r = {mod}(a, b); return {adjusted}; }}"
    mod = prelude.use("truncmod", dtype, width)
    if not dtype.is_signed:
        return f"{t} {full}({t} a, {t} b) {{ return {mod}(a, b); }}"
    adjusted = choose(dtype, width, _differ("r", "b", zero, width), f"({t})(r + b)", "r")
    return f"{t} {full}({t} a, {t} b) {{ {t} r = {mod}(a, b); return {adjusted}; }}"


@helper("ipow")
def _helper_ipow(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    # By squaring, in the unsigned type so that overflow wraps; a negative exponent leaves 1, -1 or 0.
    t = type_name(dtype)
    unsigned = UNSIGNED.get(t, t)
    wide = unsigned if dtype.itemsize >= 4 else "uint"
    negative = "if (b < 0) return a == 1 ? 1 : (a == -1 ? ((b & 1) ? -1 : 1) : 0); " if dtype.is_signed else ""
    scalar = (
        f"{t} {full}_1({t} a, {t} b) {{ {negative}{wide} base = ({wide})a, result = 1; "
        f"while (b) {{ if (b & 1) result *= base; base *= base; b >>= 1; }} return ({t})({unsigned})result; }}\n"
    )
    if width == 1:
        return scalar + f"{t} {full}({t} a, {t} b) {{ return {full}_1(a, b); }}"
    return scalar + per_lane(full, t, t, f"{full}_1", 2, width)


def _helper_minmax(name: str) -> Maker:
    def make(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
        t = type_name(dtype, width)
        # The inner choice, b where either is NaN, is one instruction of most processors.
        inner = choose(dtype, width, f"a {'<' if name == 'min' else '>'} b", "a", "b")
        return f"{t} {full}({t} a, {t} b) {{ return {choose(dtype, width, 'a != a', 'a', inner)}; }}"

    return make


def _helper_quick(comparison: str) -> Maker:
    def make(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
        t = type_name(dtype, width)
        return f"{t} {full}({t} a, {t} b) {{ return {choose(dtype, width, f'a {comparison} b', 'a', 'b')}; }}"

    return make


@helper("sign")
def _helper_sign(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    t = type_name(dtype, width)
    zero, one = f"({t})(0)", f"({t})(1)"
    minus = f"({t})(-1)" if dtype.is_signed or dtype.is_floating_point else zero
    inner = choose(dtype, width, f"a < {zero}", minus, zero)
    return f"{t} {full}({t} a) {{ return {choose(dtype, width, f'a > {zero}', one, inner)}; }}"


@helper("divide_by")
def _helper_divide_by(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Division of many numbers by one: a product with its reciprocal, corrected by what is left over. That is the
    rounded quotient (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990)
    where nothing overflows or vanishes on the way. Infinities and NaN are right without correction. What is left over
    has the sign that leaves a zero as it is: that is why there is ``-f``, and no negative divisors."""
    one, many = type_name(dtype), type_name(dtype, width)
    return (
        f"{many} {full}({many} a, {one} d) {{ "
        f"if (!(d > 1e-30f && d < 1e30f)) return a / d; "
        f"const {one} r = 1.0f / d; const {many} q = a * r; "
        f"const {many} f = fma(q, ({many})(d), -a); "
        f"return {choose(dtype, width, f'fabs(f) < ({many})(INFINITY)', f'fma(-f, ({many})(r), q)', 'q')}; }}"
    )


@helper("rsqrt")
def _helper_rsqrt(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """The reciprocal of a root, which two roundings leave up to one and a half units away: corrected by one step of
    Newton's, whose product is taken with what it loses. Zeros and infinities are right without."""
    t = type_name(dtype, width)
    return (
        f"{t} {full}({t} a) {{ const {t} y = ({t})(1) / sqrt(a), p = a * y; "
        f"const {t} r = fma(-p, y, ({t})(1)) - fma(a, y, -p) * y; "
        f"return {choose(dtype, width, f'fabs(r) < ({t})(INFINITY)', f'fma(({t})(0.5f) * y, r, y)', 'y')}; }}"
    )


def arithmetic(symbol: str, args: list[str], dtype: torch.dtype, width: int) -> str:
    if dtype == torch.bool:
        raise Unsupported(f"bool {symbol} bool")
    name = type_name(dtype, width)
    if dtype.is_floating_point or not dtype.is_signed:
        text = f"({args[0]} {symbol} {args[1]})"
        return text if width > 1 or dtype.itemsize >= 4 else f"(({name})({text}))"
    unsigned = type_name(unsigned_dtype(dtype), width)
    if width > 1:
        return f"as_{name}(as_{unsigned}({args[0]}) {symbol} as_{unsigned}({args[1]}))"
    wide = unsigned if dtype.itemsize >= 4 else "uint"
    return f"(({name})(({wide})({args[0]}) {symbol} ({wide})({args[1]})))"


def least_or_greatest(prelude: Prelude, name: str, args: list[str], dtype: torch.dtype, width: int) -> str:
    if dtype == torch.bool:
        return f"({args[0]} {'&' if name == 'minimum' else '|'} {args[1]})"
    short = name[:3]
    if not dtype.is_floating_point:
        t = type_name(dtype, width)
        return f"{short}(({t})({args[0]}), ({t})({args[1]}))"
    return f"{prelude.use(short, dtype, width)}({args[0]}, {args[1]})"


def shift(name: str, args: list[str], dtype: torch.dtype, width: int) -> str:
    """Shifts by a negative or too large count: 0, or for a signed right shift the sign, as ATen defines them."""
    t = type_name(dtype, width)
    bits = dtype.itemsize * 8
    a, b = args
    inside = f"({b} < ({t})({bits}))"
    if dtype.is_signed:
        inside = f"(({b} >= ({t})(0)) & ({b} < ({t})({bits})))"
    left = name in ("bitwise_left_shift", "lshift")
    if left:
        unsigned = type_name(unsigned_dtype(dtype), width)
        count = choose(dtype, width, inside, b, f"({t})(0)")
        shifted = f"({t})(({unsigned})({a}) << ({count}))"
        if width > 1:
            shifted = f"as_{t}(as_{unsigned}({a}) << as_{unsigned}({count}))"
        return choose(dtype, width, inside, shifted, f"({t})(0)")
    count = choose(dtype, width, inside, b, f"({t})({bits - 1})")
    shifted = f"(({t})({a} >> {count}))" if width == 1 else f"({a} >> {count})"
    if dtype.is_signed:
        return shifted
    return choose(dtype, width, inside, shifted, f"({t})(0)")


helper("min")(_helper_minmax("min"))
helper("max")(_helper_minmax("max"))
helper("quick_min")(_helper_quick("<"))
helper("quick_max")(_helper_quick(">"))
helper("nextafter")(builtin_per_lane("nextafter", 2))
