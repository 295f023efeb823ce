# SPDX-License-Identifier: Apache-2.0
"""Prefix scans along a dimension: cumsum, cumprod, cummax, cummin, logcumsumexp.

A CPU gives each work-item whole rows (several neighbouring ones at once where the scanned dimension is not the
innermost, so that cache lines are used whole); a SIMT device gives each work-group a row, unless neighbouring
work-items can walk neighbouring rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..plans.builder import PlanBuilder, TensorArg
from . import common

if TYPE_CHECKING:
    from .call import ExternCall

_OPERATIONS = {
    "cumsum": "#define COMBINE(a, b) (a).v += (b).v;\n",
    "cumprod": "#define COMBINE(a, b) (a).v *= (b).v;\n",
    "cummax": "#define COMBINE(a, b) if ((b).v != (b).v || ((a).v == (a).v && (b).v >= (a).v)) { a = b; }\n"
    "#define WITH_INDEX 1\n",
    "cummin": "#define COMBINE(a, b) if ((b).v != (b).v || ((a).v == (a).v && (b).v <= (a).v)) { a = b; }\n"
    "#define WITH_INDEX 1\n",
    "logcumsumexp": "#define COMBINE(a, b) (a).v = log_add_exp((a).v, (b).v);\n",
}

_BODY = r"""
typedef struct { ACC v; long i; } state_t;

#ifdef LOG_ADD_EXP
ACC log_add_exp(ACC x, ACC y) {
  if (x != x || y != y) return x + y;
  ACC low = x < y ? x : y;
  ACC high = x < y ? y : x;
  if (low == high && isinf(low)) return x;
  return log1p(exp(low - high)) + high;
}
#endif

#ifdef WITH_INDEX
#define INDEX_PARAMETER , OB_GLOBAL long* indices, const long indices_stride
#define EMIT(j, s) \
  OUT_STORE(out, out_row + (j) * out_stride, (s).v); \
  indices[indices_row + (j) * indices_stride] = (s).i
#else
#define INDEX_PARAMETER
#define EMIT(j, s) OUT_STORE(out, out_row + (j) * out_stride, (s).v)
#endif

GROUP_KERNEL void scan(OB_GLOBAL const IN_T* in, OB_GLOBAL OUT_T* out, const long n, const long rows,
                       const long in_stride, const long out_stride INDEX_PARAMETER ROW_PARAMETERS) {
#if GROUP > 1
  OB_SHARED state_t partial[GROUP];
  const int t = OB_LOCAL_ID(0);
  for (long row = OB_GROUP_ID(0); row < rows; row += OB_GROUP_COUNT(0)) {
    ROW_OFFSETS(row);
    state_t carry;
    int have_carry = 0;
    for (long start = 0; start < n; start += GROUP * PER_ITEM) {
      const long first = start + (long)t * PER_ITEM;
      state_t mine[PER_ITEM];
      int count = 0;
      for (int k = 0; k < PER_ITEM; ++k) {
        const long j = first + k;
        if (j < n) {
          state_t s;
          s.v = (ACC)IN_LOAD(in, in_row + j * in_stride);
          s.i = j;
          if (k) { state_t before = mine[k - 1]; COMBINE(before, s); s = before; }
          mine[k] = s;
          count = k + 1;
        }
      }
      /* What the items before this one make, if there are any, and what all of them make, if all have elements. */
      state_t left, whole;
@GROUP@
      state_t before;
      int have_before = have_carry;
      if (have_carry) before = carry;
      if (t > 0 && count > 0) {
        if (have_before) { COMBINE(before, left); } else { before = left; }
        have_before = 1;
      }
      for (int k = 0; k < count; ++k) {
        state_t s = mine[k];
        if (have_before) { state_t total = before; COMBINE(total, s); s = total; }
        EMIT(first + k, s);
      }
      if (start + GROUP * PER_ITEM < n) {
        if (have_carry) { COMBINE(carry, whole); } else { carry = whole; }
        have_carry = 1;
      }
      OB_BARRIER();
    }
  }
#elif LANES > 1
  const long blocks = (rows + LANES - 1) / LANES;
  OB_FOR(block, blocks) {
    const long first = block * LANES;
    const int lanes = rows - first < LANES ? (int)(rows - first) : LANES;
    long in_rows[LANES], out_rows[LANES];
    state_t s[LANES];
    for (int l = 0; l < lanes; ++l) {
      ROW_OFFSETS(first + l);
      in_rows[l] = in_row;
      out_rows[l] = out_row;
    }
    for (long j = 0; j < n; ++j) {
      for (int l = 0; l < lanes; ++l) {
        state_t x;
        x.v = (ACC)IN_LOAD(in, in_rows[l] + j * in_stride);
        if (j == 0) { s[l] = x; } else { COMBINE(s[l], x); }
        OUT_STORE(out, out_rows[l] + j * out_stride, s[l].v);
      }
    }
  }
#else
  OB_FOR(row, rows) {
    ROW_OFFSETS(row);
    state_t s;
    for (long j = 0; j < n; ++j) {
      state_t x;
      x.v = (ACC)IN_LOAD(in, in_row + j * in_stride);
      x.i = j;
      if (j == 0) { s = x; } else { COMBINE(s, x); }
      EMIT(j, s);
    }
  }
#endif
}
"""

#: Items with elements form a prefix of the group, so only they need to combine.
_IN_LOCAL_MEMORY = r"""
      if (count) partial[t] = mine[count - 1];
      OB_BARRIER();
      for (int reach = 1; reach < GROUP; reach *= 2) {
        state_t s;
        const int active = count > 0 && t >= reach;
        if (active) { s = partial[t - reach]; state_t own = partial[t]; COMBINE(s, own); }
        OB_BARRIER();
        if (active) partial[t] = s;
        OB_BARRIER();
      }
      if (t > 0) left = partial[t - 1];
      whole = partial[GROUP - 1];
"""

#: The same in the registers of a sub-group. What each of them makes is left in local memory, where all take what is
#: before them.
_IN_SUB_GROUPS = r"""
      const int size = OB_SUB_GROUP_SIZE(), lane = OB_SUB_GROUP_ITEM(), own = OB_SUB_GROUP_ID();
      state_t s, total;
      total.v = 0;
      total.i = 0;
      if (count) total = mine[count - 1];
      for (int reach = 1; reach < size; reach *= 2) {
        SHUFFLE(s, total, max(lane - reach, 0));
        if (lane >= reach && count > 0) { COMBINE(s, total); total = s; }
      }
      if (lane == size - 1) partial[own] = total;
      SHUFFLE(s, total, max(lane - 1, 0));
      OB_BARRIER();
      whole = partial[0];
      if (own > 0) left = whole;
      for (int other = 1; other < (int)OB_SUB_GROUP_COUNT(); ++other) {
        state_t next = partial[other];
        if (other < own) { COMBINE(left, next); }
        COMBINE(whole, next);
      }
      if (lane > 0) {
        if (own > 0) { COMBINE(left, s); } else { left = s; }
      }
"""
_SHUFFLE = r"""
#ifdef WITH_INDEX
#define SHUFFLE(to, from, lane) { (to).v = OB_SHUFFLE((from).v, lane); (to).i = OB_SHUFFLE((from).i, lane); }
#else
#define SHUFFLE(to, from, lane) (to).v = OB_SHUFFLE((from).v, lane)
#endif
"""

_GROUP = 256
_STATE_BYTES = 16  # of local memory, for each work-item


def lower(builder: PlanBuilder, call: ExternCall) -> bool:
    """Appends the kernel for any of the family's operators; False for a dtype or dimension it does not cover."""
    operation = call.name.removeprefix("aten::").partition(".")[0].removeprefix("_").removesuffix("_helper")
    values = call.bind()
    source, targets = values["self"], call.outputs()
    dim = common.wrap_dim(values["dim"], len(source.sizes))
    if dim is None or not targets or not common.supported(builder, source.dtype, *(t.dtype for t in targets)):
        return False
    if operation == "logcumsumexp" and source.dtype not in common.FLOAT_DTYPES:
        return False
    if values.get("dtype") not in (None, targets[0].dtype):
        return False
    emit(builder, operation, source, targets, dim)
    return True


def emit(builder: PlanBuilder, operation: str, source: TensorArg, targets: list[TensorArg], dim: int) -> None:
    """Appends the scan of ``source`` along ``dim`` into ``targets`` (values, and indices for cummax and cummin)."""
    with_index = operation in ("cummax", "cummin")
    tensors = {"in": source, "out": targets[0]} | ({"indices": targets[1]} if with_index else {})
    rows = common.Rows(
        common.without(source.sizes, dim),
        {name: common.without(tensor.strides, dim) for name, tensor in tensors.items()},
    )
    unit = common.stride_at(source, dim) in (0, 1)
    tuning = builder.target.tuning
    group = common.group_size(builder, _GROUP, _STATE_BYTES) if unit else 1
    lanes = 1 if unit or with_index else tuning.beside(1)
    accumulate = _accumulator(builder, source.dtype, targets[0].dtype, with_index)
    defines = {"ACC": accumulate, "GROUP": group, "PER_ITEM": 4, "LANES": lanes}
    if operation == "logcumsumexp":
        defines["LOG_ADD_EXP"] = 1
    shuffle, within = (_SHUFFLE, _IN_SUB_GROUPS) if common.has_sub_groups(builder) else ("", _IN_LOCAL_MEMORY)
    body = shuffle + _BODY.replace("@GROUP@\n", within)
    text = common.source(
        builder,
        rows.macros() + _OPERATIONS[operation] + common.group_functions(builder, group) + body,
        defines,
        {"IN": source.dtype, "OUT": targets[0].dtype},
    )
    arguments = [
        builder.pointer(source),
        builder.pointer(targets[0]),
        builder.int64(common.size_at(source, dim)),
        builder.int64(rows.count),
        builder.int64(common.stride_at(source, dim)),
        builder.int64(common.stride_at(targets[0], dim)),
    ]
    if with_index:
        arguments += [builder.pointer(targets[1]), builder.int64(common.stride_at(targets[1], dim))]
    arguments += rows.arguments(builder)
    kernel = builder.kernel(text, "scan")
    if group > 1:
        common.launch_groups(builder, kernel, rows.count, arguments, group)
    else:
        common.launch_items(builder, kernel, rows.count, arguments, grain=lanes)


def _accumulator(builder: PlanBuilder, source: torch.dtype, target: torch.dtype, with_index: bool) -> str:
    if with_index:
        return common.ELEMENT_TYPES[source].compute
    compute = common.ELEMENT_TYPES[target].compute
    # As ATen on CPU: long float sums keep their digits.
    return "double" if compute == "float" and builder.target.tuning.sums_in_doubles else compute
