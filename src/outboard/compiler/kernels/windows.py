# SPDX-License-Identifier: Apache-2.0
"""Convolution for CPUs: matrix products that read sliding windows as runs of neighbouring elements.

The elements that one tap of a kernel meets, for places of the output that follow each other, lie side by side in the
input as long as the places are in one row. So a vector of them is a few loads, one per row touched, merged by lane:
nothing is unfolded in memory. What it takes is an input without padding and with a stride of one. Where the problem has
padding or strides, its input is copied first, with its border of zeros, and with one plane for every phase of the
stride: then the windows of one tap are neighbours in one plane.

Two programs: *places* has the output's places as columns, and is the forward pass and the gradient of the input;
*taps* has the kernel's taps as columns, and is the gradient of the weight.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import sympy

from ..plans import plan as p
from ..plans import strided
from ..plans.builder import PlanBuilder, Size, TensorArg
from . import blocked, common, engine, formats
from .epilogue import Finish

if TYPE_CHECKING:
    from .conv import Convolution

_ZERO, _ONE = sympy.Integer(0), sympy.Integer(1)

#: What becomes of an element of y where nothing else is asked for.
FINISH_Y = "#define FINISH(at, row, column, value) Y_STORE(y, at, value)\n"

_ARRANGE = r"""
/* Copies x into planes[image][channel][phase][d][h][w] of the strides to_*: zeros outside x; a phase has every
   sd-th, sh-th, sw-th element, and the first nd * nh * nw are wanted. */
OB_KERNEL void arrange_planes(OB_GLOBAL ITEM* planes, OB_GLOBAL const X_T* x, const long images, const long channels,
                              const long xd, const long xh, const long xw, const long x_n, const long x_c,
                              const long x_d, const long x_h, const long x_w, const long sd, const long sh,
                              const long sw, const long pd, const long ph, const long pw, const long nd,
                              const long nh, const long nw, const long to_d, const long to_h, const long to_w,
                              const long to_n, const long to_c) {
  const long phases = nd * nh * nw;
  OB_FOR(plane, images * channels * phases * to_d) {
    long rest = plane;
    const long r_d = rest % to_d; rest /= to_d;
    const long phase = rest % phases; rest /= phases;
    const long channel = rest % channels, image = rest / channels;
    const long phase_h = phase / nw % nh, phase_w = phase % nw, d = r_d * sd + phase / (nh * nw) - pd;
    const long first = pw > phase_w ? (pw - phase_w + sw - 1) / sw : 0;
    long last = xw + pw > phase_w ? (xw + pw - phase_w + sw - 1) / sw : 0;
    if (last > to_w) last = to_w;
    OB_GLOBAL ITEM* to = planes + image * to_n + channel * to_c + (phase * to_d + r_d) * to_h * to_w;
    for (long r_h = 0; r_h < to_h; ++r_h, to += to_w) {
      const long h = r_h * sh + phase_h - ph;
      const int outside = d < 0 || d >= xd || h < 0 || h >= xh || first > last;
      const long begin = outside ? to_w : first, end = outside ? to_w : last;
      OB_GLOBAL const ITEM* from = (OB_GLOBAL const ITEM*)x + image * x_n + channel * x_c + d * x_d + h * x_h +
                                   (phase_w - pw) * x_w;
      for (long w = 0; w < begin; ++w) to[w] = 0;
      long w = begin;
      if (sw == 1 && x_w == 1)
        for (; w + LANES <= end; w += LANES) COPY_ITEMS(to + w, ITEMS_AT(from + w));
      if (sw == 2 && x_w == 1)
        for (; w + LANES < end; w += LANES)
          COPY_ITEMS(to + w, (ITEMS)(ITEMS_AT(from + 2 * w).even, ITEMS_AT(from + 2 * w + LANES).even));
      for (; w < end; ++w) to[w] = from[w * sw * x_w];
      for (; w < to_w; ++w) to[w] = 0;
    }
  }
}
"""

# at_*: strides of the planes; at_p: from phase to phase.
_WALK = r"""
#define TAPS (kd * kh * kw)
#define MOST_TAPS 64
#define TAP_AT(d, h, w) \
  ((((d) * dd % sd * nh + (h) * dh % sh) * nw + (w) * dw % sw) * at_p + (d) * dd / sd * at_d + (h) * dh / sh * at_h + \
   (w) * dw / sw)
/* Offsets of the first taps, once per work-item: what is beyond is computed each time. */
#define B_SETUP \
  long tap_at[MOST_TAPS]; \
  for (int t = 0; t < TAPS && t < MOST_TAPS; ++t) tap_at[t] = TAP_AT(t / (kh * kw), t / kw % kh, t % kw);
#define TAP(t) ((t) < MOST_TAPS ? tap_at[t] : TAP_AT((t) / (kh * kw), (t) / kw % kh, (t) % kw))

/* Walks over places of the output, in order: `at` is where the place's window begins, `to` where its result goes. */
typedef struct { int image, d, h, w; } place_t;
#define PLACES (yd * yh * yw)
#define PLACE_START(v, n) { \
  long q = (n); \
  (v).w = (int)(q % yw); q /= yw; \
  (v).h = (int)(q % yh); q /= yh; \
  (v).d = (int)(q % yd); (v).image = (int)(q / yd); }
#define PLACE_STEP(v) \
  if (++(v).w == yw) { (v).w = 0; if (++(v).h == yh) { (v).h = 0; if (++(v).d == yd) { (v).d = 0; ++(v).image; } } }
#define PLACE_AT(v) ((v).image * at_n + (v).d * at_d + (v).h * at_h + (v).w)

/* The runs of neighbours among LANES offsets: lane and offset (less the lane) where each begins. Missing runs begin
   behind the last lane, at an offset that may be read. */
#define MOST_RUNS 4
#define FIND_RUNS(runs, run_lane, run_at, offsets) \
  runs = 0; \
  for (int r = 0; r < MOST_RUNS; ++r) { run_lane[r] = LANES; run_at[r] = (offsets)[0]; } \
  for (int l = 0; l < LANES; ++l) { \
    if (l > 0 && (offsets)[l] == (offsets)[l - 1] + 1) continue; \
    if (runs < MOST_RUNS) { run_lane[runs] = l; run_at[runs] = (offsets)[l] - l; } \
    ++runs; \
  }
#define FROM_LANE(l) ((LANE_MASK)(LANE_NUMBERS) >= (LANE_MASK)(l))
#define RUNS_1(from, lane, at) ITEMS_AT((from) + at[0])
#define RUNS_2(from, lane, at) select(RUNS_1(from, lane, at), ITEMS_AT((from) + at[1]), FROM_LANE(lane[1]))
#define RUNS_3(from, lane, at) select(RUNS_2(from, lane, at), ITEMS_AT((from) + at[2]), FROM_LANE(lane[2]))
#define RUNS_4(from, lane, at) select(RUNS_3(from, lane, at), ITEMS_AT((from) + at[3]), FROM_LANE(lane[3]))
"""

_PLACES = r"""
#define A_OUTER_T long
#define A_INNER_T long
#define A_SET_OUTER(v, b, m) v = (b) * w_g + (m) * w_m
#define A_SET_INNER(v, b, k) { \
  const long tap = (k) % TAPS; \
  v = (k) / TAPS * w_c + tap / (kh * kw) * w_d + tap / kw % kh * w_h + tap % kw * w_w; }
#define A_AT(outer, inner) ((OB_GLOBAL const ITEM*)weight)[(outer) + (inner)]

#define B_PREPARE(b, n0, count) \
  long lane_at[NR], lane_to[NR]; \
  int runs[NR / LANES], run_lane[NR / LANES][MOST_RUNS], whole[NR / LANES]; \
  long run_at[NR / LANES][MOST_RUNS]; \
  long k_at[2][K_BLOCK]; \
  int current = 0, ahead_depth = 0; \
  OB_GLOBAL const ITEM* ahead = planes; \
  FIND_K(k_at[0], 0) \
  { place_t place; \
    PLACE_START(place, n0) \
    for (int i = 0; i < NR; ++i) { \
      lane_at[i] = PLACE_AT(place); \
      lane_to[i] = place.image * y_n + place.d * y_d + place.h * y_h + place.w * y_w; \
      if (i + 1 < (count)) { PLACE_STEP(place) } \
    } } \
  ROLLED for (int v = 0; v < NR / LANES; ++v) { \
    FIND_RUNS(runs[v], run_lane[v], run_at[v], lane_at + v * LANES) \
    if ((count) < (v + 1) * LANES) runs[v] = MOST_RUNS + 1; \
    whole[v] = 1; \
    for (int l = 1; l < LANES; ++l) whole[v] &= lane_to[v * LANES + l] == lane_to[v * LANES] + l; \
  }
#define FILL_RUNS(v, RUNS) \
  for (int k = 0; k < fill_depth; k += K_CELL) \
    LOCAL_CELLS(block + k / K_CELL * NR + v * LANES) = \
        CELLS_OF(RUNS(from + at[k], run_lane[v], run_at[v]), \
                 ALL_IF_WITHIN(k, fill_depth, RUNS(from + at[k + 1], run_lane[v], run_at[v])));
/* Where the input of each k of a block begins. */
#define FIND_K(to, k0) { \
  int tap = (int)((k0) % TAPS); \
  long channel_at = (k0) / TAPS * at_c; \
  for (int k = 0; k < K_BLOCK && (k0) + k < k_count; ++k) { \
    (to)[k] = channel_at + TAP(tap); \
    if (++tap == TAPS) { tap = 0; channel_at += at_c; } \
  } }
#define B_FILL(b, n0, count, k0, depth) { \
  const int fill_depth = (depth); \
  OB_GLOBAL const ITEM* from = planes + (b) * x_channels * at_c; \
  const long* at = k_at[current]; \
  ROLLED for (int v = 0; v < FILLED(count) / LANES; ++v) { \
    if (runs[v] == 1) { \
      FILL_RUNS(v, RUNS_1) \
    } else if (runs[v] == 2) { \
      FILL_RUNS(v, RUNS_2) \
    } else if (runs[v] <= MOST_RUNS) { \
      FILL_RUNS(v, RUNS_4) \
    } else { \
      for (int k = 0; k < fill_depth; k += K_CELL) \
        for (int l = v * LANES; l < (v + 1) * LANES; ++l) \
          block[k / K_CELL * NR + l] = CELL_OF(from[at[k] + lane_at[l]], \
                                               IF_WITHIN(k, fill_depth, from[at[k + 1] + lane_at[l]])); \
    } \
  } \
  /* Next comes the block behind this one, or the first one of the next panel. */ \
  const long k_next = (k0) + K_BLOCK < k_count ? (k0) + K_BLOCK : 0; \
  if (k_count > K_BLOCK) { current = !current; FIND_K(k_at[current], k_next) } \
  ahead = from + lane_at[0] + (k_next == 0 ? NR : 0); \
  ahead_depth = k_count - k_next < K_BLOCK ? (int)(k_count - k_next) : K_BLOCK; }
#define B_AHEAD(done, rows) \
  for (long k = (done) * ahead_depth / (rows); k < ((done) + ROWS) * ahead_depth / (rows) && k < ahead_depth; ++k) \
    for (int l = 0; l < NR; l += LANES) FETCH(ahead + k_at[current][k] + l);
#define C_TO(b, m) (((b) * y_channels + (m)) * y_c)
#define C_STORE(b, m, n, value) \
  FINISH(C_TO(b, m) + lane_to[(n) - n0], (b) * y_channels + (m), n, (value) + ADD_BIAS((b) * y_channels + (m)))
"""

_PLACES_VECTOR = r"""
#define C_IS_VECTOR(b, n) whole[((n) - n0) / LANES]
#define C_STORE_VECTOR(b, m, n, value) \
  FINISH_VECTOR(C_TO(b, m) + lane_to[(n) - n0], (b) * y_channels + (m), n, \
                (value) + (VECTOR)ADD_BIAS((b) * y_channels + (m)))
"""
_FINISH_VECTOR = "#define FINISH_VECTOR(at, row, column, value) STORE_ITEMS(y + (at), value)\n"

# m: output channel of the group; n: (input channel of the group, tap); k: (image, place).
_GRADIENT_ROWS = """
#define A_START(b, m) (grad + ((b) * y_channels + (m)) * k_count)
#define A_ROW k_count
#define A_STEP 1
"""
_TAPS = r"""
#define B_PREPARE(b, n0, count) \
  OB_GLOBAL const ITEM* lane_from[NR]; \
  long lane_to[NR], ahead = 0; \
  long ahead_lines = 0; \
  for (int i = 0; i < NR; ++i) { \
    const long n = (n0) + (i < (count) ? i : (count) - 1), channel = n / TAPS, tap = n % TAPS; \
    lane_from[i] = planes + ((b) * x_channels + channel) * at_c + TAP(tap); \
    lane_to[i] = channel * w_c + tap / (kh * kw) * w_d + tap / kw % kh * w_h + tap % kw * w_w; \
  }
/* The items of a square: LANES of k, or twice as many for cells of two, whose runs are others. */
#define TAP_RUNS(RUNS, l) \
  CELLS_ALONG(RUNS(lanes[l], run_lane[0], run_at[0]), RUNS(lanes[l], run_lane[K_CELL - 1], run_at[K_CELL - 1]))
#define TAP_RUNS_1(l) TAP_RUNS(RUNS_1, l)
#define TAP_RUNS_4(l) TAP_RUNS(RUNS_4, l)
#define FILL_SQUARES(RUNS) \
  ROLLED for (int v = 0; v < filled; v += LANES) { \
    OB_GLOBAL const ITEM** lanes = lane_from + v; \
    TRANSPOSE_CELLS(block + k / K_CELL * NR + v, RUNS) \
  }
#define FILL_CELLS(k_from, k_to) \
  for (int j = k_from; j < (k_to); j += K_CELL) \
    for (int l = 0; l < filled; ++l) \
      block[j / K_CELL * NR + l] = CELL_OF(lane_from[l][k_at[j]], IF_WITHIN(j, k_to, lane_from[l][k_at[j + 1]]));
#define B_FILL(b, n0, count, k0, depth) { \
  long k_at[K_BLOCK]; \
  const int filled = FILLED(count); \
  { place_t place; \
    PLACE_START(place, k0) \
    for (int k = 0; k < (depth); ++k) { k_at[k] = PLACE_AT(place); PLACE_STEP(place) } } \
  int k = 0; \
  for (; k + LANES * K_CELL <= (depth); k += LANES * K_CELL) { \
    int most = 0, run_lane[K_CELL][MOST_RUNS]; \
    long run_at[K_CELL][MOST_RUNS]; \
    for (int c = 0; c < K_CELL; ++c) { \
      int runs; \
      FIND_RUNS(runs, run_lane[c], run_at[c], k_at + k + c * LANES) \
      most = runs > most ? runs : most; \
    } \
    if (most == 1) { \
      FILL_SQUARES(TAP_RUNS_1) \
    } else if (most <= MOST_RUNS) { \
      FILL_SQUARES(TAP_RUNS_4) \
    } else { \
      FILL_CELLS(k, k + LANES * K_CELL) \
    } \
  } \
  FILL_CELLS(k, depth) \
  /* The next block begins about where this one ends; the last one of a panel has none. */ \
  ahead = k_at[(depth) - 1] + 1; \
  ahead_lines = (k0) + K_BLOCK < k_count ? K_BLOCK / LANES * CHANNELS_MET : 0; }
/* Taps of a channel share most of their lines: one of them asks. */
#define CHANNELS_MET ((NR + TAPS - 1) / TAPS)
#define B_AHEAD(done, rows) \
  for (long i = (done) * ahead_lines / (rows); i < ((done) + ROWS) * ahead_lines / (rows) && i < ahead_lines; ++i) \
    FETCH(lane_from[i % CHANNELS_MET * TAPS] + ahead + i / CHANNELS_MET * LANES);
#define C_STORE(b, m, n, value) W_STORE(weight, (b) * w_g + (m) * w_m + lane_to[(n) - n0], value)
"""

_TAPS_VECTOR = r"""
#define C_IS_VECTOR(b, n) 1
#define C_STORE_VECTOR(b, m, n, value) STORE_ITEMS(weight + (b) * w_g + (m) * w_m + (n), value)
"""


@dataclasses.dataclass
class _Planes:
    """Where windows are read: a buffer of items (``formats``) with the strides of images, channels, phases, d and h."""

    pointer: p.Argument
    strides: list[Size]
    scratch: int | None  #: the buffer, if it was made for this


def places(builder: PlanBuilder, problem: Convolution, finish: Finish | None = None) -> None:
    """Appends: y from x and the weight. With ``finish``, that is what becomes of y."""
    _places(builder, problem, _group_stride(problem), finish)


def spread(builder: PlanBuilder, problem: Convolution) -> None:
    """Appends: x from y and the weight, phase by phase of the stride; each is a convolution of stride one."""
    group_stride = _group_stride(problem)
    for phase in _phases(problem):
        _places(builder, phase, group_stride)


def can_spread(problem: Convolution) -> bool:
    """Whether ``spread`` covers the problem: strides must be known, few, and not mixed with dilation."""
    strides = [common.static_int(stride) for stride in problem.stride]
    dilations = [common.static_int(dilation) for dilation in problem.dilation]
    if any(stride is None or stride < 1 for stride in strides) or strided.product(problem.stride) > 8:
        return False
    return all(stride == 1 or dilation == 1 for stride, dilation in zip(strides, dilations, strict=True))


def taps(builder: PlanBuilder, problem: Convolution) -> None:
    """Appends: the weight from x and y."""
    windows = _arranged_windows(builder, problem)
    grad = _arranged_channels(builder, problem.y)
    accumulate = engine.accumulator(problem.weight.dtype)
    dense = strided.is_dense(list(problem.weight.sizes[1:]), list(problem.weight.strides[1:]))
    pointers = [
        ("OB_GLOBAL const ITEM* planes", windows.pointer),
        ("OB_GLOBAL const ITEM* grad", builder.pointer(grad)),
        ("OB_GLOBAL W_T* weight", builder.pointer(problem.weight)),
    ]
    parameters, arguments = _parameters(builder, problem, windows, pointers, _group_stride(problem))
    product = engine.Product(
        batches=problem.groups,
        m=problem.y_channels,
        n=problem.x_channels * problem.taps,
        k=problem.images * strided.product(problem.y.sizes[2:]),
        accumulate=accumulate,
        macros=_WALK + _TAPS + (_TAPS_VECTOR if dense else ""),
        parameters=parameters,
        arguments=arguments,
        types={"W": problem.weight.dtype},
        half=formats.item_dtype(problem.weight.dtype, accumulate),
        a_in_place=_GRADIENT_ROWS,
        b_fill="",
    )
    product.emit_blocked(builder)
    builder.free(grad)
    if windows.scratch is not None:
        builder.free(windows.scratch)


def _places(builder: PlanBuilder, problem: Convolution, group_stride: Size, finish: Finish | None = None) -> None:
    windows = _arranged_windows(builder, problem)
    accumulate = engine.accumulator(problem.x.dtype)
    half = formats.item_dtype(problem.x.dtype, accumulate)
    store = FINISH_Y + _FINISH_VECTOR if finish is None else finish.text
    pointers = [
        ("OB_GLOBAL const ITEM* planes", windows.pointer),
        ("OB_GLOBAL Y_T* y", builder.pointer(problem.y)),
        ("OB_GLOBAL const W_T* weight", builder.pointer(problem.weight)),
    ]
    types = {"Y": problem.y.dtype, "W": problem.weight.dtype}
    add_bias = "0"
    if problem.bias is not None:
        pointers.append(("OB_GLOBAL const BIAS_T* bias", builder.pointer(problem.bias)))
        types["BIAS"] = problem.bias.dtype
        add_bias = "BIAS_LOAD(bias, (channel) * bias_c)"
    parameters, arguments = _parameters(builder, problem, windows, pointers, group_stride)
    if problem.bias is not None:
        parameters += ", const long bias_c"
        arguments.append(builder.int64(problem.bias.strides[0]))
    if finish is not None:
        parameters += finish.parameters
        arguments += finish.arguments
    product = engine.Product(
        batches=problem.groups,
        m=problem.y_channels,
        n=problem.images * strided.product(problem.y.sizes[2:]),
        k=problem.x_channels * problem.taps,
        accumulate=accumulate,
        macros="".join((f"#define ADD_BIAS(channel) ((ACC){add_bias})\n", store, _WALK, _PLACES, _PLACES_VECTOR)),
        parameters=parameters,
        arguments=arguments,
        types=types,
        helpers={} if finish is None else finish.helpers,
        half=half,
        a_in_place=_weight_in_place(problem, half is not None),
        b_fill="",
    )
    product.emit_blocked(builder)
    if windows.scratch is not None:
        builder.free(windows.scratch)


def _parameters(
    builder: PlanBuilder,
    problem: Convolution,
    windows: _Planes,
    pointers: list[tuple[str, p.Argument]],
    group_stride: Size,
) -> tuple[str, list[p.Argument]]:
    values: dict[str, Size] = dict(zip(("at_n", "at_c", "at_p", "at_d", "at_h"), windows.strides, strict=True))
    values |= dict(zip((f"y_{a}" for a in "ncdhw"), problem.y.strides, strict=True))
    values |= dict(zip(("w_m", "w_c", "w_d", "w_h", "w_w"), problem.weight.strides, strict=True))
    for letter, triple in (
        ("y", problem.y.sizes[2:]),
        ("k", problem.weight.sizes[2:]),
        ("s", problem.stride),
        ("d", problem.dilation),
        ("n", _phases_met(problem)),
    ):
        values |= dict(zip((f"{letter}{axis}" for axis in "dhw"), triple, strict=True))
    values |= {"x_channels": problem.x_channels, "y_channels": problem.y_channels, "w_g": group_stride}
    parameters = "".join(f", {declaration}" for declaration, _ in pointers)
    parameters += "".join(f", const long {name}" for name in values)
    return parameters, [pointer for _, pointer in pointers] + [builder.int64(value) for value in values.values()]


def _group_stride(problem: Convolution) -> Size:
    return problem.y_channels * problem.weight.strides[0]


def _weight_in_place(problem: Convolution, halves: bool) -> str:
    """Macros that read the weight as it lies; empty if k does not step evenly through it, in halves one by one."""
    weight = problem.weight
    one_tap = all(size == 1 for size in weight.sizes[2:])
    if not one_tap and not strided.is_dense(list(weight.sizes[1:]), list(weight.strides[1:])):
        return ""
    step = "w_c" if one_tap and weight.strides[1] != 1 else "1"
    if halves and step != "1":
        return ""
    start = "((OB_GLOBAL const ITEM*)weight + (b) * w_g + (m) * w_m)"
    return f"#define A_START(b, m) {start}\n#define A_ROW w_m\n#define A_STEP {step}\n"


def _arranged_windows(builder: PlanBuilder, problem: Convolution) -> _Planes:
    """The input as ``places`` and ``taps`` read it: x itself where it has neither padding nor strides."""
    x = problem.x
    extents: list[Size] = [
        y + common.floor_div((k - 1) * dilation, stride)
        for y, k, dilation, stride in zip(
            problem.y.sizes[2:], problem.weight.sizes[2:], problem.dilation, problem.stride, strict=True
        )
    ]
    unit = all(stride == 1 for stride in problem.stride) and all(padding == 0 for padding in problem.padding)
    # A phase of a gradient may look beyond the end of its input, though it begins with the input's first element.
    inside = all(sympy.expand(extent - size) == 0 for extent, size in zip(extents, x.sizes[2:], strict=True))
    if unit and inside and strided.is_dense(list(x.sizes), list(x.strides)):
        n, c, d, h, _ = x.strides
        return _Planes(builder.pointer(x), [n, c, _ZERO, d, h], None)
    plane, met = strided.product(extents), _phases_met(problem)
    channel = strided.product(met) * plane
    image = x.sizes[1] * channel
    geometry = [*problem.stride, *problem.padding, *met, *extents, image, channel]
    pieces = x.sizes[0] * x.sizes[1] * strided.product(met) * extents[0]
    buffer = _arrange(builder, x, geometry, image * x.sizes[0], pieces)
    strides = [image, channel, plane, extents[1] * extents[2], extents[2]]
    return _Planes(builder.pointer(buffer), strides, buffer)


def _arranged_channels(builder: PlanBuilder, tensor: TensorArg) -> int:
    """A copy of (images, channels, d, h, w) as (channels, images, d, h, w)."""
    extents, ones, zeros = list(tensor.sizes[2:]), [_ONE] * 3, [_ZERO] * 3
    plane = strided.product(extents)
    geometry = [*ones, *zeros, *ones, *extents, plane, tensor.sizes[0] * plane]
    planes = tensor.sizes[0] * tensor.sizes[1]
    return _arrange(builder, tensor, geometry, planes * plane, planes * extents[0])


def _phases_met(problem: Convolution) -> list[Size]:
    """How many phases of the stride the taps meet in each dimension, from the first on."""
    return [
        common.smaller(stride, size) if dilation == 1 else stride
        for stride, size, dilation in zip(problem.stride, problem.weight.sizes[2:], problem.dilation, strict=True)
    ]


def _arrange(builder: PlanBuilder, x: TensorArg, geometry: list[Size], count: Size, pieces: Size) -> int:
    """Copies ``x`` to a buffer of ``count`` items; ``geometry`` are the kernel's last parameters."""
    accumulate = engine.accumulator(x.dtype)
    half = formats.item_dtype(x.dtype, accumulate)
    shape = blocked.Blocking.for_target(builder.target, accumulate, half)
    width = formats.item_size(half, accumulate)
    buffer = builder.allocate(common.larger(width, count * width))
    text = common.source(builder, shape.formats() + _ARRANGE, {"ACC": accumulate, **shape.defines()}, {"X": x.dtype})
    values = [*x.sizes, *x.strides, *geometry]
    arguments = [builder.pointer(buffer), builder.pointer(x), *(builder.int64(value) for value in values)]
    common.launch_items(builder, builder.kernel(text, "arrange_planes"), pieces, arguments, grain=1)
    return buffer


def _phases(problem: Convolution) -> list[Convolution]:
    """The gradient of x as convolutions of stride one over y.

    Element ``s * i + r`` of x has met tap ``t`` at place ``i + (r + p - t) / s`` of y, for the taps that make this
    whole: ``t0 = (r + p) % s``, ``t0 + s``, ... Read backwards, they are a kernel that slides over y.
    """
    phases: list[tuple[list[Size], ...]] = [([], [], [], [], [])]
    sizes, weight = problem.x.sizes[2:], problem.weight
    for axis in range(3):
        stride, padding, dilation = problem.stride[axis], problem.padding[axis], problem.dilation[axis]
        step, size = common.static_int(stride) or 1, weight.sizes[2 + axis]
        choices = []
        for r in range(step):
            first = sympy.Mod(r + padding, step) if step > 1 else _ZERO
            count = common.larger(0, common.ceil_div(size - first, step)) if step > 1 else size
            skipped = common.floor_div(r + padding, step)
            pad = (count - 1) * dilation - skipped
            choices.append((r, common.ceil_div(sizes[axis] - r, step) if step > 1 else sizes[axis], count, pad, first))
        phases = [
            tuple([*known, value] for known, value in zip(phase, choice, strict=True))
            for phase in phases
            for choice in choices
        ]
    return [_phase(problem, *phase) for phase in phases]


def _phase(
    problem: Convolution,
    start: list[Size],
    sizes: list[Size],
    counts: list[Size],
    padding: list[Size],
    first: list[Size],
) -> Convolution:
    x, weight = problem.x, problem.weight
    offset, taps_offset = x.offset, weight.offset
    strides, tap_strides = [], []
    for axis in range(3):
        step, tap = problem.stride[axis], weight.strides[2 + axis]
        offset = offset + start[axis] * x.strides[2 + axis]
        strides.append(step * x.strides[2 + axis])
        last = first[axis] + step * (counts[axis] - 1)
        # A phase that no tap meets has no last one: what it would read still begins in the weight.
        taps_offset = taps_offset + (common.larger(0, last) if step > 1 else last) * tap
        tap_strides.append(-step * tap)
    out = TensorArg(x.buffer, x.dtype, (*x.sizes[:2], *sizes), (*x.strides[:2], *strides), offset)
    taps_view = TensorArg(
        weight.buffer,
        weight.dtype,
        (problem.x_channels * problem.groups, problem.y_channels, *counts),
        (weight.strides[1], weight.strides[0], *tap_strides),
        taps_offset,
    )
    return dataclasses.replace(problem, x=problem.y, y=out, weight=taps_view, stride=[_ONE] * 3, padding=padding)
