# SPDX-License-Identifier: Apache-2.0
"""Places of the true elements of a mask: counted block by block, then written where the counts before them end.

The operators are our own (``csrc/torch/operators/data_dependent_shapes.cpp`` declares and calls them), because what
PyTorch calls nonzero has a result whose size only the device knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..plans.builder import PlanBuilder
from . import common, scan

if TYPE_CHECKING:
    from .call import ExternCall

#: Elements that one work-item counts, and later looks through again.
BLOCK = 1024

_BODY = r"""
OB_KERNEL void count_true(OB_GLOBAL const uchar* mask, OB_GLOBAL long* counts, const long n, const long blocks) {
  OB_FOR(block, blocks) {
    const long first = block * BLOCK;
    const int length = n - first < BLOCK ? (int)(n - first) : BLOCK;
    int found = 0;
    for (int i = 0; i < length; ++i) found += mask[first + i] != 0;
    counts[block] = found;
  }
}

/* Every place is written, and stays where the next one goes unless it is wanted. */
OB_KERNEL void compact(OB_GLOBAL const uchar* mask, OB_GLOBAL const long* counts, OB_GLOBAL long* out,
                       const long blocks) {
  OB_FOR(block, blocks) {
    long at = block ? counts[block - 1] : 0;
    const long end = counts[block];
    for (long i = block * BLOCK; at < end; ++i) {
      out[at] = i;
      at += mask[i] != 0;
    }
  }
}
"""


def _source(builder: PlanBuilder) -> str:
    return common.source(builder, _BODY, {"BLOCK": BLOCK}, {})


def lower_running_counts(builder: PlanBuilder, call: ExternCall) -> bool:
    """``running_counts``: for each block of a flat mask, how many elements are true up to its end."""
    mask, out = call.tensor(0), call.outputs()[0]
    blocks = out.numel()
    counts = builder.allocate_like(out.sizes, out.strides, out.dtype)
    arguments = [builder.pointer(mask), builder.pointer(counts), builder.int64(mask.numel()), builder.int64(blocks)]
    common.launch_items(builder, builder.kernel(_source(builder), "count_true"), blocks, arguments, grain=16)
    scan.emit(builder, "cumsum", counts, [out], 0)
    builder.free(counts.buffer)
    return True


def lower_compact(builder: PlanBuilder, call: ExternCall) -> bool:
    """``compact``: the places of the true elements of a flat mask whose running counts are known."""
    mask, counts, out = call.tensor(0), call.tensor(1), call.outputs()[0]
    arguments = [builder.pointer(item) for item in (mask, counts, out)] + [builder.int64(counts.numel())]
    kernel = builder.kernel(_source(builder), "compact")
    common.launch_items(builder, kernel, counts.numel(), arguments, grain=16)
    return True
