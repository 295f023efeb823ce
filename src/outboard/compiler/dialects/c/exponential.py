# SPDX-License-Identifier: Apache-2.0
"""Exponentials, powers, logarithms near one and the hyperbolic tangent."""

from __future__ import annotations

import math

import torch

from .prelude import Prelude, builtin_per_lane, choose, helper, horner
from .types import TOGETHER, type_name


@helper("decay")
def _helper_decay(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """``exp``, see there, for arguments from -80 to 0 only."""
    t, i = type_name(dtype, width), type_name(torch.int32, width)
    return f"{t} {full}({t} a) {{ {_exponential(t, i)} return as_{t}(as_{i}(p) + power); }}"


#: Where the polynomial for exp(r), the highest power first, is meant: for r up to half the logarithm of two.
_EXP_SERIES = [0.00138146030, 0.00836871582, 0.0416683879, 0.166665206, 0.499999934, 1.0, 1.0]
_LOG2_E, _LN2_HIGH, _LN2_LOW = "1.4426950408889634f", "-0.693145751953125f", "-1.428606765330187e-06f"
#: Numbers as large as 1.5 * 2^23 have no fraction: adding it rounds, and leaves the integer in the lowest bits.
ROUNDS = "12582912.0f"
#: The same for double: 1.5 * 2^52.
ROUNDS_DOUBLE = "6755399441055744.0"


def _exponential(t: str, i: str) -> str:
    """Statements that find exp(a) as ``p`` times two to the power whose bits, without bias, are ``power``."""
    return (
        f"const {t} shifted = fma(a, ({t})({_LOG2_E}), ({t})({ROUNDS})), n = shifted - {ROUNDS}; "
        f"const {t} r = fma(n, ({t})({_LN2_LOW}), fma(n, ({t})({_LN2_HIGH}), a)); "
        f"const {t} p = {horner(_EXP_SERIES, 'r', t)}; const {i} power = as_{i}(shifted) << ({i})(23);"
    )


def _exponential_steps(t: str) -> list[str]:
    """The same, as assignments to ``n``, ``r``, ``p`` and last ``a``, with the instruction of AVX-512 that multiplies
    by a power of two and knows what becomes of zero and infinity. ``r`` is what it must be unless ``n`` is beyond all
    exponents or NaN: then any number will do that is not too large, whence the other instruction, the one of the
    smaller magnitude."""
    first, second, *others = _EXP_SERIES
    return [
        f"n@ = fma(a@, ({t})({_LOG2_E}), ({t})({ROUNDS}));",
        f"n@ = n@ - {ROUNDS};",
        f"r@ = fma(n@, ({t})({_LN2_HIGH}), a@);",
        f"r@ = fma(n@, ({t})({_LN2_LOW}), r@);",
        f"r@ = __builtin_ia32_rangeps512_mask(r@, ({t})(1.0f), 2, r@, -1, 4);",
        f"p@ = fma(({t})({first!r}f), r@, ({t})({second!r}f));",
        *(f"p@ = fma(p@, r@, ({t})({coefficient!r}f));" for coefficient in others),
        "a@ = __builtin_ia32_scalefps512_mask(p@, n@, p@, -1, 4);",
    ]


#: What the instructions of AVX-512 take at once.
AVX512_LANES = 16
_AVX512 = "#ifdef __AVX512DQ__\n"


@helper("exp")
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
        f"if (unusual) {{ a = {choose(dtype, width, f'a < {low}', low, 'a')}; "
        f"a = {choose(dtype, width, f'a > {high}', high, 'a')}; }} "
        f"{_exponential(t, i)} if (!unusual) return as_{t}(as_{i}(p) + power); "
        f"const {i} half_power = (as_{i}(shifted) << ({i})(22)) & ({i})(0xff800000); "
        f"return p * as_{t}(half_power + {bias}) * as_{t}(power - half_power + {bias});"
    )
    if width != AVX512_LANES:
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
        f"if (unusual) {{ a = {choose(torch.float64, width, f'a < {low}', low, 'a')}; "
        f"a = {choose(torch.float64, width, f'a > {high}', high, 'a')}; }} "
        f"const {t} shifted = fma(a, ({t})({_LOG2_E_DOUBLE}), ({t})({ROUNDS_DOUBLE})); "
        f"const {t} n = shifted - {ROUNDS_DOUBLE}; "
        f"const {t} h = fma(n, ({t})(-{_LN2_HIGH_DOUBLE}), a), r = fma(n, ({t})(-{_LN2_LOW_DOUBLE}), h); "
        f"const {t} less = fma(n, ({t})(-{_LN2_LOW_DOUBLE}), h - r), s = ({t})(1) + r; "
        f"const {t} rest = fma(r * r, {horner(_EXP_SERIES_DOUBLE, 'r', t, '')}, less); "
        f"const {t} p = s + ((({t})(1) - s + r) + rest); "
        f"const {i} power = as_{i}(shifted) << ({i})(52); if (!unusual) return as_{t}(as_{i}(p) + power); "
        f"const {i} half_power = (as_{i}(shifted) << ({i})(51)) & ({i})(0xfff0000000000000); "
        f"return p * as_{t}(half_power + {bias}) * as_{t}(power - half_power + {bias}); }}"
    )


@helper("exp_together")
def _helper_exp_together(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """``exp`` of ``TOGETHER`` vectors in place, step by step. Each step waits for the one before it, and a processor
    that gets the steps of one vector after those of another does not look far enough ahead to fill the time."""
    t, one = type_name(dtype, width), prelude.use("exp", dtype, width)
    each = f"for (int u = 0; u < {TOGETHER}; ++u)"
    alone = f"  {each} a[u] = {one}(a[u]);\n"
    if dtype != torch.float32 or width != AVX512_LANES:
        return f"void {full}({t}* a) {{\n{alone}}}"
    steps = "".join(f"  #pragma unroll\n  {each} {step}\n" for step in _exponential_steps(t)).replace("@", "[u]")
    variables = ", ".join(f"{name}[{TOGETHER}]" for name in "nrp")
    return f"void {full}({t}* a) {{\n{_AVX512}  {t} {variables};\n{steps}#else\n{alone}#endif\n}}"


#: tanh(a) is a + a^3 p(a^2) up to one: p, the highest power first, the interpolation at Chebyshev's points.
_TANH_SERIES = [
    0.0001448666153009981, -0.000933837378397584, 0.0032260208390653133, -0.008715045638382435, 0.021837320178747177,
    -0.05396507680416107, 0.1333332359790802, -0.3333333432674408,
]  # fmt: skip


@helper("tanh")
def _helper_tanh(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """tanh, which is 1 where it differs from 1 by less than half a unit: what is left there shows in gradients. In
    float, up to one a polynomial, then by way of ``exp``, both for all lanes: runtimes look at lanes one by one."""
    t = type_name(dtype, width)
    one = f"({t})(1)"
    if dtype != torch.float32:
        chosen = choose(dtype, width, f"fabs(a) > ({t})(19.06154746539849)", f"copysign({one}, a)", "tanh(a)")
        return f"{t} {full}({t} a) {{ return {chosen}; }}"
    beyond = choose(dtype, width, f"x > ({t})(9.01091385f)", one, "y")
    return (
        f"{t} {full}({t} a) {{ const {t} x = fabs(a), z = a * a; "
        f"{t} y = {one} - ({t})(2) / ({prelude.use('exp', dtype, width)}(x + x) + {one}); y = {beyond}; "
        f"const {t} near = fma(x * z, {horner(_TANH_SERIES, 'z', t)}, x); "
        f"return copysign({choose(dtype, width, f'x < {one}', 'near', 'y')}, a); }}"
    )


#: log((1 + s) / (1 - s)) is 2 s + s z p(z), z being s squared, for numbers between the roots of one half and of two: p,
#: the highest power first, of Sun's library of 1993.
_LOG_SERIES = [0.24279078841209412, 0.2849878668785095, 0.40000972151756287, 0.6666666269302368]


@helper("log1p")
def _helper_log1p(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """log1p, which is its argument where that is tiny: some runtimes lose the denormal ones. In float, the logarithm of
    1 + a, a power of two times a number next to one, with what that addition rounds off (Sun's library of 1993);
    without a branch, as runtimes look at lanes one by one."""
    t, i = type_name(dtype, width), type_name(torch.int32, width)
    if dtype != torch.float32:
        tiny = choose(dtype, width, f"fabs(a) < ({t})({2.0**-55!r})", "a", "log1p(a)")
        return f"{t} {full}({t} a) {{ return {tiny}; }}"
    one = f"({t})(1)"
    as_float = f"convert_{t}(k)" if width > 1 else "(float)k"
    near = f"(a > ({t})(-0.2928932f)) {'&&' if width == 1 else '&'} (a < ({t})(0.4142135f))"
    rest = choose(dtype, width, f"a > {one}", f"{one} - (u - a)", f"a - (u - {one})")
    ordinary = f"(a > -{one}) {'&&' if width == 1 else '&'} (a < ({t})(INFINITY))"
    odd = choose(
        dtype, width, f"a == -{one}", f"({t})(-INFINITY)", choose(dtype, width, f"a < -{one}", f"({t})(NAN)", "a")
    )
    return (
        f"{t} {full}({t} a) {{ const {t} u = {one} + a; "
        f"const {i} bits = as_{i}(u) + ({i})(0x3f800000 - 0x3f3504f3), k = (bits >> 23) - 127; "
        f"{t} f = as_{t}((bits & ({i})(0x007fffff)) + ({i})(0x3f3504f3)) - {one}, power = {as_float}; "
        f"{t} c = ({rest}) / u; "
        f"f = {choose(dtype, width, near, 'a', 'f')}; power = {choose(dtype, width, near, f'({t})(0)', 'power')}; "
        f"c = {choose(dtype, width, near, f'({t})(0)', 'c')}; "
        f"const {t} s = f / (({t})(2) + f), z = s * s, half_square = ({t})(0.5f) * f * f; "
        f"const {t} r = fma(s, fma(z, {horner(_LOG_SERIES, 'z', t)}, half_square), "
        f"fma(power, ({t})(9.0580006145e-06f), c)); "
        f"const {t} y = fma(power, ({t})(0.69313812256f), f - (half_square - r)); "
        f"return {choose(dtype, width, ordinary, choose(dtype, width, f'a == ({t})(0)', 'a', 'y'), odd)}; }}"
    )


@helper("pow_by")
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


@helper("pow")
def _helper_pow(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Powers in float, of positive numbers in double: two to the exponent times the logarithm, which is rounded once,
    at the end. Runtimes compute vectors of powers lane by lane; where zero, infinity, NaN or a negative number is among
    them, they still do. The logarithm is that of (1 + t) / (1 - t), an odd series, for a number between the root of
    1/2 and that of 2; what is left out of it and of the exponential series is below 2^-36 of the result."""
    t = type_name(dtype, width)
    if dtype != torch.float32 or width == 1:
        return builtin_per_lane("pow", 2)(prelude, full, dtype, width)
    half = width // 2
    d, i, f = type_name(torch.float64, half), type_name(torch.int64, half), type_name(dtype, half)
    logarithm = horner([2 / math.log(2) / odd for odd in range(15, 0, -2)], "s", d, suffix="")
    exponential = horner([math.log(2) ** n / math.factorial(n) for n in range(10, -1, -1)], "r", d, suffix="")
    ordinary = f"!({prelude.use('any', torch.int32, width)}(!(a > 0.0f & a < INFINITY & fabs(b) < INFINITY)))"
    return f"""#ifdef OB_HAS_DOUBLES
{f} {full}_positive({d} a, {d} b) {{
  const {i} exponent = (as_{i}(a) - ({i})(0x3fe6a09e667f3bcdL)) >> ({i})(52);
  const {d} m = as_{d}(as_{i}(a) - (exponent << ({i})(52)));
  const {d} whole = as_{d}(exponent + as_{i}(({d})({ROUNDS_DOUBLE}))) - ({d})({ROUNDS_DOUBLE});
  const {d} t = (m - 1.0) / (m + 1.0), s = t * t;
  const {d} p = fmin(fmax(b * fma({logarithm}, t, whole), ({d})(-200.0)), ({d})(200.0));
  const {d} shifted = p + ({d})({ROUNDS_DOUBLE}), r = p - (shifted - ({d})({ROUNDS_DOUBLE}));
  return convert_float{half}(as_{d}(as_{i}({exponential}) + (as_{i}(shifted) << ({i})(52))));
}}
#endif
{t} {full}({t} a, {t} b) {{
#ifdef OB_HAS_DOUBLES
  if ({ordinary})
    return ({t})({full}_positive(convert_double{half}(a.lo), convert_double{half}(b.lo)),
      {full}_positive(convert_double{half}(a.hi), convert_double{half}(b.hi)));
#endif
  return pow(a, b);
}}"""
