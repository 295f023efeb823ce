# SPDX-License-Identifier: Apache-2.0
"""The product of a vector and a matrix for CPUs: each element of the matrix is read once, in vectors, where it lies.

The text sees the macros of ``engine``, and these:

* ``X(b)``: a pointer to the vector; ``X_STEP``: its stride;
* ``MATRIX(b)``: a pointer to the matrix (k, n); ``K_STEP``, ``N_STEP``: its strides;
* ``ROW_STORE(b, i, value)``: stores element i of the result; ``ROW_VECTORS(b)``: whether ``LANES`` at once can be
  stored with ``ROW_STORE_VECTOR(b, i, value)``.

Three programs, for how the matrix lies: *columns* (neighbours in k; so must those of the vector), *rows* (neighbours in
n), and *panels*, as ``packing`` makes them.
"""

from __future__ import annotations

from . import blocked
from .blocked import Blocking

#: Vectors of columns that rows are walked with: shorter pieces of rows are no stream that processors follow.
_WIDE = 8

_HEAD = r"""
__attribute__((reqd_work_group_size(1, 1, 1)))
OB_KERNEL void row(const long batches, const long m_count, const long n_count, const long k_count PARAMETERS) {
  const long count = m_count * n_count;
"""

_COLUMNS = r"""
  OB_FOR(piece, batches * count) {
    const long b = piece / count, i = piece % count;
    OB_GLOBAL const ACC* x = X(b);
    OB_GLOBAL const ACC* column = MATRIX(b) + i * N_STEP;
    VECTOR s0 = (VECTOR)(0), s1 = s0, s2 = s0, s3 = s0;
    long k = 0;
    for (; k + 4 * LANES <= k_count; k += 4 * LANES) {
      s0 += VLOAD(x + k) * VLOAD(column + k);
      s1 += VLOAD(x + k + LANES) * VLOAD(column + k + LANES);
      s2 += VLOAD(x + k + 2 * LANES) * VLOAD(column + k + 2 * LANES);
      s3 += VLOAD(x + k + 3 * LANES) * VLOAD(column + k + 3 * LANES);
    }
    for (; k + LANES <= k_count; k += LANES) s0 += VLOAD(x + k) * VLOAD(column + k);
    ACC sum = sum_lanes((s0 + s1) + (s2 + s3));
    for (; k < k_count; ++k) sum += x[k] * column[k];
    { ROW_STORE(b, i, sum); }
  }
}
"""

# The last columns, fewer than a vector, are those of a vector that begins before them, where there is one.
_ROWS = r"""
  const long panels = (count + WIDE - 1) / WIDE;
  OB_FOR(piece, batches * panels) {
    const long b = piece / panels, from = piece % panels * WIDE, to = from + WIDE < count ? from + WIDE : count;
    OB_GLOBAL const ACC* x = X(b);
    OB_GLOBAL const ACC* matrix = MATRIX(b);
    long i = from;
    if (from + WIDE <= count) {
@WALK@
      i = to;
    }
    for (; i < to; i += LANES) {
      const long first = i + LANES <= to ? i : to - LANES;
      if (first < 0) break;
      VECTOR sum = (VECTOR)(0);
      for (long k = 0; k < k_count; ++k) sum += x[k * X_STEP] * VLOAD(matrix + k * K_STEP + first);
      STORE_FROM(b, first, i, LANES, sum)
    }
    for (; i < to; ++i) {
      ACC sum = 0;
      for (long k = 0; k < k_count; ++k) sum += x[k * X_STEP] * matrix[k * K_STEP + i];
      { ROW_STORE(b, i, sum); }
    }
  }
}
"""

_PANELS = r"""
  const long panels = (count + WIDE - 1) / WIDE;
  OB_FOR(piece, batches * panels) {
    const long b = piece / panels, from = piece % panels * WIDE;
    OB_GLOBAL const ACC* x = X(b);
    OB_GLOBAL const ACC* matrix = MATRIX(b) + from * (k_count - 1);
@WALK@
  }
}
"""

_STORE = r"""
/* Stores those lanes of a vector of results from `first` on that are at least `from` and are columns. */
#define STORE_FROM(b, first, from, lanes, value) \
  if ((first) == (from) && (first) + LANES <= count && ROW_VECTORS(b)) { \
    ROW_STORE_VECTOR(b, first, value); \
  } else { \
    ACC spilled[LANES] __attribute__((aligned(sizeof(VECTOR)))); \
    *(VECTOR*)spilled = (value); \
    for (int l = 0; l < (lanes); ++l) \
      if ((first) + l >= (from) && (first) + l < count) { ROW_STORE(b, (first) + l, spilled[l]); } \
  }
"""


def wide(shape: Blocking, packed: bool) -> int:
    """Columns in one piece of work."""
    return shape.columns if packed else _WIDE * shape.lanes


def columns(shape: Blocking) -> str:
    """The program for neighbours in k; one piece of work is one column."""
    return blocked.VECTORS + shape.sum_lanes() + _HEAD + _COLUMNS


def rows(shape: Blocking) -> str:
    """The program for neighbours in n; one piece of work is ``wide`` columns."""
    return _walking(_ROWS, _WIDE, 1)


def panels(shape: Blocking) -> str:
    """The program for packed matrices; one piece of work is ``wide`` columns."""
    return _walking(_PANELS, shape.vectors, 2)


def _walking(text: str, vectors: int, unroll: int) -> str:
    return blocked.VECTORS + _STORE + _HEAD + text.replace("@WALK@\n", _walk(vectors, unroll))


def _walk(vectors: int, unroll: int) -> str:
    """Sums over k of ``vectors`` vectors of columns from ``from`` on, for ``unroll`` values of k apart."""
    lines = [f"VECTOR {', '.join(f's{u}_{v} = (VECTOR)(0)' for v in range(vectors))};" for u in range(unroll)]
    lines += ["OB_GLOBAL const ACC* at = matrix + from;", "long k = 0;"]
    for depth in sorted({1, unroll}, reverse=True):
        lines.append(f"for (; k + {depth} <= k_count; k += {depth}, at += {depth} * K_STEP) {{")
        for u in range(depth):
            lines.append(f"  const VECTOR x{u} = (VECTOR)(x[(k + {u}) * X_STEP]);")
            lines += [f"  s{u}_{v} += x{u} * VLOAD(at + {u} * K_STEP + {v} * LANES);" for v in range(vectors)]
        lines.append("}")
    for v in range(vectors):
        total = " + ".join(f"s{u}_{v}" for u in range(unroll))
        lines.append(f"{{ const long first = from + {v} * LANES; STORE_FROM(b, first, first, LANES, {total}) }}")
    return "".join(f"      {line}\n" for line in lines)
