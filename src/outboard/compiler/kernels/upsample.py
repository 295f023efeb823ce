# SPDX-License-Identifier: Apache-2.0
"""Interpolation: nearest, linear, bilinear, bicubic and trilinear, forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy

from ..plans.builder import PlanBuilder, TensorArg
from . import planes
from .pool import spatial_rank

if TYPE_CHECKING:
    from .call import ExternCall

_TAPS = r"""
/* The places of an axis of `from` elements that make up place `i` of `to`, and their weights. `given` is 1 over the
   scale factor the user named, or -1. */
ACC source_scale(long from, long to, ACC given) {
  if (ALIGN) return to > 1 ? (ACC)(from - 1) / (ACC)(to - 1) : (ACC)0;
  return given >= 0 ? given : (ACC)from / (ACC)to;
}
/* Where place `i` lies in the source, rounded as PyTorch does it: forward once, backward twice. */
ACC source_place(long i, ACC scale) {
  if (ALIGN) return scale * (ACC)i;
  const ACC middle = (ACC)i + (ACC)0.5;
  return BACKWARD ? scale * middle - (ACC)0.5 : fma(scale, middle, -(ACC)0.5);
}
/* Rounded as PyTorch does it, in float whatever the elements are. */
void nearest(long i, long from, long to, ACC given, long* at, ACC* weight) {
  const float scale = given >= 0 ? (float)given : (float)from / (float)to;
  const float place = floor(((float)i + (EXACT ? 0.5f : 0.0f)) * scale);
  at[0] = place < (float)from ? (long)place : from - 1;
  weight[0] = 1;
}
void linear(long i, long from, long to, ACC given, long* at, ACC* weight) {
  ACC place = source_place(i, source_scale(from, to, given));
  if (place < 0) place = 0;
  const long low = place < (ACC)from ? (long)place : from - 1;
  ACC rest = place - (ACC)low;
  rest = rest < 0 ? 0 : rest > 1 ? 1 : rest;
  at[0] = low;
  at[1] = low < from - 1 ? low + 1 : low;
  weight[0] = 1 - rest;
  weight[1] = rest;
}
ACC near_weight(ACC x) { return (((ACC)1.25 * x - (ACC)2.25) * x) * x + 1; }
ACC far_weight(ACC x) { return (((ACC)-0.75 * x + (ACC)3.75) * x - 6) * x + 3; }
void cubic(long i, long from, long to, ACC given, long* at, ACC* weight) {
  const ACC place = source_place(i, source_scale(from, to, given));
  const ACC low = floor(place), rest = place - low;
  const long first = (low < (ACC)from + 1 ? (long)low : from + 1) - 1;
  for (int k = 0; k < 4; ++k) {
    const long x = first + k;
    at[k] = x < 0 ? 0 : x > from - 1 ? from - 1 : x;
  }
  weight[0] = far_weight(rest + 1);
  weight[1] = near_weight(rest);
  weight[2] = near_weight(1 - rest);
  weight[3] = far_weight(2 - rest);
}
#define SET_TAPS \
  long zs[4], ys[4], xs[4]; ACC zw[4], yw[4], xw[4]; \
  KIND_D(d, id, od, scale_d, zs, zw); KIND_H(h, ih, oh, scale_h, ys, yw); KIND_W(w, iw, ow, scale_w, xs, xw);
#define EACH_TAP for (int a = 0; a < TAPS_D; ++a) for (int b = 0; b < TAPS_H; ++b) for (int e = 0; e < TAPS_W; ++e)
"""
#: Rows are summed first, then planes, as on the CPU.
_FORWARD = """SET_TAPS
ACC sum = 0;
for (int a = 0; a < TAPS_D; ++a) {
  ACC plane = 0;
  for (int b = 0; b < TAPS_H; ++b) {
    ACC row = 0;
    for (int e = 0; e < TAPS_W; ++e) row = fma(xw[e], (ACC)PLANE_AT(zs[a], ys[b], xs[e]), row);
    plane = fma(yw[b], row, plane);
  }
  sum = fma(zw[a], plane, sum);
}
OUT_STORE(out, to, sum);"""
_BACKWARD = "SET_TAPS EACH_TAP PLANE_ADD(zs[a], ys[b], xs[e], zw[a] * yw[b] * xw[e] * gradient);"
_KINDS = {"nearest": 1, "linear": 2, "cubic": 4}


def _given_scales(values: dict[str, Any], spatial: int) -> list[float] | None:
    """1 over the scale factors that the user named, -1 for none; None if they are unknown at compile time."""
    if "scale_factors" in values:
        given = list(values["scale_factors"] or [None] * spatial)
    else:
        names = ["scales"] if spatial == 1 else [f"scales_{axis}" for axis in "dhw"[3 - spatial :]]
        given = [values.get(name) for name in names]
    if any(value is not None and not isinstance(value, (int, float)) for value in given):
        return None
    return [-1.0] * (3 - spatial) + [1.0 / value if value and value > 0 else -1.0 for value in given]


def _check_sizes(builder: PlanBuilder, values: dict[str, Any], out: TensorArg) -> None:
    """Guards for what the CPU refuses: gradients of another size than is said, or of nothing."""
    shape = [*values["input_size"][:2], *values["output_size"]]
    for given, size in zip(shape, values["grad_output"].sizes, strict=True):
        if given != size:
            builder.guard(sympy.Eq(given, size))
    for size in out.sizes[2:]:
        if isinstance(size, sympy.Expr):
            builder.guard(sympy.Gt(size, 0))


def lower(builder: PlanBuilder, call: ExternCall) -> bool:
    """``upsample_<kind><n>d``, its ``.vec`` overload, and its ``_backward``."""
    values, out, spatial = call.bind(), call.outputs()[0], spatial_rank(call.name)
    scales = _given_scales(values, spatial)
    if scales is None:
        return False
    kind = next(kind for kind in _KINDS if kind in call.name)
    kinds = ["nearest"] * (3 - spatial) + [kind] * spatial
    is_backward = "grad_output" in values
    macros = f"#define ALIGN {int(bool(values.get('align_corners')))}\n#define EXACT {int('exact' in call.name)}\n"
    macros += f"#define BACKWARD {int(is_backward)}\n"
    for axis, of_axis in zip("DHW", kinds, strict=True):
        macros += f"#define KIND_{axis} {of_axis}\n#define TAPS_{axis} {_KINDS[of_axis]}\n"
    named = dict(zip(("scale_d", "scale_h", "scale_w"), scales, strict=True))
    if is_backward:
        _check_sizes(builder, values, out)
        problem = planes.Planes(out, values["grad_output"], spatial, _BACKWARD, scales=named, helpers=macros + _TAPS)
        return problem.backward(builder)
    source = values["self"] if "self" in values else values["input"]
    return planes.Planes(source, out, spatial, _FORWARD, scales=named, helpers=macros + _TAPS).forward(builder)
