# SPDX-License-Identifier: Apache-2.0
"""Convolution of one to three dimensions and its gradients, as implicit matrix products.

Three products serve forward and backward, plain and transposed. With x the side that a window slides over and y the
side of the windows' results:

* *gather*: y from x and the weight (forward; backward of the transposed kind);
* *spread*: x from y and the weight (gradient of the input; forward of the transposed kind);
* *weight*: the weight's gradient from x and y.

Fewer than three spatial dimensions are padded with ones. Groups and images form the batch. A depthwise *gather*, whose
products would have one row, is computed element by element.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import sympy
import torch

from .. import plan as p
from ..builder import PlanBuilder, Size, TensorArg
from . import common, engine

if TYPE_CHECKING:
    from ..calls import ExternCall

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
#define ADD_BIAS(channel) (WITH_BIAS ? (ACC)BIAS_LOAD(bias, (channel) * bias_c) : (ACC)0)
#define TAPS (kd * kh * kw)
"""

_INSIDE_X = r"""
OB_DEVICE int inside_x(int d, int h, int w, long xd, long xh, long xw) {
  return d >= 0 && h >= 0 && w >= 0 && d < xd && h < xh && w < xw;
}
"""

# m: output channel of the group; n: place in y; k: (input channel of the group, tap).
_GATHER = r"""
#define A_OUTER_T long
#define A_INNER_T long
#define A_SET_OUTER(v, b, m) v = (GROUP_OF(b) * y_channels + (m)) * w_o
#define A_SET_INNER(v, k) { \
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
#define B_SET_INNER(v, k) { \
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
  Y_STORE(y, IMAGE(b) * y_n + channel * y_c + c_d * y_d + c_h * y_h + c_w * y_w, (value) + ADD_BIAS(channel))
"""

# m: input channel of the group; n: place in x; k: (output channel of the group, tap).
_SPREAD = r"""
#define A_OUTER_T long
#define A_INNER_T long
#define A_SET_OUTER(v, b, m) v = GROUP_OF(b) * y_channels * w_o + (m) * w_i
#define A_SET_INNER(v, k) { \
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
#define B_SET_INNER(v, k) { \
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

OB_DEVICE ACC spread_at(OB_GLOBAL const Y_T* y, long at, int d, int h, int w, int sd, int sh, int sw, long yd, long yh,
                        long yw, long y_d, long y_h, long y_w) {
  if (d < 0 || h < 0 || w < 0) return 0;
  if (sd != 1) { if (d % sd) return 0; d /= sd; }
  if (sh != 1) { if (h % sh) return 0; h /= sh; }
  if (sw != 1) { if (w % sw) return 0; w /= sw; }
  if (d >= yd || h >= yh || w >= yw) return 0;
  return (ACC)Y_LOAD(y, at + d * y_d + h * y_h + w * y_w);
}
"""

# b: (part, group); m: output channel of the group; n: (input channel of the group, tap); k: (image, place in y) of the
# part. Parts of k give a device enough to do; their sums are added up afterwards.
_WEIGHT = r"""
#define PLACES ((uint)(yd * yh * yw))
#define PART_OF(b) ((b) / groups)
#define A_OUTER_T coordinate_t
#define A_INNER_T coordinate_t
#define A_SET_OUTER(v, b, m) { (v).at = (GROUP_OF(b) * y_channels + (m)) * y_c; (v).d = (int)(PART_OF(b) * part); }
#define A_SET_INNER(v, k) { (v).d = (int)(k); }
#define A_AT(outer, inner) \
  weight_y(y, (outer).at, (uint)((outer).d + (inner).d), (uint)(images * PLACES), PLACES, (uint)yh, (uint)yw, y_n, y_d, y_h, y_w)
#define B_OUTER_T coordinate_t
#define B_INNER_T coordinate_t
#define B_SET_OUTER(v, b, n) { \
  int t_d, t_h, t_w; \
  SPLIT_TAP((uint)(n) % (uint)TAPS, t_d, t_h, t_w); \
  (v).d = (int)(t_d * dd - pd); (v).h = (int)(t_h * dh - ph); (v).w = (int)(t_w * dw - pw); \
  (v).at = (GROUP_OF(b) * x_channels + (long)((uint)(n) / (uint)TAPS)) * x_c; \
  (v).part = (uint)(PART_OF(b) * part); }
#define B_SET_INNER(v, k) { (v).part = (uint)(k); }
#define B_AT(outer, inner) 0
"""


@dataclasses.dataclass
class _Geometry:
    """A convolution in five dimensions: x (images, channels, d, h, w), y likewise, weight (y side, x side, d, h, w)."""

    x: TensorArg
    y: TensorArg
    weight: TensorArg
    stride: list[Size]
    padding: list[Size]
    dilation: list[Size]
    groups: Size
