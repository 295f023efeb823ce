# SPDX-License-Identifier: Apache-2.0
"""Sorting and what follows from it: sort, topk, kthvalue, median, nanmedian, mode, msort; searchsorted and bucketize.

A row's elements become items: an unsigned key whose order is the wanted one (NaN greatest, -0 equal to 0, descending by
complement) and the element's position, which makes every item distinct and the order stable. Keys of up to 32 bits
share one 64-bit word with the position. Blocks of a row are sorted first (by one work-item on a CPU, by a bitonic
network in local memory on SIMT devices); then merge passes double the sorted length, every work-item merging an equal
share found by binary search along the diagonal. A plan cannot loop, so it holds every pass that the longest row could
need; one that a row does not need has an empty range. A last kernel reads what the operator returns.

Where only some items are wanted (topk, kthvalue, medians), a CPU does not sort the others: it keeps those that come
before all that were wanted so far, and selects among them whenever their room is full.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import sympy
import torch

from ..plans.builder import PlanBuilder, Size, TensorArg
from . import common

if TYPE_CHECKING:
    from .call import ExternCall

_ITEMS = r"""
#if WIDE
typedef struct { ulong key; ulong position; } item_t;
int before(item_t a, item_t b) { return a.key < b.key || (a.key == b.key && a.position < b.position); }
item_t make_item(ulong key, ulong position) { item_t r; r.key = key; r.position = position; return r; }
long position_of(item_t a) { return (long)a.position; }
ulong key_of(item_t a) { return a.key; }
#define KEY_MAX (~(ulong)0)
#define NARROW_KEY ulong
#else
typedef ulong item_t;
int before(item_t a, item_t b) { return a < b; }
item_t make_item(ulong key, ulong position) { return (key << 32) | position; }
long position_of(item_t a) { return (long)(a & 0xffffffffu); }
ulong key_of(item_t a) { return a >> 32; }
#define KEY_MAX ((ulong)0xffffffffu)
#define NARROW_KEY uint
#endif

ulong make_key(IN_C x) {
#if IS_FLOAT && WIDE
  if (x != x) return KEY_MAX;
  ulong bits = as_ulong(x + 0.0);
  return bits >> 63 ? ~bits : bits | ((ulong)1 << 63);
#elif IS_FLOAT
  if (x != x) return KEY_MAX;
  uint bits = as_uint(x == 0 ? 0.0f : x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
#elif WIDE
  return (ulong)x ^ ((ulong)1 << 63);
#else
  return (uint)x ^ 0x80000000u;
#endif
}
#define IS_NAN_KEY(key) (IS_FLOAT && (key) == KEY_MAX)
"""

_SORT = r"""
item_t load_item(OB_GLOBAL const IN_T* in, long row, long j, long stride, int descending) {
  const ulong key = make_key(IN_LOAD(in, row + j * stride));
  return make_item(descending ? KEY_MAX - key : key, (ulong)j);
}

/* Sorts items where they are; `spare` has as many. */
void sort_items(OB_GLOBAL item_t* items, OB_GLOBAL item_t* spare, const long count) {
  for (long run = 0; run < count; run += RUN) {
    const long end = run + RUN < count ? run + RUN : count;
    for (long j = run + 1; j < end; ++j) {
      const item_t x = items[j];
      long at = j;
      for (; at > run && before(x, items[at - 1]); --at) items[at] = items[at - 1];
      items[at] = x;
    }
  }
  OB_GLOBAL item_t* from = items;
  OB_GLOBAL item_t* to = spare;
  for (long width = RUN; width < count; width *= 2) {
    for (long left = 0; left < count; left += 2 * width) {
      const long middle = left + width < count ? left + width : count;
      const long end = left + 2 * width < count ? left + 2 * width : count;
      long x = left, y = middle, k = left;
      while (x < middle && y < end) {
        const item_t a = from[x], c = from[y];
        const int right = before(c, a);
        to[k++] = right ? c : a;
        y += right;
        x += 1 - right;
      }
      while (x < middle) to[k++] = from[x++];
      while (y < end) to[k++] = from[y++];
    }
    OB_GLOBAL item_t* other = from;
    from = to;
    to = other;
  }
  if (from != items)
    for (long j = 0; j < count; ++j) items[j] = from[j];
}

/* Sorts blocks of BLOCK items of each row of n into `items`. `spare` has as many items. */
OB_KERNEL void sort_blocks(OB_GLOBAL const IN_T* in, OB_GLOBAL item_t* items, OB_GLOBAL item_t* spare, const long n,
                           const long rows, const long stride, const int descending ROW_PARAMETERS) {
  const long row_blocks = (n + BLOCK - 1) / BLOCK;
#if GROUP > 1
  OB_SHARED item_t block[BLOCK];
  const int t = OB_LOCAL_ID(0);
  for (long b = OB_GROUP_ID(0); b < rows * row_blocks; b += OB_GROUP_COUNT(0)) {
    const long row = b / row_blocks, start = b % row_blocks * BLOCK;
    const int count = n - start < BLOCK ? (int)(n - start) : BLOCK;
    ROW_OFFSETS(row);
    for (int k = t; k < BLOCK; k += GROUP)
      block[k] = k < count ? load_item(in, in_row, start + k, stride, descending) : make_item(KEY_MAX, 0xffffffffu);
    OB_BARRIER();
    int limit = 1;
    while (limit < count) limit *= 2;
    for (int size = 2; size <= limit; size *= 2) {
      for (int reach = size / 2; reach > 0; reach /= 2) {
        for (int pair = t; pair < limit / 2; pair += GROUP) {
          const int low = pair / reach * reach * 2 + pair % reach, high = low + reach;
          const item_t x = block[low], y = block[high];
          const int ascending = (low & size) == 0;
          if (ascending == before(y, x)) { block[low] = y; block[high] = x; }
        }
        OB_BARRIER();
      }
    }
    for (int k = t; k < count; k += GROUP) items[row * n + start + k] = block[k];
    OB_BARRIER();
  }
#else
  OB_FOR(b, rows * row_blocks) {
    const long row = b / row_blocks, start = b % row_blocks * BLOCK;
    const long count = n - start < BLOCK ? n - start : BLOCK;
    ROW_OFFSETS(row);
    OB_GLOBAL item_t* result = items + row * n + start;
    for (long j = 0; j < count; ++j) result[j] = load_item(in, in_row, start + j, stride, descending);
    sort_items(result, spare + row * n + start, count);
  }
#endif
}

/* Merges runs of `width` items into runs of twice that; one piece is SHARE items of the result. */
OB_KERNEL void merge_runs(OB_GLOBAL const item_t* from, OB_GLOBAL item_t* to, const long n, const long width,
                          const long pieces) {
  const long row_pieces = (n + SHARE - 1) / SHARE;
  OB_FOR(piece, pieces) {
    const long base = piece / row_pieces * n, start = piece % row_pieces * SHARE;
    long end = start + SHARE < n ? start + SHARE : n;
    long k = start;
    while (k < end) {
      const long left = k / (2 * width) * (2 * width);
      const long middle = left + width < n ? left + width : n;
      const long stop = left + 2 * width < n ? left + 2 * width : n;
      OB_GLOBAL const item_t* a = from + base + left;
      OB_GLOBAL const item_t* b = from + base + middle;
      const long a_count = middle - left, b_count = stop - middle, diagonal = k - left;
      long low = diagonal > b_count ? diagonal - b_count : 0;
      long high = diagonal < a_count ? diagonal : a_count;
      while (low < high) {
        const long x = (low + high) / 2;
        if (before(b[diagonal - 1 - x], a[x])) high = x; else low = x + 1;
      }
      long x = low, y = diagonal - low;
      const long last = end < stop ? end : stop;
      for (; k < last; ++k) {
        const int take_b = x >= a_count || (y < b_count && before(b[y], a[x]));
        to[base + k] = take_b ? b[y] : a[x];
        y += take_b;
        x += 1 - take_b;
      }
    }
  }
}
"""

_SELECT = r"""
/* Moves the item of a rank to its place, and those before it in front of it (C. A. R. Hoare's selection). */
void place_item(OB_GLOBAL item_t* items, const long count, const long rank) {
  long low = 0, high = count;
  ulong random = (ulong)count;
  while (high - low > 1) {
    random = random * 6364136223846793005ul + 1442695040888963407ul;
    const long chosen = low + (long)((random >> 33) % (ulong)(high - low));
    const item_t pivot = items[chosen];
    items[chosen] = items[high - 1];
    items[high - 1] = pivot;
    long next = low;
    for (long j = low; j < high - 1; ++j) {
      const item_t x = items[j];
      items[j] = items[next];
      items[next] = x;
      next += before(x, pivot);
    }
    items[high - 1] = items[next];
    items[next] = pivot;
    if (next == rank) return;
    if (rank < next) high = next; else low = next + 1;
  }
}

#define CHUNK 64
/* Whether a chunk has a key below a limit: without a branch for each, so that compilers make vectors of it. */
int has_below(OB_GLOBAL const IN_T* in, const long row, const long stride, const ulong limit, const int descending) {
  int found = 0;
  const NARROW_KEY last = (NARROW_KEY)(descending ? KEY_MAX - limit : limit);
  if (stride == 1 && descending)
    for (int j = 0; j < CHUNK; ++j) found |= (NARROW_KEY)make_key(IN_LOAD(in, row + j)) > last;
  else if (stride == 1)
    for (int j = 0; j < CHUNK; ++j) found |= (NARROW_KEY)make_key(IN_LOAD(in, row + j)) < last;
  else
    for (int j = 0; j < CHUNK; ++j) found |= key_of(load_item(in, row, j, stride, descending)) < limit;
  return found;
}

long count_nans(OB_GLOBAL const IN_T* in, const long row, const long n, const long stride) {
  long count = 0;
  for (long j = 0; j < n; ++j) count += IS_NAN_KEY(make_key(IN_LOAD(in, row + j * stride)));
  return count;
}

/* The first `wanted` items of each row of n, in order, or the item of one rank, at the begin of each `length` items:
   those of a row that were before all others so far, until there are so many that the rest of them can go. */
OB_KERNEL void select_items(OB_GLOBAL const IN_T* in, OB_GLOBAL item_t* items, OB_GLOBAL item_t* spare, const long n,
                            const long rows, const long stride, const int descending, const long wanted,
                            const long length ROW_PARAMETERS) {
  OB_FOR(row, rows) {
    ROW_OFFSETS(row);
    OB_GLOBAL item_t* first = items + row * length;
    long k = wanted;
#if MEDIAN
    const long nans = count_nans(in, in_row, n, stride), numbers = n - nans;
    k = IGNORE_NAN ? (numbers ? (numbers - 1) / 2 : 0) + 1 : nans ? numbers + 1 : (n - 1) / 2 + 1;
#endif
    if (k == 0) continue;
    long count = 0;
    ulong limit = KEY_MAX;
    int limited = 0;
    for (long start = 0; start < n; start += CHUNK) {
      const long end = start + CHUNK < n ? start + CHUNK : n;
      const int whole = end - start == CHUNK;
      if (limited && whole && !has_below(in, in_row + start * stride, stride, limit, descending)) continue;
      for (long j = start; j < end; ++j) {
        const item_t item = load_item(in, in_row, j, stride, descending);
        /* Of equal keys the first positions count. */
        if (limited && key_of(item) >= limit) continue;
        first[count++] = item;
        if (count < length || j + 1 == n) continue;
        place_item(first, count, k - 1);
        count = k;
        limit = key_of(first[k - 1]);
        limited = 1;
      }
    }
    place_item(first, count, k - 1);
#if RANK
    first[0] = first[k - 1];
#else
    sort_items(first, spare + row * k, k);
#endif
  }
}
"""

_EMIT = r"""
/* Values and positions of the first k of each row, or of that of rank `skip` (k = 1); rows are `length` items apart. */
OB_KERNEL void emit_first(OB_GLOBAL const IN_BITS* in, OB_GLOBAL const item_t* even, OB_GLOBAL const item_t* odd,
                          const int is_odd, OB_GLOBAL IN_BITS* values, OB_GLOBAL long* indices, const long length,
                          const long rows, const long k, const long skip, const long stride,
                          const long values_stride, const long indices_stride ROW_PARAMETERS) {
  OB_GLOBAL const item_t* items = is_odd ? odd : even;
  OB_FOR(i, rows * k) {
    const long row = i / k, j = i % k;
    ROW_OFFSETS(row);
    const long position = position_of(items[row * length + skip + j]);
    values[values_row + j * values_stride] = in[in_row + position * stride];
#if WITH_INDEX
    indices[indices_row + j * indices_stride] = position;
#endif
  }
}

/* The lower median of each row: NaN if there is one, or, with IGNORE_NAN, of the numbers only. */
OB_KERNEL void emit_median(OB_GLOBAL const IN_BITS* in, OB_GLOBAL const item_t* even, OB_GLOBAL const item_t* odd,
                           const int is_odd, OB_GLOBAL IN_BITS* values, OB_GLOBAL long* indices, const long n,
                           const long rows, const long stride ROW_PARAMETERS) {
  OB_GLOBAL const item_t* items = is_odd ? odd : even;
  OB_FOR(row, rows) {
    ROW_OFFSETS(row);
    OB_GLOBAL const item_t* sorted = items + row * n;
    long low = 0, high = n;
    while (low < high) {
      const long middle = (low + high) / 2;
      if (IS_NAN_KEY(key_of(sorted[middle]))) high = middle; else low = middle + 1;
    }
    long rank = (n - 1) / 2;
    if (IGNORE_NAN) rank = low ? (low - 1) / 2 : 0;
    else if (low < n) rank = low;
    const long position = position_of(sorted[rank]);
    values[values_row] = in[in_row + position * stride];
#if WITH_INDEX
    indices[indices_row] = position;
#endif
  }
}

#if WITH_INDEX
/* The smallest of the most frequent values of each row, and the position of its last occurrence. */
OB_KERNEL void emit_mode(OB_GLOBAL const IN_BITS* in, OB_GLOBAL const item_t* even, OB_GLOBAL const item_t* odd,
                         const int is_odd, OB_GLOBAL IN_BITS* values, OB_GLOBAL long* indices, const long n,
                         const long rows, const long stride ROW_PARAMETERS) {
  OB_GLOBAL const item_t* items = is_odd ? odd : even;
  OB_FOR(row, rows) {
    ROW_OFFSETS(row);
    OB_GLOBAL const item_t* sorted = items + row * n;
    long best = 0, best_count = 0, count = 0;
    for (long j = 0; j < n; ++j) {
      const ulong key = key_of(sorted[j]);
      count = j > 0 && key == key_of(sorted[j - 1]) && !IS_NAN_KEY(key) ? count + 1 : 1;
      if (count > best_count) { best_count = count; best = j; }
    }
    const long position = position_of(sorted[best]);
    values[values_row] = in[in_row + position * stride];
    indices[indices_row] = position;
  }
}
#endif
"""

_SEARCH = r"""
OB_KERNEL void search(OB_GLOBAL const EDGE_T* edges, OB_GLOBAL const IN_T* in, OB_GLOBAL OUT_T* out,
#if WITH_SORTER
                      OB_GLOBAL const long* sorter,
#endif
                      const long n, const long edge_stride, const long count,
                      const NUMBER number, const long integer ROW_PARAMETERS) {
  OB_FOR(i, count) {
    ROW_OFFSETS(i);
#if SCALAR
    const COMMON value = (COMMON)number + (COMMON)integer;
#else
    const COMMON value = (COMMON)IN_LOAD(in, in_row);
#endif
    long low = 0, high = n;
    while (low < high) {
      const long middle = (low + high) / 2;
#if WITH_SORTER
      const long at = sorter[edge_row + middle * edge_stride];
#else
      const long at = middle;
#endif
      const COMMON edge = (COMMON)EDGE_LOAD(edges, edge_row + at * edge_stride);
      /* As ATen, whose comparisons are false for NaN: a search for NaN ends behind all edges. */
#if RIGHT
      const int go = !(edge > value);
#else
      const int go = !(edge >= value);
#endif
      if (go) low = middle + 1; else high = middle;
    }
    out[out_row] = (OUT_T)low;
  }
}
"""

#: Items of a block that one work-item sorts, and of the runs that it begins with.
_BLOCK, _RUN = 16384, 16
#: Items of a block that a work-group sorts in local memory, at most, and its work-items.
_GROUP_BLOCK, _GROUP = 1024, 256
#: Items beside twice the wanted ones that a row has room for while they are selected.
_SPACE = 64
#: Longest row, in items, that the merge passes of a plan reach.
_LONGEST = 2**31


@dataclasses.dataclass
class _Sorted:
    """Sorted items of each row of ``tensor`` along ``dim``, or the wanted ones, rows ``length`` items apart, in buffer
    ``even``, or ``odd`` where ``is_odd``."""

    tensor: TensorArg
    dim: int
    even: int
    odd: int | None
    is_odd: Size
    length: Size


def _rows_of(tensor: TensorArg, dim: int) -> common.Rows:
    """The rows of ``tensor`` along ``dim``."""
    return common.Rows(common.without(tensor.sizes, dim), {"in": common.without(tensor.strides, dim)})


def _sort_rows(builder: PlanBuilder, tensor: TensorArg, dim: int, descending: bool) -> _Sorted:
    """Appends the sort of every row of ``tensor`` along ``dim``."""
    rows = _rows_of(tensor, dim)
    n = common.size_at(tensor, dim)
    item_bytes = _item_bytes(tensor.dtype)
    nbytes = common.larger(1, rows.count * n * item_bytes)
    even, odd = builder.allocate(nbytes), builder.allocate(nbytes)
    group, block = _shape(builder, tensor.dtype)
    text = _program(builder, tensor, rows, _SORT)
    arguments = [
        builder.pointer(tensor),
        builder.pointer(even),
        builder.pointer(odd),
        builder.int64(n),
        builder.int64(rows.count),
        builder.int64(common.stride_at(tensor, dim)),
        builder.int32(int(descending)),
        *rows.arguments(builder),
    ]
    blocks = rows.count * common.ceil_div(n, block)
    kernel = builder.kernel(text, "sort_blocks")
    if group == 1:
        common.launch_items(builder, kernel, blocks, arguments, grain=1)
    else:
        common.launch_groups(builder, kernel, blocks, arguments, group)
    is_odd = _merge(builder, builder.kernel(text, "merge_runs"), even, odd, n, rows.count, block)
    return _Sorted(tensor, dim, even, odd, is_odd, n)


def _select(
    builder: PlanBuilder, tensor: TensorArg, dim: int, descending: bool, wanted: Size | None, nth: str = ""
) -> _Sorted:
    """Appends the selection of the first ``wanted`` items of each row, in order, or, with ``nth``, of the item of one
    rank: "rank" for the last of those, "median" and "nanmedian"."""
    rows = _rows_of(tensor, dim)
    n = common.size_at(tensor, dim)
    length = n if wanted is None else common.smaller(n, 2 * wanted + _SPACE)
    item_bytes = _item_bytes(tensor.dtype)
    items = builder.allocate(common.larger(1, rows.count * length * item_bytes))
    spare = items if nth else builder.allocate(common.larger(1, rows.count * (wanted or 1) * item_bytes))
    median = int("median" in nth)
    text = _program(
        builder, tensor, rows, _SORT + _SELECT, RANK=int(bool(nth)), MEDIAN=median, IGNORE_NAN=int(nth == "nanmedian")
    )
    arguments = [
        builder.pointer(tensor),
        builder.pointer(items),
        builder.pointer(spare),
        builder.int64(n),
        builder.int64(rows.count),
        builder.int64(common.stride_at(tensor, dim)),
        builder.int32(int(descending)),
        builder.int64(0 if wanted is None else wanted),
        builder.int64(length),
        *rows.arguments(builder),
    ]
    common.launch_items(builder, builder.kernel(text, "select_items"), rows.count, arguments, grain=1)
    if not nth:
        builder.free(spare)
    return _Sorted(tensor, dim, items, None, sympy.Integer(0), length)


def _merge(builder: PlanBuilder, kernel: int, even: int, odd: int, n: Size, rows: Size, width: int) -> Size:
    """Appends the merge passes; returns the parity of how many of them a row of ``n`` needs."""
    share = builder.target.tuning.share
    longest = common.static_int(n) or _LONGEST
    parity: Size = sympy.Integer(0)
    source, target = even, odd
    while width < longest:
        # 1 if the row is longer than the runs so far, else 0: the pass runs on all pieces or on none.
        needed = common.smaller(1, common.floor_div(sympy.sympify(n) - 1, width))
        pieces = rows * common.ceil_div(n, share) * needed
        parity = parity + needed
        arguments = [
            builder.pointer(source),
            builder.pointer(target),
            builder.int64(n),
            builder.int64(width),
            builder.int64(pieces),
        ]
        common.launch_items(builder, kernel, pieces, arguments, grain=1)
        source, target = target, source
        width *= 2
    return common.parity(parity)


def _is_wide(dtype: torch.dtype) -> bool:
    return dtype.itemsize == 8


def _item_bytes(dtype: torch.dtype) -> int:
    return 16 if _is_wide(dtype) else 8


def _shape(builder: PlanBuilder, dtype: torch.dtype) -> tuple[int, int]:
    """Work-items of a group, and items of the block that it sorts in local memory; a group of one sorts for itself."""
    group = common.group_size(builder, _GROUP)
    block = _GROUP_BLOCK
    while block > group and block * _item_bytes(dtype) > builder.target.local_memory:
        block //= 2
    fits = block * _item_bytes(dtype) <= builder.target.local_memory
    return (group, block) if group > 1 and fits else (1, _BLOCK)


def _program(builder: PlanBuilder, tensor: TensorArg, rows: common.Rows, body: str, **defines: object) -> str:
    group, block = _shape(builder, tensor.dtype)
    constants: dict[str, object] = {
        "WIDE": int(_is_wide(tensor.dtype)),
        "IS_FLOAT": int(tensor.dtype.is_floating_point),
        "GROUP": group,
        "BLOCK": block,
        "RUN": _RUN,
        "SHARE": builder.target.tuning.share,
    }
    return common.source(builder, rows.macros() + _ITEMS + body, constants | defines, {"IN": tensor.dtype})


def _emit(
    builder: PlanBuilder,
    entry: str,
    data: _Sorted,
    values: TensorArg,
    indices: TensorArg | None,
    first: tuple[Size, Size] | None,
    ignore_nan: bool = False,
) -> None:
    """Appends the kernel ``entry`` that writes the results, and frees the items.

    ``first`` is ``(count, rank of the first)`` for results that keep the sorted dimension's place (or a count of 1)."""
    tensor, dim = data.tensor, data.dim
    outer = common.without(tensor.sizes, dim)
    tensors = {"in": common.without(tensor.strides, dim)}
    for name, result in (("values", values), ("indices", indices)):
        if result is not None:
            tensors[name] = _outer_strides(result, dim, len(tensor.sizes))
    rows = common.Rows(outer, tensors)
    text = _program(builder, tensor, rows, _EMIT, WITH_INDEX=int(indices is not None), IGNORE_NAN=int(ignore_nan))
    arguments = [
        builder.pointer(tensor),
        builder.pointer(data.even),
        builder.pointer(data.even if data.odd is None else data.odd),
        builder.int32(data.is_odd),
        builder.pointer(values),
        builder.pointer(indices if indices is not None else values),
        builder.int64(data.length),
        builder.int64(rows.count),
    ]
    count = rows.count
    if first is not None:
        count = count * first[0]
        arguments += [builder.int64(first[0]), builder.int64(first[1])]
    arguments.append(builder.int64(common.stride_at(tensor, dim)))
    if first is not None:
        arguments += [
            builder.int64(_stride_along(result, dim, len(tensor.sizes))) for result in (values, indices or values)
        ]
    arguments += rows.arguments(builder)
    common.launch_items(builder, builder.kernel(text, entry), count, arguments, grain=256 if first else 1)
    builder.free(data.even)
    if data.odd is not None:
        builder.free(data.odd)


def _outer_strides(result: TensorArg, dim: int, rank: int) -> list[Size]:
    """Strides of a result's dimensions other than ``dim``, whether it keeps that dimension or lacks it."""
    return common.without(result.strides, dim) if len(result.sizes) == rank else list(result.strides)


def _stride_along(result: TensorArg, dim: int, rank: int) -> Size:
    return common.stride_at(result, dim) if len(result.sizes) == rank else sympy.Integer(0)


def _source(builder: PlanBuilder, call: ExternCall, values: dict[str, object]) -> tuple[TensorArg, int] | None:
    tensor = values["self"]
    if not isinstance(tensor, TensorArg) or not common.supported(builder, tensor.dtype):
        return None
    dim = common.wrap_dim(values.get("dim", -1), len(tensor.sizes))
    outputs = call.outputs()
    if dim is None or not outputs or outputs[0].dtype != tensor.dtype:
        return None
    return tensor, dim


def emit(
    builder: PlanBuilder, tensor: TensorArg, dim: int, descending: bool, values: TensorArg, indices: TensorArg | None
) -> None:
    """Appends the stable sort of ``tensor`` along ``dim`` into ``values``; ``indices`` (int64) gets where each was."""
    data = _sort_rows(builder, tensor, dim, descending)
    _emit(builder, "emit_first", data, values, indices, (data.length, sympy.Integer(0)))


def lower_sort(builder: PlanBuilder, call: ExternCall) -> bool:
    """``sort``, ``sort.stable`` (always stable), ``msort``."""
    values = call.bind()
    if "msort" in call.name:
        values["dim"] = 0
    found = _source(builder, call, values)
    if found is None:
        return False
    outputs = call.outputs()
    emit(builder, *found, bool(values.get("descending", False)), outputs[0], outputs[1] if len(outputs) > 1 else None)
    return True


def lower_argsort(builder: PlanBuilder, call: ExternCall) -> bool:
    """``argsort``: a sort whose values go to scratch memory."""
    values = call.bind()
    tensor = values["self"]
    dim = common.wrap_dim(values["dim"], len(tensor.sizes))
    outputs = call.outputs()
    if dim is None or not outputs or not common.supported(builder, tensor.dtype):
        return False
    scratch = builder.allocate_like(outputs[0].sizes, outputs[0].strides, tensor.dtype)
    emit(builder, tensor, dim, bool(values["descending"]), scratch, outputs[0])
    builder.free(scratch.buffer)
    return True


def lower_topk(builder: PlanBuilder, call: ExternCall) -> bool:
    """``topk``; the result is sorted whether or not that was asked for."""
    values = call.bind()
    found = _source(builder, call, values)
    if found is None:
        return False
    outputs = call.outputs()
    # PyTorch gives the only element of a tensor without dimensions also where none is asked for.
    wanted = sympy.sympify(values["k"] if values["self"].sizes else 1)
    largest = bool(values["largest"])
    selects = builder.target.tuning.vectors
    data = _select(builder, *found, largest, wanted) if selects else _sort_rows(builder, *found, largest)
    _emit(builder, "emit_first", data, outputs[0], outputs[1], (wanted, sympy.Integer(0)))
    return True


def lower_kthvalue(builder: PlanBuilder, call: ExternCall) -> bool:
    """``kthvalue``."""
    values = call.bind()
    found = _source(builder, call, values)
    if found is None:
        return False
    outputs = call.outputs()
    rank = sympy.sympify(values["k"])
    if builder.target.tuning.vectors:
        data, rank = _select(builder, *found, False, rank, "rank"), sympy.Integer(1)
    else:
        data = _sort_rows(builder, *found, False)
    _emit(builder, "emit_first", data, outputs[0], outputs[1], (sympy.Integer(1), rank - 1))
    return True


def lower_median(builder: PlanBuilder, call: ExternCall) -> bool:
    """``median`` and ``nanmedian``, over everything (of a contiguous tensor) or along a dimension."""
    values = call.bind()
    if "dim" not in values:
        tensor = values["self"]
        if not tensor.is_contiguous():
            return False
        values["self"] = TensorArg(tensor.buffer, tensor.dtype, (tensor.numel(),), (sympy.Integer(1),), tensor.offset)
        if tensor.numel() == 0:
            return False
    found = _source(builder, call, values)
    if found is None:
        return False
    outputs = call.outputs()
    indices = outputs[1] if len(outputs) > 1 else None
    ignore_nan = "nanmedian" in call.name
    if builder.target.tuning.vectors:
        data = _select(builder, *found, False, None, "nanmedian" if ignore_nan else "median")
        _emit(builder, "emit_first", data, outputs[0], indices, (sympy.Integer(1), sympy.Integer(0)))
        return True
    data = _sort_rows(builder, *found, False)
    _emit(builder, "emit_median", data, outputs[0], indices, None, ignore_nan=ignore_nan)
    return True


def lower_mode(builder: PlanBuilder, call: ExternCall) -> bool:
    """``mode``."""
    found = _source(builder, call, call.bind())
    if found is None:
        return False
    outputs = call.outputs()
    data = _sort_rows(builder, *found, False)
    _emit(builder, "emit_mode", data, outputs[0], outputs[1], None)
    return True


def _compared_in(edges: TensorArg, wanted: object, builder: PlanBuilder) -> str:
    """The type in C in which edges are compared with a tensor or number: that of the dtype which ATen converts both to
    (``searchsorted_maybe_trim_input_tensors`` in ATen/native/Bucketization.cpp)."""
    dtype = edges.dtype
    if isinstance(wanted, TensorArg):
        shapes = [torch.empty((1,) * len(tensor.sizes), dtype=tensor.dtype) for tensor in (edges, wanted)]
        dtype = torch.result_type(*shapes)
    elif isinstance(wanted, float) or builder.is_float_symbol(wanted):
        dtype = torch.result_type(torch.empty(1, dtype=dtype), 1.0)
    return common.ELEMENT_TYPES[dtype].compute if dtype.is_floating_point else "long"


def lower_search(builder: PlanBuilder, call: ExternCall) -> bool:
    """``searchsorted`` and ``bucketize``, of tensors or a scalar."""
    values = call.bind()
    bucketize = "bucketize" in call.name
    edges = values["boundaries" if bucketize else "sorted_sequence"]
    wanted = values["self"]
    out, sorter, side = call.outputs()[0], values.get("sorter"), values.get("side")
    right = bool(values.get("right")) or side == "right"
    scalar = not isinstance(wanted, TensorArg)
    dtypes = [edges.dtype, out.dtype] + ([] if scalar else [wanted.dtype])
    if not common.supported(builder, *dtypes) or not edges.sizes:
        return False
    together = _compared_in(edges, wanted, builder)
    exact = together == "double"
    number = common.scalar_arguments(builder, wanted if scalar else 0, exact)
    if number is None:
        return False
    shared = len(edges.sizes) == 1
    zero = [sympy.Integer(0)] * len(out.sizes)
    edge_strides = zero if shared else [*edges.strides[:-1], sympy.Integer(0)]
    in_strides = zero if scalar else list(wanted.strides)
    if len(edge_strides) != len(out.sizes):
        return False
    rows = common.Rows(out.sizes, {"in": in_strides, "out": list(out.strides), "edge": edge_strides})
    if sorter is not None and tuple(sorter.strides) != tuple(edges.strides):
        return False
    text = common.source(
        builder,
        rows.macros() + _SEARCH,
        {
            "WITH_SORTER": int(sorter is not None),
            "SCALAR": int(scalar),
            "RIGHT": int(right),
            "COMMON": together,
            "NUMBER": "double" if exact else "float",
        },
        {"EDGE": edges.dtype, "IN": edges.dtype if scalar else wanted.dtype, "OUT": out.dtype},
    )
    arguments = [builder.pointer(edges), builder.pointer(edges if scalar else wanted), builder.pointer(out)]
    if sorter is not None:
        arguments.append(builder.pointer(sorter))
    arguments += [
        builder.int64(edges.sizes[-1]),
        builder.int64(edges.strides[-1]),
        builder.int64(rows.count),
        *number,
        *rows.arguments(builder),
    ]
    common.launch_items(builder, builder.kernel(text, "search"), rows.count, arguments, grain=64)
    return True
