# SPDX-License-Identifier: Apache-2.0
"""The product of a vector and a matrix for CPUs: each element of the matrix is read once, in vectors, where it lies.

The text sees the macros of ``engine``, and these:

* those of ``formats``;
* ``X(b)``: a pointer to the items of the vector; ``X_STEP``: its stride;
* ``MATRIX(b)``: a pointer to those of the matrix (k, n); ``K_STEP``, ``N_STEP``: its strides;
* ``ROW_STORE(b, i, value)``: stores element i of the result; ``ROW_VECTORS(b)``: whether ``LANES`` at once can be
  stored with ``ROW_STORE_VECTOR(b, i, value)``.

Three programs, for how the matrix lies: *columns* (neighbours in k; so must those of the vector), *rows* (neighbours in
n), and *panels*, as ``packing`` makes them.
"""

from __future__ import annotations

from .blocked import Blocking

#: Vectors of columns that rows are walked with: shorter pieces of rows are no stream that processors follow.
_WIDE = 8

_HEAD = r"""
OB_GROUP_OF(1, 1, 1)
OB_KERNEL void row(const long batches, const long m_count, const long n_count, const long k_count PARAMETERS) {
  const long count = m_count * n_count;
"""

_COLUMNS = r"""
#define STEP (LANES * K_CELL)
#define PRODUCTS(i, sum) MULTIPLY_ADD(FACTORS_AT(x + k + (i) * STEP), FACTORS_AT(column + k + (i) * STEP), sum)
  OB_FOR(piece, batches * count) {
    const long b = piece / count, i = piece % count;
    OB_GLOBAL const ITEM* x = X(b);
    OB_GLOBAL const ITEM* column = MATRIX(b) + i * N_STEP;
    VECTOR s0 = (VECTOR)(0), s1 = s0, s2 = s0, s3 = s0;
    long k = 0;
    for (; k + 4 * STEP <= k_count; k += 4 * STEP) {
      s0 = PRODUCTS(0, s0);
      s1 = PRODUCTS(1, s1);
      s2 = PRODUCTS(2, s2);
      s3 = PRODUCTS(3, s3);
    }
    for (; k + STEP <= k_count; k += STEP) s0 = PRODUCTS(0, s0);
    ACC sum = sum_lanes((s0 + s1) + (s2 + s3));
    for (; k < k_count; ++k) sum += ACC_OF(x[k]) * ACC_OF(column[k]);
    { ROW_STORE(b, i, sum); }
  }
}
"""

# The last columns, fewer than a vector, are those of a vector that begins before them, where there is one.
_ROWS = r"""
  const long panels = (count + WIDE - 1) / WIDE;
  OB_FOR(piece, batches * panels) {
    const long b = piece / panels, from = piece % panels * WIDE, to = from + WIDE < count ? from + WIDE : count;
    OB_GLOBAL const ITEM* x = X(b);
    OB_GLOBAL const ITEM* matrix = MATRIX(b);
    long i = from;
    if (from + WIDE <= count) {
@WALK@
      i = to;
    }
    for (; i < to; i += LANES) {
      const long first = i + LANES <= to ? i : to - LANES;
      if (first < 0) break;
      VECTOR sum = (VECTOR)(0);
      for (long k = 0; k < k_count; ++k) sum += ACC_OF(x[k * X_STEP]) * ACCS_AT(matrix + k * K_STEP + first);
      STORE_FROM(b, first, i, LANES, sum)
    }
    for (; i < to; ++i) {
      ACC sum = 0;
      for (long k = 0; k < k_count; ++k) sum += ACC_OF(x[k * X_STEP]) * ACC_OF(matrix[k * K_STEP + i]);
      { ROW_STORE(b, i, sum); }
    }
  }
}
"""

# Pairs that the processor does not multiply are two products.
_PACKED = r"""
#if K_CELL == K_PACKED
#define X_PACKED(name, k) \
  const CELLS name = (CELLS)(CELL_OF(x[(k) * X_STEP], IF_WITHIN(k, k_count, x[((k) + 1) * X_STEP])));
#define ADD_PACKED(sum, name, p) sum = MULTIPLY_ADD(name, FACTORS_AT(p), sum);
#else
#define X_PACKED(name, k) \
  const VECTOR name##_low = (VECTOR)(ACC_OF(x[(k) * X_STEP])); \
  const VECTOR name##_high = (VECTOR)(ACC_OF(IF_WITHIN(k, k_count, x[((k) + 1) * X_STEP])));
#define ADD_PACKED(sum, name, p) \
  sum = MULTIPLY_ADD(name##_low, SPLIT_LOW(PAIRS_AT(p)), sum); \
  sum = MULTIPLY_ADD(name##_high, SPLIT_HIGH(PAIRS_AT(p)), sum);
#endif
"""

_PANELS = r"""
  const long panels = (count + WIDE - 1) / WIDE, k_padded = (k_count + K_PACKED - 1) / K_PACKED * K_PACKED;
  OB_FOR(piece, batches * panels) {
    const long b = piece / panels, from = piece % panels * WIDE;
    OB_GLOBAL const ITEM* x = X(b);
    OB_GLOBAL const ITEM* at = MATRIX(b) + from * k_padded;
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
    ACC spilled[LANES] OB_ALIGNED(sizeof(VECTOR)); \
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
    return shape.sum_lanes() + _HEAD + _COLUMNS


def rows(shape: Blocking) -> str:
    """The program for neighbours in n; one piece of work is ``wide`` columns."""
    lines = ["OB_GLOBAL const ITEM* at = matrix + from;", "for (long k = 0; k < k_count; ++k, at += K_STEP) {"]
    lines.append("  const VECTOR factor = (VECTOR)(ACC_OF(x[k * X_STEP]));")
    lines += [f"  s0_{v} += factor * ACCS_AT(at + {v} * LANES);" for v in range(_WIDE)]
    return _STORE + _HEAD + _ROWS.replace("@WALK@\n", _walk([*lines, "}"], _WIDE, 1))


def panels(shape: Blocking) -> str:
    """The program for packed matrices; one piece of work is ``wide`` columns."""
    lines = ["long k = 0;"]
    for depth in (2, 1):
        lines.append(f"for (; k + {depth} * K_PACKED <= k_padded; k += {depth} * K_PACKED) {{")
        for u in range(depth):
            lines.append(f"  X_PACKED(x{u}, k + {u} * K_PACKED)")
            place = f"at + (k + {u} * K_PACKED) * NR + {{0}} * LANES * K_PACKED"
            lines += [f"  ADD_PACKED(s{u}_{v}, x{u}, {place.format(v)})" for v in range(shape.vectors)]
        lines.append("}")
    return _STORE + _PACKED + _HEAD + _PANELS.replace("@WALK@\n", _walk(lines, shape.vectors, 2))


def _walk(lines: list[str], vectors: int, unroll: int) -> str:
    """``lines`` that sum over k in ``s<u>_<v>``, ``unroll`` sums for each of ``vectors`` vectors of columns from
    ``from`` on, with what comes before and after them."""
    lines = [
        *(f"VECTOR {', '.join(f's{u}_{v} = (VECTOR)(0)' for v in range(vectors))};" for u in range(unroll)),
        *lines,
    ]
    for v in range(vectors):
        total = " + ".join(f"s{u}_{v}" for u in range(unroll))
        lines.append(f"{{ const long first = from + {v} * LANES; STORE_FROM(b, first, first, LANES, {total}) }}")
    return "".join(f"      {line}\n" for line in lines)
