# SPDX-License-Identifier: Apache-2.0
"""Sine, cosine and tangent of numbers of any size."""

from __future__ import annotations

import math

import torch

from .exponential import ROUNDS, ROUNDS_DOUBLE
from .prelude import Maker, Prelude, choose, helper, horner
from .types import HEX, type_name

#: Two over pi in words of 32 bits, from the highest on, and a word past the end.
_TWO_OVER_PI = "0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau, 0u"
#: Quarter turns in a radian, and a quarter turn in three parts, of which so many of the first are exact.
_QUARTER_TURN = ("0.636619747f", "1.57079601f", "3.13916473e-07f", "5.39030253e-15f")
_QUARTER_TURN_DOUBLE = ("0.6366197723675814", "1.5707963267341256", "6.077100506506192e-11", "3.5215598651832e-27")
#: Up to here three parts of a half turn reduce arguments exactly enough.
_FAR_TURNS = "71476.0f"


@helper("far_turn")
def _helper_far_turn(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """The rest of a large float after as many quarter turns as fit, their number, and what is to be taken off the rest
    that its rounding has added: the digits of 2/pi that matter are
    chosen by the exponent (M. Payne and R. Hanek, "Radian reduction for trigonometric functions", 1983)."""
    if dtype == torch.float64:
        return _FAR_TURN_DOUBLE.format(full=full)
    return f"""OB_CONSTANT uint {full}_digits[8] = {{{_TWO_OVER_PI}}};
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
#ifdef OB_HAS_DOUBLES
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
_FAR_TURN_DOUBLE = """OB_CONSTANT ulong {full}_digits[20] = {{
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


@helper("turn")
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
    rounds, zero = (ROUNDS, "0x4b400000") if single else (ROUNDS_DOUBLE, "0x4338000000000000L")
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


def _helper_wave(name: str) -> Maker:
    """sin or cos in float, about one unit in the last place (polynomials after N. Juffa). Double is left to the
    runtime, lane by lane where a number is large: some runtimes let it spoil its neighbours."""

    def make(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
        if dtype != torch.float32:
            return _lonely_far(prelude, full, name, dtype, width)
        t, i = type_name(dtype, width), type_name(torch.int32, width)
        turn = prelude.use("turn", dtype, width)
        count = "q" if name == "sin" else f"q + ({i})(1)"
        odd = f"({count} & ({i})(1)) != ({i})(0)"
        chosen = choose(dtype, width, odd, "c", "s")
        return (
            f"{t} {full}({t} a) {{ {i} q; {t} less; const {t} r = {turn}(a, &q, &less), z = r * r; "
            f"const {t} s = r - fma({horner(_SINE, 'z', t)}, r * z, less); "
            f"const {t} c = fma(r, less, {horner(_COSINE, 'z', t)}); "
            f"return as_{t}(as_{i}({chosen}) ^ ((({count}) & ({i})(2)) << ({i})(30))); }}"
        )

    return make


@helper("tan")
def _helper_tan(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """tan (in float after N. Juffa); near odd quarter turns the reciprocal, with what both roundings have lost."""
    single = dtype == torch.float32
    t, i = type_name(dtype, width), type_name(torch.int32 if single else torch.int64, width)
    turn = prelude.use("turn", dtype, width)
    chosen = choose(dtype, width, f"(q & ({i})(1)) != ({i})(0)", "fma(v, lost, v)", "w - excess")
    tangent = horner(_TANGENT, "z", t) if single else horner(_TANGENT_DOUBLE, "z", t, suffix="")
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
    lanes = ", ".join(f"{builtin}(a.s{HEX[lane]})" for lane in range(width))
    near = f"fabs(a) < ({t})({_FAR_TURNS_DOUBLE})"
    return f"{t} {full}({t} a) {{ if ({some}(~({near}))) return ({t})({lanes}); return {builtin}(a); }}"


helper("sin")(_helper_wave("sin"))
helper("cos")(_helper_wave("cos"))
