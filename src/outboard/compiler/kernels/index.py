# SPDX-License-Identifier: Apache-2.0
"""Indexing that is neither a gather nor a plain scatter: masked_scatter, scatter_reduce, index_reduce, isin, and the
gradient of an embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import sympy
import torch

from ..loops.nest import GATHER_ERROR, INDEX_ERROR
from ..plans import strided
from ..plans.builder import PlanBuilder, Size, TensorArg
from ..printing.emitted import assertion
from ..units import COMPUTE_UNITS
from . import common, scan

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

_INDEX_REDUCE = r"""
/* One item owns a part of the dimension, of some lines side by side: it takes the sources in order, and nothing needs
   atomics. The first looks at indices also where there are no lines. */
OB_KERNEL void index_reduce(OB_GLOBAL const OUT_T* in, OB_GLOBAL const INDEX_T* index, OB_GLOBAL const OUT_T* from,
                            OB_GLOBAL OUT_T* out, OB_GLOBAL long* all_hits, const long n, const long count,
                            const long rows, const long across, const long parts, const long in_step,
                            const long from_step, const long out_step, const long index_step, const long in_next,
                            const long from_next, const long out_next, OB_GLOBAL int* failed ROW_PARAMETERS) {
  const long chunks = (across + COLUMNS - 1) / COLUMNS, items = rows * chunks * parts;
  OB_FOR(item, items > 0 ? items : 1) {
    for (long k = 0; k < count && item == 0; ++k) {
      const long at = (long)index[k * index_step];
      if (at < 0 || at >= n) OB_FAIL(failed, OUT_OF_RANGE);
    }
    if (item >= items) continue;
    const long line = item / parts, start = line % chunks * COLUMNS;
    const long first = n * (item % parts) / parts, end = n * (item % parts + 1) / parts;
    const long width = across - start < COLUMNS ? across - start : COLUMNS;
    ROW_OFFSETS(line / chunks);
    OB_GLOBAL const OUT_T* from_line = from + from_row + start * from_next;
    OB_GLOBAL OUT_T* out_line = out + out_row + start * out_next;
    for (long j = first; j < end; ++j)
      for (long c = 0; c < width; ++c)
        OUT_STORE(out_line, j * out_step + c * out_next, OUT_LOAD(in, in_row + j * in_step + (start + c) * in_next));
#if COUNTS
    OB_GLOBAL long* hits = all_hits + line * n;
    for (long j = first; j < end; ++j) hits[j] = 0;
#endif
    for (long k = 0; k < count; ++k) {
      const long j = (long)index[k * index_step];
      if (j < first || j >= end) continue;
      OB_GLOBAL const OUT_T* source = from_line + k * from_step;
      OB_GLOBAL OUT_T* to = out_line + j * out_step;
#if COUNTS
      if (hits[j]++ == 0 && !INCLUDE_SELF) {
        for (long c = 0; c < width; ++c) OUT_STORE(to, c * out_next, OUT_LOAD(source, c * from_next));
        continue;
      }
#endif
      for (long c = 0; c < width; ++c) {
        const OUT_C x = OUT_LOAD(source, c * from_next);
        OUT_C value = OUT_LOAD(to, c * out_next);
        REDUCE(value, x);
        OUT_STORE(to, c * out_next, value);
      }
    }
#if MEAN
    for (long j = first; j < end; ++j) {
      if (hits[j] == 0) continue;
      for (long c = 0; c < width; ++c) {
        const OUT_C value = OUT_LOAD(out_line, j * out_step + c * out_next);
        OUT_STORE(out_line, j * out_step + c * out_next, DIVIDE(value, hits[j] + INCLUDE_SELF));
      }
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

_SCATTER_REDUCE = r"""
/* One item owns a line of the index along the dimension, so nothing needs atomics and sums have one order. */
OB_KERNEL void scatter_reduce(OB_GLOBAL const INDEX_T* index, OB_GLOBAL const OUT_T* from, OB_GLOBAL OUT_T* out,
                              OB_GLOBAL long* all_hits, const long n, const long count, const long lines,
                              const long index_step, const long from_step, const long out_step,
                              OB_GLOBAL int* failed ROW_PARAMETERS) {
  OB_FOR(line, lines) {
    ROW_OFFSETS(line);
    OB_GLOBAL long* hits = all_hits + line * n;
    for (long j = 0; j < n; ++j) hits[j] = INCLUDE_SELF;
    for (long k = 0; k < count; ++k) {
      const long at = (long)index[index_row + k * index_step];
      if (at < 0 || at >= n) {
        OB_FAIL(failed, OUT_OF_RANGE);
        continue;
      }
      const OUT_C x = OUT_LOAD(from, from_row + k * from_step);
      OUT_C value = x;
      if (hits[at]) {
        value = OUT_LOAD(out, out_row + at * out_step);
        REDUCE(value, x);
      }
      ++hits[at];
      OUT_STORE(out, out_row + at * out_step, value);
    }
#if MEAN
    for (long j = 0; j < n; ++j)
      if (hits[j] > 1) {
        const OUT_C value = OUT_LOAD(out, out_row + j * out_step);
        OUT_STORE(out, out_row + j * out_step, DIVIDE(value, hits[j]));
      }
#endif
  }
}
"""
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
"""
#: Vectors of columns of a work-item.
_COLUMNS = 4

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
    """``embedding_dense_backward`` without scaling by frequency."""
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
    arguments = [builder.pointer(item) for item in (dense_grad, dense_index, out)]
    arguments += [builder.int64(n) for n in (index.numel(), rows, width, parts, values["padding_idx"])]
    common.launch_items(builder, builder.kernel(text, "add_rows"), chunks * parts, arguments, grain=1)
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
    """``index_reduce``."""
    values, out = call.bind(), call.outputs()[0]
    tensor, index, source = values["self"], values["index"], values["source"]
    dim = common.wrap_dim(values["dim"], len(tensor.sizes))
    reduction = _REDUCTIONS.get(values["reduce"])
    if dim is None or reduction is None or len(source.sizes) != len(tensor.sizes):
        return False
    if {tensor.dtype, source.dtype, out.dtype} != {out.dtype} or not common.supported(builder, out.dtype, index.dtype):
        return False
    tensors = {"in": tensor, "from": source, "out": out}
    lines = _Lines(builder, dim, tensors)
    wrong_index = assertion(INDEX_ERROR)
    include_self, mean = bool(values["include_self"]), values["reduce"] == "mean"
    n, counts = common.size_at(out, dim), mean or not include_self
    hits = builder.allocate(common.larger(8, lines.chunks * n * 8)) if counts else out.buffer
    text = common.source(
        builder,
        lines.rows.macros() + _INDEX_REDUCE,
        {
            "COLUMNS": lines.columns,
            "INCLUDE_SELF": int(include_self),
            "REDUCE(value, x)": reduction,
            "COUNTS": int(counts),
            "MEAN": int(mean),
            "DIVIDE(v, n)": _DIVIDE_FLOATS if out.dtype.is_floating_point else _DIVIDE_INTEGERS,
            "OUT_OF_RANGE": wrong_index.code,
        },
        {"OUT": out.dtype, "INDEX": index.dtype},
    )
    steps = [common.stride_at(item, dim) for item in tensors.values()]
    numbers = [n, common.size_at(source, dim), lines.outer, lines.across, lines.parts]
    numbers += [*steps, common.stride_at(index, 0), *lines.next]
    arguments = [builder.pointer(item) for item in (tensor, index, source, out, hits)]
    arguments += [builder.int64(number) for number in numbers]
    arguments += [builder.assertions([wrong_index]), *lines.rows.arguments(builder)]
    items = common.larger(1, lines.chunks * lines.parts)
    common.launch_items(builder, builder.kernel(text, "index_reduce"), items, arguments, grain=1)
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
        neighbours = all(step == 1 for step in self.next)
        self.columns = builder.target.tuning.beside(_COLUMNS) if neighbours else 1
        self.chunks = self.outer * common.ceil_div(self.across, self.columns)
        least = builder.target.tuning.busy * COMPUTE_UNITS
        self.parts = common.ceil_div(least, common.larger(1, self.chunks))


def lower_scatter_reduce(builder: PlanBuilder, call: ExternCall) -> bool:
    """``scatter_reduce`` and its in-place form. Places out of range are left out, and reported."""
    if ".two" not in call.name:
        return False
    values, out = call.bind(), call.outputs()[0]
    tensor, index, source = values["self"], values["index"], values["src"]
    dim = common.wrap_dim(values["dim"], len(out.sizes))
    reduction = _REDUCTIONS.get(values["reduce"])
    if dim is None or reduction is None or not len(out.sizes) == len(index.sizes) == len(source.sizes):
        return False
    if {tensor.dtype, source.dtype} != {out.dtype} or not common.supported(builder, out.dtype, index.dtype):
        return False
    if tensor.buffer != out.buffer:
        _copy(builder, tensor, out)
    tensors = {"index": index, "from": source, "out": out}
    outer = common.without(index.sizes, dim)
    rows = common.Rows(outer, {name: common.without(item.strides, dim) for name, item in tensors.items()})
    n = common.size_at(out, dim)
    wrong_index = assertion(GATHER_ERROR)
    hits = builder.allocate(common.larger(8, rows.count * n * 8))
    text = common.source(
        builder,
        rows.macros() + _SCATTER_REDUCE,
        {
            "INCLUDE_SELF": int(bool(values["include_self"])),
            "REDUCE(value, x)": reduction,
            "MEAN": int(values["reduce"] == "mean"),
            "DIVIDE(v, n)": _DIVIDE_FLOATS if out.dtype.is_floating_point else _DIVIDE_INTEGERS,
            "OUT_OF_RANGE": wrong_index.code,
        },
        {"OUT": out.dtype, "INDEX": index.dtype},
    )
    numbers = [n, common.size_at(index, dim), rows.count, *(common.stride_at(item, dim) for item in tensors.values())]
    arguments = [*(builder.pointer(item) for item in tensors.values()), builder.pointer(hits)]
    arguments += [builder.int64(number) for number in numbers]
    arguments += [builder.assertions([wrong_index]), *rows.arguments(builder)]
    common.launch_items(builder, builder.kernel(text, "scatter_reduce"), rows.count, arguments, grain=1)
    builder.free(hits)
    return True


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
