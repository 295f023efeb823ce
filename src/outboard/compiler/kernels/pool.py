# SPDX-License-Identifier: Apache-2.0
"""Pooling over windows, and the gradients of pooling and of replication padding."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import sympy

from ..plans import strided
from ..plans.builder import PlanBuilder, Size, TensorArg
from . import blocked, common, planes

if TYPE_CHECKING:
    from .call import ExternCall

# Windows [<axis>0, <axis>1) in the input, by a kernel or by even division; steps of <axis>t (dilation).
_FIXED = "".join(
    f"long {a}0 = {a} * s{a} - p{a}; long {a}1 = {a}0 + k{a} < i{a} + p{a} ? {a}0 + k{a} : i{a} + p{a}; " for a in "dhw"
)
_DILATED = "".join(
    f"long {a}0 = {a} * s{a} - p{a}; const long {a}t = l{a}; "
    f"long {a}1 = {a}0 + (k{a} - 1) * {a}t + 1 < i{a} ? {a}0 + (k{a} - 1) * {a}t + 1 : i{a}; "
    f"if ({a}0 < 0) {a}0 += (-{a}0 + {a}t - 1) / {a}t * {a}t; "
    for a in "dhw"
)
_EVEN = "".join(
    f"const long {a}0 = {a} * i{a} / o{a}, {a}1 = (({a} + 1) * i{a} + o{a} - 1) / o{a}, {a}t = 1; " for a in "dhw"
)
_LOOP = "for (long z = d0; z < d1; z += {0}) for (long y = h0; y < h1; y += {1}) for (long x = w0; x < w1; x += {2}) "
_EACH = _LOOP.format(1, 1, 1)
_EACH_STEP = _LOOP.format("dt", "ht", "wt")

_DIVISOR = (
    "const long whole = (d1 - d0) * (h1 - h0) * (w1 - w0); "
    + "".join(f"if ({a}0 < 0) {a}0 = 0; if ({a}1 > i{a}) {a}1 = i{a}; " for a in "dhw")
    + "const int empty = d0 >= d1 || h0 >= h1 || w0 >= w1; "
    + "const ACC divisor = (ACC)(divide_by ? divide_by : include_pad ? whole : (d1 - d0) * (h1 - h0) * (w1 - w0)); "
)
_MEAN = "ACC sum = 0; " + _EACH + "sum += (ACC)PLANE_AT(z, y, x); OUT_STORE(out, to, empty ? (ACC)0 : sum / divisor);"
_MEAN_BACKWARD = "if (!empty) { const ACC share = gradient / divisor; " + _EACH + "PLANE_ADD(z, y, x, share); }"
_EVEN_DIVISOR = "const int empty = 0; const ACC divisor = (ACC)((d1 - d0) * (h1 - h0) * (w1 - w0)); "
_MAXIMUM = (
    "ACC best = -INFINITY; long where = (d0 * ih + h0) * iw + w0; "
    + _EACH_STEP
    + "{ const ACC value = (ACC)PLANE_AT(z, y, x); "
    "if (value > best || value != value) { best = value; where = (z * ih + y) * iw + x; } } "
    "OUT_STORE(out, to, best); "
    "indices[n * indices_n + c * indices_c + d * indices_d + h * indices_h + w * indices_w] = where;"
)
# For CPUs: a row of the output at a time, vectors where all taps of all lanes are inside the input.
_MAXIMUM_ROWS = r"""
typedef LONGS loose_longs_t OB_ALIGNED(8);
#define EVERY_SECOND(p) (VECTOR)(VLOAD(p).even, VLOAD((p) + LANES).even)
OB_KERNEL void maximum_rows(OB_GLOBAL const IN_T* in, OB_GLOBAL OUT_T* out PARAMETERS) {
  const long first_inside = (pw + sw - 1) / sw, span = (kw - 1) * lw;
  long end_inside = iw + pw > span ? (iw + pw - span - 1) / sw + 1 : 0;
  if (end_inside > ow) end_inside = ow;
  const int vectors = in_w == 1 && out_w == 1 && indices_w == 1 && (sw == 1 || sw == 2) && id * ih * iw < 0x7fffffffL;
  OB_FOR(row, images * channels * od * oh) {
    long q = row;
    const long h = q % oh; q /= oh;
    const long d = q % od; q /= od;
    const long c = q % channels, n = q / channels, at = n * in_n + c * in_c;
    const long to_row = n * out_n + c * out_c + d * out_d + h * out_h;
    const long index_row = n * indices_n + c * indices_c + d * indices_d + h * indices_h;
    ROW_WINDOWS
    long w = 0;
    while (w < ow) {
      /* The second load of every second element reads one more than it needs. */
      if (!vectors || w < first_inside || w + LANES + (sw - 1) > end_inside) {
        const long to = to_row + w * out_w;
        { BODY }
        ++w;
        continue;
      }
      const long begin = w * sw - pw;
      const LANE_MASK lanes = (LANE_MASK)(LANE_NUMBERS) * (LANE_MASK)(sw);
      VECTOR best = (VECTOR)(-INFINITY);
      LANE_MASK where = lanes + (LANE_MASK)((d0 * ih + h0) * iw + begin);
      for (long z = d0; z < d1; z += dt)
        for (long y = h0; y < h1; y += ht)
          for (long x = begin; x <= begin + span; x += lw) {
            OB_GLOBAL const IN_T* from = in + at + z * in_d + y * in_h + x;
            VECTOR value;
            if (sw == 1) value = VLOAD(from); else value = EVERY_SECOND(from);
            const LANE_MASK better = (value > best) | (value != value);
            best = select(best, value, better);
            where = select(where, lanes + (LANE_MASK)((z * ih + y) * iw + x), better);
          }
      VSTORE(out + to_row + w, best);
      *(OB_GLOBAL loose_longs_t*)(indices + index_row + w) = TO_LONGS(where);
      w += LANES;
    }
  }
}
"""
_ROW_WINDOWS = "".join(
    f"const long {a}t = l{a}, {a}_from = {a} * s{a} - p{a}, {a}_end = {a}_from + (k{a} - 1) * {a}t + 1, "
    f"{a}1 = {a}_end < i{a} ? {a}_end : i{a}, "
    f"{a}0 = {a}_from < 0 ? {a}_from + (-{a}_from + {a}t - 1) / {a}t * {a}t : {a}_from; "
    for a in "dh"
)
_CHOSEN = (
    "const long where = indices[n * indices_n + c * indices_c + d * indices_d + h * indices_h + w * indices_w]; "
    "if (where >= 0 && where < area) sums[where] += gradient;"
)
_CLAMPED = (
    "".join(
        f"long {v} = {a} - p{a}; {v} = {v} < 0 ? 0 : {v} >= i{a} ? i{a} - 1 : {v}; "
        for v, a in zip("zyx", "dhw", strict=True)
    )
    + "PLANE_ADD(z, y, x, gradient);"
)


def spatial_rank(name: str) -> int:
    """The number of spatial dimensions in an operator's name."""
    found = re.search(r"([123])d", name)
    assert found is not None
    return int(found.group(1))


def _window(values: dict[str, Any], spatial: int) -> dict[str, Size] | None:
    """Kernel, stride, padding and dilation as ``k``, ``s``, ``p`` and ``l`` of each axis."""
    kernel = common.int_list(values["kernel_size"], spatial)
    if kernel is None:
        return None
    lists = {
        "k": (kernel, 1),
        "s": (common.int_list(values["stride"] or kernel, spatial), 1),
        "p": (common.int_list(values["padding"], spatial), 0),
        "l": (common.int_list(values.get("dilation", 1), spatial), 1),
    }
    numbers: dict[str, Size] = {}
    for letter, (items, filler) in lists.items():
        if items is None:
            return None
        numbers |= {f"{letter}{axis}": value for axis, value in planes.triple(items, filler).items()}
    return numbers


def lower_average(builder: PlanBuilder, call: ExternCall) -> bool:
    """``avg_pool1d`` to ``3d`` and their ``_backward``."""
    values, out, spatial = call.bind(), call.outputs()[0], spatial_rank(call.name)
    numbers = _window(values, spatial)
    if numbers is None:
        return False
    numbers["divide_by"] = sympy.sympify(values.get("divisor_override") or 0)
    numbers["include_pad"] = sympy.Integer(int(bool(values["count_include_pad"])))
    if "grad_output" in values:
        body = _FIXED + _DIVISOR + _MEAN_BACKWARD
        return planes.Planes(out, values["grad_output"], spatial, body, numbers).backward(builder)
    return planes.Planes(values["self"], out, spatial, _FIXED + _DIVISOR + _MEAN, numbers).forward(builder)


def lower_adaptive_average(builder: PlanBuilder, call: ExternCall) -> bool:
    """``_adaptive_avg_pool2d`` and ``3d`` and their ``_backward``."""
    values, out, spatial = call.bind(), call.outputs()[0], spatial_rank(call.name)
    if "grad_output" in values:
        body = _EVEN + _EVEN_DIVISOR + _MEAN_BACKWARD
        return planes.Planes(out, values["grad_output"], spatial, body).backward(builder)
    return planes.Planes(values["self"], out, spatial, _EVEN + _EVEN_DIVISOR + _MEAN).forward(builder)


def lower_maximum(builder: PlanBuilder, call: ExternCall) -> bool:
    """``max_pool2d_with_indices`` and ``3d``, ``adaptive_max_pool2d`` and ``3d``."""
    values, results, spatial = call.bind(), call.outputs(), spatial_rank(call.name)
    if len(results) != 2:
        return False
    numbers: dict[str, Size] | None = {}
    if "kernel_size" in values:
        numbers = _window(values, spatial)
    if numbers is None or not common.supported(builder, results[0].dtype):
        return False
    window = _DILATED if numbers else _EVEN
    extra = [("indices", "INDEX", results[1])]
    problem = planes.Planes(values["self"], results[0], spatial, window + _MAXIMUM, numbers, extra=extra)
    accumulate = common.ELEMENT_TYPES[results[0].dtype].storage
    if not numbers or not builder.target.tuning.vectors or accumulate not in ("float", "double"):
        return problem.forward(builder)
    return problem.covered(builder) and _maximum_rows(builder, problem, accumulate)


def _maximum_rows(builder: PlanBuilder, problem: planes.Planes, accumulate: str) -> bool:
    shape = blocked.Blocking.for_target(builder.target, accumulate)
    defines = {
        **shape.defines(),
        "LONGS": f"long{shape.lanes}",
        "TO_LONGS": f"convert_long{shape.lanes}",
        "ROW_WINDOWS": _ROW_WINDOWS,
    }
    macros = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    problem = dataclasses.replace(problem, helpers=macros + blocked.VECTORS)
    rows = strided.product(planes.five(problem.outer, problem.spatial).sizes[:4])
    problem.custom(builder, _MAXIMUM_ROWS, "maximum_rows", rows, grain=8)
    return True


def lower_maximum_backward(builder: PlanBuilder, call: ExternCall) -> bool:
    """The gradient of any pooling that tells the place of each maximum."""
    values, out, spatial = call.bind(), call.outputs()[0], spatial_rank(call.name)
    indices: TensorArg = values["indices"]
    extra = [("indices", "INDEX", indices)]
    return planes.Planes(out, values["grad_output"], spatial, _CHOSEN, extra=extra).backward(builder)


def lower_replication_backward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``replication_pad1d_backward`` to ``3d``."""
    values, out, spatial = call.bind(), call.outputs()[0], spatial_rank(call.name)
    # Pairs (before, after), last dimension first.
    before = list(reversed(values["padding"][::2]))
    numbers = {f"p{axis}": value for axis, value in planes.triple(before, 0).items()}
    return planes.Planes(out, values["grad_output"], spatial, _CLAMPED, numbers).backward(builder)
