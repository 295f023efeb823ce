# SPDX-License-Identifier: Apache-2.0
"""Bags of embeddings: looked-up rows of a table, added, averaged or their maxima taken bag by bag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..loops.nest import GATHER_ERROR
from ..plans.builder import PlanBuilder
from ..printing.emitted import assertion
from . import common

if TYPE_CHECKING:
    from .call import ExternCall

_BODY = r"""
/* Where a bag begins, or the one after the last ends. */
long begin_of(OB_GLOBAL const INDEX_T* offsets, long step, long bag, long given, long count,
                        OB_GLOBAL int* failed) {
  const long begin = bag < given ? (long)offsets[bag * step] : count;
  if (begin >= 0 && begin <= count && (bag > 0 || begin == 0)) return begin;
  OB_FAIL(failed, bag > 0 ? WRONG_END : WRONG_BEGIN);
  return begin < 0 ? 0 : count;
}

/* One item owns COLUMNS columns of a bag; the one with the first says which bag each index is in. */
OB_KERNEL void reduce_bags(OB_GLOBAL const TABLE_T* table, OB_GLOBAL const INDEX_T* indices,
                           OB_GLOBAL const INDEX_T* offsets, OB_GLOBAL const TABLE_T* factors, OB_GLOBAL TABLE_T* out,
                           OB_GLOBAL INDEX_T* bag_of, OB_GLOBAL INDEX_T* sizes, OB_GLOBAL INDEX_T* places,
                           const long bags, const long given, const long count, const long rows, const long columns,
                           const long table_row, const long table_column, const long index_step, const long offset_step,
                           const long factor_step, const long padding, const long tracked, const long sized,
                           OB_GLOBAL int* failed) {
  const long chunks = columns > 0 ? (columns + COLUMNS - 1) / COLUMNS : 1;
  OB_FOR(item, bags * chunks) {
    const long bag = item / chunks, from = item % chunks * COLUMNS;
    const int width = columns - from < COLUMNS ? (int)(columns - from) : COLUMNS;
    const long begin = begin_of(offsets, offset_step, bag, given, count, failed);
    const long end = begin_of(offsets, offset_step, bag + 1, given, count, failed);
    TABLE_C sums[COLUMNS];
    long found[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) { sums[c] = 0; found[c] = 0; }
    long size = 0;
    for (long i = begin; i < end; ++i) {
      const long row = (long)indices[i * index_step];
      if (from == 0 && i < tracked) bag_of[i] = (INDEX_T)bag;
      if (row < 0 || row >= rows) {
        OB_FAIL(failed, WRONG_INDEX);
        continue;
      }
      if (row == padding) continue;
      OB_GLOBAL const TABLE_T* at = table + row * table_row + from * table_column;
#if MODE == 2
      for (int c = 0; c < width; ++c) {
        const TABLE_C value = TABLE_LOAD(at, c * table_column);
        if (size == 0 || value > sums[c]) { sums[c] = value; found[c] = row; }
      }
#else
      const TABLE_C factor = HAS_FACTORS ? TABLE_LOAD(factors, i * factor_step) : (TABLE_C)1;
      if (width == COLUMNS && table_column == 1) {
        for (int c = 0; c < COLUMNS; ++c) sums[c] += factor * TABLE_LOAD(at, c);
      } else {
        for (int c = 0; c < width; ++c) sums[c] += factor * TABLE_LOAD(at, c * table_column);
      }
#endif
      ++size;
    }
    for (int c = 0; c < width; ++c) {
      const long to = bag * columns + from + c;
      TABLE_STORE(out, to, MODE == 1 && size > 1 ? sums[c] / (TABLE_C)size : sums[c]);
#if MODE == 2
      places[to] = (INDEX_T)found[c];
#endif
    }
    if (from == 0) sizes[bag] = (INDEX_T)size;
    if (item == 0) {
      for (long i = bags; i < sized; ++i) sizes[i] = 0;
    }
    if (from == 0 && bag == bags - 1) {
      for (long i = end; i < tracked; ++i) bag_of[i] = -1;
    }
  }
}
"""
#: Vectors of columns of a work-item.
_COLUMNS = 2


def lower(builder: PlanBuilder, call: ExternCall) -> bool:
    """``_embedding_bag`` and ``_embedding_bag_forward_only``: the bags, for each index the bag that it is in (-1 if
    none), how many indices each bag has without padding, and for maxima the rows that they come from (0 if none). The
    second may be empty, and the third longer."""
    values, (out, bag_of, sizes, places) = call.bind(), call.outputs()
    table, indices, offsets, factors = (values[name] for name in ("weight", "indices", "offsets", "per_sample_weights"))
    mode = common.static_int(values["mode"])
    if mode not in (0, 1, 2) or not common.supported(builder, table.dtype) or not table.dtype.is_floating_point:
        return False
    dtypes = {indices.dtype, offsets.dtype, bag_of.dtype, sizes.dtype, places.dtype}
    if len(dtypes) != 1 or not dtypes <= {torch.int64, torch.int32}:
        return False
    if out.dtype != table.dtype or (factors is not None and factors.dtype != table.dtype):
        return False
    if not all(result.is_contiguous() for result in (out, bag_of, sizes, places)):
        return False
    wrong = {
        "WRONG_INDEX": assertion(GATHER_ERROR),
        "WRONG_BEGIN": assertion("offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
                                 "position 0."),
        "WRONG_END": assertion("offsets[-1] can not be greater than input's length"),
    }  # fmt: skip
    columns = builder.target.tuning.beside(_COLUMNS)
    defines = {"COLUMNS": columns, "MODE": mode, "HAS_FACTORS": int(factors is not None)}
    defines.update({name: each.code for name, each in wrong.items()})
    text = common.source(builder, _BODY, defines, {"TABLE": table.dtype, "INDEX": indices.dtype})
    bags, given, count = out.sizes[0], offsets.sizes[0], indices.sizes[0]
    tensors = (table, indices, offsets, factors or table, out, bag_of, sizes, places)
    arguments = [builder.pointer(item) for item in tensors]
    numbers = [bags, given, count, *table.sizes, *table.strides, indices.strides[0], offsets.strides[0]]
    numbers += [factors.strides[0] if factors is not None else 0, values["padding_idx"]]
    numbers += [bag_of.numel(), sizes.numel()]
    arguments += [builder.int64(number) for number in numbers]
    arguments.append(builder.assertions(wrong.values()))
    items = bags * common.larger(1, common.ceil_div(out.sizes[1], columns))
    common.launch_items(builder, builder.kernel(text, "reduce_bags"), items, arguments, grain=4)
    return True
