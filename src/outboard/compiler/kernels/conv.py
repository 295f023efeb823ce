# SPDX-License-Identifier: Apache-2.0
"""Convolution of one to three dimensions and its gradients, as implicit matrix products.

Three products serve forward and backward, plain and transposed. With x the side that a window slides over and y the
side of the windows' results:

* *gather*: y from x and the weight (forward; backward of the transposed kind);
* *spread*: x from y and the weight (gradient of the input; forward of the transposed kind);
* *weight*: the weight's gradient from x and y.

Fewer than three spatial dimensions are padded with ones. Groups and images form the batch. Depthwise convolutions,
whose products have one row, are computed element by element, on CPUs by ``depthwise``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import sympy

from ..plans import strided
from ..plans.builder import PlanBuilder, Size, TensorArg
from . import blocked, common, depthwise, engine, windows
from .call import ExternCall, Parts
from .epilogue import Axis, Epilogue, Finish

_ZERO, _ONE = sympy.Integer(0), sympy.Integer(1)

# What a product precomputes: an offset, and where a window starts or which of its taps is meant (d, h, w).
_COORDINATES = r"""
typedef struct { long at; int d, h, w; } coordinate_t;
#define IMAGE(b) ((b) / groups)
#define GROUP_OF(b) ((b) % groups)
#define SPLIT_TAP(tap, vd, vh, vw) \
  const uint tap_q = (uint)(tap) / (uint)kw; \
  vw = (int)((uint)(tap) % (uint)kw); vh = (int)(tap_q % (uint)kh); vd = (int)(tap_q / (uint)kh)
#define SPLIT_PLACE(place, sh, sw, vd, vh, vw) \
  const uint place_q = (uint)(place) / (uint)(sw); \
  vw = (int)((uint)(place) % (uint)(sw)); vh = (int)(place_q % (uint)(sh)); vd = (int)(place_q / (uint)(sh))
#define TAPS (kd * kh * kw)
"""

_INSIDE_X = r"""
int inside_x(int d, int h, int w, long xd, long xh, long xw) {
  return d >= 0 && h >= 0 && w >= 0 && d < xd && h < xh && w < xw;
}
"""

# m: output channel of the group; n: place in y; k: (input channel of the group, tap).
_GATHER = r"""
#define A_OUTER_T long
#define A_INNER_T long
#define A_SET_OUTER(v, b, m) v = (GROUP_OF(b) * y_channels + (m)) * w_o
#define A_SET_INNER(v, b, k) { \
  int a_d, a_h, a_w; \
  SPLIT_TAP((uint)(k) % (uint)TAPS, a_d, a_h, a_w); \
  v = (long)((uint)(k) / (uint)TAPS) * w_i + a_d * w_d + a_h * w_h + a_w * w_w; }
#define A_AT(outer, inner) ((ACC)W_LOAD(weight, (outer) + (inner)))
#define B_OUTER_T coordinate_t
#define B_INNER_T coordinate_t
#define B_SET_OUTER(v, b, n) { \
  int p_d, p_h, p_w; \
  SPLIT_PLACE(n, yh, yw, p_d, p_h, p_w); \
  (v).d = (int)(p_d * sd - pd); (v).h = (int)(p_h * sh - ph); (v).w = (int)(p_w * sw - pw); \
  (v).at = IMAGE(b) * x_n + GROUP_OF(b) * x_channels * x_c + (v).d * x_d + (v).h * x_h + (v).w * x_w; }
#define B_SET_INNER(v, b, k) { \
  int t_d, t_h, t_w; \
  SPLIT_TAP((uint)(k) % (uint)TAPS, t_d, t_h, t_w); \
  (v).d = (int)(t_d * dd); (v).h = (int)(t_h * dh); (v).w = (int)(t_w * dw); \
  (v).at = (long)((uint)(k) / (uint)TAPS) * x_c + (v).d * x_d + (v).h * x_h + (v).w * x_w; }
#define B_AT(outer, inner) \
  (inside_x((outer).d + (inner).d, (outer).h + (inner).h, (outer).w + (inner).w, xd, xh, xw) \
     ? (ACC)X_LOAD(x, (outer).at + (inner).at) : (ACC)0)
#define C_STORE(b, m, n, value) \
  const long channel = GROUP_OF(b) * y_channels + (m); \
  int c_d, c_h, c_w; \
  SPLIT_PLACE(n, yh, yw, c_d, c_h, c_w); \
  FINISH(IMAGE(b) * y_n + channel * y_c + c_d * y_d + c_h * y_h + c_w * y_w, channel, n, (value) + ADD_BIAS(channel))
"""

# m: input channel of the group; n: place in x; k: (output channel of the group, tap).
_SPREAD = r"""
#define A_OUTER_T long
#define A_INNER_T long
#define A_SET_OUTER(v, b, m) v = GROUP_OF(b) * y_channels * w_o + (m) * w_i
#define A_SET_INNER(v, b, k) { \
  int a_d, a_h, a_w; \
  SPLIT_TAP((uint)(k) % (uint)TAPS, a_d, a_h, a_w); \
  v = (long)((uint)(k) / (uint)TAPS) * w_o + a_d * w_d + a_h * w_h + a_w * w_w; }
#define A_AT(outer, inner) ((ACC)W_LOAD(weight, (outer) + (inner)))
#define B_OUTER_T coordinate_t
#define B_INNER_T coordinate_t
#define B_SET_OUTER(v, b, n) { \
  int p_d, p_h, p_w; \
  SPLIT_PLACE(n, xh, xw, p_d, p_h, p_w); \
  (v).d = (int)(p_d + pd); (v).h = (int)(p_h + ph); (v).w = (int)(p_w + pw); \
  (v).at = IMAGE(b) * y_n + GROUP_OF(b) * y_channels * y_c; }
#define B_SET_INNER(v, b, k) { \
  int t_d, t_h, t_w; \
  SPLIT_TAP((uint)(k) % (uint)TAPS, t_d, t_h, t_w); \
  (v).d = (int)(t_d * dd); (v).h = (int)(t_h * dh); (v).w = (int)(t_w * dw); \
  (v).at = (long)((uint)(k) / (uint)TAPS) * y_c; }
/* The place in y whose window has this tap at this place of x, if there is one. */
#define B_AT(outer, inner) \
  spread_at(y, (outer).at + (inner).at, (outer).d - (inner).d, (outer).h - (inner).h, (outer).w - (inner).w, \
            (int)sd, (int)sh, (int)sw, yd, yh, yw, y_d, y_h, y_w)
#define C_STORE(b, m, n, value) \
  const long channel = GROUP_OF(b) * x_channels + (m); \
  int c_d, c_h, c_w; \
  SPLIT_PLACE(n, xh, xw, c_d, c_h, c_w); \
  X_STORE(x, IMAGE(b) * x_n + channel * x_c + c_d * x_d + c_h * x_h + c_w * x_w, (value) + ADD_BIAS(channel))

ACC spread_at(OB_GLOBAL const Y_T* y, long at, int d, int h, int w, int sd, int sh, int sw, long yd, long yh,
                        long yw, long y_d, long y_h, long y_w) {
  if (d < 0 || h < 0 || w < 0) return 0;
  if (sd != 1) { if (d % sd) return 0; d /= sd; }
  if (sh != 1) { if (h % sh) return 0; h /= sh; }
  if (sw != 1) { if (w % sw) return 0; w /= sw; }
  if (d >= yd || h >= yh || w >= yw) return 0;
  return (ACC)Y_LOAD(y, at + d * y_d + h * y_h + w * y_w);
}
"""

# b: (part, group); m: output channel of the group; n: (input channel of the group, tap); k: (image, place in y) within
# the part. Parts of k give a device enough to do; a second kernel adds them up.
_WEIGHT = r"""
#define GROUP_PART(b) ((b) / groups)
#define PLACES ((uint)(yd * yh * yw))
#define A_OUTER_T long
#define A_INNER_T coordinate_t
#define A_SET_OUTER(v, b, m) v = (GROUP_OF(b) * y_channels + (m)) * y_c
#define A_SET_INNER(v, b, k) { \
  const long a_k = GROUP_PART(b) * k_count + (k); \
  const uint a_image = (uint)a_k / PLACES; \
  int p_d, p_h, p_w; \
  SPLIT_PLACE((uint)a_k % PLACES, yh, yw, p_d, p_h, p_w); \
  (v).d = a_image < (uint)images; \
  (v).at = (long)a_image * y_n + p_d * y_d + p_h * y_h + p_w * y_w; }
#define A_AT(outer, inner) ((inner).d ? (ACC)Y_LOAD(y, (outer) + (inner).at) : (ACC)0)
#define B_OUTER_T coordinate_t
#define B_INNER_T coordinate_t
#define B_SET_OUTER(v, b, n) { \
  int t_d, t_h, t_w; \
  SPLIT_TAP((uint)(n) % (uint)TAPS, t_d, t_h, t_w); \
  (v).d = (int)(t_d * dd - pd); (v).h = (int)(t_h * dh - ph); (v).w = (int)(t_w * dw - pw); \
  (v).at = (GROUP_OF(b) * x_channels + (long)((uint)(n) / (uint)TAPS)) * x_c + \
           (v).d * x_d + (v).h * x_h + (v).w * x_w; }
#define B_SET_INNER(v, b, k) { \
  const long b_k = GROUP_PART(b) * k_count + (k); \
  const uint b_image = (uint)b_k / PLACES; \
  int p_d, p_h, p_w; \
  SPLIT_PLACE((uint)b_k % PLACES, yh, yw, p_d, p_h, p_w); \
  (v).d = b_image < (uint)images ? (int)(p_d * sd) : -0x40000000; \
  (v).h = (int)(p_h * sh); (v).w = (int)(p_w * sw); \
  (v).at = (long)b_image * x_n + (v).d * x_d + (v).h * x_h + (v).w * x_w; }
#define B_AT(outer, inner) \
  (inside_x((outer).d + (inner).d, (outer).h + (inner).h, (outer).w + (inner).w, xd, xh, xw) \
     ? (ACC)X_LOAD(x, (outer).at + (inner).at) : (ACC)0)
#define C_STORE(b, m, n, value) parts[((b) * y_channels + (m)) * n_count + (n)] = (value)
"""

_ADD_PARTS = r"""
OB_KERNEL void add_parts(OB_GLOBAL const ACC* parts, OB_GLOBAL W_T* weight, const long count, const long part_count,
                         const long x_channels, const long kd, const long kh, const long kw, const long w_o,
                         const long w_i, const long w_d, const long w_h, const long w_w) {
  OB_FOR(i, count) {
    ACC sum = 0;
    for (long part = 0; part < part_count; ++part) sum += parts[part * count + i];
    long q = i;
    const long w = q % kw; q /= kw;
    const long h = q % kh; q /= kh;
    const long d = q % kd; q /= kd;
    W_STORE(weight, q / x_channels * w_o + q % x_channels * w_i + d * w_d + h * w_h + w * w_w, sum);
  }
}
"""

# Of a dense result, in which ``step`` elements after one another have the same channel, or channels lie innermost.
_ADD_BIAS = r"""
OB_KERNEL void add_bias(OB_GLOBAL Y_T* y, OB_GLOBAL const BIAS_T* bias, const long bias_c, const long count,
                        const long step, const long channels) {
  OB_FOR(i, count) { Y_STORE(y, i, Y_LOAD(y, i) + BIAS_LOAD(bias, i / step % channels * bias_c)); }
}
"""

_BIAS = r"""
#if KEEP_LOST
/* With what each addition rounds off (D. Knuth's exact sum of two): long sums in float would be far off. */
#define ADD(sum, lost, term) { \
    const ACC one = (term), both = sum + one, part = both - sum; \
    lost += (sum - (both - part)) + (one - part); \
    sum = both; \
  }
/* Of infinite sums nothing was rounded off, but infinity less infinity is NaN. */
#define WHOLE(sum, lost) (lost == lost ? sum + lost : sum)
#else
#define ADD(sum, lost, term) sum += term;
#define WHOLE(sum, lost) sum
#endif
// Rows that follow one another without a gap are one.
#define JOIN_ROWS                                                                         \
  const int rows_join = y_h == yw * y_w, planes_join = rows_join && y_d == yh * y_h;      \
  const long run = yw * (rows_join ? yh : 1) * (planes_join ? yd : 1);                    \
  const long heights = rows_join ? 1 : yh, depths = planes_join ? 1 : yd;
#define FROM(row) \
  ((row) / (depths * heights) * y_n + c * y_c + (row) / heights % depths * y_d + (row) % heights * y_h)
#if GROUP > 1
// A few channels do not keep a device busy: each has several work-groups, of which each adds one share.
GROUP_KERNEL void add_places(OB_GLOBAL const Y_T* y, OB_GLOBAL ACC* sums, const long shares, const long channels,
                             const long images, const long yd, const long yh, const long yw, const long y_n,
                             const long y_c, const long y_d, const long y_h, const long y_w) {
  JOIN_ROWS
  const long total = images * yd * yh * yw, share = (total + shares - 1) / shares;
  OB_SHARED ACC partial[GROUP];
  for (long g = OB_GROUP_ID(0); g < channels * shares; g += OB_GROUP_COUNT(0)) {
    const long c = g % channels, begin = g / channels * share + OB_LOCAL_ID(0);
    const long end = g / channels * share + share < total ? g / channels * share + share : total;
    ACC sum = 0, lost = 0;
    long row = run ? begin / run : 0, i = run ? begin % run : 0;
    for (long each = begin; each < end; each += GROUP) {
      ADD(sum, lost, (ACC)Y_LOAD(y, FROM(row) + i * y_w))
      for (i += GROUP; i >= run; i -= run) ++row;
    }
    GROUP_SUM(sum, partial);
#if KEEP_LOST
    GROUP_SUM(lost, partial);
#endif
    if (OB_LOCAL_ID(0) == 0) sums[g] = WHOLE(sum, lost);
  }
}
OB_KERNEL void add_shares(OB_GLOBAL const ACC* sums, OB_GLOBAL BIAS_T* bias, const long bias_c, const long shares,
                          const long channels) {
  OB_FOR(c, channels) {
    ACC sum = 0, lost = 0;
    for (long share = 0; share < shares; ++share) ADD(sum, lost, sums[share * channels + c])
    BIAS_STORE(bias, c * bias_c, WHOLE(sum, lost));
  }
}
#else
// Sums side by side: one addition would wait for the other, and vectors need the step to be known.
#define SUMS 16
#define ADD_RUN(STEP)                                                                             \
  for (; i + SUMS <= run; i += SUMS) {                                                            \
    for (int j = 0; j < SUMS; ++j) ADD(sums[j], lost[j], (ACC)Y_LOAD(y, from + (i + j) * (STEP))) \
  }
GROUP_KERNEL void add_places(OB_GLOBAL const Y_T* y, OB_GLOBAL BIAS_T* bias, const long bias_c, const long channels,
                             const long images, const long yd, const long yh, const long yw, const long y_n,
                             const long y_c, const long y_d, const long y_h, const long y_w) {
  JOIN_ROWS
  OB_FOR(c, channels) {
    ACC sums[SUMS];
    for (int j = 0; j < SUMS; ++j) sums[j] = 0;
#if KEEP_LOST
    ACC lost[SUMS];
    for (int j = 0; j < SUMS; ++j) lost[j] = 0;
#endif
    for (long row = 0; row < images * depths * heights; ++row) {
      const long from = FROM(row);
      long i = 0;
      if (y_w == 1) {
        ADD_RUN(1)
      } else {
        ADD_RUN(y_w)
      }
      for (; i < run; ++i) ADD(sums[0], lost[0], (ACC)Y_LOAD(y, from + i * y_w))
    }
#if KEEP_LOST
    for (int j = 1; j < SUMS; ++j) { lost[0] += lost[j]; ADD(sums[0], lost[0], sums[j]) }
#else
    for (int width = SUMS / 2; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) sums[j] += sums[j + width];
    }
#endif
    BIAS_STORE(bias, c * bias_c, WHOLE(sums[0], lost[0]));
  }
}
#endif
"""

_GROUP = 256
# Elements of a channel that a work-group adds, and most such shares.
_SHARE, _MOST_SHARES = 1 << 13, 64


@dataclasses.dataclass
class Convolution:
    """A convolution in five dimensions: x and y (images, channels, d, h, w), weight (y channels, x channels of a group,
    d, h, w); stride, padding and dilation have three entries. ``bias`` is added to what a product writes."""

    x: TensorArg
    y: TensorArg
    weight: TensorArg
    stride: list[Size]
    padding: list[Size]
    dilation: list[Size]
    groups: Size
    bias: TensorArg | None = None

    @property
    def images(self) -> Size:
        return self.x.sizes[0]

    @property
    def x_channels(self) -> Size:
        return self.weight.sizes[1]

    @property
    def y_channels(self) -> Size:
        return common.floor_div(self.weight.sizes[0], self.groups)

    @property
    def taps(self) -> Size:
        return strided.product(self.weight.sizes[2:])

    @property
    def thin(self) -> bool:
        return bool(self.groups != 1 and self.x_channels == 1)

    def gather(self, builder: PlanBuilder, finish: Finish | None = None) -> None:
        """Appends: y from x and the weight. With ``finish``, that is what becomes of y."""
        if builder.target.tuning.vectors:
            (depthwise if self.thin else windows).places(builder, self, finish)
            return
        places = strided.product(self.y.sizes[2:])
        batches, k = self.images * self.groups, self.x_channels * self.taps
        store = windows.FINISH_Y if finish is None else finish.text
        macros = store + _INSIDE_X + _GATHER
        self._product(builder, macros, batches, self.y_channels, places, k, short=self.thin, written="Y", finish=finish)

    def finish(self, builder: PlanBuilder, epilogue: Epilogue) -> Finish | None:
        """What an epilogue makes of y's elements; None, and nothing appended, where it does not apply."""
        y = self.y
        accumulate = engine.accumulator(y.dtype)
        if not strided.is_dense(list(y.sizes), list(y.strides)):
            return None
        lanes = blocked.Blocking.for_target(builder.target, accumulate).lanes
        return epilogue.finish(builder, y.numel(), lanes, Axis(strided.product(y.sizes[2:]), y.sizes[1]))

    def spread(self, builder: PlanBuilder) -> None:
        """Appends: x from y and the weight."""
        if builder.target.tuning.vectors and (self.thin or windows.can_spread(self)):
            (depthwise if self.thin else windows).spread(builder, self)
            return
        places = strided.product(self.x.sizes[2:])
        batches, k = self.images * self.groups, self.y_channels * self.taps
        self._product(builder, _SPREAD, batches, self.x_channels, places, k, short=self.thin, written="X")

    def weight_gradient(self, builder: PlanBuilder) -> None:
        """Appends: the weight from x and y."""
        vectors = builder.target.tuning.vectors
        if vectors and not self.thin:
            windows.taps(builder, self._with_fewer_rows())
            return
        part_count = depthwise.parts_of(builder, self) if vectors else self._parts_of_sum()
        accumulate = engine.accumulator(self.weight.dtype)
        count, width = self.weight.numel(), common.compute_size(accumulate)
        parts = builder.allocate(common.larger(1, part_count * count * width))
        if vectors:
            depthwise.taps(builder, self, parts, part_count)
        else:
            self._weight_parts(builder, parts, part_count)
        text = common.source(builder, _ADD_PARTS, {"ACC": accumulate}, {"W": self.weight.dtype})
        values = [count, part_count, self.x_channels, *self.weight.sizes[2:], *self.weight.strides]
        arguments = [builder.pointer(parts), builder.pointer(self.weight), *(builder.int64(v) for v in values)]
        common.launch_items(builder, builder.kernel(text, "add_parts"), count, arguments)
        builder.free(parts)

    def _with_fewer_rows(self) -> Convolution:
        """The problem, or, where x and y may change places and y has more channels, that. Channels of y are the rows of
        the product that is the weight's gradient: they are copied, and each panel of x's channels reads all of them."""
        alike = self.taps == 1 and self.groups == 1 and {*self.stride} == {1} and {*self.padding} == {0}
        x_channels, y_channels = map(common.static_int, (self.x_channels, self.y_channels))
        if not alike or x_channels is None or y_channels is None or y_channels <= x_channels:
            return self
        weight = self.weight
        sizes, strides = ((each[1], each[0], *each[2:]) for each in (weight.sizes, weight.strides))
        turned = TensorArg(weight.buffer, weight.dtype, sizes, strides, weight.offset)
        return dataclasses.replace(self, x=self.y, y=self.x, weight=turned)

    @property
    def _terms(self) -> Size:
        """How many numbers each element of the weight's gradient is the sum of."""
        return self.images * strided.product(self.y.sizes[2:])

    def _parts_of_sum(self) -> Size:
        return common.larger(1, common.smaller(common.ceil_div(self._terms, 1024), 16))

    def _weight_parts(self, builder: PlanBuilder, parts: int, part_count: Size) -> None:
        """Appends: parts of the weight's gradient, as products."""
        part, n = common.ceil_div(self._terms, part_count), self.x_channels * self.taps
        batches = part_count * self.groups
        self._product(builder, _INSIDE_X + _WEIGHT, batches, self.y_channels, n, part, parts=parts, written="")

    def bias_gradient(self, builder: PlanBuilder, bias: TensorArg) -> None:
        """Appends: the sum of y over images and places, into ``bias``, in two kernels where work-items meet."""
        accumulate = engine.accumulator(self.y.dtype)
        if builder.target.tuning.sums_in_doubles:
            accumulate = "double"
        size = common.compute_size(accumulate)
        group = common.group_size(builder, _GROUP, size)
        functions = common.group_functions(builder, group, accumulate)
        defines = {"ACC": accumulate, "GROUP": group, "KEEP_LOST": int(accumulate == "float")}
        text = common.source(builder, functions + _BIAS, defines, {"Y": self.y.dtype, "BIAS": bias.dtype})
        places = [self.y.sizes[1], self.y.sizes[0], *self.y.sizes[2:], *self.y.strides]
        kernel = builder.kernel(text, "add_places")
        if group == 1:
            values = [bias.strides[0], *places]
            arguments = [builder.pointer(self.y), builder.pointer(bias), *map(builder.int64, values)]
            common.launch_items(builder, kernel, self.y.sizes[1], arguments, grain=1)
            return
        channels = self.y.sizes[1]
        total = self.images * strided.product(self.y.sizes[2:])
        shares = common.larger(1, common.smaller(common.ceil_div(total, _SHARE), _MOST_SHARES))
        sums = builder.allocate(channels * shares * size)
        arguments = [builder.pointer(self.y), builder.pointer(sums), *map(builder.int64, [shares, *places])]
        common.launch_groups(builder, kernel, channels * shares, arguments, group)
        values = [bias.strides[0], shares, channels]
        arguments = [builder.pointer(sums), builder.pointer(bias), *map(builder.int64, values)]
        common.launch_items(builder, builder.kernel(text, "add_shares"), channels, arguments)
        builder.free(sums)

    def _product(
        self,
        builder: PlanBuilder,
        macros: str,
        batches: Size,
        m: Size,
        n: Size,
        k: Size,
        written: str,
        parts: int | None = None,
        short: bool = False,
        finish: Finish | None = None,
    ) -> None:
        parameters, arguments = "", []
        for name, kind, tensor in (("x", "X", self.x), ("y", "Y", self.y), ("weight", "W", self.weight)):
            if kind == "W" and parts is not None:
                continue
            const = "" if kind == written else "const "
            parameters += f", OB_GLOBAL {const}{kind}_T* {name}"
            arguments.append(builder.pointer(tensor))
        types = {"X": self.x.dtype, "Y": self.y.dtype, "W": self.weight.dtype}
        if parts is not None:
            parameters += ", OB_GLOBAL ACC* parts"
            arguments.append(builder.pointer(parts))
        if self.bias is not None:
            parameters += ", OB_GLOBAL const BIAS_T* bias, const long bias_c"
            arguments += [builder.pointer(self.bias), builder.int64(self.bias.strides[0])]
            types["BIAS"] = self.bias.dtype
        for name, value in self._numbers().items():
            parameters += f", const long {name}"
            arguments.append(builder.int64(value))
        if finish is not None:
            parameters += finish.parameters
            arguments += finish.arguments
        add_bias = "BIAS_LOAD(bias, (channel) * bias_c)" if self.bias is not None else "0"
        engine.Product(
            batches=batches,
            m=m,
            n=n,
            k=k,
            accumulate=engine.accumulator(self.x.dtype),
            macros=f"#define ADD_BIAS(channel) ((ACC){add_bias})\n" + _COORDINATES + macros,
            parameters=parameters,
            arguments=arguments,
            types=types,
            a_along_k=True,
            b_along_k=False,
            helpers={} if finish is None else finish.helpers,
            thin=self.thin,
            short=short,
        ).emit(builder)

    def _numbers(self) -> dict[str, Size]:
        names = [f"x_{a}" for a in "ncdhw"] + [f"y_{a}" for a in "ncdhw"] + [f"w_{a}" for a in "oidhw"]
        values = [*self.x.strides, *self.y.strides, *self.weight.strides]
        for prefix, triple in (
            ("x{}", self.x.sizes[2:]),
            ("y{}", self.y.sizes[2:]),
            ("k{}", self.weight.sizes[2:]),
            ("s{}", self.stride),
            ("p{}", self.padding),
            ("d{}", self.dilation),
        ):
            names += [prefix.format(axis) for axis in "dhw"]
            values += list(triple)
        names += ["groups", "images", "x_channels", "y_channels"]
        values += [self.groups, self.images, self.x_channels, self.y_channels]
        return dict(zip(names, values, strict=True))


def _five(tensor: TensorArg) -> TensorArg:
    """The tensor with leading spatial dimensions of one, five dimensions in all."""
    missing = 5 - len(tensor.sizes)
    sizes = (*tensor.sizes[:2], *[_ONE] * missing, *tensor.sizes[2:])
    strides = (*tensor.strides[:2], *[_ZERO] * missing, *tensor.strides[2:])
    return TensorArg(tensor.buffer, tensor.dtype, sizes, strides, tensor.offset)


def _convolution(values: dict[str, Any], x: TensorArg, y: TensorArg, weight: TensorArg) -> Convolution | None:
    rank = len(weight.sizes) - 2
    if not 1 <= rank <= 3 or len(x.sizes) != rank + 2 or len(y.sizes) != rank + 2:
        return None
    if any(channels == 0 for channels in (*x.sizes[1:2], *y.sizes[1:2], *weight.sizes[:2])):
        return None  # PyTorch then gives a result without channels, whatever the weight says
    lists = [common.int_list(values[name], rank) for name in ("stride", "padding", "dilation")]
    if any(items is None for items in lists) or values["groups"] == 0 or _is_refused(values, rank):
        return None
    stride, padding, dilation = (
        [filler] * (3 - rank) + list(items or ()) for filler, items in zip((_ONE, _ZERO, _ONE), lists, strict=True)
    )
    return Convolution(_five(x), _five(y), _five(weight), stride, padding, dilation, values["groups"])


def _is_refused(values: dict[str, Any], rank: int) -> bool:
    """Whether PyTorch refuses numbers that are known, and its shape function has let pass."""
    names = ("stride", "dilation", "output_padding")
    lists = [common.int_list(values.get(name) or [0], rank) or [] for name in names]
    for stride, dilation, more in zip(*lists, strict=False):
        known = all(isinstance(each, (int, sympy.Integer)) for each in (stride, dilation, more))
        if known and (dilation < 1 or more >= max(stride, dilation)):
            return True
    return False


def _dtype_covered(builder: PlanBuilder, *tensors: TensorArg | None) -> bool:
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    return len(dtypes) == 1 and dtypes <= common.FLOAT_DTYPES and common.supported(builder, *dtypes)


def lower_convolution(builder: PlanBuilder, call: ExternCall) -> bool:
    """``convolution``, transposed or not."""
    values = call.bind()
    source, weight, bias, out = values["input"], values["weight"], values["bias"], call.outputs()[0]
    if not _dtype_covered(builder, source, weight, bias, out):
        return False
    transposed = bool(values["transposed"])
    problem = _convolution(values, out, source, weight) if transposed else _convolution(values, source, out, weight)
    if problem is None:
        return False
    problem.bias = bias
    if call.epilogue is not None:
        finish = None if transposed else problem.finish(builder, call.epilogue)
        if finish is None:
            return False
        problem.gather(builder, finish)
    elif transposed:
        problem.spread(builder)
    else:
        problem.gather(builder)
    return True


def lower_backward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``convolution_backward``, transposed or not, for any output mask."""
    values = call.bind()
    grad, source, weight = values["grad_output"], values["input"], values["weight"]
    mask = [bool(flag) for flag in values["output_mask"]]
    results = _masked(call.outputs(), mask)
    if results is None or not _dtype_covered(builder, grad, source, weight, *results):
        return False
    grad_source, grad_weight, grad_bias = results
    transposed = bool(values["transposed"])
    x, y = (grad, source) if transposed else (source, grad)
    problem = _convolution(values, x, y, weight)
    if problem is None:
        return False
    if grad_source is not None:
        target = _five(grad_source)
        if transposed:
            dataclasses.replace(problem, y=target).gather(builder)
        else:
            dataclasses.replace(problem, x=target).spread(builder)
    if grad_weight is not None:
        dataclasses.replace(problem, weight=_five(grad_weight)).weight_gradient(builder)
    if grad_bias is not None:
        dataclasses.replace(problem, y=_five(grad)).bias_gradient(builder, grad_bias)
    return True


def without_bias(call: ExternCall) -> Parts | None:
    """A call of ``convolution`` as one without its bias, which is added to the result in place."""
    values = call.bind()
    bias, result = values["bias"], call.outputs()[0]
    rows = range(2, len(result.sizes))
    orders = {strided.product([result.sizes[dim] for dim in rows]): [0, 1, *rows], _ONE: [0, *rows, 1]}
    step = next((step for step, dims in orders.items() if _is_dense(result, dims)), None)
    if bias is None or bias.dtype != result.dtype or step is None:
        return None

    def finish(builder: PlanBuilder) -> None:
        text = common.source(builder, _ADD_BIAS, {}, {"Y": result.dtype, "BIAS": bias.dtype})
        numbers = [bias.strides[0], result.numel(), step, result.sizes[1]]
        arguments = [builder.pointer(result), builder.pointer(bias), *map(builder.int64, numbers)]
        common.launch_items(builder, builder.kernel(text, "add_bias"), result.numel(), arguments)

    return Parts([ExternCall(call.name, [*(values | {"bias": None}).values()], {}, [result])], finish)


def _is_dense(tensor: TensorArg, dims: list[int]) -> bool:
    """Whether the dimensions, in this order, lie in memory without gaps."""
    return strided.is_dense([tensor.sizes[dim] for dim in dims], [tensor.strides[dim] for dim in dims])


def gradients(call: ExternCall) -> Parts:
    """A call of ``convolution_backward`` as one for each gradient that its mask wants. That of the bias alone is told
    of its size."""
    values = call.bind()
    results = _masked(call.outputs(), [bool(flag) for flag in values["output_mask"]])
    made = []
    for place, result in enumerate(results or ()):
        if result is None:
            continue
        own: dict[str, Any] = {"output_mask": [each == place for each in range(3)]}
        if place < 2:
            own["bias_sizes"] = None
        made.append(ExternCall(call.name, [*(values | own).values()], {}, [result]))
    return Parts(made)


def _masked(results: list[TensorArg], mask: list[bool]) -> list[TensorArg | None] | None:
    """Results by position of the mask, whether or not those that are masked out have a place in the list."""
    if len(results) == len(mask):
        return [result if wanted else None for result, wanted in zip(results, mask, strict=True)]
    if len(results) != sum(mask):
        return None
    rest = iter(results)
    return [next(rest) if wanted else None for wanted in mask]
