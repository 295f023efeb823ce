# SPDX-License-Identifier: Apache-2.0
"""Constant matrices in the layout that the product for CPUs (``blocked``) reads: packed once, instead of block by block
at each call.

A packed matrix is a row of panels of ``NR`` columns, filled up with zeros. A panel has its ``NR`` elements for k = 0,
then those for k = 1, and so on: a product reads it from the first element to the last. Of halves, those of k = 0 and 1
are pairs, then those of k = 2 and 3, filled up with a zero: so processors multiply them that can
(``formats``), and so others find them side by side to be converted.
"""

from __future__ import annotations

import torch

from ..plans.builder import PlanBuilder, TensorArg
from ..target import Target
from . import blocked, common, engine, formats

_PACK = r"""
OB_KERNEL void pack(OB_GLOBAL ITEM* packed, OB_GLOBAL const ITEM* mat, const long n_count, const long k_count,
                    const long s_k, const long s_n) {
  const long n_panels = (n_count + NR - 1) / NR, chunks = (k_count + K_BLOCK - 1) / K_BLOCK;
  const long k_padded = (k_count + K_PACKED - 1) / K_PACKED * K_PACKED;
  OB_FOR(piece, n_panels * chunks) {
    const long n0 = piece / chunks * NR, k_from = piece % chunks * K_BLOCK;
    const long k_to = k_from + K_BLOCK < k_padded ? k_from + K_BLOCK : k_padded;
    for (long k = k_from; k < k_to; ++k)
      for (int i = 0; i < NR; ++i) {
        const int inside = n0 + i < n_count && k < k_count;
        packed[n0 * k_padded + (k / K_PACKED * NR + i) * K_PACKED + k % K_PACKED] =
            inside ? mat[k * s_k + (n0 + i) * s_n] : (ITEM)0;
      }
  }
}
"""


def pays(target: Target, dtype: torch.dtype, rows: object) -> bool:
    """Whether a product of ``rows`` rows with a constant matrix is faster when that is packed."""
    plain = dtype.is_floating_point and formats.in_vectors(dtype, engine.accumulator(dtype))
    return target.tuning.vectors and plain and common.static_int(rows) is not None


def pack(builder: PlanBuilder, matrix: TensorArg) -> TensorArg:
    """Appends the steps that pack a matrix (k, n) of known sizes; returns the packed one, as one dimension."""
    accumulate = engine.accumulator(matrix.dtype)
    half = formats.item_dtype(matrix.dtype, accumulate)
    shape = blocked.Blocking.for_product(builder.target, accumulate, half)
    k, n = matrix.sizes
    panels, together = common.ceil_div(n, shape.columns), formats.packed_together(half)
    padded = common.ceil_div(k, together) * together
    packed = builder.allocate_like((panels * shape.columns * padded,), (1,), matrix.dtype)
    text = common.source(builder, shape.formats() + _PACK, {"ACC": accumulate, **shape.defines()}, {})
    numbers = [builder.int64(value) for value in (n, k, *matrix.strides)]
    arguments = [builder.pointer(packed), builder.pointer(matrix), *numbers]
    pieces = panels * common.ceil_div(k, builder.target.tuning.k_block)
    common.launch_items(builder, builder.kernel(text, "pack"), pieces, arguments, grain=1)
    return packed


def find(builder: PlanBuilder, b: TensorArg) -> int | None:
    """The buffer with a packed copy of ``b`` (1, k, n), if there is one."""
    if b.sizes[0] != 1:
        return None
    return builder.packed.get(TensorArg(b.buffer, b.dtype, b.sizes[1:], b.strides[1:], b.offset))
