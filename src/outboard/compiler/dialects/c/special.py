# SPDX-License-Identifier: Apache-2.0
"""Error functions and their relatives, digamma."""

from __future__ import annotations

import torch

from .prelude import Prelude, builtin_per_lane, choose, helper, horner, per_lane
from .types import type_name


@helper("erf")
def _helper_erf(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """erf in float by two polynomials (S. Johnson's fits, as used in several maths libraries): below 0.9275 an odd
    polynomial in x; above, 1 - exp(p(|x|)); error about one unit in the last place."""
    t = type_name(dtype, width)
    if dtype != torch.float32:
        return f"{t} {full}({t} a) {{ return erf(a); }}"
    near = [-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1]
    far = [-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1]
    decay = f"{prelude.use('decay', dtype, width)}(fma({horner(far, 't', t)}, t, -t))"
    center = f"fma({horner(near, 's', t)}, a, a)"
    # The exponent only makes sense for moderate t; beyond 4 the result is 1 anyway. NaN passes through the centre.
    tail = f"copysign(({t})(1.0f) - {decay}, a)"
    chosen = choose(dtype, width, f"fabs(a) > ({t})(0.927734375f)", tail, center)
    return f"{t} {full}({t} a) {{ {t} t = fmin(fabs(a), ({t})(4.0f)); {t} s = a * a; return {chosen}; }}"


#: log(erfc(t / sqrt(2))) / t from 0 to 5.45, the highest power first; times t, errors are below 6e-8.
_LOG_ERFC = [
    2.44280922636492e-09, -8.527278104135534e-08, 1.3293692984820513e-06, -1.2117870352021464e-05,
    6.955945874545939e-05, -0.0002309017253336516, 4.97693154955217e-05, 0.0047771347172747185, -0.03633462273920848,
    -0.3183099672711748, -0.7978845592084824,
]  # fmt: skip


@helper("normal_cdf")
def _helper_normal_cdf(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """(1 + erf(a / sqrt(2))) / 2 in float: half the exponential of t p(t) where t = |a|, or 1 less that. p is a fit of
    log(erfc(t / sqrt(2))) / t. Beyond 5.547, where 1 + erf is nothing in float, it is 0 and 1 exactly."""
    t = type_name(dtype, width)
    decay = f"{prelude.use('decay', dtype, width)}({horner(_LOG_ERFC, 't', t)} * t)"
    chosen = choose(dtype, width, f"a < ({t})(0.0f)", "below", "1.0f - below")
    # The exponent only makes sense for moderate t; NaN passes through the sum.
    beyond = choose(dtype, width, f"x > ({t})(5.54687500f)", f"({t})(0.0f)", f"{decay} * 0.5f")
    kept = choose(dtype, width, "a == a", chosen, "a")
    return (
        f"{t} {full}({t} a) {{ const {t} x = fabs(a), t = fmin(x, ({t})(5.54687500f)), below = {beyond}; "
        f"return {kept}; }}"
    )


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


@helper("erfcx")
def _helper_erfcx(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """exp(a * a) * erfc(a); of negative numbers, twice the exponential less erfcx of the opposite."""
    t = type_name(dtype, width)
    single = dtype == torch.float32
    polynomial = horner(_ERFCX, "y", t) if single else horner(_ERFCX_DOUBLE, "y", t, suffix="")
    # Beyond, y is 1 in any case; infinity over infinity is not.
    large = f"({t})(1e30{'f' if single else ''})"
    bounded = choose(dtype, width, f"x > {large}", large, "x")
    square = f"const {t} s = a * a, tail = fma(a, a, -s), e = 2 * {prelude.use('exp', dtype, width)}(s);"
    opposite = choose(dtype, width, f"e < ({t})(INFINITY)", "fma(e, tail, e) - f", "e")
    negative = f"a < ({t})(0)"
    return (
        f"{t} {full}({t} a) {{ const {t} x = fabs(a), b = {bounded}, y = (b - 4) / (b + 4); "
        f"const {t} f = {polynomial} * ({t})(0.5f) / (x + ({t})(0.5f)); {square} "
        f"return {choose(dtype, width, negative, opposite, 'f')}; }}"
    )


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


@helper("erfinv")
def _helper_erfinv(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Giles' approximation in double: of floats rounded once, of doubles refined by a Newton step, which near 1 is one
    of ``erfc``, where what is left to 1 is exact."""
    t, d = type_name(dtype), f"{full}_t"
    w = {
        name: horner(numbers, name, d, "")
        for name, numbers in zip("nfg", (_ERFINV_NEAR, _ERFINV_FAR, _ERFINV_FARTHEST), strict=True)
    }
    step = """
  const double y = fabs(r), m = fabs(a), slope = 1.1283791670955126 * exp(-y * y);
  r = copysign(m < 0.5 ? y - (erf(y) - m) / slope : y + (erfc(y) - (1 - m)) / slope, a);"""
    scalar = f"""#ifdef OB_HAS_DOUBLES
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
    return scalar + per_lane(full, t, t, f"{full}_1", 1, width)


_DIGAMMA = """#ifdef OB_HAS_DOUBLES
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


@helper("digamma")
def _helper_digamma(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    t = type_name(dtype)
    scalar = _DIGAMMA.format(t=t, full=full)
    if width == 1:
        return scalar + f"{t} {full}({t} a) {{ return {full}_1(a); }}"
    return scalar + per_lane(full, t, t, f"{full}_1", 1, width)


helper("lgamma")(builtin_per_lane("lgamma", 1))
