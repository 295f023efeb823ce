# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution for CPUs: groups of one input channel, whose products would have one row.

A piece of work is a band of rows of one plane. What the band meets of its source is copied, with a border of zeros, to
a slab that fits a near cache and whose rows have one length: then the source of one tap is, for all places of the band,
one run of memory, and a place costs a load and a multiplication for each tap. Columns beyond the result's are computed
and not stored.

Where channels are neighbours in memory (channels last), a vector is of channels, else it is of places; the text is the
same. Strides make phases: a source of stride two is laid into the slab as planes of its even and odd rows and columns,
and a gradient of stride two is computed as such planes. So two kernels are enough:

* *slide*: y from x and the weight, or with ``SPREAD`` x from y;
* *taps*: the weight's gradient.

``from`` is what is read, ``to`` what is written; place ``i * u + r`` of ``to``, of phase r, is the sum over taps of
places ``i * v + offset`` of ``from``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import sympy

from ..plans import plan as p
from ..plans import strided
from ..plans.builder import PlanBuilder, Size, TensorArg
from ..units import COMPUTE_UNITS
from . import blocked, common, engine, formats
from .epilogue import Finish

if TYPE_CHECKING:
    from .conv import Convolution

_ONE = sympy.Integer(1)

#: What becomes of an element where nothing else is asked for.
_FINISH = r"""
#define FINISH(at, row, column, value) TO_STORE(to, at, value)
#define FINISH_VECTOR(at, row, column, value) STORE_ITEMS(to + (at), value)
"""

_COMMON = r"""
#if CHANNELS_LAST
#define BESIDE LANES /* channels of an element of the slab */
#define PLACES 1     /* places in a vector */
#define BLOCKS(channels) (((channels) + LANES - 1) / LANES)
#else
#define BESIDE 1
#define PLACES LANES
#define BLOCKS(channels) (channels)
#endif
#define SLACK (4 * LANES)
#define MOST_TAPS 64
#define ZEROS ((VECTOR)(0))
typedef MASK loose_mask_t OB_ALIGNED(sizeof(MASK_ITEM));

#if CHANNELS_LAST
/* Row `to` of `width` elements: from[w * step] for begin <= w < end, else zeros. Lane l is the channel at lane_at[l];
   `together`: they are neighbours. */
void lay_row(OB_GLOBAL ACC* to, OB_GLOBAL const ITEM* from, const long step, const long begin, const long end,
             const long width, const long* lane_at, const int together) {
  long w = 0;
  for (; w < begin; ++w) VSTORE(to + w * LANES, ZEROS);
  if (together)
    for (; w < end; ++w) VSTORE(to + w * LANES, ACCS_AT(from + w * step + lane_at[0]));
  for (; w < end; ++w)
    for (int l = 0; l < LANES; ++l) to[w * LANES + l] = ACC_OF(from[w * step + lane_at[l]]);
  for (; w < width; ++w) VSTORE(to + w * LANES, ZEROS);
}
#define LAY_ROW(to, plane, at, step, begin, end, width, readable) \
  lay_row(to, (plane) + (at), step, begin, end, width, lane_at, together)
/* The channels of a vector, in a tensor with `per` of them for each `of` of the result's; the last are repeated. */
#define FIND_LANES(c0, count, of, per, which, stride) \
  long lane_at[LANES]; \
  for (int l = 0; l < LANES; ++l) \
    lane_at[l] = (((c0) + (l < (count) ? l : (count) - 1)) / (of) * (per) + (which)) * (stride); \
  const int together = (count) == LANES && (of) == 1 && (per) == 1 && (stride) == 1;
#else
/* The same; behind the row and in front of what follows, anything may be written. `readable` elements may be read. */
void lay_row(OB_GLOBAL ACC* to, OB_GLOBAL const ITEM* from, const long step, const long begin, const long end,
             const long width, const long readable) {
  for (long w = 0; w < begin; w += LANES) VSTORE(to + w, ZEROS);
  long w = begin;
  if (step == 1)
    for (; w < end && w + LANES <= readable; w += LANES) VSTORE(to + w, ACCS_AT(from + w));
  if (step == 2)
    for (; w < end && 2 * (w + LANES) <= readable; w += LANES)
      VSTORE(to + w, (VECTOR)(ACCS_AT(from + 2 * w).even, ACCS_AT(from + 2 * w + LANES).even));
  for (; w < end; ++w) to[w] = ACC_OF(from[w * step]);
  for (w = end; w < width; w += LANES) VSTORE(to + w, ZEROS);
}
#define LAY_ROW(to, plane, at, step, begin, end, width, readable) \
  lay_row(to, (plane) + lane_at + (at), step, begin, end, width, (readable) - (at))
#define FIND_LANES(c0, count, of, per, which, stride) const long lane_at = ((c0) / (of) * (per) + (which)) * (stride);
#endif

/* slab[phase][row][column]: row i0 + b of phase a is row (i0 + b) * vh + a + low_h of the plane, columns alike. */
#define LAY_SLAB(slab, plane, i0, count) \
  for (long a = 0; a < vh * vw; ++a) { \
    const long a_h = a / vw, first_w = a % vw + low_w; \
    const long left = first_w < 0 ? (-first_w + vw - 1) / vw : 0, right = (fw - first_w + vw - 1) / vw; \
    const long end = right > columns ? columns : right, begin = left < end ? left : end; \
    for (long b = 0; b < (count) + reach_h; ++b) { \
      const long h = ((i0) + b) * vh + a_h + low_h; \
      const int outside = h < 0 || h >= fh || end <= begin; \
      LAY_ROW((slab) + (a * slab_rows + b) * columns * BESIDE, plane, h * f_h + first_w * f_w, vw * f_w, \
              outside ? 0 : begin, outside ? 0 : end, columns, (fh - 1) * f_h + (fw - 1) * f_w + 1); \
    } \
  }
"""

_SLIDE = r"""
#if CHANNELS_LAST
#define FILTER_T ACC
#define FACTOR_T long
#define FACTOR(t) VLOAD(weights + factors[t])
#define FACTOR_OF(k) (((j * kd + k_d) * kh * kw + (k)) * channels)
#else
#define FILTER_T WEIGHT_T
#define FACTOR_T ACC
#define FACTOR(t) (VECTOR)(factors[t])
#define FACTOR_OF(k) \
  ((ACC)WEIGHT_LOAD(weight, (c0 * sources + j) * w_o + k_d * w_d + (k) / kw * w_h + (k) % kw * w_w))
#endif
/* The sums of all places and phases: taps of the slab by factors, a number each or a vector of `weights`. */
void add_taps(OB_GLOBAL ACC* sums, OB_GLOBAL const ACC* slab, OB_GLOBAL const FILTER_T* weights, const long* tap_at,
              const FACTOR_T* factors, const int taps, const long places, const int fresh) {
  for (long f = 0; f < places; f += 4 * PLACES) {
    OB_GLOBAL ACC* to = sums + f * BESIDE;
    VECTOR a0 = ZEROS, a1 = ZEROS, a2 = ZEROS, a3 = ZEROS;
    if (!fresh) { a0 = VLOAD(to); a1 = VLOAD(to + LANES); a2 = VLOAD(to + 2 * LANES); a3 = VLOAD(to + 3 * LANES); }
    for (int t = 0; t < taps; ++t) {
      const VECTOR factor = FACTOR(t);
      OB_GLOBAL const ACC* at = slab + (tap_at[t] + f) * BESIDE;
      a0 = fma(factor, VLOAD(at), a0);
      a1 = fma(factor, VLOAD(at + LANES), a1);
      a2 = fma(factor, VLOAD(at + 2 * LANES), a2);
      a3 = fma(factor, VLOAD(at + 3 * LANES), a3);
    }
    VSTORE(to, a0);
    VSTORE(to + LANES, a1);
    VSTORE(to + 2 * LANES, a2);
    VSTORE(to + 3 * LANES, a3);
  }
}

/* Where tap k is met by phase r, in slabs: 0 if it is not. */
#if SPREAD
int meets(const long r, const long k, const long dilation, const long padding, const long u, const long v,
          const long low, long* phase, long* at) {
  const long t = r + padding - k * dilation;
  *phase = 0;
  *at = t / u - low;
  return t % u == 0;
}
#define SOURCE_DEPTH(k, z) z = id + pd - (k) * dd; const int met = z >= 0 && z % ud == 0 && z / ud < fd; z /= ud;
#else
int meets(const long r, const long k, const long dilation, const long padding, const long u, const long v,
          const long low, long* phase, long* at) {
  *phase = k * dilation % v;
  *at = k * dilation / v;
  return 1;
}
#define SOURCE_DEPTH(k, z) z = id * vd + (k) * dd - pd; const int met = z >= 0 && z < fd;
#endif

OB_KERNEL void slide(PARAMETERS) {
  const long across = (tw + uw - 1) / uw, down = (th + uh - 1) / uh, columns = across + reach_w;
  const long bands = (down + rows - 1) / rows, slab_rows = rows + reach_h, sum_plane = rows * columns * BESIDE + SLACK;
  OB_GLOBAL ACC* slab = scratch + OB_ITEM_ID(0) * room;
  OB_GLOBAL ACC* sums = slab + vh * vw * slab_rows * columns * BESIDE + SLACK;
  OB_GLOBAL ACC* lines = sums + uh * uw * sum_plane;
  OB_FOR(piece, BLOCKS(channels) * images * td * bands) {
    long rest = piece;
    const long i0 = rest % bands * rows; rest /= bands;
    const long id = rest % td; rest /= td;
    const long image = rest % images, c0 = rest / images * BESIDE;
    const long count = down - i0 < rows ? down - i0 : rows, places = (count - 1) * columns + across;
    const int beside = channels - c0 < BESIDE ? (int)(channels - c0) : BESIDE;
    int begun = 0;
    for (long j = 0; j < sources; ++j) {
      FIND_LANES(c0, beside, shared, sources, j, f_c)
      for (long k_d = 0; k_d < kd; ++k_d) {
        long z;
        SOURCE_DEPTH(k_d, z)
        if (!met) continue;
        OB_GLOBAL const ITEM* plane = from + image * f_n + z * f_d;
        LAY_SLAB(slab, plane, i0, count)
        for (long r = 0; r < uh * uw; ++r) {
          long tap_at[MOST_TAPS];
          FACTOR_T factors[MOST_TAPS];
          int taps = 0, fresh = !begun;
          for (long k = 0; k < kh * kw; ++k) {
            const long k_h = k / kw, k_w = k % kw;
            long a_h, a_w, at_h, at_w;
            if (meets(r / uw, k_h, dh, ph, uh, vh, low_h, &a_h, &at_h) &&
                meets(r % uw, k_w, dw, pw, uw, vw, low_w, &a_w, &at_w)) {
              tap_at[taps] = ((a_h * vw + a_w) * slab_rows + at_h) * columns + at_w;
              factors[taps++] = FACTOR_OF(k);
            }
            if (taps < MOST_TAPS && k + 1 < kh * kw) continue;
            add_taps(sums + r * sum_plane, slab, weight + (BESIDE > 1 ? c0 : 0), tap_at, factors, taps, places, fresh);
            taps = fresh = 0;
          }
        }
        begun = 1;
      }
    }
    if (!begun)
      for (long i = 0; i < uh * uw * sum_plane; i += LANES) VSTORE(sums + i, ZEROS);
    const long first_h = i0 * uh, end_h = (i0 + count) * uh < th ? (i0 + count) * uh : th;
    const long start = image * t_n + c0 * t_c + id * t_d + first_h * t_h;
#if CHANNELS_LAST
    for (int l = 0; l < LANES; ++l) lines[l] = ADD_BIAS(c0 + (l < beside ? l : 0));
    const VECTOR added = VLOAD(lines);
    for (long h = first_h; h < end_h; ++h)
      for (long r = 0; r < uw; ++r) {
        OB_GLOBAL const ACC* sum = sums + (h % uh * uw + r) * sum_plane + (h / uh - i0) * columns * LANES;
        for (long w = r, at = start + (h - first_h) * t_h + r * t_w; w < tw; w += uw, at += uw * t_w, sum += LANES) {
          if (beside == LANES && t_c == 1) {
            STORE_ITEMS(to + at, VLOAD(sum) + added);
          } else {
            for (int l = 0; l < beside; ++l) TO_STORE(to, at + l * t_c, sum[l] + lines[l]);
          }
        }
      }
#else
    for (long h = first_h; h < end_h; ++h) {
      OB_GLOBAL ACC* line = lines + (h - first_h) * tw;
      OB_GLOBAL const ACC* sum = sums + h % uh * uw * sum_plane + (h / uh - i0) * columns;
      if (uw == 1) {
        for (long w = 0; w < tw; w += LANES) VSTORE(line + w, VLOAD(sum + w));
      } else {
        for (long r = 0; r < uw; ++r, sum += sum_plane)
          for (long w = r, i = 0; w < tw; w += uw, ++i) line[w] = sum[i];
      }
    }
    /* Rows that follow one another without a gap are one. */
    const int together = t_w == 1 && t_h == tw;
    const long runs = together ? 1 : end_h - first_h, length = together ? (end_h - first_h) * tw : tw;
    const ACC added = ADD_BIAS(c0);
    for (long run = 0; run < runs; ++run) {
      const long at = start + run * t_h, place = (id * th + first_h + run) * tw;
      OB_GLOBAL const ACC* line = lines + run * tw;
      long w = 0;
      if (t_w == 1)
        for (; w + LANES <= length; w += LANES) {
          FINISH_VECTOR(at + w, c0, place + w, VLOAD(line + w) + (VECTOR)(added));
        }
      for (; w < length; ++w) { FINISH(at + w * t_w, c0, place + w, line[w] + added); }
    }
#endif
  }
}
"""


_LAY_WEIGHT = r"""
OB_KERNEL void lay_weight(OB_GLOBAL const WEIGHT_T* weight, OB_GLOBAL ACC* laid, const long channels,
                          const long sources, const long kd, const long kh, const long kw, const long w_o,
                          const long w_d, const long w_h, const long w_w) {
  OB_FOR(i, sources * kd * kh * kw * channels) {
    long q = i;
    const long c = q % channels; q /= channels;
    const long w = q % kw; q /= kw;
    const long h = q % kh; q /= kh;
    laid[i] = WEIGHT_LOAD(weight, (c * sources + q / kd) * w_o + q % kd * w_d + h * w_h + w * w_w);
  }
}
"""

_TAPS = r"""
/* Adds the products of a band's gradients with what four taps meet. */
void add_gradients(OB_GLOBAL ACC* totals, OB_GLOBAL const ACC* grads, OB_GLOBAL const ACC* slab, const long* tap_at,
                   const int taps, const long runs, const long length, const long columns,
                   OB_GLOBAL const MASK_ITEM* inside) {
  for (int t = 0; t < taps; t += 4) {
    OB_GLOBAL const ACC* s0 = slab + tap_at[t] * BESIDE;
    OB_GLOBAL const ACC* s1 = slab + tap_at[t + 1 < taps ? t + 1 : t] * BESIDE;
    OB_GLOBAL const ACC* s2 = slab + tap_at[t + 2 < taps ? t + 2 : t] * BESIDE;
    OB_GLOBAL const ACC* s3 = slab + tap_at[t + 3 < taps ? t + 3 : t] * BESIDE;
    VECTOR a0 = ZEROS, a1 = ZEROS, a2 = ZEROS, a3 = ZEROS;
    for (long r = 0; r < runs; ++r)
      for (long f = r * columns; f < r * columns + length; f += PLACES) {
        const VECTOR grad = VLOAD(grads + f * BESIDE);
#if CHANNELS_LAST
#define MET(from) VLOAD((from) + f * BESIDE)
#else
        /* Beside the gradients, zeros may meet what is not finite. */
        const MASK here = *(OB_GLOBAL const loose_mask_t*)(inside + f);
#define MET(from) select(ZEROS, VLOAD((from) + f), here)
#endif
        a0 = fma(grad, MET(s0), a0);
        a1 = fma(grad, MET(s1), a1);
        a2 = fma(grad, MET(s2), a2);
        a3 = fma(grad, MET(s3), a3);
      }
    OB_GLOBAL ACC* to = totals + t * LANES;
    VSTORE(to, VLOAD(to) + a0);
    if (t + 1 < taps) VSTORE(to + LANES, VLOAD(to + LANES) + a1);
    if (t + 2 < taps) VSTORE(to + 2 * LANES, VLOAD(to + 2 * LANES) + a2);
    if (t + 3 < taps) VSTORE(to + 3 * LANES, VLOAD(to + 3 * LANES) + a3);
  }
}

OB_KERNEL void taps(PARAMETERS) {
  const long columns = tw + reach_w, bands = (th + rows - 1) / rows, slab_rows = rows + reach_h;
  const long units = images * td * bands, all_taps = kd * kh * kw;
  OB_GLOBAL ACC* slab = scratch + OB_ITEM_ID(0) * room;
  OB_GLOBAL ACC* grads = slab + vh * vw * slab_rows * columns * BESIDE + SLACK;
  OB_GLOBAL ACC* totals = grads + rows * columns * BESIDE + SLACK;
  OB_GLOBAL MASK_ITEM* inside = (OB_GLOBAL MASK_ITEM*)(totals + all_taps * LANES + SLACK);
  long rows_inside = -1;
  OB_FOR(piece, BLOCKS(channels) * part_count) {
    const long part = piece % part_count, c0 = piece / part_count * BESIDE;
    const int beside = channels - c0 < BESIDE ? (int)(channels - c0) : BESIDE;
    for (long t = 0; t < all_taps; ++t) VSTORE(totals + t * LANES, ZEROS);
    for (long unit = units * part / part_count; unit < units * (part + 1) / part_count; ++unit) {
      const long i0 = unit % bands * rows, id = unit / bands % td, image = unit / bands / td;
      const long count = th - i0 < rows ? th - i0 : rows;
      {
        FIND_LANES(c0, beside, 1, 1, 0, t_c)
        OB_GLOBAL const ITEM* plane = grad + image * t_n + id * t_d;
        for (long h = 0; h < count; ++h)
          LAY_ROW(grads + h * columns * BESIDE, plane, (i0 + h) * t_h, t_w, 0, tw, columns,
                  (th - 1) * t_h + (tw - 1) * t_w + 1);
        VSTORE(grads + count * columns * BESIDE, ZEROS);
      }
#if !CHANNELS_LAST
      for (long f = 0; rows_inside != count && f < count * columns + LANES; ++f)
        inside[f] = f < count * columns && f % columns < tw ? -1 : 0;
      rows_inside = count;
#endif
      FIND_LANES(c0, beside, shared, 1, 0, f_c)
      for (long k_d = 0; k_d < kd; ++k_d) {
        const long z = id * vd + k_d * dd - pd;
        if (z < 0 || z >= fd) continue;
        OB_GLOBAL const ITEM* plane = from + image * f_n + z * f_d;
        LAY_SLAB(slab, plane, i0, count)
        for (long k0 = 0; k0 < kh * kw; k0 += MOST_TAPS) {
          long tap_at[MOST_TAPS];
          int met = 0;
          for (long k = k0; k < kh * kw && met < MOST_TAPS; ++k, ++met) {
            const long h = k / kw * dh, w = k % kw * dw;
            tap_at[met] = ((h % vh * vw + w % vw) * slab_rows + h / vh) * columns + w / vw;
          }
          const long runs = BESIDE > 1 ? count : 1, length = BESIDE > 1 ? tw : count * columns;
          add_gradients(totals + (k_d * kh * kw + k0) * LANES, grads, slab, tap_at, met, runs, length, columns, inside);
        }
      }
    }
    OB_GLOBAL ACC* to = parts + (part * channels + c0) * all_taps;
    for (long t = 0; t < all_taps; ++t) {
#if CHANNELS_LAST
      for (int l = 0; l < beside; ++l) to[l * all_taps + t] = totals[t * LANES + l];
#else
      to[t] = sum_lanes(VLOAD(totals + t * LANES));
#endif
    }
  }
}
"""


@dataclasses.dataclass
class _Side:
    """How a kernel walks: ``u`` and ``v`` are the steps of what is written and read; a slab begins at ``low`` of the
    source and has ``reach`` more rows and columns than places."""

    source: TensorArg
    target: TensorArg
    u: list[Size]
    v: list[Size]
    low: list[Size]
    reach: list[Size]
    beside: int  #: channels in an element of the slab

    @property
    def columns(self) -> Size:
        """Columns of the slab."""
        return common.ceil_div(self.target.sizes[4], self.u[2]) + self.reach[2]

    @property
    def blocks(self) -> Size:
        """Blocks of the target's channels."""
        return common.ceil_div(self.target.sizes[1], self.beside)

    def slab(self, rows: Size) -> Size:
        """Numbers in the slab for a band of so many rows of places."""
        return strided.product([*self.v[1:], rows + self.reach[1], self.columns, self.beside])

    def sums(self, rows: Size) -> Size:
        """Numbers in the sums of such a band."""
        return strided.product([*self.u[1:], rows, self.columns, self.beside])

    def rows(self, builder: PlanBuilder) -> Size:
        """Rows of a band: as many as a near cache holds, but no fewer bands than all compute units need."""
        fitting = common.floor_div(
            builder.target.tuning.share, common.larger(1, self.slab(1 - self.reach[1]) + self.sums(1))
        )
        down = common.ceil_div(self.target.sizes[3], self.u[1])
        planes = strided.product([self.blocks, self.target.sizes[0], self.target.sizes[2]])
        bands = common.ceil_div(4 * COMPUTE_UNITS, common.larger(1, planes))
        most = common.larger(fitting, self.reach[1] + 1)
        return common.larger(1, common.smaller(most, common.ceil_div(down, bands)))


def places(builder: PlanBuilder, problem: Convolution, finish: Finish | None = None) -> None:
    """Appends: y from x and the weight. With ``finish``, that is what becomes of y."""
    _slide(builder, problem, _forwards(builder, problem, finish), problem.y_channels, _ONE, finish)


def spread(builder: PlanBuilder, problem: Convolution) -> None:
    """Appends: x from y and the weight."""
    low: list[Size] = []
    reach: list[Size] = []
    for axis in range(3):
        stride, padding = problem.stride[axis], problem.padding[axis]
        extent = (problem.weight.sizes[2 + axis] - 1) * problem.dilation[axis]
        before = common.ceil_div(common.larger(0, extent - padding), stride)
        low.append(-before)
        reach.append(before + common.floor_div(stride - 1 + padding, stride))
    ones: list[Size] = [_ONE] * 3
    beside = _beside(builder, problem)
    side = _Side(problem.y, problem.x, problem.stride, ones, low, reach, beside)
    _slide(builder, problem, side, _ONE, problem.y_channels, None)


def taps(builder: PlanBuilder, problem: Convolution, parts: int, part_count: Size) -> None:
    """Appends: the weight's gradient from x and y, as ``part_count`` sums of (y channel, tap) in ``parts``."""
    side, shape = _forwards(builder, problem), _shape(builder, problem)
    rows = side.rows(builder)
    room = side.slab(rows) + 2 * side.sums(rows) + problem.taps * shape.lanes + _slack(shape, 4)
    text = shape.formats() + shape.sum_lanes() + _COMMON + _TAPS
    pointers = [
        ("OB_GLOBAL const ITEM* from", builder.pointer(side.source)),
        ("OB_GLOBAL const ITEM* grad", builder.pointer(side.target)),
        ("OB_GLOBAL ACC* parts", builder.pointer(parts)),
    ]
    numbers = {"rows": rows, "shared": problem.y_channels, "part_count": part_count}
    program = _Program(text, "taps", pointers, numbers, strided.product([side.blocks, part_count]), room)
    program.launch(builder, problem, side)


def parts_of(builder: PlanBuilder, problem: Convolution) -> Size:
    """How many parts ``taps`` should have, to keep all compute units busy."""
    blocks = common.larger(1, _forwards(builder, problem).blocks)
    return common.larger(1, common.smaller(problem.images, common.ceil_div(4 * COMPUTE_UNITS, blocks)))


def _slide(
    builder: PlanBuilder, problem: Convolution, side: _Side, shared: Size, sources: Size, finish: Finish | None
) -> None:
    """Channel c of the target is made of ``sources`` channels of the source, from ``c // shared * sources`` on."""
    shape, rows = _shape(builder, problem), side.rows(builder)
    store, helpers = (_FINISH, None) if finish is None else (finish.text, finish.helpers)
    lines = strided.product([rows, side.u[1], side.target.sizes[4]])
    phases = strided.product(side.u[1:])
    room = side.slab(rows) + side.sums(rows) + lines + _slack(shape, phases + 2)
    text = shape.formats(helpers) + store + _COMMON + _SLIDE
    laid = _lay_weight(builder, problem, shape, sources) if side.beside > 1 else None
    pointers = [
        ("OB_GLOBAL const ITEM* from", builder.pointer(side.source)),
        ("OB_GLOBAL TO_T* to", builder.pointer(side.target)),
        ("OB_GLOBAL const FILTER_T* weight", builder.pointer(problem.weight if laid is None else laid)),
    ]
    bands = common.ceil_div(common.ceil_div(side.target.sizes[3], side.u[1]), rows)
    pieces = strided.product([side.blocks, problem.images, side.target.sizes[2], bands])
    numbers = {"rows": rows, "shared": shared, "sources": sources}
    _Program(text, "slide", pointers, numbers, pieces, room).launch(builder, problem, side, finish)
    if laid is not None:
        builder.free(laid)


@dataclasses.dataclass
class _Program:
    """A kernel, with its pointers and those numbers that not all share, whose work-items need ``room`` numbers each."""

    text: str
    entry: str
    pointers: list[tuple[str, p.Argument]]
    numbers: dict[str, Size]
    pieces: Size
    room: Size

    def launch(self, builder: PlanBuilder, problem: Convolution, side: _Side, finish: Finish | None = None) -> None:
        """Appends the launch, by few work-items: what they need is to stay in caches."""
        accumulate = engine.accumulator(problem.x.dtype)
        items = common.larger(1, common.smaller(self.pieces, 4 * COMPUTE_UNITS))
        scratch = builder.allocate(items * self.room * common.compute_size(accumulate))
        numbers = _numbers(problem, side) | self.numbers | {"room": self.room}
        pointers = [*self.pointers, ("OB_GLOBAL ACC* scratch", builder.pointer(scratch))]
        types = {"WEIGHT": problem.weight.dtype, "TO": side.target.dtype}
        bias = "0"
        if problem.bias is not None:
            pointers.append(("OB_GLOBAL const BIAS_T* bias", builder.pointer(problem.bias)))
            numbers["bias_c"] = problem.bias.strides[0]
            types["BIAS"] = problem.bias.dtype
            bias = "BIAS_LOAD(bias, (channel) * bias_c)"
        parameters = ", ".join([text for text, _ in pointers] + [f"const long {name}" for name in numbers])
        arguments = [pointer for _, pointer in pointers] + [builder.int64(value) for value in numbers.values()]
        if finish is not None:
            parameters += finish.parameters
            arguments += finish.arguments
        shape = _shape(builder, problem)
        defines = {
            **_defines(shape, side),
            "SPREAD": int(side.source is problem.y),
            "ADD_BIAS(channel)": f"((ACC){bias})",
            "PARAMETERS": parameters,
        }
        kernel = builder.kernel(common.source(builder, self.text, defines, types), self.entry)
        builder.launch(kernel, (items,), arguments, (1, 1, 1))
        builder.free(scratch)


def _lay_weight(builder: PlanBuilder, problem: Convolution, shape: blocked.Blocking, sources: Size) -> int:
    """The weight as the kernel of channels side by side reads it: (source, tap, channel)."""
    weight = problem.weight
    count = weight.numel()
    laid = builder.allocate((count + shape.lanes) * common.compute_size(shape.accumulate))
    text = common.source(builder, _LAY_WEIGHT, {"ACC": shape.accumulate}, {"WEIGHT": weight.dtype})
    strides = [weight.strides[0], *weight.strides[2:]]
    values = [common.floor_div(weight.sizes[0], sources), sources, *weight.sizes[2:], *strides]
    arguments = [builder.pointer(weight), builder.pointer(laid), *(builder.int64(value) for value in values)]
    common.launch_items(builder, builder.kernel(text, "lay_weight"), count, arguments)
    return laid


def _shape(builder: PlanBuilder, problem: Convolution) -> blocked.Blocking:
    accumulate = engine.accumulator(problem.x.dtype)
    half = formats.item_dtype(problem.x.dtype, accumulate)
    return blocked.Blocking.for_target(builder.target, accumulate, half)


def _slack(shape: blocked.Blocking, areas: Size) -> Size:
    """Numbers behind so many areas of scratch, as kernels write four vectors at a time."""
    return areas * 4 * shape.lanes


def _beside(builder: PlanBuilder, problem: Convolution) -> int:
    """How many channels lie side by side in a slab."""
    last = problem.x.strides[1] == 1 and problem.y.strides[1] == 1
    return _shape(builder, problem).lanes if last else 1


def _forwards(builder: PlanBuilder, problem: Convolution, finish: Finish | None = None) -> _Side:
    """From x to y. What finishes y knows places of one channel."""
    reach = [
        common.floor_div((size - 1) * dilation, stride)
        for size, dilation, stride in zip(problem.weight.sizes[2:], problem.dilation, problem.stride, strict=True)
    ]
    beside = _beside(builder, problem) if finish is None else 1
    low = [-padding for padding in problem.padding]
    return _Side(problem.x, problem.y, [_ONE] * 3, problem.stride, low, reach, beside)


def _defines(shape: blocked.Blocking, side: _Side) -> dict[str, object]:
    mask = "long" if common.compute_size(shape.accumulate) == 8 else "int"
    return {
        "ACC": shape.accumulate,
        **shape.defines(),
        "CHANNELS_LAST": int(side.beside > 1),
        "MASK_ITEM": mask,
        "MASK": f"{mask}{shape.lanes}",
    }


def _numbers(problem: Convolution, side: _Side) -> dict[str, Size]:
    """What both kernels know of the problem, by name."""
    numbers: dict[str, Size] = {"images": problem.images, "channels": side.target.sizes[1]}
    for letter, tensor in (("f", side.source), ("t", side.target)):
        numbers |= {f"{letter}_{axis}": stride for axis, stride in zip("ncdhw", tensor.strides, strict=True)}
    weight = problem.weight.strides
    numbers |= dict(zip(("w_o", "w_d", "w_h", "w_w"), [weight[0], *weight[2:]], strict=True))
    for letter, triple in (
        ("f", side.source.sizes[2:]),
        ("t", side.target.sizes[2:]),
        ("k", problem.weight.sizes[2:]),
        ("u", side.u),
        ("v", side.v),
        ("p", problem.padding),
        ("d", problem.dilation),
        ("low_", side.low),
        ("reach_", side.reach),
    ):
        numbers |= {f"{letter}{axis}": value for axis, value in zip("dhw", triple, strict=True)}
    return numbers
