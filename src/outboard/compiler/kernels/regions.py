# SPDX-License-Identifier: Apache-2.0
"""Pooling of boxes of images: torchvision's ``roi_align``, ``roi_pool``, their position-sensitive forms (R-FCN, Dai et
al. 2016) and the gradients of all four.

An item computes some channels of a bin. Backward, it owns one plane of the input's gradient and takes the boxes in
order: no atomics, and the same sums to the last bit every time. They are kept in ``ACC``, as everything is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..plans import plan as p
from ..plans import strided
from ..plans.builder import PlanBuilder, Size, TensorArg
from ..printing.emitted import assertion
from . import common

if TYPE_CHECKING:
    from .call import ExternCall

# `in` is the input (or its gradient), `out` the output (or its gradient), [boxes, channels, bins, bins].
_COMMON = r"""
#define ACC IN_C
#define BOX(k) IN_LOAD(rois, box * rois_n + (k) * rois_c)
#define PARAMETERS \
  OB_GLOBAL const IN_T* rois, OB_GLOBAL int* failed, const ACC scale, const long boxes, const long images, \
  const long channels, const long height, const long width, const long out_channels, const long bins_y, \
  const long bins_x, const long rois_n, const long rois_c, const long in_n, const long in_c, const long in_h, \
  const long in_w, const long out_n, const long out_c, const long out_h, const long out_w, const long place_n, \
  const long place_c, const long place_h, const long place_w
#define OUT_PLACE (box * out_n + c * out_c + by * out_h + bx * out_w)
#define PLACE places[box * place_n + c * place_c + by * place_h + bx * place_w]

/* Whether an image is the one that a box names. A box that names none is reported. */
int is_in(ACC named, long image, long images, OB_GLOBAL int* failed) {
  if (!(named > (ACC)-1 && named < (ACC)images)) {
    OB_FAIL(failed, WRONG_IMAGE);
    return 0;
  }
  return image < 0 || (long)named == image;
}
"""

_FORWARD = r"""
#define EACH_CHANNEL for (int k = 0; k < wanted; ++k)
#define PLANE (plane + k * step)
/* One item owns CHANNELS channels of a bin, and finds out only once where that is. */
OB_KERNEL void forward(OB_GLOBAL const IN_T* in, OB_GLOBAL IN_T* out, OB_GLOBAL int* places, PARAMETERS) {
  const long chunks = (out_channels + CHANNELS - 1) / CHANNELS;
  const long apart = BY_POSITION ? bins_y * bins_x : 1, step = apart * in_c;
  OB_FOR(i, boxes * bins_y * bins_x * chunks) {
    long q = i;
    const long from = q % chunks * CHANNELS; q /= chunks;
    const long bx = q % bins_x; q /= bins_x;
    const long by = q % bins_y, box = q / bins_y;
    const int wanted = out_channels - from < CHANNELS ? (int)(out_channels - from) : CHANNELS;
    const long first = from * apart + (BY_POSITION ? by * bins_x + bx : 0);
    ACC results[CHANNELS];
    int found[CHANNELS];
    EACH_CHANNEL { results[k] = 0; found[k] = BY_POSITION ? (int)(first + k * apart) : -1; }
    if (is_in(BOX(0), -1, images, failed)) {
      OB_GLOBAL const IN_T* plane = in + (long)BOX(0) * in_n + first * in_c;
      BIN_FORWARD
    }
    EACH_CHANNEL {
      const long c = from + k;
      IN_STORE(out, OUT_PLACE, results[k]);
#if HAS_PLACES
      PLACE = found[k];
#endif
    }
  }
}
"""

_BACKWARD = r"""
OB_KERNEL void backward(OB_GLOBAL const IN_T* out, OB_GLOBAL const int* places, OB_GLOBAL ACC* all_sums, PARAMETERS) {
  OB_FOR(item, images * channels) {
    const long image = item / channels, channel = item % channels;
    const long area = height * width;
    OB_GLOBAL ACC* sums = all_sums + item * area;
    for (long k = 0; k < area; ++k) sums[k] = 0;
    for (long box = 0; box < boxes; ++box) {
      if (!is_in(BOX(0), image, images, failed)) continue;
#if BY_POSITION
      const long bx = channel % bins_x, by = channel / bins_x % bins_y, c = channel / bins_x / bins_y;
      const ACC gradient = IN_LOAD(out, OUT_PLACE);
      BIN_BACKWARD
#else
      const long c = channel;
      for (long by = 0; by < bins_y; ++by)
        for (long bx = 0; bx < bins_x; ++bx) {
          const ACC gradient = IN_LOAD(out, OUT_PLACE);
          BIN_BACKWARD
        }
#endif
    }
  }
}

OB_KERNEL void copy_sums(OB_GLOBAL const ACC* all_sums, OB_GLOBAL IN_T* in, PARAMETERS) {
  OB_FOR(i, images * channels * height * width) {
    long q = i;
    const long x = q % width; q /= width;
    const long y = q % height; q /= height;
    IN_STORE(in, q / channels * in_n + q % channels * in_c + y * in_h + x * in_w, all_sums[i]);
  }
}
"""

# Means of interpolated samples, SAMPLES along each axis of a bin, or, if that is 0, one for each pixel begun.
_ALIGN = r"""
/* The two pixels next to a place and the share of the second; 0 for places too far outside to have any. */
int pixels(ACC place, long size, long* low, long* high, ACC* share) {
  if (!(place >= (ACC)-1 && place <= (ACC)size)) return 0;
  if (place <= 0) place = 0;
  *low = (long)place;
  *high = *low + 1;
  *share = place - (ACC)*low;
  if (*low >= size - 1) { *low = *high = size - 1; *share = 0; }
  return 1;
}
#define EACH_SAMPLE \
  const ACC first_x = BOX(1) * scale - (ACC)SHIFT, first_y = BOX(2) * scale - (ACC)SHIFT; \
  ACC size_x = BOX(3) * scale - (ACC)SHIFT - first_x, size_y = BOX(4) * scale - (ACC)SHIFT - first_y; \
  if (AT_LEAST_ONE && size_x < 1) size_x = 1; \
  if (AT_LEAST_ONE && size_y < 1) size_y = 1; \
  const ACC step_x = size_x / (ACC)bins_x, step_y = size_y / (ACC)bins_y; \
  const long nx = SAMPLES > 0 ? SAMPLES : (long)ceil(step_x), ny = SAMPLES > 0 ? SAMPLES : (long)ceil(step_y); \
  const ACC count = nx * ny < 1 && !BY_POSITION ? (ACC)1 : (ACC)(nx * ny); \
  for (long sy = 0; sy < ny; ++sy) { \
    long y0, y1, x0, x1; \
    ACC wy, wx; \
    const ACC y = first_y + (ACC)by * step_y + ((ACC)sy + (ACC)0.5) * step_y / (ACC)ny; \
    if (!pixels(y, height, &y0, &y1, &wy)) continue; \
    for (long sx = 0; sx < nx; ++sx) { \
      const ACC x = first_x + (ACC)bx * step_x + ((ACC)sx + (ACC)0.5) * step_x / (ACC)nx; \
      if (!pixels(x, width, &x0, &x1, &wx)) continue;
#define END_SAMPLE } }
#define BIN_FORWARD \
  EACH_SAMPLE \
  const ACC w00 = (1 - wy) * (1 - wx), w01 = (1 - wy) * wx, w10 = wy * (1 - wx), w11 = wy * wx; \
  const long p00 = y0 * in_h + x0 * in_w, p01 = y0 * in_h + x1 * in_w; \
  const long p10 = y1 * in_h + x0 * in_w, p11 = y1 * in_h + x1 * in_w; \
  EACH_CHANNEL \
    results[k] += w00 * IN_LOAD(PLANE, p00) + w01 * IN_LOAD(PLANE, p01) + w10 * IN_LOAD(PLANE, p10) + \
                  w11 * IN_LOAD(PLANE, p11); \
  END_SAMPLE \
  EACH_CHANNEL results[k] /= count;
#define BIN_BACKWARD \
  EACH_SAMPLE \
  sums[y0 * width + x0] += gradient * (1 - wy) * (1 - wx) / count; \
  sums[y0 * width + x1] += gradient * (1 - wy) * wx / count; \
  sums[y1 * width + x0] += gradient * wy * (1 - wx) / count; \
  sums[y1 * width + x1] += gradient * wy * wx / count; \
  END_SAMPLE
"""

# The pixels of a bin. A box's bounds are whole pixels, and belong to it unless bins are by position.
_BIN = r"""
long within(long value, long limit) { return value < 0 ? 0 : value > limit ? limit : value; }
#define READ_BIN(last_y, last_x) \
  const long left = (long)round(BOX(1) * scale), top = (long)round(BOX(2) * scale); \
  long size_x = (long)round(BOX(3) * scale) - left + !BY_POSITION; \
  long size_y = (long)round(BOX(4) * scale) - top + !BY_POSITION; \
  if (size_x < 1) size_x = 1; \
  if (size_y < 1) size_y = 1; \
  const ACC step_x = (ACC)size_x / (ACC)bins_x, step_y = (ACC)size_y / (ACC)bins_y; \
  const long x0 = within((long)floor((ACC)bx * step_x) + left, last_x); \
  const long x1 = within((long)ceil((ACC)(bx + 1) * step_x) + left, last_x); \
  const long y0 = within((long)floor((ACC)by * step_y) + top, last_y); \
  const long y1 = within((long)ceil((ACC)(by + 1) * step_y) + top, last_y); \
  const int is_empty = x1 <= x0 || y1 <= y0;
#define EACH_PIXEL \
  for (long y = y0; y < y1; ++y) \
    for (long x = x0; x < x1; ++x)
#define PIXEL IN_LOAD(PLANE, y * in_h + x * in_w)
"""
_MAXIMUM = (
    _BIN
    + r"""
#define BIN_FORWARD \
  READ_BIN(height, width) \
  EACH_CHANNEL { \
    ACC most = is_empty ? (ACC)0 : (ACC)LOWEST; \
    EACH_PIXEL { \
      const ACC value = PIXEL; \
      if (value > most) { most = value; found[k] = (int)(y * width + x); } \
    } \
    results[k] = most; \
  }
#define BIN_BACKWARD \
  const long place = PLACE; \
  if (place >= 0 && place < area) sums[place] += gradient;
"""
)
# torchvision leaves the last row and column of pixels out, forward and not backward; so is this.
_MEAN = (
    _BIN
    + r"""
#define BIN_FORWARD \
  READ_BIN(height - 1, width - 1) \
  EACH_CHANNEL { \
    ACC sum = 0; \
    EACH_PIXEL sum += PIXEL; \
    results[k] = is_empty ? (ACC)0 : sum / (ACC)((y1 - y0) * (x1 - x0)); \
  }
#define BIN_BACKWARD \
  READ_BIN(height, width) \
  const ACC share = is_empty ? (ACC)0 : gradient / (ACC)((y1 - y0) * (x1 - x0)); \
  EACH_PIXEL sums[y * width + x] += share;
"""
)

#: Vectors of channels of an item.
_CHANNELS = 2
#: What the smallest number of a dtype's kind of computation is.
_LOWEST = {"float": "-3.402823466e38f", "double": "-1.7976931348623157e308"}
#: What a box that names no image is reported as.
_WRONG_IMAGE = "boxes to pool: the first column has to number an image of the input"


class _Problem:
    """One call: the tensors, and the text and arguments of its kernels. ``inner`` is the input or its gradient,
    ``outer`` the output or its gradient, ``places`` what comes with the output."""

    def __init__(self, call: ExternCall, inner: TensorArg, outer: TensorArg, places: TensorArg | None) -> None:
        self.values = call.bind()
        self.inner, self.outer, self.places = inner, outer, places
        self.rois: TensorArg = self.values["rois"]
        self.name = call.name.partition("::")[2].removeprefix("_").removesuffix("_backward")

    def covered(self, builder: PlanBuilder) -> bool:
        """Whether dtypes, ranks and layouts are those that the kernels know."""
        dtypes = {self.inner.dtype, self.outer.dtype, self.rois.dtype}
        ranks = (len(self.inner.sizes), len(self.outer.sizes), len(self.rois.sizes))
        if len(dtypes) != 1 or not dtypes <= common.FLOAT_DTYPES or ranks != (4, 4, 2):
            return False
        if self.places is not None and self.places.dtype != torch.int32:
            return False
        return common.supported(builder, self.inner.dtype)

    @property
    def accumulate(self) -> str:
        """The C type that is computed with."""
        return common.ELEMENT_TYPES[self.inner.dtype].compute

    def text(self, builder: PlanBuilder, kernels: str) -> str:
        """The program of some kernels."""
        by_position = self.name.startswith("ps_")
        is_align = self.name.endswith("align")
        defines: dict[str, Any] = {
            "BY_POSITION": int(by_position),
            "HAS_PLACES": int(self.places is not None),
            "WRONG_IMAGE": assertion(_WRONG_IMAGE).code,
            "LOWEST": _LOWEST[self.accumulate],
            "CHANNELS": builder.target.tuning.beside(_CHANNELS),
        }
        if is_align:
            aligned = by_position or bool(self.values["aligned"])
            samples = max(0, int(self.values["sampling_ratio"]))
            defines |= {"SHIFT": 0.5 if aligned else 0, "AT_LEAST_ONE": int(not aligned), "SAMPLES": samples}
        body = _ALIGN if is_align else _MEAN if by_position else _MAXIMUM
        return common.source(builder, _COMMON + body + kernels, defines, {"IN": self.inner.dtype})

    def arguments(self, builder: PlanBuilder) -> list[p.Argument]:
        """What all kernels take behind their own tensors: ``PARAMETERS``."""
        inner, outer, rois = self.inner, self.outer, self.rois
        numbers: list[Size] = [rois.sizes[0], *inner.sizes, *outer.sizes[1:]]
        numbers += [*rois.strides, *inner.strides, *outer.strides, *(self.places or outer).strides]
        scale = common.float_value(builder, float(self.values["spatial_scale"]), self.accumulate == "double")
        failed = builder.assertions([assertion(_WRONG_IMAGE)])
        return [builder.pointer(rois), failed, scale, *(builder.int64(number) for number in numbers)]


def lower_forward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``roi_align`` (the output), ``roi_pool``, ``ps_roi_align`` and ``ps_roi_pool`` (the output, and for each of its
    elements the pixel or the channel that it is of)."""
    out, *places = call.outputs()
    problem = _Problem(call, call.tensor(0), out, places[0] if places else None)
    if not problem.covered(builder):
        return False
    kernel = builder.kernel(problem.text(builder, _FORWARD), "forward")
    pointers = [builder.pointer(item) for item in (problem.inner, out, places[0] if places else out)]
    bins = strided.product([out.sizes[0], *out.sizes[2:]])
    items = bins * common.ceil_div(out.sizes[1], builder.target.tuning.beside(_CHANNELS))
    common.launch_items(builder, kernel, items, pointers + problem.arguments(builder), grain=4)
    return True


def lower_backward(builder: PlanBuilder, call: ExternCall) -> bool:
    """The gradients of the four with respect to their inputs."""
    gradient = call.outputs()[0]
    values = call.bind()
    places = values.get("argmax", values.get("channel_mapping"))
    problem = _Problem(call, gradient, call.tensor(0), places)
    if not problem.covered(builder):
        return False
    text, arguments = problem.text(builder, _BACKWARD), problem.arguments(builder)
    is_sum = gradient.is_contiguous() and common.stored_as(gradient.dtype, problem.accumulate)
    width = common.compute_size(problem.accumulate)
    sums = gradient if is_sum else builder.allocate(common.larger(width, gradient.numel() * width))
    pointers = [builder.pointer(item) for item in (problem.outer, places or problem.outer, sums)]
    planes = strided.product(gradient.sizes[:2])
    common.launch_items(builder, builder.kernel(text, "backward"), planes, pointers + arguments, grain=1)
    if isinstance(sums, TensorArg):
        return True
    pointers = [builder.pointer(sums), builder.pointer(gradient)]
    common.launch_items(builder, builder.kernel(text, "copy_sums"), gradient.numel(), pointers + arguments)
    builder.free(sums)
    return True
