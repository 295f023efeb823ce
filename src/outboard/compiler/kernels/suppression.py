# SPDX-License-Identifier: Apache-2.0
"""Boxes that overlap a better one are left out (torchvision's ``nms``): all overlaps at once, as bits, and then one
group that goes through the boxes in order. The operator is our own: the result of torchvision's has a size that only
the device knows."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import torch

from ..plans.builder import PlanBuilder
from . import common

if TYPE_CHECKING:
    from .call import ExternCall

_BODY = r"""
#if GROUP > 1
#define MEET() OB_BARRIER()
#else
#define MEET()
#endif
#define EDGE(box, k) BOX_LOAD(boxes, (box) * step_n + (k) * step_c)
#define BITS 64

/* Bit b of word w of row i: whether box 64 w + b, counted by rank, overlaps box i, a better one, too much. A product
   and what it is added to are statements of their own, so that they are rounded as the CPU rounds them. */
OB_KERNEL void compare(OB_GLOBAL const BOX_T* boxes, OB_GLOBAL const long* order, OB_GLOBAL ulong* overlaps,
                       const BOX_C threshold, const long count, const long words, const long step_n,
                       const long step_c) {
  OB_FOR(item, count * words) {
    const long i = item / words, first = item % words * BITS;
    ulong bits = 0;
    if (first + BITS > i + 1) {
      const long one = order[i];
      const BOX_C left = EDGE(one, 0), top = EDGE(one, 1), right = EDGE(one, 2), bottom = EDGE(one, 3);
      const BOX_C area = (right - left) * (bottom - top);
      for (long j = first > i ? first : i + 1; j < first + BITS && j < count; ++j) {
        const long other = order[j];
        const BOX_C x0 = EDGE(other, 0), y0 = EDGE(other, 1), x1 = EDGE(other, 2), y1 = EDGE(other, 3);
        const BOX_C width = (right > x1 ? x1 : right) - (left < x0 ? x0 : left);
        const BOX_C height = (bottom > y1 ? y1 : bottom) - (top < y0 ? y0 : top);
        const BOX_C common_area = (width > 0 ? width : 0) * (height > 0 ? height : 0);
        const BOX_C other_area = (x1 - x0) * (y1 - y0);
        const BOX_C all = area + other_area - common_area;
        if (common_area / all > threshold) bits |= (ulong)1 << (j - first);
      }
    }
    overlaps[item] = bits;
  }
}

/* A work-group shares the words of a row. */
OB_KERNEL void choose(OB_GLOBAL const ulong* overlaps, OB_GLOBAL ulong* removed, OB_GLOBAL uchar* keep,
                      const long count, const long words) {
  for (long word = OB_LOCAL_ID(0); word < words; word += GROUP) removed[word] = 0;
  MEET();
  for (long i = 0; i < count; ++i) {
    const int is_kept = (removed[i / BITS] >> (i % BITS) & 1) == 0;
    MEET();
    if (OB_LOCAL_ID(0) == 0) keep[i] = (uchar)is_kept;
    if (is_kept) {
      for (long word = i / BITS + OB_LOCAL_ID(0); word < words; word += GROUP)
        removed[word] |= overlaps[i * words + word];
    }
    MEET();
  }
}
"""


def _rounded_down(value: float, compute: str) -> float:
    """The largest number of a C type that is not above a value: what exceeds the one exceeds the other."""
    if compute == "double":
        return value
    nearest: float = struct.unpack("<f", struct.pack("<f", value))[0]
    if nearest <= value:
        return nearest
    below = torch.nextafter(torch.tensor(nearest), torch.tensor(-math.inf))
    return float(below)


def lower(builder: PlanBuilder, call: ExternCall) -> bool:
    """``nms_keep``: for each box (n, 4), in the order given (n), whether it stays."""
    boxes, order = call.tensor(0), call.tensor(1)
    keep, threshold = call.outputs()[0], call.args[2]
    if not isinstance(threshold, (int, float)) or boxes.dtype not in common.FLOAT_DTYPES:
        return False
    if not common.supported(builder, boxes.dtype) or not order.is_contiguous() or order.dtype != torch.int64:
        return False
    compute = common.ELEMENT_TYPES[boxes.dtype].compute
    group = common.group_size(builder, 256)
    text = common.source(builder, _BODY, {"GROUP": group}, {"BOX": boxes.dtype})
    count = boxes.sizes[0]
    words = common.ceil_div(count, 64)
    overlaps, removed = builder.allocate(count * words * 8), builder.allocate(words * 8)
    limit = common.float_value(builder, _rounded_down(float(threshold), compute), compute == "double")
    arguments = [builder.pointer(boxes), builder.pointer(order), builder.pointer(overlaps), limit]
    arguments += [builder.int64(number) for number in (count, words, *boxes.strides)]
    common.launch_items(builder, builder.kernel(text, "compare"), count * words, arguments, grain=16)
    arguments = [builder.pointer(overlaps), builder.pointer(removed), builder.pointer(keep)]
    arguments += [builder.int64(count), builder.int64(words)]
    common.launch_groups(builder, builder.kernel(text, "choose"), 1, arguments, group)
    builder.free(overlaps)
    builder.free(removed)
    return True
