# SPDX-License-Identifier: Apache-2.0
"""Indexing that is neither a gather nor a plain scatter: masked_scatter, scatter_reduce, index_reduce, isin, and the
gradient of an embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import sympy
import torch

from ..loops.nest import GATHER_ERROR, INDEX_ERROR, index_message
from ..plans import strided
from ..plans.builder import PlanBuilder, Size, TensorArg
from ..printing.emitted import assertion
from ..units import COMPUTE_UNITS
from . import common, scan, sort

if TYPE_CHECKING:
    from .call import ExternCall

_MASKED_SCATTER = r"""
OB_KERNEL void masked_scatter(OB_GLOBAL const OUT_BITS* in, OB_GLOBAL const uchar* mask, OB_GLOBAL const long* ranks,
                              OB_GLOBAL const OUT_BITS* from, OB_GLOBAL OUT_BITS* out, OB_GLOBAL int* failed,
                              const long count, const long from_count ROW_PARAMETERS) {
  OB_FOR(i, count) {
    ROW_OFFSETS(i);
    OUT_BITS value = in[in_row];
    if (mask[i]) {
      if (ranks[i] > from_count) OB_FAIL(failed, TOO_FEW);
      else value = from[ranks[i] - 1];
    }
    out[out_row] = value;
  }
}
"""

_REDUCE_LINES = r"""
/* One item owns a part of the dimension, of some lines side by side: it takes the sources in order, so that nothing
   needs atomics and sums have one order. */
OB_KERNEL void reduce_lines(OB_GLOBAL const INDEX_T* index, OB_GLOBAL const OUT_T* from, OB_GLOBAL OUT_T* out,
                            OB_GLOBAL long* all_hits, const long n, const long count, const long rows,
                            const long across, const long parts, const long index_step, const long from_step,
                            const long out_step, const long index_next, const long from_next, const long out_next,
                            OB_GLOBAL int* failed ROW_PARAMETERS) {
  const long chunks = (across + COLUMNS - 1) / COLUMNS, items = rows * chunks * parts;
  OB_FOR(item, items > 0 ? items : 1) {
    if (items == 0) {
      for (long k = 0; k < count && CHECKED_ALONE; ++k)
        if ((ulong)index[k * index_step] >= (ulong)n) OB_FAIL(failed, OUT_OF_RANGE);
      continue;
    }
    const long line = item / parts, start = line % chunks * COLUMNS;
    const long first = n * (item % parts) / parts, end = n * (item % parts + 1) / parts;
    const long width = across - start < COLUMNS ? across - start : COLUMNS;
    ROW_OFFSETS(line / chunks);
    OB_GLOBAL const INDEX_T* index_line = index + index_row + start * index_next;
    OB_GLOBAL const OUT_T* from_line = from + from_row + start * from_next;
    OB_GLOBAL OUT_T* out_line = out + out_row + start * out_next;
#if COUNTS
#if SHARED
    OB_GLOBAL long* hits = all_hits + line * n;
#define HITS(c, j) hits[j]
    for (long j = first; j < end; ++j) hits[j] = 0;
#else
    OB_GLOBAL long* hits = all_hits + (line / chunks * across + start) * n;
#define HITS(c, j) hits[(c) * n + (j)]
    for (long c = 0; c < width; ++c)
      for (long j = first; j < end; ++j) HITS(c, j) = 0;
#endif
#else
    OB_GLOBAL long* hits = all_hits;
#define HITS(c, j) hits[0]
#endif
/* Finds the place of source k in column c, and goes on with the next one if it belongs to another item. */
#define FIND_PLACE(k, c) \
  const long j = (long)index_line[(k) * index_step + (c) * index_next]; \
  if ((ulong)(j - first) >= (ulong)(end - first)) { \
    is_wrong |= (ulong)j >= (ulong)n; \
    continue; \
  }
#define REDUCE_AT(k, c) \
  const OUT_C x = OUT_LOAD(from_line, (k) * from_step + (c) * FROM_NEXT); \
  OUT_C value = OUT_LOAD(out_line, j * out_step + (c) * OUT_NEXT); \
  if (COUNTS && !INCLUDE_SELF && is_first) value = x; \
  else REDUCE(value, x); \
  OUT_STORE(out_line, j * out_step + (c) * OUT_NEXT, value);
    int is_wrong = 0;
    for (long k = 0; k < count; ++k) {
#if SHARED
      FIND_PLACE(k, 0)
      const int is_first = COUNTS && HITS(0, j)++ == 0;
      if (width == COLUMNS)
        for (int c = 0; c < COLUMNS; ++c) { REDUCE_AT(k, c) }
      else
        for (long c = 0; c < width; ++c) { REDUCE_AT(k, c) }
#else
      for (long c = 0; c < width; ++c) {
        FIND_PLACE(k, c)
        const int is_first = COUNTS && HITS(c, j)++ == 0;
        REDUCE_AT(k, c)
      }
#endif
    }
    if (is_wrong) OB_FAIL(failed, OUT_OF_RANGE);
#if MEAN
    for (long j = first; j < end; ++j)
      for (long c = 0; c < width; ++c) {
        if (HITS(c, j) == 0) continue;
        const OUT_C value = OUT_LOAD(out_line, j * out_step + c * out_next);
        OUT_STORE(out_line, j * out_step + c * out_next, DIVIDE(value, HITS(c, j) + INCLUDE_SELF));
      }
#endif
  }
}
"""
_REDUCTIONS = {
    "sum": "value += x",
    "prod": "value *= x",
    "mean": "value += x",
    "amax": "value = x > value || x != x ? x : value",
    "amin": "value = x < value || x != x ? x : value",
}

_COPY = r"""
OB_KERNEL void copy_elements(OB_GLOBAL const OUT_BITS* in, OB_GLOBAL OUT_BITS* out, const long count ROW_PARAMETERS) {
  OB_FOR(i, count) {
    ROW_OFFSETS(i);
    out[out_row] = in[in_row];
  }
}
"""
# Integers round down, as ATen's division here does.
_DIVIDE_INTEGERS = "((v) / (OUT_C)(n) - ((v) % (OUT_C)(n) != 0 && (v) < 0))"
_DIVIDE_FLOATS = "((v) / (OUT_C)(n))"

_EMBEDDING_GRADIENT = r"""
OB_KERNEL void clear(OB_GLOBAL OUT_T* out, const long count) {
  OB_FOR(i, count) OUT_STORE(out, i, (OUT_C)0);
}

/* One item owns COLUMNS columns of a part of the rows and takes the looked-up rows in order: no atomics, and the same
   sum to the last bit every time. */
OB_KERNEL void add_rows(OB_GLOBAL const OUT_T* grad, OB_GLOBAL const INDEX_T* index, OB_GLOBAL OUT_T* out,
                        const long count, const long rows, const long columns, const long parts, const long padding) {
  const long chunks = (columns + COLUMNS - 1) / COLUMNS;
  OB_FOR(item, chunks * parts) {
    const long part = item / chunks, from = item % chunks * COLUMNS;
    const long first = rows * part / parts, end = rows * (part + 1) / parts;
    const long width = columns - from < COLUMNS ? columns - from : COLUMNS;
    for (long i = 0; i < count; ++i) {
      const long row = (long)index[i];
      if (row < first || row >= end || row == padding) continue;
      for (long c = 0; c < width; ++c) {
        const long at = row * columns + from + c;
        OUT_STORE(out, at, OUT_LOAD(out, at) + OUT_LOAD(grad, i * columns + from + c));
      }
    }
  }
}

/* The sources in the order of their rows: one item owns COLUMNS columns of the rows whose first source is in its part,
   and rounds each sum once. */
OB_KERNEL void add_sorted_rows(OB_GLOBAL const OUT_T* grad, OB_GLOBAL const INDEX_T* index, OB_GLOBAL OUT_T* out,
                               OB_GLOBAL const long* order, const long count, const long rows, const long columns,
                               const long parts, const long padding) {
  const long chunks = (columns + COLUMNS - 1) / COLUMNS;
  OB_FOR(item, chunks * parts) {
    const long part = item / chunks, from = item % chunks * COLUMNS, end = count * (part + 1) / parts;
    const long width = columns - from < COLUMNS ? columns - from : COLUMNS;
    long i = count * part / parts;
    while (i > 0 && i < end && index[i] == index[i - 1]) ++i;
    while (i < end) {
      const long row = (long)index[i];
      OUT_C sum[COLUMNS];
      for (int c = 0; c < COLUMNS; ++c) sum[c] = (OUT_C)0;
      for (; i < count && (long)index[i] == row; ++i) {
        const long at = order[i] * columns + from;
        if (width == COLUMNS)
          for (int c = 0; c < COLUMNS; ++c) sum[c] += OUT_LOAD(grad, at + c);
        else
          for (long c = 0; c < width; ++c) sum[c] += OUT_LOAD(grad, at + c);
      }
      if ((ulong)row >= (ulong)rows || row == padding) continue;
      for (long c = 0; c < width; ++c) OUT_STORE(out, row * columns + from + c, sum[c]);
    }
  }
}
"""
#: Vectors of columns of a work-item, and of lines.
_COLUMNS = 4
_LINES = 2

_ISIN = r"""
OB_KERNEL void isin(OB_GLOBAL const A_T* in, OB_GLOBAL const B_T* set, OB_GLOBAL uchar* out, const long count,
                    const long set_count, const int invert ROW_PARAMETERS) {
  OB_FOR(i, count) {
    ROW_OFFSETS(i);
    const COMMON value = (COMMON)A_LOAD(in, in_row);
    int found = 0;
    for (long j = 0; j < set_count && !found; ++j) found = value == (COMMON)B_LOAD(set, j);
    out[out_row] = (uchar)(found != invert);
  }
}
"""


def _flat(tensor: TensorArg) -> TensorArg:
    return TensorArg(tensor.buffer, tensor.dtype, (tensor.numel(),), (sympy.Integer(1),), tensor.offset)


def lower_masked_scatter(builder: PlanBuilder, call: ExternCall) -> bool:
    """``masked_scatter``; the mask may broadcast to the tensor, or the tensor to the mask. A source with too few
    elements is reported."""
    values, out = call.bind(), call.outputs()[0]
    tensor, mask, source = values["self"], values["mask"], values["source"]
    if tensor.dtype != source.dtype or mask.dtype != torch.bool or not common.supported(builder, tensor.dtype):
        return False
    strides = {"in": common.broadcast_strides(tensor, out.sizes), "out": list(out.strides)}
    rows = common.Rows(out.sizes, strides)
    mask = TensorArg(mask.buffer, mask.dtype, out.sizes, tuple(common.broadcast_strides(mask, out.sizes)), mask.offset)
    dense_mask, dense_source = _dense(builder, mask), _dense(builder, source)
    ranks = builder.allocate_like((mask.numel(),), (sympy.Integer(1),), torch.int64)
    scan.emit(builder, "cumsum", _flat(dense_mask), [ranks], 0)
    too_few = assertion("masked_scatter: the number of elements of source is less than the number of ones in mask")
    text = common.source(builder, rows.macros() + _MASKED_SCATTER, {"TOO_FEW": too_few.code}, {"OUT": out.dtype})
    arguments = [builder.pointer(item) for item in (tensor, dense_mask, ranks, dense_source, out)]
    arguments += [builder.assertions([too_few]), builder.int64(rows.count), builder.int64(source.numel())]
    arguments += rows.arguments(builder)
    common.launch_items(builder, builder.kernel(text, "masked_scatter"), rows.count, arguments)
    builder.free(ranks.buffer)
    for copied, original in ((dense_mask, mask), (dense_source, source)):
        if copied is not original:
            builder.free(copied.buffer)
    return True


def lower_embedding_gradient(builder: PlanBuilder, call: ExternCall) -> bool:
    """``embedding_dense_backward`` without scaling by frequency. Sums of halves are rounded once, as on CUDA and in
    PyTorch's decomposition."""
    values, out = call.bind(), call.outputs()[0]
    grad, index = values["grad_output"], values["indices"]
    if values["scale_grad_by_freq"] is not False or grad.dtype != out.dtype or not out.is_contiguous():
        return False
    if not common.supported(builder, out.dtype, index.dtype) or out.dtype.is_complex:
        return False
    columns, least = builder.target.tuning.beside(_COLUMNS), builder.target.tuning.busy * COMPUTE_UNITS
    rows, width = out.sizes
    chunks = common.ceil_div(width, columns)
    parts = common.ceil_div(least, common.larger(1, chunks))
    text = common.source(builder, _EMBEDDING_GRADIENT, {"COLUMNS": columns}, {"OUT": out.dtype, "INDEX": index.dtype})
    dense_grad, dense_index = _dense(builder, grad), _dense(builder, index)
    cleared = [builder.pointer(out), builder.int64(out.numel())]
    common.launch_items(builder, builder.kernel(text, "clear"), out.numel(), cleared, grain=8192)
    places, scratch = _flat(dense_index), []
    if out.dtype.itemsize < 4:
        scratch = [builder.allocate_like(places.sizes, places.strides, dtype) for dtype in (index.dtype, torch.int64)]
        sort.emit(builder, places, 0, False, *scratch)
        places = scratch[0]
    arguments = [builder.pointer(item) for item in (dense_grad, places, out, *scratch[1:])]
    arguments += [builder.int64(n) for n in (index.numel(), rows, width, parts, values["padding_idx"])]
    entry = "add_sorted_rows" if scratch else "add_rows"
    common.launch_items(builder, builder.kernel(text, entry), chunks * parts, arguments, grain=1)
    for sorted_ in scratch:
        builder.free(sorted_.buffer)
    for copied, original in ((dense_grad, grad), (dense_index, index)):
        if copied is not original:
            builder.free(copied.buffer)
    return True


def _dense(builder: PlanBuilder, tensor: TensorArg) -> TensorArg:
    """The tensor itself if it is dense, else a dense copy."""
    if tensor.is_contiguous():
        return tensor
    strides: list[Size] = []
    step: Size = sympy.Integer(1)
    for size in reversed(tensor.sizes):
        strides.insert(0, step)
        step = step * size
    copied = builder.allocate_like(tensor.sizes, strides, tensor.dtype)
    _copy(builder, tensor, copied)
    return copied


def lower_index_reduce(builder: PlanBuilder, call: ExternCall) -> bool:
    """``index_reduce``. PyTorch's shape function lets sources of other sizes pass."""
    values, out = call.bind(), call.outputs()[0]
    index, source = values["index"], values["source"]
    dim = common.wrap_dim(values["dim"], len(out.sizes))
    if dim is None or len(source.sizes) != len(out.sizes):
        return False
    for place, size in enumerate(source.sizes):
        wanted = out.sizes[place] if place != dim else index.numel()
        if sympy.Eq(size, wanted) == sympy.false:
            return False
        if size != wanted:
            builder.guard(sympy.Eq(size, wanted))
    step = common.stride_at(index, 0)
    strides = tuple(step if i == dim else sympy.Integer(0) for i in range(len(source.sizes)))
    places = TensorArg(index.buffer, index.dtype, source.sizes, strides, index.offset)
    return _reduce_lines(builder, values, dim, places, source, out, INDEX_ERROR, checked_alone=True)


def lower_scatter_reduce(builder: PlanBuilder, call: ExternCall) -> bool:
    """``scatter_reduce`` and its in-place form. Places out of range are left out, and reported."""
    if ".two" not in call.name:
        return False
    values, out = call.bind(), call.outputs()[0]
    index, source = values["index"], values["src"]
    dim = common.wrap_dim(values["dim"], len(out.sizes))
    if dim is None or not len(out.sizes) == len(index.sizes) == len(source.sizes):
        return False
    return _reduce_lines(builder, values, dim, index, source, out, GATHER_ERROR)


def _reduce_lines(
    builder: PlanBuilder,
    values: Mapping[str, Any],
    dim: int,
    index: TensorArg,
    source: TensorArg,
    out: TensorArg,
    message: str,
    checked_alone: bool = False,
) -> bool:
    """Takes each element of ``source`` that ``index`` has a place for into that place of the line of ``out``. With
    ``checked_alone``, indices that are the same for all lines have to be right also where there are no lines."""
    tensor, reduction = values["self"], _REDUCTIONS.get(values["reduce"])
    if reduction is None or {tensor.dtype, source.dtype} != {out.dtype}:
        return False
    if not common.supported(builder, out.dtype, index.dtype):
        return False
    if tensor.buffer != out.buffer:
        _copy(builder, tensor, out)
    tensors = {"index": index, "from": source, "out": out}
    lines = _Lines(builder, dim, tensors)
    include_self, mean = bool(values["include_self"]), values["reduce"] == "mean"
    is_shared = all(stride == 0 for stride in common.without(index.strides, dim))
    n, counts = common.size_at(out, dim), mean or not include_self
    counted = lines.chunks if is_shared else lines.outer * lines.across
    hits = builder.allocate(common.larger(8, counted * n * 8)) if counts else out.buffer
    wrong_index = assertion(index_message.get(message))
    text = common.source(
        builder,
        lines.rows.macros() + _REDUCE_LINES,
        {
            "COLUMNS": lines.columns,
            "FROM_NEXT": "from_next" if lines.columns == 1 else 1,
            "OUT_NEXT": "out_next" if lines.columns == 1 else 1,
            "SHARED": int(is_shared),
            "CHECKED_ALONE": int(checked_alone),
            "INCLUDE_SELF": int(include_self),
            "REDUCE(value, x)": reduction,
            "COUNTS": int(counts),
            "MEAN": int(mean),
            "DIVIDE(v, n)": _DIVIDE_FLOATS if out.dtype.is_floating_point else _DIVIDE_INTEGERS,
            "OUT_OF_RANGE": wrong_index.code,
        },
        {"OUT": out.dtype, "INDEX": index.dtype},
    )
    numbers = [n, common.size_at(index, dim), lines.outer, lines.across, lines.parts]
    numbers += [*(common.stride_at(item, dim) for item in tensors.values()), *lines.next]
    arguments = [*(builder.pointer(item) for item in tensors.values()), builder.pointer(hits)]
    arguments += [builder.int64(number) for number in numbers]
    arguments += [builder.assertions([wrong_index]), *lines.rows.arguments(builder)]
    items = common.larger(1, lines.chunks * lines.parts)
    common.launch_items(builder, builder.kernel(text, "reduce_lines"), items, arguments, grain=1)
    if counts:
        builder.free(hits)
    return True


class _Lines:
    """The lines of tensors along a dimension, ``outer`` times ``across`` of them. ``across`` are side by side, steps of
    ``next`` apart, in chunks of ``columns``; ``rows`` is about the others. ``parts`` of the dimension give all compute
    units something to do."""

    def __init__(self, builder: PlanBuilder, dim: int, tensors: Mapping[str, TensorArg]) -> None:
        first = next(iter(tensors.values()))
        strides = {name: common.without(tensor.strides, dim) for name, tensor in tensors.items()}
        self.rows = common.Rows(common.without(first.sizes, dim), strides)
        self.across: Size = sympy.Integer(1)
        self.next: list[Size] = [sympy.Integer(0)] * len(tensors)
        if self.rows.dims:
            self.across, self.next = self.rows.dims.pop()
        self.outer = strided.product([size for size, _ in self.rows.dims])
        neighbours = all(step == 1 for step in self.next[1:])
        tuning = builder.target.tuning
        self.columns = tuning.beside(_LINES) if neighbours else 1
        self.chunks = self.outer * common.ceil_div(self.across, self.columns)
        # Every part looks at all sources. With explicit vectors that takes as long as to add one number.
        least = COMPUTE_UNITS * (1 if tuning.vectors else tuning.busy)
        is_short = tuning.vectors and self.columns == 1
        self.parts: Size = sympy.Integer(1) if is_short else common.ceil_div(least, common.larger(1, self.chunks))


def _copy(builder: PlanBuilder, source: TensorArg, target: TensorArg) -> None:
    rows = common.Rows(target.sizes, {"in": source.strides, "out": target.strides})
    text = common.source(builder, rows.macros() + _COPY, {}, {"OUT": target.dtype})
    arguments = [builder.pointer(source), builder.pointer(target), builder.int64(rows.count), *rows.arguments(builder)]
    common.launch_items(builder, builder.kernel(text, "copy_elements"), rows.count, arguments)


def lower_isin(builder: PlanBuilder, call: ExternCall) -> bool:
    """``isin`` of two tensors, the second dense: every element against the whole set."""
    if not call.name.startswith("aten::isin.Tensor_Tensor"):
        return False
    values, out = call.bind(), call.outputs()[0]
    elements, members = values["elements"], values["test_elements"]
    if not members.is_contiguous() or not common.supported(builder, elements.dtype, members.dtype):
        return False
    rows = common.Rows(out.sizes, {"in": elements.strides, "out": out.strides})
    float_types = [t.dtype for t in (elements, members) if t.dtype.is_floating_point]
    kind = "long" if not float_types else "double" if torch.float64 in float_types else "float"
    text = common.source(builder, rows.macros() + _ISIN, {"COMMON": kind}, {"A": elements.dtype, "B": members.dtype})
    arguments = [builder.pointer(item) for item in (elements, members, out)]
    arguments += [builder.int64(rows.count), builder.int64(members.numel()), builder.int32(int(bool(values["invert"])))]
    arguments += rows.arguments(builder)
    common.launch_items(builder, builder.kernel(text, "isin"), rows.count, arguments, grain=16)
    return True
