# SPDX-License-Identifier: Apache-2.0
"""Antialiased interpolation of images, one axis after the other: the filter is as wide as an output pixel."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import sympy
import torch

from ..plans import plan as p
from ..plans.builder import PlanBuilder, Size, TensorArg
from . import common

if TYPE_CHECKING:
    from .call import ExternCall

_BODY = r"""
#define PI ((ACC)3.14159265358979323846)
ACC magnitude(ACC x) { return x < 0 ? -x : x; }
ACC linear(ACC x) { return x < 1 ? 1 - x : 0; }
ACC cubic(ACC x) {
  if (x < 1) return ((ACC)1.5 * x - (ACC)2.5) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * (ACC)-0.5 : 0;
}
ACC lanczos(ACC x) {
  return x == 0 ? 1 : x < 3 ? 3 * sin(PI * x) * sin(PI * x / 3) / (PI * PI * x * x) : 0;
}

/* For each place of an axis of `to` elements, where in one of `from` its window begins and ends, and its weights. */
OB_KERNEL void weigh(OB_GLOBAL ACC* weights, OB_GLOBAL long* windows, const long from, const long to, const long taps,
                     const GIVEN_T given) {
  ACC scale = given > 0 ? (ACC)1 / (ACC)given : (ACC)from / (ACC)to;
  if (ALIGN) scale = to > 1 ? (ACC)(from - 1) / (ACC)(to - 1) : 0;
  const ACC wide = scale > 1 ? scale : 1, support = (ACC)(WIDTH / 2) * wide;
  OB_FOR(i, to) {
    const ACC center = scale * ((ACC)i + (ACC)0.5);
    long begin = (long)(center - support + (ACC)0.5), end = (long)(center + support + (ACC)0.5);
    if (begin < 0) begin = 0;
    if (end > from) end = from;
    if (end > begin + taps) end = begin + taps;
    if (end < begin) end = begin;
    ACC total = 0;
    for (long k = begin; k < end; ++k) {
      const ACC weight = KIND(magnitude(((ACC)k - center + (ACC)0.5) / wide));
      weights[i * taps + k - begin] = weight;
      total += weight;
    }
    for (long k = begin; k < end && total != 0; ++k) weights[i * taps + k - begin] /= total;
    windows[2 * i] = begin;
    windows[2 * i + 1] = end;
  }
}

/* For each place of the source, the windows that hold it: those from the first on, up to the last. */
OB_KERNEL void invert(OB_GLOBAL const long* windows, OB_GLOBAL long* reached, const long from, const long to) {
  OB_FOR(j, from) {
    long first = 0, end = 0;
    for (long i = to - 1; i >= 0; --i) {
      if (windows[2 * i] > j || windows[2 * i + 1] <= j) continue;
      first = i;
      if (end == 0) end = i + 1;
    }
    reached[2 * j] = first;
    reached[2 * j + 1] = end;
  }
}

#define GEOMETRY \
  const long batch, const long channels, const long axis, const long beside, const long taps, const long in_n, \
  const long in_c, const long in_a, const long in_b, const long out_n, const long out_c, const long out_a, \
  const long out_b
/* One item has BLOCK places beside the axis. TERMS adds to their sums. */
#define EACH_BLOCK(TERMS) \
  const long blocks = (beside + BLOCK - 1) / BLOCK; \
  OB_FOR(item, batch * channels * blocks * axis) { \
    const long i = item % axis, rest = item / axis, block = rest % blocks * BLOCK, plane = rest / blocks; \
    const int width = beside - block < BLOCK ? (int)(beside - block) : BLOCK; \
    OB_GLOBAL const REAL_T* source = in + plane / channels * in_n + plane % channels * in_c + block * in_b; \
    OB_GLOBAL REAL_T* target = out + plane / channels * out_n + plane % channels * out_c + block * out_b + i * out_a; \
    ACC sums[BLOCK]; \
    for (int b = 0; b < BLOCK; ++b) sums[b] = 0; \
    TERMS \
    for (int b = 0; b < width; ++b) REAL_STORE(target, b * out_b, sums[b]); \
  }
#define ADD(weight, place) \
  const ACC factor = weight; \
  OB_GLOBAL const REAL_T* at = source + (place) * in_a; \
  if (width == BLOCK && in_b == 1) { \
    for (int b = 0; b < BLOCK; ++b) sums[b] += factor * (ACC)REAL_LOAD(at, b); \
  } else { \
    for (int b = 0; b < width; ++b) sums[b] += factor * (ACC)REAL_LOAD(at, b * in_b); \
  }

OB_KERNEL void resample(OB_GLOBAL const REAL_T* in, OB_GLOBAL REAL_T* out, OB_GLOBAL const ACC* weights,
                        OB_GLOBAL const long* windows, GEOMETRY) {
  EACH_BLOCK(for (long k = windows[2 * i]; k < windows[2 * i + 1]; ++k) {
    ADD(weights[i * taps + k - windows[2 * i]], k)
  })
}

OB_KERNEL void spread(OB_GLOBAL const REAL_T* in, OB_GLOBAL REAL_T* out, OB_GLOBAL const ACC* weights,
                      OB_GLOBAL const long* windows, OB_GLOBAL const long* reached, GEOMETRY) {
  EACH_BLOCK(for (long o = reached[2 * i]; o < reached[2 * i + 1]; ++o) {
    if (i < windows[2 * o] || i >= windows[2 * o + 1]) continue;
    ADD(weights[o * taps + i - windows[2 * o]], o)
  })
}
"""
#: How wide filters are, in pixels of the output.
_WIDTHS = {"bilinear": ("linear", 2), "bicubic": ("cubic", 4), "lanczos": ("lanczos", 6)}
#: Vectors of places of a work-item.
_BLOCK = 2
#: Scale factors in ``_upsample_*2d_aa``, by dimension.
_SCALES = {2: "scales_h", 3: "scales_w"}


@dataclasses.dataclass
class _Problem:
    """One call: the images that are resampled (or get a gradient), and what is made of them (or has the gradient)."""

    builder: PlanBuilder
    text: str
    width: int
    is_backward: bool

    def along(self, source: TensorArg, target: TensorArg, dim: int, given: float) -> None:
        """Appends the kernels that resample along one dimension."""
        builder = self.builder
        size, result = common.size_at(source, dim), common.size_at(target, dim)
        from_, to = (result, size) if self.is_backward else (size, result)
        taps = self._taps(from_, to, given)
        real = torch.float64 if source.dtype == torch.float64 else torch.float32
        weights = builder.allocate_like((to * taps,), (sympy.Integer(1),), real)
        windows, reached = (builder.allocate_like((2 * n,), (sympy.Integer(1),), torch.int64) for n in (to, from_))
        tables = [builder.pointer(table) for table in (weights, windows)]
        numbers = [builder.int64(n) for n in (from_, to, taps)]
        numbers.append(common.float_value(builder, given, real == torch.float64))
        common.launch_items(builder, builder.kernel(self.text, "weigh"), to, [*tables, *numbers], grain=64)
        kernel = "resample"
        if self.is_backward:
            kernel = "spread"
            tables.append(builder.pointer(reached))
            arguments = [*tables[1:], *numbers[:2]]
            common.launch_items(builder, builder.kernel(self.text, "invert"), from_, arguments, grain=16)
        arguments = [builder.pointer(source), builder.pointer(target), *tables]
        arguments += self._geometry(source, target, dim, taps)
        beside = common.ceil_div(source.sizes[5 - dim], builder.target.tuning.beside(_BLOCK))
        items = target.sizes[0] * target.sizes[1] * beside * result
        common.launch_items(builder, builder.kernel(self.text, kernel), items, arguments, grain=16)
        for table in (weights, windows, reached):
            builder.free(table.buffer)

    def _taps(self, from_: Size, to: Size, given: float) -> Size:
        """The most places that a window has."""
        if given > 0:
            wide: Size = sympy.Integer(int(max(1.0, 1.0 / given) * self.width) + 1)
        else:
            wide = common.ceil_div(self.width * common.larger(from_, to), common.larger(1, to - 1))
        return wide + 3

    def _geometry(self, source: TensorArg, target: TensorArg, dim: int, taps: Size) -> list[p.Argument]:
        order = (0, 1, dim, 5 - dim)
        numbers = [target.sizes[0], target.sizes[1], target.sizes[dim], target.sizes[5 - dim], taps]
        numbers += [tensor.strides[d] for tensor in (source, target) for d in order]
        return [self.builder.int64(number) for number in numbers]


def lower(builder: PlanBuilder, call: ExternCall) -> bool:
    """``_upsample_{bilinear,bicubic,lanczos}2d_aa`` and their ``_backward``: columns first, as on the CPU."""
    values, out = call.bind(), call.outputs()[0]
    is_backward = "grad_output" in values
    source = values["grad_output"] if is_backward else values["self"]
    scales = [values.get(name) for name in _SCALES.values()]
    if not common.supported(builder, out.dtype) or not out.dtype.is_floating_point or source.dtype != out.dtype:
        return False
    if any(scale is not None and not isinstance(scale, (int, float)) for scale in scales):
        return False
    kind, width = next(kind for name, kind in _WIDTHS.items() if name in call.name)
    real = "double" if out.dtype == torch.float64 else "float"
    defines = {
        "ACC": real,
        "GIVEN_T": real,
        "ALIGN": int(bool(values["align_corners"])),
        "KIND": kind,
        "WIDTH": width,
        "BLOCK": builder.target.tuning.beside(_BLOCK),
    }
    text = common.source(builder, _BODY, defines, {"REAL": out.dtype})
    problem = _Problem(builder, text, width, is_backward)
    sizes = [*out.sizes[:2], source.sizes[2], out.sizes[3]]
    strides = [sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], sympy.Integer(1)]
    between = builder.allocate_like(sizes, strides, out.dtype)
    # Aligned corners make the scale of the sizes alone.
    given_h, given_w = (0.0 if values["align_corners"] else float(scale or 0.0) for scale in scales)
    problem.along(source, between, 3, given_w)
    problem.along(between, out, 2, given_h)
    builder.free(between.buffer)
    return True
