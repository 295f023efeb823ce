# SPDX-License-Identifier: Apache-2.0
"""OpenCL C: type names, literals, index expressions, memory access and the operators of the kernel vocabulary.

Everything is printed either for one lane (width 1) or for ``WIDTH`` lanes in one explicit vector, because CPU
implementations of OpenCL C do not turn scalar loops into vectors well. Conventions:

* a bool is an ``int``: 0 or 1 in one lane, 0 or -1 in a lane of a vector (what comparisons yield);
* half and bfloat16 exist in memory only; they are computed in ``float``;
* signed integers wrap: arithmetic goes through the unsigned type, whose overflow is defined.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import sympy
import torch

WIDTH = 16
#: Vectors that a function for several at once takes.
TOGETHER = 4

_TYPES: dict[torch.dtype, str] = {
    torch.bool: "int",
    torch.int8: "char",
    torch.int16: "short",
    torch.int32: "int",
    torch.int64: "long",
    torch.uint8: "uchar",
    torch.uint16: "ushort",
    torch.uint32: "uint",
    torch.uint64: "ulong",
    torch.float32: "float",
    torch.float64: "double",
}
_MEMORY_TYPES: dict[torch.dtype, str] = {
    **_TYPES,
    torch.bool: "uchar",
    torch.float16: "half",
    torch.bfloat16: "ushort",
    torch.float8_e4m3fn: "uchar",
    torch.float8_e5m2: "uchar",
}
_UNSIGNED = {"char": "uchar", "short": "ushort", "int": "uint", "long": "ulong"}
_MASK_TYPES = {1: "char", 2: "short", 4: "int", 8: "long"}
_LIMITS = {
    torch.int8: ("CHAR_MIN", "CHAR_MAX"),
    torch.int16: ("SHRT_MIN", "SHRT_MAX"),
    torch.int32: ("INT_MIN", "INT_MAX"),
    torch.int64: ("LONG_MIN", "LONG_MAX"),
    torch.uint8: ("0", "UCHAR_MAX"),
    torch.uint16: ("0", "USHRT_MAX"),
    torch.uint32: ("0u", "UINT_MAX"),
    torch.uint64: ("0ul", "ULONG_MAX"),
    torch.bool: ("0", "1"),
}
_HEX = "0123456789abcdef"


class Unsupported(Exception):
    """An operator or type that this dialect cannot print; the operator then runs elsewhere."""


_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DOUBLE = re.compile(r"\bdouble\d*\b")


def uses_doubles(source: str) -> bool:
    """Whether a program needs double precision: outside of comments and of what ``#ifdef cl_khr_fp64`` guards."""
    if _DOUBLE.search(source) is None:
        return False
    hidden = 0  # conditions that are open since the one that asks for doubles, itself included
    for line in _COMMENT.sub(" ", source).splitlines():
        words = line.replace("#", "# ", 1).split() if line.lstrip().startswith("#") else []
        kind = words[1] if len(words) > 1 else ""
        if hidden == 0 and kind == "ifdef" and words[2:3] == ["cl_khr_fp64"]:
            hidden = 1
        elif hidden and kind.startswith("if"):
            hidden += 1
        elif hidden and kind == "endif":
            hidden -= 1
        elif hidden == 1 and kind == "else":
            hidden = 0
        elif not hidden and kind in ("", "define") and _DOUBLE.search(line):
            return True
    return False


def type_name(dtype: torch.dtype, width: int = 1) -> str:
    """The type in which values of ``dtype`` are computed. Raises Unsupported."""
    name = _TYPES.get(dtype)
    if name is None:
        raise Unsupported(f"no arithmetic in {dtype}")
    return name if width == 1 else f"{name}{width}"


def memory_type(dtype: torch.dtype) -> str:
    """The type of an element of ``dtype`` in memory. Raises Unsupported."""
    name = _MEMORY_TYPES.get(dtype)
    if name is None:
        raise Unsupported(f"no memory access to {dtype}")
    return name


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A constant of a compute dtype, in one lane."""
    if dtype == torch.bool:
        return str(int(bool(value)))
    if dtype.is_floating_point:
        return _float_literal(float(value), dtype)
    number = int(value) if math.isfinite(float(value)) else 0
    bits = dtype.itemsize * 8
    number &= (1 << bits) - 1
    if dtype.is_signed:
        if number == 1 << (bits - 1):
            return f"({_LIMITS[dtype][0]})"
        if number >> (bits - 1):
            number -= 1 << bits
        return f"{number}L" if bits == 64 else str(number)
    return f"{number}ul" if bits == 64 else f"{number}u"


def _float_literal(value: float, dtype: torch.dtype) -> str:
    suffix = "" if dtype == torch.float64 else "f"
    if math.isnan(value):
        return f"(({type_name(dtype)})NAN)"
    if dtype == torch.float32 and math.isfinite(value):
        value = float(torch.tensor(value, dtype=torch.float64).to(torch.float32).item())
    if math.isinf(value):
        return f"(({type_name(dtype)}){'-' if value < 0 else ''}INFINITY)"
    text = repr(value)
    if "e" not in text and "." not in text:
        text += ".0"
    return text + suffix


class Prelude:
    """The helper functions that a program uses, each emitted once, before its users."""

    def __init__(self) -> None:
        self.snippets: dict[str, str] = {}

    def use(self, name: str, dtype: torch.dtype, width: int) -> str:
        """The name of helper ``name`` for a type and width; its text is added to the program."""
        full = f"ob_{name}_{type_name(dtype, width)}"
        if full not in self.snippets:
            text = _HELPERS[name](self, full, dtype, width)
            self.snippets[full] = text
        return full


# ---- helper functions ---------------------------------------------------------------------------------------


def _mask_of(dtype: torch.dtype, width: int, mask: str) -> str:
    """A bool vector as a mask whose lanes are as wide as those of ``dtype``."""
    if width == 1 or dtype.itemsize == 4 or dtype == torch.bool:
        return mask
    return f"convert_{_MASK_TYPES[dtype.itemsize]}{width}({mask})"


def _to_bool(dtype: torch.dtype, width: int, comparison: str) -> str:
    """A comparison of values of ``dtype`` as a bool."""
    if width == 1:
        return comparison
    if dtype.itemsize == 4 or dtype == torch.bool:
        return f"({comparison})"
    return f"convert_int{width}({comparison})"


def _select(dtype: torch.dtype, width: int, mask: str, yes: str, no: str) -> str:
    if width == 1:
        return f"({mask} ? {yes} : {no})"
    return f"select({no}, {yes}, {_mask_of(dtype, width, mask)})"


def _cast_bits(target: str, value: str) -> str:
    return f"as_{target}({value})"


def _helper_floordiv(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    # A zero divisor, and the one overflowing quotient, would trap on some hardware.
    t = type_name(dtype, width)
    one = f"({t})(1)"
    zero = f"({t})(0)"
    if dtype.is_floating_point:
        return _floor_division(prelude, full, dtype, width)
    safe = f"{t} d = {_raw_select(dtype, width, 'b == ' + zero, one, 'b')};"
    if not dtype.is_signed:
        return f"{t} {full}({t} a, {t} b) {{ {safe} return a / d; }}"
    low = f"({t})({_LIMITS[dtype][0]})"
    minus = f"({t})(-1)"
    overflow = f"(a == {low}) & (b == {minus})" if width > 1 else f"a == {low} && b == {minus}"
    return (
        f"{t} {full}({t} a, {t} b) {{ {safe} d = {_raw_select(dtype, width, overflow, one, 'd')}; "
        f"{t} q = a / d; {t} r = a - q * d; "
        f"return {_raw_select(dtype, width, _differ('r', 'd', zero, width), f'({t})(q - {one})', 'q')}; }}"
    )


def _helper_fmod(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """fmod; of vectors of double lane by lane, as runtimes have been seen to round there."""
    if dtype == torch.float32:
        t = type_name(dtype, width)
        return f"{t} {full}({t} a, {t} b) {{ return fmod(a, b); }}"
    return _builtin_per_lane("fmod", 2)(prelude, full, dtype, width)


def _floor_division(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Division of floats rounded down, by way of the remainder as in PyTorch: exact where the quotient is not."""
    t = type_name(dtype, width)
    zero = f"({t})(0)"
    down = _raw_select(dtype, width, _differ("r", "b", zero, width), "q - 1", "q")
    nearest = _raw_select(dtype, width, f"q - f > ({t})(0.5f)", "f + 1", "f")
    signed = _raw_select(dtype, width, f"q != {zero}", nearest, f"copysign({zero}, a / b)")
    return (
        f"{t} {full}({t} a, {t} b) {{ const {t} r = {prelude.use('fmod', dtype, width)}(a, b); "
        f"{t} q = (a - r) / b; q = {down}; "
        f"const {t} f = floor(q); return {_raw_select(dtype, width, f'b == {zero}', 'a / b', signed)}; }}"
    )


def _differ(r: str, d: str, zero: str, width: int) -> str:
    """Whether a remainder is not zero and its sign differs from the divisor's."""
    if width == 1:
        return f"{r} != {zero} && (({r} < {zero}) != ({d} < {zero}))"
    return f"({r} != {zero}) & (({r} < {zero}) != ({d} < {zero}))"


def _raw_select(dtype: torch.dtype, width: int, comparison: str, yes: str, no: str) -> str:
    """A choice by a comparison whose lanes are as wide as those of ``dtype`` already."""
    if width == 1:
        return f"(({comparison}) ? {yes} : {no})"
    unsigned_ok = f"({comparison})"
    return f"select({no}, {yes}, {unsigned_ok})"


def _helper_truncdiv(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    t = type_name(dtype, width)
    one, zero = f"({t})(1)", f"({t})(0)"
    body = f"{t} d = {_raw_select(dtype, width, 'b == ' + zero, one, 'b')};"
    if dtype.is_signed:
        low, minus = f"({t})({_LIMITS[dtype][0]})", f"({t})(-1)"
        overflow = f"(a == {low}) & (b == {minus})" if width > 1 else f"a == {low} && b == {minus}"
        body += f" d = {_raw_select(dtype, width, overflow, one, 'd')};"
    return f"{t} {full}({t} a, {t} b) {{ {body} return a / d; }}"


def _helper_truncmod(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    t = type_name(dtype, width)
    divide = prelude.use("truncdiv", dtype, width)
    zero = f"({t})(0)"
    result = _raw_select(dtype, width, f"b == {zero}", zero, f"({t})(a - {divide}(a, b) * b)")
    return f"{t} {full}({t} a, {t} b) {{ return {result}; }}"


def _helper_remainder(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    t = type_name(dtype, width)
    zero = f"({t})(0)"
    if dtype.is_floating_point:
        adjusted = _raw_select(dtype, width, _differ("r", "b", zero, width), "r + b", "r")
        mod = prelude.use("fmod", dtype, width)
        return f"{t} {full}({t} a, {t} b) {{ {t} r = {mod}(a, b); return {adjusted}; }}"
    mod = prelude.use("truncmod", dtype, width)
    if not dtype.is_signed:
        return f"{t} {full}({t} a, {t} b) {{ return {mod}(a, b); }}"
    adjusted = _raw_select(dtype, width, _differ("r", "b", zero, width), f"({t})(r + b)", "r")
    return f"{t} {full}({t} a, {t} b) {{ {t} r = {mod}(a, b); return {adjusted}; }}"


def _helper_ipow(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    # By squaring, in the unsigned type so that overflow wraps; a negative exponent leaves 1, -1 or 0.
    t = type_name(dtype)
    unsigned = _UNSIGNED.get(t, t)
    wide = unsigned if dtype.itemsize >= 4 else "uint"
    negative = "if (b < 0) return a == 1 ? 1 : (a == -1 ? ((b & 1) ? -1 : 1) : 0); " if dtype.is_signed else ""
    scalar = (
        f"{t} {full}_1({t} a, {t} b) {{ {negative}{wide} base = ({wide})a, result = 1; "
        f"while (b) {{ if (b & 1) result *= base; base *= base; b >>= 1; }} return ({t})({unsigned})result; }}\n"
    )
    if width == 1:
        return scalar + f"{t} {full}({t} a, {t} b) {{ return {full}_1(a, b); }}"
    return scalar + _per_lane(full, t, t, f"{full}_1", 2, width)


def _per_lane(full: str, result: str, argument: str, scalar: str, count: int, width: int) -> str:
    """A vector function that calls a scalar one lane by lane."""
    names = "abcd"[:count]
    parameters = ", ".join(f"{argument}{width} {name}" for name in names)
    lanes = ", ".join(f"{scalar}({', '.join(f'{name}.s{_HEX[lane]}' for name in names)})" for lane in range(width))
    return f"{result}{width} {full}({parameters}) {{ return ({result}{width})({lanes}); }}"


def _helper_minmax(name: str) -> Callable[[Prelude, str, torch.dtype, int], str]:
    def make(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
        t = type_name(dtype, width)
        # The inner choice, b where either is NaN, is one instruction of most processors.
        inner = _raw_select(dtype, width, f"a {'<' if name == 'min' else '>'} b", "a", "b")
        return f"{t} {full}({t} a, {t} b) {{ return {_raw_select(dtype, width, 'a != a', 'a', inner)}; }}"

    return make


def _helper_quick(comparison: str) -> Callable[[Prelude, str, torch.dtype, int], str]:
    def make(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
        t = type_name(dtype, width)
        return f"{t} {full}({t} a, {t} b) {{ return {_raw_select(dtype, width, f'a {comparison} b', 'a', 'b')}; }}"

    return make


def _helper_nan_bits(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    # The bits of NaN, without the sign, are greater than those of all other numbers.
    t, kind = type_name(dtype, width), bits_dtype(dtype)
    bits = type_name(kind, width)
    larger = _raw_select(kind, width, "b > a", "b", "a")
    return f"{bits} {full}({bits} a, {t} value) {{ const {bits} b = as_{bits}(fabs(value)); return {larger}; }}"


def _helper_with_nan(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    one, kind = type_name(dtype), bits_dtype(dtype)
    bits = type_name(kind, width)
    some = prelude.use("any", torch.int64 if dtype.itemsize == 8 else torch.int32, width)
    seen = f"{some}(bits > ({bits})(as_{type_name(kind)}(({one})INFINITY)))"
    return f"{one} {full}({one} a, {bits} bits) {{ return {seen} ? ({one})NAN : a; }}"


def _helper_add_to(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Adds a partial sum to a total, and what that rounds off to ``lost`` (D. Knuth's exact sum of two)."""
    t = type_name(dtype, width)
    return (
        f"void {full}({t}* total, {t}* lost, {t} a) {{ const {t} sum = *total + a, part = sum - *total; "
        f"*lost += (*total - (sum - part)) + (a - part); *total = sum; }}"
    )


def _helper_with_lost(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """A total with what its additions have rounded off, which is NaN where the total is infinite or NaN."""
    t = type_name(dtype, width)
    chosen = _raw_select(dtype, width, "lost == lost", "total + lost", "total")
    return f"{t} {full}({t} total, {t} lost) {{ return {chosen}; }}"


def _helper_sign(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    t = type_name(dtype, width)
    zero, one = f"({t})(0)", f"({t})(1)"
    minus = f"({t})(-1)" if dtype.is_signed or dtype.is_floating_point else zero
    inner = _raw_select(dtype, width, f"a < {zero}", minus, zero)
    return f"{t} {full}({t} a) {{ return {_raw_select(dtype, width, f'a > {zero}', one, inner)}; }}"


def _horner(coefficients: list[float], variable: str, t: str, suffix: str = "f") -> str:
    """A polynomial, the highest power first: in float, or with no ``suffix`` in double."""
    text = f"({t})({coefficients[0]!r}{suffix})"
    for coefficient in coefficients[1:]:
        text = f"fma({text}, {variable}, ({t})({coefficient!r}{suffix}))"
    return text


def _helper_erf(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """erf in float by two polynomials (S. Johnson's fits, as used in several maths libraries): below 0.9275 an odd
    polynomial in x; above, 1 - exp(p(|x|)); error about one unit in the last place."""
    t = type_name(dtype, width)
    if dtype != torch.float32:
        return f"{t} {full}({t} a) {{ return erf(a); }}"
    near = [-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1]
    far = [-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1]
    decay = f"{prelude.use('decay', dtype, width)}(fma({_horner(far, 't', t)}, t, -t))"
    center = f"fma({_horner(near, 's', t)}, a, a)"
    # The exponent only makes sense for moderate t; beyond 4 the result is 1 anyway. NaN passes through the centre.
    tail = f"copysign(({t})(1.0f) - {decay}, a)"
    chosen = _raw_select(dtype, width, f"fabs(a) > ({t})(0.927734375f)", tail, center)
    return f"{t} {full}({t} a) {{ {t} t = fmin(fabs(a), ({t})(4.0f)); {t} s = a * a; return {chosen}; }}"


#: log(erfc(t / sqrt(2))) / t from 0 to 5.45, the highest power first; times t, errors are below 6e-8.
_LOG_ERFC = [
    2.44280922636492e-09, -8.527278104135534e-08, 1.3293692984820513e-06, -1.2117870352021464e-05,
    6.955945874545939e-05, -0.0002309017253336516, 4.97693154955217e-05, 0.0047771347172747185, -0.03633462273920848,
    -0.3183099672711748, -0.7978845592084824,
]  # fmt: skip


def _helper_normal_cdf(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """(1 + erf(a / sqrt(2))) / 2 in float: half the exponential of t p(t) where t = |a|, or 1 less that. p is a fit of
    log(erfc(t / sqrt(2))) / t. Beyond 5.547, where 1 + erf is nothing in float, it is 0 and 1 exactly."""
    t = type_name(dtype, width)
    decay = f"{prelude.use('decay', dtype, width)}({_horner(_LOG_ERFC, 't', t)} * t)"
    chosen = _raw_select(dtype, width, f"a < ({t})(0.0f)", "below", "1.0f - below")
    # The exponent only makes sense for moderate t; NaN passes through the sum.
    beyond = _raw_select(dtype, width, f"x > ({t})(5.54687500f)", f"({t})(0.0f)", f"{decay} * 0.5f")
    kept = _raw_select(dtype, width, "a == a", chosen, "a")
    return (
        f"{t} {full}({t} a) {{ const {t} x = fabs(a), t = fmin(x, ({t})(5.54687500f)), below = {beyond}; "
        f"return {kept}; }}"
    )


def _helper_decay(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """``exp``, see there, for arguments from -80 to 0 only."""
    t, i = type_name(dtype, width), type_name(torch.int32, width)
    return f"{t} {full}({t} a) {{ {_exponential(t, i)} return as_{t}(as_{i}(p) + power); }}"


#: Where the polynomial for exp(r), the highest power first, is meant: for r up to half the logarithm of two.
_EXP_SERIES = [0.00138146030, 0.00836871582, 0.0416683879, 0.166665206, 0.499999934, 1.0, 1.0]
_LOG2_E, _LN2_HIGH, _LN2_LOW = "1.4426950408889634f", "-0.693145751953125f", "-1.428606765330187e-06f"
#: Numbers as large as 1.5 * 2^23 have no fraction: adding it rounds, and leaves the integer in the lowest bits.
_ROUNDS = "12582912.0f"
#: The same for double: 1.5 * 2^52.
_ROUNDS_DOUBLE = "6755399441055744.0"


def _exponential(t: str, i: str) -> str:
    """Statements that find exp(a) as ``p`` times two to the power whose bits, without bias, are ``power``."""
    return (
        f"const {t} shifted = fma(a, ({t})({_LOG2_E}), ({t})({_ROUNDS})), n = shifted - {_ROUNDS}; "
        f"const {t} r = fma(n, ({t})({_LN2_LOW}), fma(n, ({t})({_LN2_HIGH}), a)); "
        f"const {t} p = {_horner(_EXP_SERIES, 'r', t)}; const {i} power = as_{i}(shifted) << ({i})(23);"
    )


def _exponential_steps(t: str) -> list[str]:
    """The same, as assignments to ``n``, ``r``, ``p`` and last ``a``, with the instruction of AVX-512 that multiplies
    by a power of two and knows what becomes of zero and infinity. ``r`` is what it must be unless ``n`` is beyond all
    exponents or NaN: then any number will do that is not too large, whence the other instruction, the one of the
    smaller magnitude."""
    first, second, *others = _EXP_SERIES
    return [
        f"n@ = fma(a@, ({t})({_LOG2_E}), ({t})({_ROUNDS}));",
        f"n@ = n@ - {_ROUNDS};",
        f"r@ = fma(n@, ({t})({_LN2_HIGH}), a@);",
        f"r@ = fma(n@, ({t})({_LN2_LOW}), r@);",
        f"r@ = __builtin_ia32_rangeps512_mask(r@, ({t})(1.0f), 2, r@, -1, 4);",
        f"p@ = fma(({t})({first!r}f), r@, ({t})({second!r}f));",
        *(f"p@ = fma(p@, r@, ({t})({coefficient!r}f));" for coefficient in others),
        "a@ = __builtin_ia32_scalefps512_mask(p@, n@, p@, -1, 4);",
    ]


_AVX512 = "#ifdef __AVX512DQ__\n"


def _helper_exp(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """exp in float, below one unit in the last place: the power of two next to the result times the exponential of the
    rest, a minimax polynomial, after Cody and Waite (1980). The product is an addition to the exponent unless the
    result, or what is left of the argument, is not an ordinary number. Whether that is so anywhere in a vector is one
    test; the power is then multiplied in two halves, which round once, to zero and infinity where these are due.
    Whole vectors of AVX-512 have instructions for all that, and give the same bits."""
    t, i = type_name(dtype, width), type_name(torch.int32, width)
    if dtype != torch.float32:
        return _double_exp(prelude, full, width)
    low, high, bias = f"({t})(-104.0f)", f"({t})(89.0f)", f"({i})(0x3f800000)"
    ordinary = f"fabs(a) < ({t})(87.0f)"
    unusual = f"!({ordinary})" if width == 1 else f"{prelude.use('any', torch.int32, width)}(~({ordinary}))"
    portable = (
        f"const int unusual = {unusual}; "
        f"if (unusual) {{ a = {_raw_select(dtype, width, f'a < {low}', low, 'a')}; "
        f"a = {_raw_select(dtype, width, f'a > {high}', high, 'a')}; }} "
        f"{_exponential(t, i)} if (!unusual) return as_{t}(as_{i}(p) + power); "
        f"const {i} half_power = (as_{i}(shifted) << ({i})(22)) & ({i})(0xff800000); "
        f"return p * as_{t}(half_power + {bias}) * as_{t}(power - half_power + {bias});"
    )
    if width != WIDTH:
        return f"{t} {full}({t} a) {{ {portable} }}"
    steps = " ".join(_exponential_steps(t)).replace("@", "")
    return f"{t} {full}({t} a) {{\n{_AVX512}  {t} n, r, p; {steps} return a;\n#else\n  {portable}\n#endif\n}}"


#: exp(r) is 1 + r + r^2 p(r), where r is up to half the logarithm of two: p, the highest power first. The logarithm in
#: two parts, of which 1,024 times the first is exact.
_EXP_SERIES_DOUBLE = [
    2.0911236630261545e-09, 2.510038549551032e-08, 2.755728296954995e-07, 2.7557268459997064e-06,
    2.4801587317144498e-05, 0.00019841269863053618, 0.0013888888888886552, 0.008333333333330062, 0.041666666666666664,
    0.16666666666666669, 0.5,
]  # fmt: skip
_LOG2_E_DOUBLE, _LN2_HIGH_DOUBLE, _LN2_LOW_DOUBLE = "1.4426950408889634", "0.6931471805598903", "5.497923018708371e-14"


def _double_exp(prelude: Prelude, full: str, width: int) -> str:
    """``exp`` in double, in the way of that in float, with what each sum loses; off by little more than half a unit,
    where runtimes are off by one and what is computed of it by more."""
    t, i = type_name(torch.float64, width), type_name(torch.int64, width)
    ordinary, bias = f"fabs(a) < ({t})(708.0)", f"({i})(0x3ff0000000000000)"
    unusual = f"!({ordinary})" if width == 1 else f"{prelude.use('any', torch.int64, width)}(~({ordinary}))"
    low, high = f"({t})(-746.0)", f"({t})(710.0)"
    return (
        f"{t} {full}({t} a) {{ const int unusual = {unusual}; "
        f"if (unusual) {{ a = {_raw_select(torch.float64, width, f'a < {low}', low, 'a')}; "
        f"a = {_raw_select(torch.float64, width, f'a > {high}', high, 'a')}; }} "
        f"const {t} shifted = fma(a, ({t})({_LOG2_E_DOUBLE}), ({t})({_ROUNDS_DOUBLE})); "
        f"const {t} n = shifted - {_ROUNDS_DOUBLE}; "
        f"const {t} h = fma(n, ({t})(-{_LN2_HIGH_DOUBLE}), a), r = fma(n, ({t})(-{_LN2_LOW_DOUBLE}), h); "
        f"const {t} less = fma(n, ({t})(-{_LN2_LOW_DOUBLE}), h - r), s = ({t})(1) + r; "
        f"const {t} rest = fma(r * r, {_horner(_EXP_SERIES_DOUBLE, 'r', t, '')}, less); "
        f"const {t} p = s + ((({t})(1) - s + r) + rest); "
        f"const {i} power = as_{i}(shifted) << ({i})(52); if (!unusual) return as_{t}(as_{i}(p) + power); "
        f"const {i} half_power = (as_{i}(shifted) << ({i})(51)) & ({i})(0xfff0000000000000); "
        f"return p * as_{t}(half_power + {bias}) * as_{t}(power - half_power + {bias}); }}"
    )


def _helper_exp_together(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """``exp`` of ``TOGETHER`` vectors in place, step by step. Each step waits for the one before it, and a processor
    that gets the steps of one vector after those of another does not look far enough ahead to fill the time."""
    t, one = type_name(dtype, width), prelude.use("exp", dtype, width)
    each = f"for (int u = 0; u < {TOGETHER}; ++u)"
    alone = f"  {each} a[u] = {one}(a[u]);\n"
    if dtype != torch.float32 or width != WIDTH:
        return f"void {full}({t}* a) {{\n{alone}}}"
    steps = "".join(f"  #pragma unroll\n  {each} {step}\n" for step in _exponential_steps(t)).replace("@", "[u]")
    variables = ", ".join(f"{name}[{TOGETHER}]" for name in "nrp")
    return f"void {full}({t}* a) {{\n{_AVX512}  {t} {variables};\n{steps}#else\n{alone}#endif\n}}"


#: Two over pi in words of 32 bits, from the highest on, and a word past the end.
_TWO_OVER_PI = "0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau, 0u"
#: Quarter turns in a radian, and a quarter turn in three parts, of which so many of the first are exact.
_QUARTER_TURN = ("0.636619747f", "1.57079601f", "3.13916473e-07f", "5.39030253e-15f")
_QUARTER_TURN_DOUBLE = ("0.6366197723675814", "1.5707963267341256", "6.077100506506192e-11", "3.5215598651832e-27")
#: Up to here three parts of a half turn reduce arguments exactly enough.
_FAR_TURNS = "71476.0f"


def _helper_far_turn(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """The rest of a large float after as many quarter turns as fit, their number, and what is to be taken off the rest
    that its rounding has added: the digits of 2/pi that matter are
    chosen by the exponent (M. Payne and R. Hanek, "Radian reduction for trigonometric functions", 1983)."""
    if dtype == torch.float64:
        return _FAR_TURN_DOUBLE.format(full=full)
    return f"""__constant uint {full}_digits[8] = {{{_TWO_OVER_PI}}};
float {full}(float a, int* quarters, float* less) {{
  const uint bits = as_uint(a), m = ((bits & 0x7fffffu) << 8) | 0x80000000u;
  const int exponent = clamp((int)((bits >> 23) & 0xffu) - 126, 0, 128), i = exponent >> 5, e = exponent & 31;
  uint high = i > 0 ? {full}_digits[i - 1] : 0u, middle = {full}_digits[i], low = {full}_digits[i + 1];
  if (e > 0) {{
    high = (high << e) | (middle >> (32 - e));
    middle = (middle << e) | (low >> (32 - e));
    low = (low << e) | ({full}_digits[i + 2] >> (32 - e));
  }}
  ulong p = (ulong)m * low;
  p = (ulong)m * middle + (p >> 32);
  p = ((ulong)(m * high) << 32) + p;
  int q = (int)(p >> 62);
  p &= 0x3ffffffffffffffful;
  if (p & 0x2000000000000000ul) {{
    p -= 0x4000000000000000ul;
    ++q;
  }}
  if (a < 0) {{ p = -p; q = -q; }}
  *quarters = q;
  /* half of pi times 2^-62 */
#ifdef cl_khr_fp64
  const double whole = (double)(long)p * HALF_TURN;
  const float rest = (float)whole + (a - a);
  *less = (float)(rest - whole);
#else
  const float rest = (float)(long)p * HALF_TURNf + (a - a);
  *less = 0.0f;
#endif
  return rest;
}}""".replace("HALF_TURN", repr(math.ldexp(math.pi / 2, -62)))


#: As in float, with 192 bits of 2/pi from the first that makes no whole turns on.
_FAR_TURN_DOUBLE = """__constant ulong {full}_digits[20] = {{
  0xa2f9836e4e441529ul, 0xfc2757d1f534ddc0ul, 0xdb6295993c439041ul, 0xfe5163abdebbc561ul, 0xb7246e3a424dd2e0ul,
  0x06492eea09d1921cul, 0xfe1deb1cb129a73eul, 0xe88235f52ebb4484ul, 0xe99c7026b45f7e41ul, 0x3991d639835339f4ul,
  0x9c845f8bbdf9283bul, 0x1ff897ffde05980ful, 0xef2f118b5a0a6d1ful, 0x6d367ecf27cb09b7ul, 0x4f463f669e5fea2dul,
  0x7527bac7ebe5f17bul, 0x3d0739f78a5292eaul, 0x6bfb5fb11f8d5d08ul, 0x56033046fc7b6babul, 0xf0cfbc209af4361dul}};
double {full}(double a, long* quarters, double* less) {{
  const ulong bits = as_ulong(a), m = (bits & 0xffffffffffffful) | 0x10000000000000ul;
  /* Before the digits are two zeros, so that the first two bits of the product count the quarter turns. */
  const int place = clamp((int)((bits >> 52) & 0x7fful) - 1075, -60, 971), skipped = place - 2;
  ulong word[3];
  for (int k = 0; k < 3; ++k) {{
    const int from = skipped + 64 * k;
    const int i = from < 0 ? -1 : from >> 6, e = from & 63;
    const ulong high = i < 0 ? 0ul : {full}_digits[i], low = {full}_digits[i + 1];
    word[k] = e > 0 ? (high << e) | (low >> (64 - e)) : high;
  }}
  const ulong last = m * word[2], carried = mul_hi(m, word[2]), second = m * word[1] + carried;
  const ulong first = m * word[0] + mul_hi(m, word[1]) + (second < carried ? 1ul : 0ul);
  long q = (long)(first >> 62), whole = (long)((first << 2) | (second >> 62));
  const ulong part = (second << 2) | (last >> 62);
  if (whole < 0) ++q;
  const double most = (double)(whole & ~0x7ffL);
  const double others = (double)(whole & 0x7ffL) + (double)part * 5.421010862427522e-20;
  double sum = most + others, left = others - (sum - most);
  if (a < 0) {{ sum = -sum; left = -left; q = -q; }}
  *quarters = q;
  /* half of pi times 2^-64 */
  const double rest = sum * 8.515303950216386e-20 + (a - a);
  *less = -(fma(sum, 8.515303950216386e-20, -rest) + fma(sum, 3.319411800407449e-36, left * 8.515303950216386e-20));
  return rest;
}}"""


def _helper_turn(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Numbers without the quarter turns in them, the number of these, and what is to be taken off that rounding has
    added (W. Cody and W. Waite, 1980). Only a vector with a large, infinite or missing number in it takes the long way,
    and there only those lanes do."""
    single = dtype == torch.float32
    one, count = type_name(dtype), type_name(torch.int32 if single else torch.int64)
    t, i = type_name(dtype, width), f"{count}{width if width > 1 else ''}"
    far = prelude.use("far_turn", dtype, 1)
    limit = _FAR_TURNS if single else _FAR_TURNS_DOUBLE
    near = f"fabs(a) < ({t})({limit})"
    rounds, zero = (_ROUNDS, "0x4b400000") if single else (_ROUNDS_DOUBLE, "0x4338000000000000L")
    per_turn, *parts = _QUARTER_TURN if single else _QUARTER_TURN_DOUBLE
    short_way = (
        f"const {t} shifted = fma(a, ({t})({per_turn}), ({t})({rounds})), n = shifted - {rounds}; "
        f"*quarters = as_{i}(shifted) - ({i})({zero}); "
        # What the product and the second difference round off is found exactly: close to zeros it is all there is.
        f"const {t} most = fma(n, ({t})(-{parts[0]}), a), p = n * {parts[1]}; "
        f"{t} r = most - p; const {t} d = r - most, rounded = (most - (r - d)) - (p + d); "
        f"*less = fma(n, ({t})({parts[2]}), fma(n, ({t})({parts[1]}), -p) - rounded);"
    )
    head = f"{t} {full}({t} a, {i}* quarters, {t}* less)"
    if width == 1:
        return f"{head} {{ if (!({near})) return {far}(a, quarters, less); {short_way} return r; }}"
    some = prelude.use("any", torch.int32 if single else torch.int64, width)
    return f"""{head} {{
  {short_way}
  if ({some}(~({near}))) {{
    {one} given[{width}], rest[{width}], excess[{width}];
    {count} turns[{width}];
    vstore{width}(a, 0, given);
    vstore{width}(r, 0, rest);
    vstore{width}(*less, 0, excess);
    vstore{width}(*quarters, 0, turns);
    for (int l = 0; l < {width}; ++l)
      if (!(fabs(given[l]) < {limit})) rest[l] = {far}(given[l], &turns[l], &excess[l]);
    r = vload{width}(0, rest);
    *less = vload{width}(0, excess);
    *quarters = vload{width}(0, turns);
  }}
  return r;
}}"""


#: (x - sin(x)) / x^3, cos(x) and (tan(x) - x) / x^3 as polynomials in the square of x up to an eighth of a turn.
_SINE = [-2.86567956e-6, 1.98559923e-4, -8.33338592e-3, 1.66666672e-1]
_COSINE = [2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1.0]
_TANGENT = [4.38117981e-3, 8.94600598e-5, 1.08341556e-2, 2.12811474e-2, 5.40602170e-2, 1.33326918e-1, 3.33333433e-1]
_TANGENT_DOUBLE = [
    8.536176281212381e-06, -1.8535016976091842e-05, 3.6923333270231296e-05, -1.145718348585776e-05,
    5.590324582556609e-05, 8.983152983862527e-05, 0.00024127876670969597, 0.0005895630464969905, 0.0014559048303247576,
    0.003592120744957944, 0.008863236020621739, 0.021869488516330682, 0.05396825396867223, 0.13333333333332986,
    0.3333333333333333,
]  # fmt: skip
#: Up to here runtimes are trusted with vectors of double, and three parts of a half turn reduce doubles.
_FAR_TURNS_DOUBLE = "1e5"


def _helper_wave(name: str) -> Callable[[Prelude, str, torch.dtype, int], str]:
    """sin or cos in float, about one unit in the last place (polynomials after N. Juffa). Double is left to the
    runtime, lane by lane where a number is large: some runtimes let it spoil its neighbours."""

    def make(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
        if dtype != torch.float32:
            return _lonely_far(prelude, full, name, dtype, width)
        t, i = type_name(dtype, width), type_name(torch.int32, width)
        turn = prelude.use("turn", dtype, width)
        count = "q" if name == "sin" else f"q + ({i})(1)"
        odd = f"({count} & ({i})(1)) != ({i})(0)"
        chosen = _raw_select(dtype, width, odd, "c", "s")
        return (
            f"{t} {full}({t} a) {{ {i} q; {t} less; const {t} r = {turn}(a, &q, &less), z = r * r; "
            f"const {t} s = r - fma({_horner(_SINE, 'z', t)}, r * z, less); "
            f"const {t} c = fma(r, less, {_horner(_COSINE, 'z', t)}); "
            f"return as_{t}(as_{i}({chosen}) ^ ((({count}) & ({i})(2)) << ({i})(30))); }}"
        )

    return make


def _helper_tan(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """tan (in float after N. Juffa); near odd quarter turns the reciprocal, with what both roundings have lost."""
    single = dtype == torch.float32
    t, i = type_name(dtype, width), type_name(torch.int32 if single else torch.int64, width)
    turn = prelude.use("turn", dtype, width)
    chosen = _raw_select(dtype, width, f"(q & ({i})(1)) != ({i})(0)", "fma(v, lost, v)", "w - excess")
    tangent = _horner(_TANGENT, "z", t) if single else _horner(_TANGENT_DOUBLE, "z", t, suffix="")
    return (
        f"{t} {full}({t} a) {{ {i} q; {t} less; const {t} r = {turn}(a, &q, &less), z = r * r; "
        f"const {t} p = {tangent} * z, w = fma(p, r, r); "
        f"const {t} excess = fma(less, fma(w, w, ({t})(1.0f)), -fma(p, r, r - w)); "
        f"const {t} v = -1.0f / w, lost = fma(-v, excess, fma(v, w, ({t})(1.0f))); return {chosen}; }}"
    )


def _lonely_far(prelude: Prelude, full: str, builtin: str, dtype: torch.dtype, width: int) -> str:
    """A builtin function, one lane at a time where a lane of a vector is far from 0."""
    t = type_name(dtype, width)
    if width == 1:
        return f"{t} {full}({t} a) {{ return {builtin}(a); }}"
    some = prelude.use("any", torch.int64, width)
    lanes = ", ".join(f"{builtin}(a.s{_HEX[lane]})" for lane in range(width))
    near = f"fabs(a) < ({t})({_FAR_TURNS_DOUBLE})"
    return f"{t} {full}({t} a) {{ if ({some}(~({near}))) return ({t})({lanes}); return {builtin}(a); }}"


def _helper_tanh(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """tanh, which is 1 where it differs from 1 by less than half a unit: what is left there shows in gradients."""
    t = type_name(dtype, width)
    limit = f"({t})(9.01091385f)" if dtype == torch.float32 else f"({t})(19.06154746539849)"
    chosen = _raw_select(dtype, width, f"fabs(a) > {limit}", f"copysign(({t})(1), a)", "tanh(a)")
    return f"{t} {full}({t} a) {{ return {chosen}; }}"


def _helper_log1p(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """log1p, which is its argument where that is tiny: some runtimes lose the denormal ones."""
    t = type_name(dtype, width)
    limit = f"({t})({2.0**-26!r}f)" if dtype == torch.float32 else f"({t})({2.0**-55!r})"
    return f"{t} {full}({t} a) {{ return {_raw_select(dtype, width, f'fabs(a) < {limit}', 'a', 'log1p(a)')}; }}"


#: (1 + 2 x) erfcx(x) as a polynomial in (x - 4) / (x + 4), which takes x from 0 to infinity to [-1, 1], after
#: M. Shepherd and J. Laframboise (1981): for float and for double, the highest power first.
_ERFCX = [
    0.00011660799658166694, -0.0002486322974476492, -0.0007163394718890914, 0.005082809154341805,
    -0.016222274556440326, 0.037139916895707926, -0.06632325953594628, 0.09374044379277174, -0.10103995084812757,
    0.06809613205416176, 0.015379683653270457, -0.13962108431457343, 1.2329951186255526,
]  # fmt: skip
_ERFCX_DOUBLE = [
    -2.764120233734578e-10, 9.297625263709659e-10, 3.2323973445082033e-09, -1.2338731403798444e-08,
    -2.0725802488181963e-08, 1.0631817593818149e-07, 7.771943241086912e-08, -8.210647933297337e-07,
    2.9173425573089733e-07, 5.70657829924074e-06, -1.1221135665965907e-05, -2.4397731143023292e-05,
    0.00015062142608651945, -0.0001992571524726518, -0.0007577732435942576, 0.005031970069102256,
    -0.01619773406293477, 0.037167515526338006, -0.06633036581186058, 0.09373283499911264, -0.10103906603631811,
    0.06809705425466839, 0.015379652102619974, -0.13962111684056228, 1.2329951186255526,
]  # fmt: skip


def _helper_erfcx(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """exp(a * a) * erfc(a); of negative numbers, twice the exponential less erfcx of the opposite."""
    t = type_name(dtype, width)
    single = dtype == torch.float32
    polynomial = _horner(_ERFCX, "y", t) if single else _horner(_ERFCX_DOUBLE, "y", t, suffix="")
    # Beyond, y is 1 in any case; infinity over infinity is not.
    large = f"({t})(1e30{'f' if single else ''})"
    bounded = _raw_select(dtype, width, f"x > {large}", large, "x")
    square = f"const {t} s = a * a, tail = fma(a, a, -s), e = 2 * {prelude.use('exp', dtype, width)}(s);"
    opposite = _raw_select(dtype, width, f"e < ({t})(INFINITY)", "fma(e, tail, e) - f", "e")
    negative = f"a < ({t})(0)"
    return (
        f"{t} {full}({t} a) {{ const {t} x = fabs(a), b = {bounded}, y = (b - 4) / (b + 4); "
        f"const {t} f = {polynomial} * ({t})(0.5f) / (x + ({t})(0.5f)); {square} "
        f"return {_raw_select(dtype, width, negative, opposite, 'f')}; }}"
    )


#: For compilers that cannot be asked.
_HAS_BUILTIN = "#ifndef __has_builtin\n#define __has_builtin(name) 0\n#endif\n"


def _helper_any(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Whether any lane of a mask is set. PoCL looks at the lanes one by one in ``any``."""
    return (
        f"{_HAS_BUILTIN}int {full}({type_name(dtype, width)} mask) {{\n"
        "#if __has_builtin(__builtin_reduce_or)\n  return __builtin_reduce_or(mask) != 0;\n"
        "#else\n  return any(mask);\n#endif\n}"
    )


def _helper_divide_by(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Division of many numbers by one: a product with its reciprocal, corrected by what is left over. That is the
    rounded quotient (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990)
    where nothing overflows or vanishes on the way. Infinities and NaN are right without correction. What is left over
    has the sign that leaves a zero as it is; hence ``-f``, and no negative divisors."""
    one, many = type_name(dtype), type_name(dtype, width)
    return (
        f"{many} {full}({many} a, {one} d) {{ "
        f"if (!(d > 1e-30f && d < 1e30f)) return a / d; "
        f"const {one} r = 1.0f / d; const {many} q = a * r; "
        f"const {many} f = fma(q, ({many})(d), -a); "
        f"return {_raw_select(dtype, width, f'fabs(f) < ({many})(INFINITY)', f'fma(-f, ({many})(r), q)', 'q')}; }}"
    )


def _helper_rsqrt(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """The reciprocal of a root, which two roundings leave up to one and a half units away: corrected by one step of
    Newton's, whose product is taken with what it loses. Zeros and infinities are right without."""
    t = type_name(dtype, width)
    return (
        f"{t} {full}({t} a) {{ const {t} y = ({t})(1) / sqrt(a), p = a * y; "
        f"const {t} r = fma(-p, y, ({t})(1)) - fma(a, y, -p) * y; "
        f"return {_raw_select(dtype, width, f'fabs(r) < ({t})(INFINITY)', f'fma(({t})(0.5f) * y, r, y)', 'y')}; }}"
    )


def _helper_pow_by(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Powers with one exponent for all, which is mostly one of a few; these are computed as ATen does."""
    many, one = type_name(dtype, width), type_name(dtype)
    unit = f"({many})(1)"
    known = {
        "2": "a * a", "3": "a * a * a", "-1": f"{unit} / a", "-2": f"{unit} / (a * a)", "0.5f": "sqrt(a)",
        "-0.5f": f"{unit} / sqrt(a)",
    }  # fmt: skip
    tests = " ".join(f"if (e == {exponent}) return {result};" for exponent, result in known.items())
    power = prelude.use("pow", dtype, width)
    return f"{many} {full}({many} a, {one} e) {{ {tests} return {power}(a, ({many})(e)); }}"


def _helper_pow(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Powers in float, of positive numbers in double: two to the exponent times the logarithm, which is rounded once,
    at the end. Runtimes compute vectors of powers lane by lane; where zero, infinity, NaN or a negative number is among
    them, they still do. The logarithm is that of (1 + t) / (1 - t), an odd series, for a number between the root of
    1/2 and that of 2; what is left out of it and of the exponential series is below 2^-36 of the result."""
    t = type_name(dtype, width)
    if dtype != torch.float32 or width == 1:
        return _builtin_per_lane("pow", 2)(prelude, full, dtype, width)
    half = width // 2
    d, i, f = type_name(torch.float64, half), type_name(torch.int64, half), type_name(dtype, half)
    logarithm = _horner([2 / math.log(2) / odd for odd in range(15, 0, -2)], "s", d, suffix="")
    exponential = _horner([math.log(2) ** n / math.factorial(n) for n in range(10, -1, -1)], "r", d, suffix="")
    ordinary = f"!({prelude.use('any', torch.int32, width)}(!(a > 0.0f & a < INFINITY & fabs(b) < INFINITY)))"
    return f"""#ifdef cl_khr_fp64
{f} {full}_positive({d} a, {d} b) {{
  const {i} exponent = (as_{i}(a) - ({i})(0x3fe6a09e667f3bcdL)) >> ({i})(52);
  const {d} m = as_{d}(as_{i}(a) - (exponent << ({i})(52)));
  const {d} whole = as_{d}(exponent + as_{i}(({d})({_ROUNDS_DOUBLE}))) - ({d})({_ROUNDS_DOUBLE});
  const {d} t = (m - 1.0) / (m + 1.0), s = t * t;
  const {d} p = fmin(fmax(b * fma({logarithm}, t, whole), ({d})(-200.0)), ({d})(200.0));
  const {d} shifted = p + ({d})({_ROUNDS_DOUBLE}), r = p - (shifted - ({d})({_ROUNDS_DOUBLE}));
  return convert_float{half}(as_{d}(as_{i}({exponential}) + (as_{i}(shifted) << ({i})(52))));
}}
#endif
{t} {full}({t} a, {t} b) {{
#ifdef cl_khr_fp64
  if ({ordinary})
    return ({t})({full}_positive(convert_double{half}(a.lo), convert_double{half}(b.lo)),
      {full}_positive(convert_double{half}(a.hi), convert_double{half}(b.hi)));
#endif
  return pow(a, b);
}}"""


#: erfinv(a) / a as polynomials in w = -log(1 - a * a), after M. Giles (2010): of w - 2.5 up to w = 5, beyond of
#: sqrt(w) - 3 and sqrt(w) - 5. Errors are below 2^-27, so that one Newton step makes them those of double.
_ERFINV_NEAR = [
    -2.1203565131819003e-11, 1.2302888973120805e-10, 8.327000821030813e-10, -1.0854397093112376e-08,
    1.3691496015199152e-08, 4.786448243400271e-07, -3.4171152327450104e-06, -4.99588144876006e-06,
    0.00021825064939995, -0.001252708083622281, -0.004177317810140035, 0.24664027678526776, 1.501409351110792,
]  # fmt: skip
_ERFINV_FAR = [
    -3.398624605976797e-05, 0.00016715343465727967, -0.00027201111907726764, -0.00012989458640561582,
    0.00147300818485497, -0.003562125613737038, 0.005687978075205946, -0.007643701957138936, 0.009445290780432342,
    1.001675284632845, 2.8329768016803016,
]  # fmt: skip
_ERFINV_FARTHEST = [
    2.582607074657502e-07, -1.189749619332133e-06, 4.5621644157471495e-06, -1.953045067754116e-05,
    7.595676431149711e-05, -0.00021507140535526983, -0.0001387108545820089, 1.0103004678728265, 4.8499064011536275,
]  # fmt: skip


def _helper_erfinv(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Giles' approximation in double: of floats rounded once, of doubles refined by a Newton step, which near 1 is one
    of ``erfc``, where what is left to 1 is exact."""
    t, d = type_name(dtype), f"{full}_t"
    w = {
        name: _horner(numbers, name, d, "")
        for name, numbers in zip("nfg", (_ERFINV_NEAR, _ERFINV_FAR, _ERFINV_FARTHEST), strict=True)
    }
    step = """
  const double y = fabs(r), m = fabs(a), slope = 1.1283791670955126 * exp(-y * y);
  r = copysign(m < 0.5 ? y - (erf(y) - m) / slope : y + (erfc(y) - (1 - m)) / slope, a);"""
    scalar = f"""#ifdef cl_khr_fp64
typedef double {d};
#else
typedef float {d};
#endif
{t} {full}_1({t} a) {{
  const {d} x = a, w = -log((1 - x) * (1 + x));
  if (!(w < INFINITY)) return fabs(a) == 1 ? copysign(({t})INFINITY, a) : ({t})NAN;
  const {d} n = w - ({d})2.5, f = sqrt(w) - 3, g = f - 2;
  {d} r = x * (w < 5 ? {w["n"]} : f < 1.075f ? {w["f"]} : {w["g"]});{step if dtype == torch.float64 else ""}
  return ({t})r;
}}
"""
    if width == 1:
        return scalar + f"{t} {full}({t} a) {{ return {full}_1(a); }}"
    return scalar + _per_lane(full, t, t, f"{full}_1", 1, width)


def _helper_philox(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Four 32-bit words from a 64-bit seed and counter (Philox 4x32, ten rounds); returns words 0 and 1 packed."""
    u, ul = type_name(torch.uint32, width), type_name(torch.uint64, width)
    convert = f"convert_{u}" if width > 1 else f"({u})"
    widen = f"convert_{ul}" if width > 1 else f"({ul})"
    shift = f"(({ul})(32))"
    return (
        f"{ul} {full}({ul} seed, {ul} offset) {{\n"
        f"  {u} c0 = {convert}(offset), c1 = {convert}(offset >> {shift}), c2 = ({u})(0), c3 = ({u})(0);\n"
        f"  {u} k0 = {convert}(seed), k1 = {convert}(seed >> {shift});\n"
        f"  for (int round = 0; round < 10; ++round) {{\n"
        f"    {u} h0 = mul_hi(c0, ({u})(0xD2511F53u)), l0 = c0 * 0xD2511F53u;\n"
        f"    {u} h1 = mul_hi(c2, ({u})(0xCD9E8D57u)), l1 = c2 * 0xCD9E8D57u;\n"
        f"    c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;\n"
        f"    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;\n  }}\n"
        f"  return {widen}(c0) | ({widen}(c1) << {shift});\n}}"
    )


def _helper_rand(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    philox = prelude.use("philox", torch.uint64, width)
    f, ul, u = type_name(torch.float32, width), type_name(torch.uint64, width), type_name(torch.uint32, width)
    to_u = f"convert_{u}" if width > 1 else f"({u})"
    to_f = f"convert_{f}" if width > 1 else f"({f})"
    # 24 bits: every result is a float below 1.
    return (
        f"{f} {full}({ul} seed, {ul} offset) "
        f"{{ return {to_f}({to_u}({philox}(seed, offset)) >> ({u})(8)) * 5.9604644775390625e-8f; }}"
    )


def _helper_randn(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    philox = prelude.use("philox", torch.uint64, width)
    f, ul, u = type_name(torch.float32, width), type_name(torch.uint64, width), type_name(torch.uint32, width)
    to_u = f"convert_{u}" if width > 1 else f"({u})"
    to_f = f"convert_{f}" if width > 1 else f"({f})"
    # Box-Muller; the radius takes a uniform number in (0, 1], so that its logarithm is finite.
    return (
        f"{f} {full}({ul} seed, {ul} offset) {{ {ul} bits = {philox}(seed, offset); "
        f"{f} u1 = {to_f}(({to_u}(bits) >> ({u})(8)) + ({u})(1)) * 5.9604644775390625e-8f; "
        f"{f} u2 = {to_f}({to_u}(bits >> ({ul})(32)) >> ({u})(8)) * 5.9604644775390625e-8f; "
        f"return sqrt(-2.0f * log(u1)) * cos(6.283185307179586f * u2); }}"
    )


def _helper_randint64(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    philox = prelude.use("philox", torch.uint64, width)
    sl, ul = type_name(torch.int64, width), type_name(torch.uint64, width)
    cast = f"as_{ul}"
    # A range of 2^64 shows as 0: then all bits count.
    modulo = _raw_select(torch.uint64, width, f"range == ({ul})(0)", "bits", "bits % divisor")
    divisor = _raw_select(torch.uint64, width, f"range == ({ul})(0)", f"({ul})(1)", "range")
    return (
        f"{sl} {full}({ul} seed, {ul} offset, {sl} low, {sl} high) {{ {ul} bits = {philox}(seed, offset); "
        f"{ul} range = {cast}(high) - {cast}(low); {ul} divisor = {divisor}; "
        f"return as_{sl}({modulo} + {cast}(low)); }}"
    )


def _helper_atomic_add(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    raise Unsupported("atomic_add is made by atomic_add()")


def _helper_bf16(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """float to bfloat16 bits, to nearest even; NaN stays NaN, with its sign."""
    f, u, us = type_name(torch.float32, width), type_name(torch.uint32, width), type_name(torch.uint16, width)
    convert = f"convert_{us}" if width > 1 else f"({us})"
    rounded = f"(bits + ({u})(0x7fff) + ((bits >> ({u})(16)) & ({u})(1))) >> ({u})(16)"
    chosen = _raw_select(torch.float32, width, "a != a", f"((bits >> ({u})(16)) | ({u})(0x40))", rounded)
    return f"{us} {full}({f} a) {{ {u} bits = as_{u}(a); return {convert}({chosen}); }}"


# PoCL converts halves by shifts and masks although its compiler knows the instructions for it, where there are any.
_NATIVE_HALF = "#if __has_builtin(__builtin_convertvector) && (defined(__F16C__) || defined(__aarch64__))\n"


# PoCL's vload_halfN and vstore_halfN take their pointers to be aligned to the whole vector, so that memory is
# accessed as ushort, and a register in between is converted.
def _helper_half_values(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    if width == 1:
        return f"float {full}(ushort bits) {{ return vload_half(0, (const half*)&bits); }}"
    return f"{_HAS_BUILTIN}float{width} {full}(ushort{width} bits) {{\n" + _with_native_halves(
        full, width, f"return __builtin_convertvector(__builtin_astype(bits, {full}_t), float{width});",
        f"return vload_half{width}(0, (const half*)&bits);",
    )  # fmt: skip


def _with_native_halves(full: str, width: int, native: str, portable: str) -> str:
    """The end of a function: what it does with vectors of halves, of type ``<full>_t``, and where there are none."""
    return (
        f"{_NATIVE_HALF}  typedef half {full}_t __attribute__((ext_vector_type({width})));\n"
        f"  {native}\n#else\n  {portable}\n#endif\n}}"
    )


# PoCL cuts vstoreN into pieces of 16 bytes; an assignment through a type of the element's alignment stays whole.
def _helper_store(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    vector, loose = type_name(dtype, width), f"{full}_t"
    return (
        f"typedef {vector} {loose} __attribute__((aligned({dtype.itemsize})));\n"
        f"void {full}({vector} value, __global {type_name(dtype)}* p) {{ *(__global {loose}*)p = value; }}"
    )


# The atomic operation that every runtime with threads ends a work-group with orders these stores before what follows.
def _helper_store_far(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    vector, near = type_name(dtype, width), prelude.use("store", dtype, width)
    return (
        f"{_HAS_BUILTIN}void {full}({vector} value, __global {type_name(dtype)}* p, int far) {{\n"
        "#if __has_builtin(__builtin_nontemporal_store)\n"
        f"  if (far) {{ __builtin_nontemporal_store(value, (__global {vector}*)p); return; }}\n"
        f"#endif\n  {near}(value, p);\n}}"
    )


def _helper_fetch(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Asks for the cache line at an address."""
    return (
        f"{_HAS_BUILTIN}void {full}(ulong address) {{\n#if __has_builtin(__builtin_prefetch)\n"
        "  __builtin_prefetch((const void*)address);\n#endif\n}"
    )


def _helper_as_half(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Floats rounded to float16."""
    if width == 1:
        return (
            f"float {full}(float a) {{ ushort bits; vstore_half_rte(a, 0, (half*)&bits); "
            "return vload_half(0, (const half*)&bits); }"
        )
    values, bits = (prelude.use(name, torch.float32, width) for name in ("half_values", "half_bits"))
    return f"float{width} {full}(float{width} a) {{ return {values}({bits}(a)); }}"


def _helper_half_bits(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    return f"{_HAS_BUILTIN}ushort{width} {full}(float{width} value) {{\n" + _with_native_halves(
        full, width, f"return __builtin_astype(__builtin_convertvector(value, {full}_t), ushort{width});",
        f"ushort{width} bits;\n  vstore_half{width}_rte(value, 0, (half*)&bits);\n  return bits;",
    )  # fmt: skip


_DIGAMMA = """#ifdef cl_khr_fp64
typedef double {full}_t;
#else
typedef {t} {full}_t;
#endif
/* In double where there is one: near the zeros the parts nearly cancel. */
{t} {full}_1({t} given) {{
  {full}_t x = given, result = 0;
  if (x == 0) return copysign(({t})INFINITY, -given);
  if (x < 0) {{
    if (x == floor(x)) return ({t})NAN;
    result = -({full}_t)3.14159265358979323846 / tan(({full}_t)3.14159265358979323846 * (x - trunc(x)));
    x = 1 - x;
  }}
  while (x < 10) {{ result -= 1 / x; x += 1; }}
  const {full}_t y = 1 / (x * x);
  return ({t})(result + log(x) - ({full}_t)0.5 / x - y * (({full}_t)0.083333333333333333
    - y * (({full}_t)0.0083333333333333333 - y * (({full}_t)0.003968253968253968 - y * (({full}_t)0.0041666666666666667
    - y * (({full}_t)0.0075757575757575758 - y * (({full}_t)0.021092796092796093
    - y * ({full}_t)0.083333333333333333)))))));
}}
"""


def _helper_digamma(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    t = type_name(dtype)
    scalar = _DIGAMMA.format(t=t, full=full)
    if width == 1:
        return scalar + f"{t} {full}({t} a) {{ return {full}_1(a); }}"
    return scalar + _per_lane(full, t, t, f"{full}_1", 1, width)


def _builtin_per_lane(builtin: str, count: int) -> Callable[[Prelude, str, torch.dtype, int], str]:
    def make(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
        t = type_name(dtype)
        if width == 1:
            names = "abcd"[:count]
            return f"{t} {full}({', '.join(f'{t} {n}' for n in names)}) {{ return {builtin}({', '.join(names)}); }}"
        return _per_lane(full, t, t, builtin, count, width)

    return make


_HELPERS: dict[str, Callable[[Prelude, str, torch.dtype, int], str]] = {
    "floordiv": _helper_floordiv,
    "fmod": _helper_fmod,
    "truncdiv": _helper_truncdiv,
    "truncmod": _helper_truncmod,
    "remainder": _helper_remainder,
    "ipow": _helper_ipow,
    "min": _helper_minmax("min"),
    "max": _helper_minmax("max"),
    "quick_min": _helper_quick("<"),
    "quick_max": _helper_quick(">"),
    "nan_bits": _helper_nan_bits,
    "with_nan": _helper_with_nan,
    "add_to": _helper_add_to,
    "with_lost": _helper_with_lost,
    "sign": _helper_sign,
    "any": _helper_any,
    "decay": _helper_decay,
    "divide_by": _helper_divide_by,
    "pow_by": _helper_pow_by,
    "erf": _helper_erf,
    "exp": _helper_exp,
    "exp_together": _helper_exp_together,
    "erfinv": _helper_erfinv,
    "philox": _helper_philox,
    "rand": _helper_rand,
    "randn": _helper_randn,
    "randint64": _helper_randint64,
    "bf16": _helper_bf16,
    "half_values": _helper_half_values,
    "store": _helper_store,
    "store_far": _helper_store_far,
    "half_bits": _helper_half_bits,
    "as_half": _helper_as_half,
    "far_turn": _helper_far_turn,
    "turn": _helper_turn,
    "sin": _helper_wave("sin"),
    "cos": _helper_wave("cos"),
    "tan": _helper_tan,
    "rsqrt": _helper_rsqrt,
    "tanh": _helper_tanh,
    "erfcx": _helper_erfcx,
    "fetch": _helper_fetch,
    "digamma": _helper_digamma,
    "lgamma": _builtin_per_lane("lgamma", 1),
    "log1p": _helper_log1p,
    "nextafter": _builtin_per_lane("nextafter", 2),
    "normal_cdf": _helper_normal_cdf,
    "pow": _helper_pow,
}


#: Between float and the bits of a half in a register (the builtin conversions work on memory), to nearest even.
_HALF_CONVERSIONS = """float ob_half_to_float(ushort bits) {
  uint magnitude = (uint)(bits & 0x7fff) << 13;
  float scaled = as_float(magnitude) * as_float(0x77800000u);
  uint result = (bits & 0x7c00) == 0x7c00 ? (magnitude | 0x7f800000u) : as_uint(scaled);
  return as_float(result | ((uint)(bits & 0x8000) << 16));
}
uint ob_float_to_half(float value) {
  uint bits = as_uint(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x47800000u) return sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u);
  if (magnitude < 0x38800000u) return sign | (as_uint(as_float(magnitude) + 0.5f) - 0x3f000000u);
  return sign | ((magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13);
}
"""


def atomic_add_helper(dtype: torch.dtype) -> tuple[str, str]:
    """(name, text) of ``void name(__global T* p, V value)`` for an element type. Raises Unsupported.

    The first exchange, of a zero, finds out what is there: a plain read beside other items' exchanges would be a race.
    """
    memory = memory_type(dtype)
    name = f"ob_atomic_add_{str(dtype).rpartition('.')[2]}"
    if dtype in (torch.int32, torch.uint32):
        return name, f"void {name}(__global {memory}* p, {memory} v) {{ atomic_add(p, v); }}"
    if dtype in (torch.int64, torch.uint64):
        return name, (
            "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n"
            f"void {name}(__global {memory}* p, {memory} v) {{ atom_add(p, v); }}"
        )
    if dtype == torch.float32:
        return name, (
            f"void {name}(__global float* p, float v) {{ volatile __global uint* q = (volatile __global uint*)p; "
            "uint old = 0, seen; do { seen = old; old = atomic_cmpxchg(q, seen, as_uint(as_float(seen) + v)); } "
            "while (old != seen); }"
        )
    if dtype == torch.float64:
        return name, (
            "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n"
            f"void {name}(__global double* p, double v) {{ volatile __global ulong* q = (volatile __global ulong*)p; "
            "ulong old = 0, seen; do { seen = old; old = atom_cmpxchg(q, seen, as_ulong(as_double(seen) + v)); } "
            "while (old != seen); }"
        )
    if dtype in (torch.float16, torch.bfloat16):
        # The 32-bit word around the element is exchanged.
        if dtype == torch.float16:
            read, write = "ob_half_to_float(part)", "uint sum = ob_float_to_half(value + v);"
        else:
            read, write = "as_float((uint)part << 16)", "uint sum = ob_bf16_float(value + v);"
        conversions = _HALF_CONVERSIONS if dtype == torch.float16 else ""
        return name, conversions + (
            f"void {name}(__global {memory}* p, float v) {{ "
            "size_t address = (size_t)p; volatile __global uint* q = (volatile __global uint*)(address & ~(size_t)3); "
            "uint shift = (uint)(address & 2) * 8, old = 0, seen; do { seen = old; "
            f"ushort part = (ushort)(seen >> shift); float value = {read}; {write} "
            "old = atomic_cmpxchg(q, seen, (seen & ~(0xffffu << shift)) | ((uint)sum << shift)); "
            "} while (old != seen); }"
        )
    if dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.bool):
        bits = 8 if dtype.itemsize == 1 else 16
        mask = "0xffu" if bits == 8 else "0xffffu"
        low = 3 if bits == 8 else 2
        combine = "(part | (uint)(v != 0))" if dtype == torch.bool else "(part + (uint)v)"
        return name, (
            f"void {name}(__global {memory}* p, int v) {{ "
            "size_t address = (size_t)p; volatile __global uint* q = (volatile __global uint*)(address & ~(size_t)3); "
            f"uint shift = (uint)(address & {low}) * 8, old = 0, seen; do {{ seen = old; "
            f"uint part = (seen >> shift) & {mask}; uint sum = {combine} & {mask}; "
            f"old = atomic_cmpxchg(q, seen, (seen & ~({mask} << shift)) | (sum << shift)); }} while (old != seen); }}"
        )
    raise Unsupported(f"atomic add to {dtype}")


# ---- values --------------------------------------------------------------------------------------------------


def convert(text: str, source: torch.dtype, target: torch.dtype, width: int) -> str:
    """A value of one compute dtype as another (C's conversions, as ATen does them)."""
    if source == target:
        return text
    name = type_name(target, width)
    if target == torch.bool:
        zero = f"({type_name(source, width)})(0)"
        return _to_bool(source, width, f"({text} != {zero})")
    if source == torch.bool:
        if width == 1:
            return f"(({name})({text}))"
        return f"convert_{name}(({text}) & 1)"
    if source.is_floating_point and not target.is_floating_point:
        # Conversions of negative numbers to unsigned types, and to small types, go through a wide signed integer.
        if target.itemsize < 4 or not target.is_signed:
            wide = type_name(torch.int64, width)
            inner = f"convert_{wide}_rtz({text})" if width > 1 else f"(({wide})({text}))"
            return f"convert_{name}({inner})" if width > 1 else f"(({name}){inner})"
        return f"convert_{name}_rtz({text})" if width > 1 else f"(({name})({text}))"
    return f"convert_{name}({text})" if width > 1 else f"(({name})({text}))"


def broadcast(text: str, dtype: torch.dtype, width: int) -> str:
    """One lane's value in all lanes."""
    if width == 1:
        return text
    if dtype == torch.bool:
        return f"(-({type_name(dtype, width)})({text}))"
    return f"(({type_name(dtype, width)})({text}))"


def load(prelude: Prelude, buffer: str, dtype: torch.dtype, index: str, width: int) -> str:
    """``width`` consecutive elements from ``index`` on, in the compute dtype."""
    if width == 1:
        return load_pointer(f"({buffer} + ({index}))", dtype)
    pointer = f"{buffer} + ({index})"
    if dtype == torch.float16:
        pointer = f"(__global const ushort*)({pointer})"
    vector = f"vload{width}(0, {pointer})"
    if dtype in (torch.float16, torch.bfloat16):
        return half_values(prelude, vector, dtype, width)
    if dtype == torch.bool:
        return f"(convert_int{width}({vector}) != 0)"
    return vector


def half_values(prelude: Prelude, bits: str, dtype: torch.dtype, width: int) -> str:
    """The floats whose bits as float16 or bfloat16 are given."""
    if dtype == torch.bfloat16:
        return f"as_float{width}(convert_uint{width}({bits}) << 16)" if width > 1 else f"as_float((uint)({bits}) << 16)"
    return f"{prelude.use('half_values', torch.float32, width)}({bits})"


def half_bits(prelude: Prelude, value: str, dtype: torch.dtype, width: int) -> str:
    """The bits of floats rounded to float16 (vectors only) or bfloat16, to the nearest, ties to even."""
    helper = "bf16" if dtype == torch.bfloat16 else "half_bits"
    return f"{prelude.use(helper, torch.float32, width)}({value})"


def narrowed(prelude: Prelude, value: str, dtype: torch.dtype, width: int) -> str:
    """Floats rounded to float16 or bfloat16."""
    if dtype == torch.bfloat16:
        return half_values(prelude, half_bits(prelude, value, dtype, width), dtype, width)
    return f"{prelude.use('as_half', torch.float32, width)}({value})"


def load_pointer(pointer: str, dtype: torch.dtype) -> str:
    """The element at a pointer, in the compute dtype."""
    if dtype == torch.float16:
        return f"vload_half(0, {pointer})"
    if dtype == torch.bfloat16:
        return f"as_float((uint)(*{pointer}) << 16)"
    if dtype == torch.bool:
        return f"(*{pointer} != 0)"
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise Unsupported(f"load of {dtype}")
    return f"*{pointer}"


def store(
    prelude: Prelude, buffer: str, dtype: torch.dtype, index: str, value: str, width: int, far: str | None = None
) -> str:
    """A statement that writes ``width`` consecutive elements; ``value`` is of the element's compute dtype. A vector
    whose address is a multiple of its size goes past the caches where ``far``, a condition, holds."""
    pointer = f"{buffer} + ({index})"
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise Unsupported(f"store of {dtype}")
    if dtype == torch.float16 and width == 1:
        return f"vstore_half_rte({value}, 0, {pointer});"
    if dtype == torch.float16:
        value = half_bits(prelude, value, dtype, width)
        pointer = f"(__global ushort*)({pointer})"
    elif dtype == torch.bfloat16:
        value = half_bits(prelude, value, dtype, width)
    elif dtype == torch.bool:
        value = f"convert_uchar{width}(({value}) & 1)" if width > 1 else f"(uchar)({value})"
    if width == 1:
        return f"{buffer}[{index}] = {value};"
    stored = {torch.bool: torch.uint8, torch.bfloat16: torch.uint16, torch.float16: torch.uint16}.get(dtype, dtype)
    if far is not None:
        return f"{prelude.use('store_far', stored, width)}({value}, {pointer}, {far});"
    return f"{prelude.use('store', stored, width)}({value}, {pointer});"


# ---- operators -----------------------------------------------------------------------------------------------

#: Operators that are a builtin function of the same meaning on floats.
_FLOAT_BUILTINS: dict[str, str] = {
    "exp2": "exp2", "expm1": "expm1", "sqrt": "sqrt", "cosh": "cosh",
    "sinh": "sinh", "acos": "acos", "acosh": "acosh", "asin": "asin", "asinh": "asinh", "atan": "atan",
    "atanh": "atanh", "erfc": "erfc", "log10": "log10", "log2": "log2",
    "log": "log", "round": "rint", "floor": "floor", "trunc": "trunc", "ceil": "ceil",
    "atan2": "atan2", "copysign": "copysign", "hypot": "hypot", "fma": "fma",
}  # fmt: skip
_FLOAT_HELPERS = {
    "erf", "erfcx", "erfinv", "exp", "lgamma", "log1p", "digamma", "nextafter", "normal_cdf", "sin", "cos", "tan",
    "tanh", "fmod",
}  # fmt: skip
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">="}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
_BITWISE = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "and_": "&", "or_": "|", "xor": "^"}
_LOGICAL = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
#: Operators that keep an integer as it is.
_INTEGER_IDENTITIES = {"round", "floor", "trunc", "ceil"}

SUPPORTED = frozenset(
    {
        *_FLOAT_BUILTINS, *_FLOAT_HELPERS, *_COMPARISONS, *_ARITHMETIC, *_BITWISE, *_LOGICAL, "logical_not",
        "bitwise_not", "neg", "abs", "sign", "signbit", "isnan", "isinf", "relu", "sigmoid", "rsqrt", "reciprocal",
        "square", "minimum", "maximum", "where", "pow", "truediv", "div_rn", "floordiv", "truncdiv", "mod",
        "remainder", "bitwise_left_shift", "bitwise_right_shift", "lshift", "rshift", "to_dtype",
        "to_dtype_bitcast", "rand", "randn", "randint64", "ldexp", "identity", "mul_rn",
    }
)  # fmt: skip


def operator(
    prelude: Prelude, name: str, args: list[str], dtypes: list[torch.dtype], dtype: torch.dtype, width: int
) -> str:
    """The text of an operator on operands already of the right compute dtype and width. Raises Unsupported."""
    a = args[0]
    source = dtypes[0]
    if name in _COMPARISONS:
        return _compare(_COMPARISONS[name], args, source, width)
    if name in _LOGICAL:
        return f"(({args[0]}) {_LOGICAL[name]} ({args[1]}))"
    if name == "logical_not":
        return f"(!({a}))" if width == 1 else f"(~({a}))"
    if name in _ARITHMETIC:
        return _arithmetic(_ARITHMETIC[name], args, dtype, width)
    if name == "mul_rn":
        return _arithmetic("*", args, dtype, width)
    if name in _BITWISE:
        return f"({args[0]} {_BITWISE[name]} {args[1]})"
    if name == "where":
        return _select(dtype, width, args[0], args[1], args[2])
    if name in ("minimum", "maximum"):
        return _minmax(prelude, name, args, dtype, width)
    if dtype.is_floating_point or name in ("isnan", "isinf", "signbit"):
        return _float_operator(prelude, name, args, source, dtype, width)
    return _integer_operator(prelude, name, args, dtype, width)


def operator_together(prelude: Prelude, name: str, dtype: torch.dtype, width: int) -> str | None:
    """The function that replaces ``TOGETHER`` vectors by what an operator of one operand makes of them, or None where
    nothing is won by taking them together."""
    if name != "exp" or dtype != torch.float32 or width != WIDTH:
        return None
    return prelude.use("exp_together", dtype, width)


def _compare(symbol: str, args: list[str], dtype: torch.dtype, width: int) -> str:
    left, right = args
    if dtype == torch.bool and width > 1:
        # True is -1 here, so that the order is the other way round.
        left, right = right, left
    return _to_bool(dtype, width, f"({left} {symbol} {right})")


def _arithmetic(symbol: str, args: list[str], dtype: torch.dtype, width: int) -> str:
    if dtype == torch.bool:
        raise Unsupported(f"bool {symbol} bool")
    name = type_name(dtype, width)
    if dtype.is_floating_point or not dtype.is_signed:
        text = f"({args[0]} {symbol} {args[1]})"
        return text if width > 1 or dtype.itemsize >= 4 else f"(({name})({text}))"
    unsigned = type_name(_unsigned(dtype), width)
    if width > 1:
        return f"as_{name}(as_{unsigned}({args[0]}) {symbol} as_{unsigned}({args[1]}))"
    wide = unsigned if dtype.itemsize >= 4 else "uint"
    return f"(({name})(({wide})({args[0]}) {symbol} ({wide})({args[1]})))"


def _unsigned(dtype: torch.dtype) -> torch.dtype:
    return {
        torch.int8: torch.uint8, torch.int16: torch.uint16, torch.int32: torch.uint32, torch.int64: torch.uint64
    }.get(dtype, dtype)  # fmt: skip


def _minmax(prelude: Prelude, name: str, args: list[str], dtype: torch.dtype, width: int) -> str:
    if dtype == torch.bool:
        return f"({args[0]} {'&' if name == 'minimum' else '|'} {args[1]})"
    short = name[:3]
    if not dtype.is_floating_point:
        t = type_name(dtype, width)
        return f"{short}(({t})({args[0]}), ({t})({args[1]}))"
    return f"{prelude.use(short, dtype, width)}({args[0]}, {args[1]})"


def _float_operator(
    prelude: Prelude, name: str, args: list[str], source: torch.dtype, dtype: torch.dtype, width: int
) -> str:
    a = args[0]
    t = type_name(source if name in ("isnan", "isinf", "signbit") else dtype, width)
    one, zero = f"(({t})(1))", f"(({t})(0))"
    if name in _FLOAT_BUILTINS:
        return f"{_FLOAT_BUILTINS[name]}({', '.join(args)})"
    if name in _FLOAT_HELPERS:
        return f"{prelude.use(name, dtype, width)}({', '.join(args)})"
    if name == "isnan":
        if not source.is_floating_point:
            return "0" if width == 1 else f"((int{width})(0))"
        return _to_bool(source, width, f"({a} != {a})")
    if name == "isinf":
        if not source.is_floating_point:
            return "0" if width == 1 else f"((int{width})(0))"
        return _to_bool(source, width, f"(fabs({a}) == ({t})(INFINITY))")
    if name == "signbit":
        if not source.is_floating_point:
            return _to_bool(source, width, f"({a} < {zero})")
        bits = type_name(torch.int64 if source == torch.float64 else torch.int32, width)
        return _to_bool(source, width, f"(as_{bits}({a}) < ({bits})(0))")
    if name in ("truediv", "div_rn"):
        return f"({a} / {args[1]})"
    if name == "pow":
        return f"{prelude.use('pow', dtype, width)}({a}, {args[1]})"
    if name == "remainder":
        return f"{prelude.use('remainder', dtype, width)}({a}, {args[1]})"
    if name == "mod":
        return f"{prelude.use('fmod', dtype, width)}({a}, {args[1]})"
    if name == "floordiv":
        return f"{prelude.use('floordiv', dtype, width)}({a}, {args[1]})"
    if name == "rsqrt":
        return f"{prelude.use('rsqrt', dtype, width)}({a})"
    if name == "truncdiv":
        return f"trunc({a} / {args[1]})"
    if name == "ldexp":
        return f"ldexp({a}, convert_{type_name(torch.int32, width)}_sat({args[1]}))"
    simple = {
        "neg": f"(-{a})",
        "abs": f"fabs({a})",
        "reciprocal": f"({one} / {a})",
        "square": f"({a} * {a})",
        "identity": a,
    }
    if name in simple:
        return simple[name]
    if name == "sigmoid":
        return f"({one} / ({one} + {prelude.use('exp', dtype, width)}(-{a})))"
    if name == "sign":
        return f"{prelude.use('sign', dtype, width)}({a})"
    if name == "relu":  # -0 and NaN stay what they are
        # Compilers make a vector that once was of halves one again, and take the wrong one of two zeros.
        limit = f"{a} <= ({t})(-0x1p-149f)" if dtype == torch.float32 and width > 1 else f"{a} < {zero}"
        return _raw_select(dtype, width, limit, zero, a)
    raise Unsupported(name)


def _integer_operator(prelude: Prelude, name: str, args: list[str], dtype: torch.dtype, width: int) -> str:
    a = args[0]
    if name in ("identity", *_INTEGER_IDENTITIES):
        return a
    if dtype == torch.bool:
        return _bool_operator(name, args, width)
    t = type_name(dtype, width)
    if name == "bitwise_not":
        return f"(({t})(~{a}))" if width == 1 else f"(~{a})"
    if name == "neg":
        return _arithmetic("-", [f"(({t})(0))", a], dtype, width)
    if name == "abs":
        return f"(({t})abs({a}))" if width == 1 else f"as_{t}(abs({a}))"
    if name == "square":
        return _arithmetic("*", [a, a], dtype, width)
    if name in ("floordiv", "truncdiv", "remainder"):
        return f"{prelude.use(name, dtype, width)}({a}, {args[1]})"
    if name in ("mod", "fmod"):
        return f"{prelude.use('truncmod', dtype, width)}({a}, {args[1]})"
    if name == "pow":
        return f"{prelude.use('ipow', dtype, width)}({a}, {args[1]})"
    if name == "sign":
        return f"{prelude.use('sign', dtype, width)}({a})"
    if name == "relu":
        return f"max({a}, ({t})(0))"
    if name in ("bitwise_left_shift", "lshift", "bitwise_right_shift", "rshift"):
        return _shift(name, args, dtype, width)
    raise Unsupported(f"{name} on {dtype}")


def _bool_operator(name: str, args: list[str], width: int) -> str:
    if name in ("bitwise_not", "neg"):
        return f"(!({args[0]}))" if width == 1 else f"(~({args[0]}))"
    if name in ("abs", "sign", "relu", "square"):
        return args[0]
    raise Unsupported(f"{name} on bool")


def _shift(name: str, args: list[str], dtype: torch.dtype, width: int) -> str:
    """Shifts by a negative or too large count: 0, or for a signed right shift the sign, as ATen defines them."""
    t = type_name(dtype, width)
    bits = dtype.itemsize * 8
    a, b = args
    inside = f"({b} < ({t})({bits}))"
    if dtype.is_signed:
        inside = f"(({b} >= ({t})(0)) & ({b} < ({t})({bits})))"
    left = name in ("bitwise_left_shift", "lshift")
    if left:
        unsigned = type_name(_unsigned(dtype), width)
        count = _raw_select(dtype, width, inside, b, f"({t})(0)")
        shifted = f"({t})(({unsigned})({a}) << ({count}))"
        if width > 1:
            shifted = f"as_{t}(as_{unsigned}({a}) << as_{unsigned}({count}))"
        return _raw_select(dtype, width, inside, shifted, f"({t})(0)")
    count = _raw_select(dtype, width, inside, b, f"({t})({bits - 1})")
    shifted = f"(({t})({a} >> {count}))" if width == 1 else f"({a} >> {count})"
    if dtype.is_signed:
        return shifted
    return _raw_select(dtype, width, inside, shifted, f"({t})(0)")


def bitcast(text: str, source: torch.dtype, target: torch.dtype, width: int) -> str:
    """The bits of a value of one memory dtype as another of the same size. Raises Unsupported for narrow floats."""
    if torch.float16 in (source, target) or torch.bfloat16 in (source, target) or torch.bool in (source, target):
        raise Unsupported(f"bitcast of {source} to {target}")
    return f"as_{type_name(target, width)}({text})"


def identity_of(kind: str, dtype: torch.dtype) -> str:
    """The neutral element of a reduction, one lane."""
    if kind in ("sum", "any", "xor_sum"):
        return literal(0, dtype)
    if kind == "prod":
        return literal(1, dtype)
    low = kind in ("max", "argmax")
    if dtype.is_floating_point:
        return literal(-math.inf if low else math.inf, dtype)
    return f"(({type_name(dtype)})({_LIMITS[dtype][0 if low else 1]}))"


def combine(prelude: Prelude, kind: str, a: str, b: str, dtype: torch.dtype, width: int) -> str:
    """Two partial results of a reduction as one; of bool, a sum is whether any is true, a product whether all are.
    Raises Unsupported."""
    if dtype == torch.bool and kind in ("sum", "prod"):
        return f"({a} {'|' if kind == 'sum' else '&'} {b})"
    if kind == "sum":
        return _arithmetic("+", [a, b], dtype, width)
    if kind == "prod":
        return _arithmetic("*", [a, b], dtype, width)
    if kind == "any":
        return f"({a} | {b})"
    if kind == "xor_sum":
        return f"({a} ^ {b})"
    if kind in ("min", "max"):
        return _minmax(prelude, "minimum" if kind == "min" else "maximum", [a, b], dtype, width)
    raise Unsupported(f"reduction {kind}")


def quick_combine(prelude: Prelude, kind: str, a: str, b: str, dtype: torch.dtype, width: int) -> str:
    """``combine`` for "min" and "max" of floats where NaN is counted apart, by ``nan_bits``: one instruction of most
    processors, where ``combine`` is several that wait for each other."""
    return f"{prelude.use(f'quick_{kind}', dtype, width)}({a}, {b})"


def nan_bits(prelude: Prelude, bits: str, value: str, dtype: torch.dtype, width: int) -> str:
    """What ``bits`` (an unsigned integer as wide as ``dtype``, zero at first) becomes when ``value`` has been seen."""
    return f"{prelude.use('nan_bits', dtype, width)}({bits}, {value})"


def with_nan(prelude: Prelude, value: str, bits: str, dtype: torch.dtype, width: int) -> str:
    """``value``, of one lane, or NaN if any of the ``width`` lanes of ``nan_bits`` has seen one."""
    return f"{prelude.use('with_nan', dtype, width)}({value}, {bits})"


def bits_dtype(dtype: torch.dtype) -> torch.dtype:
    """The unsigned integer as wide as a dtype of four or eight bytes."""
    return torch.uint64 if dtype.itemsize == 8 else torch.uint32


def better(kind: str, value: str, best: str, index: str, best_index: str, dtype: torch.dtype) -> str:
    """Whether a value (one lane) replaces the best so far in argmax/argmin: NaN wins, ties go to the lower index."""
    compare = ">" if kind == "argmax" else "<"
    tie = f"({value} == {best} && {index} < {best_index})"
    if not dtype.is_floating_point:
        return f"({value} {compare} {best} || {tie})"
    nan_tie = f"({value} != {value} && ({best} == {best} || {index} < {best_index}))"
    return f"(({best} == {best} && {value} {compare} {best}) || {tie} || {nan_tie})"


def lane(value: str, number: int) -> str:
    """One lane of a vector."""
    return f"{value}.s{_HEX[number]}"


# ---- index expressions -----------------------------------------------------------------------------------------


_SIZE = sympy.Symbol("size", integer=True, positive=True)


class IndexPrinter:
    """Prints sympy integer expressions as ``long`` (or ``longN``) arithmetic.

    ``names`` gives the text of each symbol that varies within a kernel; ``vectors`` are the symbols whose text is a
    vector of ``width`` lanes. All other symbols are sizes: ``argument`` gives the text of what only they decide.
    """

    def __init__(
        self,
        prelude: Prelude,
        names: dict[sympy.Symbol, str],
        vectors: set[sympy.Symbol],
        width: int,
        argument: Callable[[sympy.Expr], str],
    ) -> None:
        self.prelude = prelude
        self.names = names
        self.vectors = vectors
        self.width = width
        self.argument = argument

    def _is_fixed(self, expr: sympy.Basic) -> bool:
        """Whether only sizes decide the integer."""
        symbols = expr.free_symbols
        return bool(symbols) and expr.is_integer is True and symbols.isdisjoint(self.names)

    def is_vector(self, expr: sympy.Basic) -> bool:
        """Whether the expression differs between lanes."""
        return self.width > 1 and bool(expr.free_symbols & self.vectors)

    def __call__(self, expr: sympy.Basic) -> str:
        """The text of an expression. Raises Unsupported."""
        if self._is_fixed(expr):
            return self.argument(expr)
        if isinstance(expr, sympy.Symbol):
            return self.names[expr]
        if expr.is_Integer:
            return f"{int(expr)}L"
        if isinstance(expr, sympy.Float) and float(expr).is_integer():
            return f"{int(expr)}L"
        method = getattr(self, f"_{type(expr).__name__}", None)
        if method is None:
            raise Unsupported(f"index expression {type(expr).__name__}")
        text: str = method(expr)
        return text

    def _join(self, symbol: str, expr: sympy.Basic) -> str:
        return "(" + f" {symbol} ".join(self(a) for a in self._terms(expr)) + ")"

    def _terms(self, expr: sympy.Basic) -> list[sympy.Basic]:
        """The operands of a sum or product: those that only sizes decide as one, the others in an order that does not
        depend on the names of sizes."""
        fixed = [a for a in expr.args if self._is_fixed(a) or a.is_Integer]
        terms = sorted((a for a in expr.args if a not in fixed), key=self._shape)
        return [*terms, expr.func(*fixed)] if fixed else terms

    def _shape(self, expr: sympy.Basic) -> str:
        return str(expr.xreplace({symbol: _SIZE for symbol in expr.free_symbols if symbol not in self.names}))

    def _Add(self, expr: sympy.Basic) -> str:
        return self._join("+", expr)

    def _Mul(self, expr: sympy.Basic) -> str:
        numerator, denominator = expr.as_numer_denom()
        if denominator != 1:
            return f"({self(numerator)} / {self(denominator)})"
        return self._join("*", expr)

    def _Pow(self, expr: sympy.Basic) -> str:
        base, exponent = expr.args
        if not exponent.is_Integer or int(exponent) < 0 or int(exponent) > 8:
            raise Unsupported(f"power {exponent}")
        return "(" + " * ".join([self(base)] * int(exponent)) + ")"

    _PowByNatural = _Pow

    def _FloorDiv(self, expr: sympy.Basic) -> str:
        base, divisor = expr.args
        if base.is_nonnegative and divisor.is_positive:
            return f"({self(base)} / {self(divisor)})"
        vector = self.is_vector(expr)
        function = self.prelude.use("floordiv", torch.int64, self.width if vector else 1)
        return f"{function}({self._lanes(base, vector)}, {self._lanes(divisor, vector)})"

    def _lanes(self, expr: sympy.Basic, vector: bool) -> str:
        text = self(expr)
        return f"((long{self.width})({text}))" if vector and not self.is_vector(expr) else text

    def _CleanDiv(self, expr: sympy.Basic) -> str:
        return f"({self(expr.args[0])} / {self(expr.args[1])})"

    def _CeilDiv(self, expr: sympy.Basic) -> str:
        base, divisor = expr.args
        return f"(({self(base)} + {self(divisor)} - 1L) / {self(divisor)})"

    def _ModularIndexing(self, expr: sympy.Basic) -> str:
        base, divisor, modulus = expr.args
        text = self(base)
        if divisor != 1:
            text = f"({text} / {self(divisor)})"
        return f"({text} % {self(modulus)})"

    def _PythonMod(self, expr: sympy.Basic) -> str:
        base, divisor = expr.args
        if base.is_nonnegative and divisor.is_positive:
            return f"({self(base)} % {self(divisor)})"
        vector = self.is_vector(expr)
        function = self.prelude.use("remainder", torch.int64, self.width if vector else 1)
        return f"{function}({self._lanes(base, vector)}, {self._lanes(divisor, vector)})"

    _Mod = _PythonMod

    def _fold(self, function: str, expr: sympy.Basic) -> str:
        vector = self.is_vector(expr)
        first, *rest = expr.args
        text = self._lanes(first, vector)
        for argument in rest:
            text = f"{function}({text}, {self._lanes(argument, vector)})"
        return text

    def _Min(self, expr: sympy.Basic) -> str:
        return self._fold("min", expr)

    def _Max(self, expr: sympy.Basic) -> str:
        return self._fold("max", expr)

    def _Abs(self, expr: sympy.Basic) -> str:
        magnitude = f"abs({self(expr.args[0])})"
        return f"as_long{self.width}({magnitude})" if self.is_vector(expr) else f"((long){magnitude})"

    def _Identity(self, expr: sympy.Basic) -> str:
        return self(expr.args[0])

    def _relation(self, symbol: str, expr: sympy.Basic) -> str:
        vector = self.is_vector(expr)
        return f"({self._lanes(expr.args[0], vector)} {symbol} {self._lanes(expr.args[1], vector)})"

    def _Equality(self, expr: sympy.Basic) -> str:
        return self._relation("==", expr)

    def _Unequality(self, expr: sympy.Basic) -> str:
        return self._relation("!=", expr)

    def _StrictLessThan(self, expr: sympy.Basic) -> str:
        return self._relation("<", expr)

    def _LessThan(self, expr: sympy.Basic) -> str:
        return self._relation("<=", expr)

    def _StrictGreaterThan(self, expr: sympy.Basic) -> str:
        return self._relation(">", expr)

    def _GreaterThan(self, expr: sympy.Basic) -> str:
        return self._relation(">=", expr)

    def _And(self, expr: sympy.Basic) -> str:
        return self._join("&", expr)

    def _Or(self, expr: sympy.Basic) -> str:
        return self._join("|", expr)

    def _Where(self, expr: sympy.Basic) -> str:
        condition, yes, no = expr.args
        vector = self.is_vector(expr)
        if not vector:
            return f"({self(condition)} ? {self(yes)} : {self(no)})"
        return f"select({self._lanes(no, True)}, {self._lanes(yes, True)}, {self._lanes(condition, True)})"
