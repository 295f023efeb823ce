# SPDX-License-Identifier: Apache-2.0
"""The matrix product for CPUs: cache blocks, and a micro-kernel that keeps a piece of C in vector registers.

After Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), with two changes. Only B is
packed, block by block and just before it is used, so that the packed block is still in the first-level cache when it is
multiplied. A is read where it lies, one broadcast per element, for which any matrix that is contiguous along rows or
columns will do; of halves, along rows.

One piece of work is a panel of ``NR`` columns of C with a group of its rows. It walks k in blocks of ``K_BLOCK``; each
block of B is filled once and used for all rows of the group. Sums wait in local memory between blocks.

Blocks hold cells (``formats``): numbers as they are summed, or pairs of halves for processors that multiply these. Rows
of A that do not lie in memory as cells, because they are other halves, become so block by block, for ``ROWS`` rows.

The text sees these macros, besides what ``engine`` and ``formats`` describe:

* ``A_START(b, m)``: a pointer to item k = 0 of a row of A; ``A_ROW``, ``A_STEP``: strides from row to row and along
  k; ``A_PARAMETER``: a parameter that these need, if any;
* ``B_PREPARE(b, n0, count)``: declarations made once per panel; ``B_FILL(b, n0, count, k0, depth)``: statements that
  fill ``block[k / K_CELL * NR + n]`` for ``FILLED(count)`` columns, zeros beyond ``count`` of them, and beyond
  ``depth`` in the last cell;
* optional: ``A_ITEM(outer, inner)``, an item of A, where that is not ``A_AT``; ``C_STORE_VECTOR(b, m, n, value)`` with
  ``C_IS_VECTOR(b, n)``, which says whether the ``LANES`` elements from column n on can be stored at once; ``B_SETUP``:
  declarations made once per work-item; ``B_AHEAD(done, rows)``: statements for the next block, made when the current
  one has been used for ``done`` of ``rows`` rows; ``B_COLUMN(i)``, a pointer to item k = 0 of column i of the panel,
  with ``B_STEP``, the stride along k: few rows of C need no block; ``BLOCK_VECTOR(i, v)``: vector v of the cells in row
  i of the block, where that is not in ``block``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch

from ..target import Target
from . import common, formats

#: Most rows of C in one piece of work.
MOST_ROWS = 600
#: So few rows of C are dot products with columns of B as they lie: blocks of B would be used too seldom. They are
#: computed for squares of so many rows and columns, for which there are registers.
FEW, SQUARE = 32, 4

_MULTIPLY = r"""
OB_GROUP_OF(1, 1, 1)
OB_KERNEL void multiply(const long batches, const long m_count, const long n_count, const long k_count,
                        const long m_groups A_PARAMETER PARAMETERS) {
  BLOCK_SPACE CELL block[K_BLOCK * NR] OB_ALIGNED(sizeof(CELLS));
  FACTOR_ROOM
  BLOCK_SPACE ACC tile[(GROUP_ROWS + ROWS) * NR] OB_ALIGNED(sizeof(VECTOR));
  const long n_panels = (n_count + NR - 1) / NR;
  const long group_rows = m_groups > 0 ? (m_count + m_groups - 1) / m_groups : 0; /* none in an empty matrix */
  B_SETUP
  OB_FOR(piece, batches * m_groups * n_panels) {
    const long b = piece / (m_groups * n_panels), rest = piece % (m_groups * n_panels);
    const long m_from = rest / n_panels * group_rows, n0 = rest % n_panels * NR;
    const long m_to = m_from + group_rows < m_count ? m_from + group_rows : m_count;
    const int count = n_count - n0 < NR ? (int)(n_count - n0) : NR;
    B_PREPARE(b, n0, count)
#ifdef B_COLUMN
    const long a_step = A_STEP;
    if (m_to - m_from <= FEW && B_STEP == 1 && a_step == 1) {
@FEW@
      for (long m = m_from; m < m_to; m += ROWS) {
        const int rows = m_to - m < ROWS ? (int)(m_to - m) : ROWS;
        STORE_ROWS(tile + (m - m_from) * NR)
      }
      continue;
    }
#endif
    for (long k0 = 0; k0 == 0 || k0 < k_count; k0 += K_BLOCK) {
      const int depth = k_count - k0 < K_BLOCK ? (int)(k_count - k0) : K_BLOCK;
      const int first = k0 == 0, last = k0 + K_BLOCK >= k_count;
      B_FILL(b, n0, count, k0, depth)
      for (long m = m_from; m < m_to; m += ROWS) {
        const int rows = m_to - m < ROWS ? (int)(m_to - m) : ROWS;
        B_AHEAD(m - m_from, m_to - m_from)
        OB_GLOBAL const ITEM* a_from = A_START(b, m) + k0 * A_STEP;
        BLOCK_SPACE ACC* sums = tile + (m - m_from) * NR;
        FACTORS(rows, depth)
@START@
        if (!first) {
@RESUME@
        }
        const int cells = (depth + K_CELL - 1) / K_CELL;
        if (count > NR / 2) {
          for (int i = 0; i < cells; ++i) {
@STEP@
          }
        } else {
          for (int i = 0; i < cells; ++i) {
@NARROW@
          }
        }
@SUSPEND@
        if (last) { STORE_ROWS(sums) }
      }
    }
  }
}
"""


@dataclasses.dataclass(frozen=True)
class Blocking:
    """Shape of the micro-kernel, ``rows`` by ``vectors`` vectors of ``lanes``, and the most rows of a piece of work;
    ``k_block`` is the depth of a block of B; ``half`` is the dtype of the operands' items if they are not numbers of
    the type ``accumulate``."""

    accumulate: str
    lanes: int
    rows: int
    vectors: int
    group_rows: int
    k_block: int
    half: torch.dtype | None = None
    in_local: bool = True  #: whether local memory has room for what a work-item reuses; if not, it is private

    @staticmethod
    def for_target(target: Target, accumulate: str, half: torch.dtype | None = None) -> Blocking:
        """What fits the vector registers: 32 of 64 bytes, else 16 of 32. More rows than 8 would need fewer loads, but
        fewer matrices are a multiple of them, and compilers take longer."""
        return Blocking._of(target, accumulate, half, 8 if target.tuning.registers >= 32 else 6, 2)

    @staticmethod
    def for_product(target: Target, accumulate: str, half: torch.dtype | None = None) -> Blocking:
        """The same for products of matrices, which do nothing else in their inner loop: wider panels, whose fewer loads
        feed more products. Blocks of B may then be twice the first cache: they come in order from the second."""
        return Blocking._of(target, accumulate, half, 6, 4 if target.tuning.registers >= 32 else 2)

    @staticmethod
    def _of(target: Target, accumulate: str, half: torch.dtype | None, rows: int, vectors: int) -> Blocking:
        tuning, size = target.tuning, common.compute_size(accumulate)
        lanes = tuning.register // size
        columns = vectors * lanes * size
        factors = tuning.k_block * rows * size if half is not None else 0
        fitting = (target.local_memory - tuning.k_block * columns - factors) // columns - rows
        group_rows = max(4 * rows, min(MOST_ROWS, fitting // rows * rows))
        in_local = fitting >= group_rows
        return Blocking(accumulate, lanes, rows, vectors, group_rows, tuning.k_block, half, in_local)

    @property
    def columns(self) -> int:
        """Columns of a panel of B."""
        return self.vectors * self.lanes

    def defines(self) -> dict[str, object]:
        """The macros that the text needs."""
        return {
            "BLOCK_SPACE": "OB_LOCAL" if self.in_local else "",
            "NR": self.columns,
            "LANES": self.lanes,
            "VECTOR": f"{self.accumulate}{self.lanes}",
            "LANE_MASK": f"{_MASKS[formats.item_size(self.half, self.accumulate)]}{self.lanes}",
            "LANE_NUMBERS": ", ".join(map(str, range(self.lanes))),
            "ROWS": self.rows,
            "K_BLOCK": self.k_block,
            "GROUP_ROWS": self.group_rows,
            "FEW": FEW,
        }

    def formats(self, helpers: Mapping[str, str] | None = None) -> str:
        """Macros for items and cells, which other macros need, and for vectors in memory; and the helpers, functions by
        name that the rest of the program needs."""
        return VECTORS + formats.text(self.half, self.accumulate, self.lanes, helpers or {})

    def text(self) -> str:
        """The kernel, after ``formats``, unrolled by name: arrays of vectors would live in memory."""
        text = _OPTIONS + self.transpose() + _CELLS + self.sum_lanes() + _MULTIPLY
        parts = {"FEW": self._few(), "START": self._start()}
        parts |= {"STEP": self._step(self.vectors), "NARROW": self._step(self.vectors // 2)}
        parts |= {"RESUME": self._resume(), "SUSPEND": self._suspend()}
        for name, part in parts.items():
            text = text.replace(f"@{name}@\n", part)
        return text

    def _cells(self) -> Iterator[tuple[str, str]]:
        """Each vector of the block of C, and where it waits between blocks of k."""
        for r in range(self.rows):
            for v in range(self.vectors):
                yield f"c{r}_{v}", f"LOCAL_VECTOR(sums + {r} * NR + {v} * LANES)"

    def _few(self) -> str:
        """Dot products of all columns of a panel with up to ``FEW`` rows of A, which are left in ``tile``."""
        side = range(SQUARE)
        squares = [(r, c) for r in side for c in side]
        lines = [f"for (int i = 0; i < count; i += {SQUARE}) {{"]
        lines += [f"  OB_GLOBAL const ITEM* few{c} = B_COLUMN(i + {c} < count ? i + {c} : count - 1);" for c in side]
        lines.append(f"  for (long m = m_from; m < m_to; m += {SQUARE}) {{")
        lines += [f"    OB_GLOBAL const ITEM* row{r} = A_START(b, m + {r} < m_to ? m + {r} : m_to - 1);" for r in side]
        lines.append(f"    VECTOR {', '.join(f'd{r}_{c} = (VECTOR)(0)' for r, c in squares)};")
        lines += ["    long k = 0;", "    for (; k + LANES * K_CELL <= k_count; k += LANES * K_CELL) {"]
        lines += [f"      const CELLS w{c} = FACTORS_AT(few{c} + k);" for c in side]
        for r in side:
            lines.append(f"      const CELLS v{r} = FACTORS_AT(row{r} + k);")
            lines += [f"      d{r}_{c} = MULTIPLY_ADD(w{c}, v{r}, d{r}_{c});" for c in side]
        lines += ["    }", f"    ACC {', '.join(f's{r}_{c} = sum_lanes(d{r}_{c})' for r, c in squares)};"]
        lines.append("    for (; k < k_count; ++k) {")
        lines += [f"      s{r}_{c} += ACC_OF(few{c}[k]) * ACC_OF(row{r}[k]);" for r, c in squares]
        lines += ["    }", "    BLOCK_SPACE ACC* sums = tile + (m - m_from) * NR + i;"]
        lines += [f"    sums[{r} * NR + {c}] = s{r}_{c};" for r, c in squares]
        return "".join(f"      {line}\n" for line in [*lines, "  }", "}"])

    def sum_lanes(self) -> str:
        """A function that adds up the lanes of a vector."""
        lines, width, name = [], self.lanes // 2, "v"
        while width > 1:
            lines.append(f"  const {self.accumulate}{width} h{width} = {name}.lo + {name}.hi;\n")
            width, name = width // 2, f"h{width}"
        return f"ACC sum_lanes(VECTOR v) {{\n{''.join(lines)}  return {name}.x + {name}.y;\n}}\n"

    def _start(self) -> str:
        lines = [f"VECTOR {cell} = (VECTOR)(0);" for cell, _ in self._cells()]
        for r in range(self.rows):
            row = f"({r} < rows ? {r} : rows - 1)" if r else "0"
            lines.append(f"FACTOR_POINTER a{r} = FACTOR_ROW({row});")
        return "".join(f"        {line}\n" for line in lines)

    def _resume(self) -> str:
        return "".join(f"          {cell} = {place};\n" for cell, place in self._cells())

    def _suspend(self) -> str:
        return "".join(f"        {place} = {cell};\n" for cell, place in self._cells())

    def _step(self, vectors: int) -> str:
        """One cell of k for the first ``vectors`` vectors of columns."""
        lines = [f"const CELLS b{v} = BLOCK_VECTOR(i, {v});" for v in range(vectors)]
        for r in range(self.rows):
            lines.append(f"const CELLS v{r} = (CELLS)(a{r}[i * FACTOR_STEP]);")
            lines += [f"c{r}_{v} = MULTIPLY_ADD(v{r}, b{v}, c{r}_{v});" for v in range(vectors)]
        return "".join(f"            {line}\n" for line in lines)

    def transpose(self) -> str:
        """``TRANSPOSE(to, ROW)``: writes the square of the vectors ``ROW(0)``, ``ROW(1)``, ... as columns of ``to``.
        ``TRANSPOSE_AS(TYPE, PUT, to, ROW)`` is for vectors of another type, written by ``PUT(to, number, vector)``."""
        lines = ["#define TRANSPOSE_AS(TYPE, PUT, to, ROW) { \\\n"]
        lines += [f"  TYPE {line} \\\n" for line in self._butterflies()]
        last = self.lanes.bit_length() - 1
        lines += [f"  PUT(to, {i}, x{last}_{i}); \\\n" for i in range(self.lanes)]
        return "".join(lines) + "}\n" + _TRANSPOSE

    def _butterflies(self) -> Iterator[str]:
        yield ", ".join(f"x0_{i} = ROW({i})" for i in range(self.lanes)) + ";"
        step, stage = 1, 0
        while step < self.lanes:
            for i in range(self.lanes):
                yield f"x{stage + 1}_{i} = (TYPE)({', '.join(self._picks(stage, step, i))});"
            step, stage = 2 * step, stage + 1

    def _picks(self, stage: int, step: int, row: int) -> Iterator[str]:
        """Exchanges blocks of ``step`` between rows that far apart."""
        low, high = row & ~step, row | step
        for e in range(self.lanes):
            source = high if e & step else low
            element = (e & ~step) | (row & step)
            yield f"x{stage}_{source}.s{element:x}"


_MASKS = {2: "short", 4: "int", 8: "long"}

#: Vectors in memory.
VECTORS = r"""
#ifndef BLOCK_SPACE
#define BLOCK_SPACE OB_LOCAL
#endif
/* Vectors in global memory have the alignment of their elements. (Some compilers cut up what vstore writes.) */
typedef VECTOR loose_vector_t OB_ALIGNED(sizeof(ACC));
#define VLOAD(p) (*(OB_GLOBAL const loose_vector_t*)(p))
#define VSTORE(p, value) (*(OB_GLOBAL loose_vector_t*)(p) = (value))
#define LOCAL_VECTOR(p) (*(BLOCK_SPACE VECTOR*)(p))
/* For loops of few steps with large bodies: copies of the body would only cost compile time. */
#define ROLLED OB_UNROLL(1)
/* Asks for a cache line that will be read soon, and may be none of ours. (OpenCL's own prefetch does nothing here.) */
#ifdef __clang__
#define FETCH(p) __builtin_prefetch((const void*)(size_t)(p))
#else
#define FETCH(p)
#endif
"""

_TRANSPOSE = r"""
#define PUT_VECTOR(to, number, vector) LOCAL_VECTOR((to) + (number) * NR) = (vector)
#define TRANSPOSE(to, ROW) TRANSPOSE_AS(VECTOR, PUT_VECTOR, to, ROW)
"""

# Factors are rows of A as cells. As halves of it are cells without a copy only if these are pairs, the address of a row
# is a number: it may be in either memory.
_CELLS = r"""
#define LOCAL_CELLS(p) (*(BLOCK_SPACE CELLS*)(p))
#define PUT_CELLS(to, number, cells) LOCAL_CELLS((to) + (number) * NR) = (cells)
#define TRANSPOSE_CELLS(to, ROW) TRANSPOSE_AS(CELLS, PUT_CELLS, to, ROW)
#if HALVES
typedef CELL factor_t OB_ALIGNED(sizeof(ITEM));
#define FACTOR_ROOM BLOCK_SPACE CELL room[ROWS * K_BLOCK] OB_ALIGNED(sizeof(CELLS));
#define FACTOR_POINTER const factor_t*
#define FACTOR_ROW(r) (const factor_t*)(factors + (r) * factor_row)
#define FACTOR_STEP 1
#define FACTORS(rows, depth) \
  size_t factors = (size_t)a_from, factor_row = A_ROW * sizeof(ITEM); \
  if (!PAIRS || (depth) % 2 != 0) { \
    make_cells(room, a_from, A_ROW, rows, depth); \
    factors = (size_t)room; \
    factor_row = K_BLOCK * sizeof(CELL); \
  }
void make_cells(BLOCK_SPACE CELL* room, OB_GLOBAL const ITEM* a, const long a_row, const int rows,
                          const int depth) {
  for (int r = 0; r < rows; ++r, a += a_row, room += K_BLOCK) {
    int k = 0;
    for (; k + LANES * K_CELL <= depth; k += LANES * K_CELL) LOCAL_CELLS(room + k / K_CELL) = FACTORS_AT(a + k);
    for (; k < depth; k += K_CELL) room[k / K_CELL] = CELL_OF(a[k], IF_WITHIN(k, depth, a[k + 1]));
  }
}
#else
#define FACTOR_ROOM
#define FACTOR_POINTER OB_GLOBAL const ACC*
#define FACTOR_ROW(r) a_from + (r) * A_ROW
#define FACTOR_STEP A_STEP
#define FACTORS(rows, depth)
#endif
"""

_OPTIONS = r"""
/* Columns of a block that are used: a half of it where a panel has no more. */
#define FILLED(count) ((count) > NR / 2 ? NR : NR / 2)
#ifndef B_SETUP
#define B_SETUP
#endif
#ifndef B_AHEAD
#define B_AHEAD(done, rows)
#endif
#ifndef BLOCK_VECTOR
#define BLOCK_VECTOR(i, v) LOCAL_CELLS(block + (i) * NR + (v) * LANES)
#endif
#ifndef C_STORE_VECTOR
#define C_IS_VECTOR(b, n) 0
#define C_STORE_VECTOR(b, m, n, value)
#endif
/* Stores `rows` rows of C from m on. One copy of what is done with an element, however many a block has. */
#define STORE_ROWS(from) \
  ROLLED for (int c_r = 0; c_r < rows; ++c_r) \
    ROLLED for (int c_at = 0; c_at < count; c_at += LANES) { \
      BLOCK_SPACE ACC* results = (from) + c_r * NR + c_at; \
      const long c_row = m + c_r, c_column = n0 + c_at; \
      if (count - c_at >= LANES && C_IS_VECTOR(b, c_column)) { \
        C_STORE_VECTOR(b, c_row, c_column, LOCAL_VECTOR(results)); \
      } else { \
        for (int l = 0; l < LANES && c_at + l < count; ++l) { C_STORE(b, c_row, c_column + l, results[l]); } \
      } \
    }
"""

#: Fills a block of B through the operand's element macros.
FILL_ELEMENTS = r"""
#define B_PREPARE(b, n0, count) \
  B_OUTER_T b_outer[NR]; \
  for (int i = 0; i < NR; ++i) { B_SET_OUTER(b_outer[i], b, (n0) + (i < (count) ? i : 0)); }
#define B_FILL(b, n0, count, k0, depth) \
  for (int k = 0; k < (depth); ++k) { \
    B_INNER_T b_inner; \
    B_SET_INNER(b_inner, b, (k0) + k); \
    for (int i = 0; i < FILLED(count); ++i) block[k * NR + i] = i < (count) ? B_AT(b_outer[i], b_inner) : (ACC)0; \
  }
"""

#: Fills a block of B from a matrix ``mat``, whose items are read as they lie. Its strides decide when the kernel runs,
#: outside the inner loop, so that all layouts share one program.
FILL_MATRIX = r"""
#define B_PREPARE(b, n0, count) OB_GLOBAL const ITEM* b_panel = (OB_GLOBAL const ITEM*)mat + (b) * B_S_B + (n0) * B_S_O;
#define B_COLUMN(i) (b_panel + (i) * B_S_O)
#define B_STEP B_S_I
#define COLUMN_PART(l) FACTORS_AT(b_column + (l) * B_S_O + k)
#define B_FILL_COLUMNS(count, k0, depth) \
  ROLLED for (int v = 0; v < FILLED(count); v += LANES) { \
    OB_GLOBAL const ITEM* b_column = b_panel + v * B_S_O + (k0); \
    int k = 0; \
    if ((count) >= v + LANES) { \
      for (; k + LANES * K_CELL <= (depth); k += LANES * K_CELL) \
        TRANSPOSE_CELLS(block + k / K_CELL * NR + v, COLUMN_PART) \
    } \
    for (; k < (depth); k += K_CELL) \
      for (int l = 0; l < LANES; ++l) { \
        OB_GLOBAL const ITEM* at = b_column + l * B_S_O + k; \
        block[k / K_CELL * NR + v + l] = v + l < (count) ? CELL_OF(at[0], IF_WITHIN(k, depth, at[1])) : (CELL)0; \
      } \
  }
#define VECTORS_OF_ROW(columns) \
  for (int v = 0; v < (columns); v += LANES) \
    LOCAL_CELLS(block + k / K_CELL * NR + v) = \
        CELLS_OF(ITEMS_AT(row + v), ALL_IF_WITHIN(k, depth, ITEMS_AT(row + B_S_I + v)));
#define B_FILL_ROWS(count, k0, depth) \
  for (int k = 0; k < (depth); k += K_CELL) { \
    OB_GLOBAL const ITEM* row = b_panel + ((k0) + k) * B_S_I; \
    if (B_S_O == 1 && (count) == NR) { \
      VECTORS_OF_ROW(NR) \
    } else if (B_S_O == 1 && (count) == NR / 2) { \
      VECTORS_OF_ROW(NR / 2) \
    } else { \
      ROLLED for (int i = 0; i < FILLED(count); ++i) { \
        OB_GLOBAL const ITEM* at = row + i * B_S_O; \
        block[k / K_CELL * NR + i] = i < (count) ? CELL_OF(at[0], IF_WITHIN(k, depth, at[B_S_I])) : (CELL)0; \
      } \
    } \
  }
#define B_NEXT_ROW(k) ((last ? b_panel + NR * B_S_O : b_panel + (k0 + K_BLOCK) * B_S_I) + (k) * B_S_I)
#define B_AHEAD(done, rows) \
  for (long k = (done) * depth / (rows); B_S_O == 1 && k < ((done) + ROWS) * depth / (rows) && k < depth; ++k) \
    for (int v = 0; v < NR; v += LANES) FETCH(B_NEXT_ROW(k) + v);
#define B_FILL(b, n0, count, k0, depth) \
  if (B_S_I == 1 && B_S_O != 1) { B_FILL_COLUMNS(count, k0, depth) } else { B_FILL_ROWS(count, k0, depth) }
"""

#: Reads blocks of B where ``packing`` has put them: nothing is filled, unless halves must become numbers first. The
#: next block, of this panel or of the one behind it, is asked for meanwhile, unless this one is needed once only: then
#: processors see one stream, and follow.
FILL_PACKED = r"""
#define K_PADDED ((k_count + K_PACKED - 1) / K_PACKED * K_PACKED)
#define B_PREPARE(b, n0, count) \
  OB_GLOBAL const ITEM* b_panel = (OB_GLOBAL const ITEM*)mat + ((b) * n_panels * NR + (n0)) * K_PADDED; \
  OB_GLOBAL const ITEM* packed = b_panel;
#if K_CELL == K_PACKED
#define B_FILL(b, n0, count, k0, depth) packed = b_panel + (k0) * NR;
#define BLOCK_VECTOR(i, v) FACTORS_AT(packed + ((i) * NR + (v) * LANES) * K_PACKED)
#else
#define B_FILL(b, n0, count, k0, depth) \
  packed = b_panel + (k0) * NR; \
  for (int k = 0; k < (depth); k += 2) \
    for (int v = 0; v < NR; v += LANES) { \
      LOCAL_CELLS(block + k * NR + v) = SPLIT_LOW(PAIRS_AT(packed + k * NR + 2 * v)); \
      LOCAL_CELLS(block + (k + 1) * NR + v) = SPLIT_HIGH(PAIRS_AT(packed + k * NR + 2 * v)); \
    }
#endif
#define B_LINES(done, rows) ((done) * depth * (NR / LANES) * sizeof(ITEM) / (rows) / sizeof(ACC))
#define B_AHEAD(done, rows) \
  for (long i = B_LINES(done, rows); (rows) > ROWS && i < B_LINES((done) + ROWS, rows) && i < B_LINES(1, 1); ++i) \
    FETCH(packed + depth * NR + i * LANES * (sizeof(ACC) / sizeof(ITEM)));
"""

_ARRANGE = r"""
OB_KERNEL void arrange(OB_GLOBAL ITEM* rows, const long batches, const long m_count, const long n_count,
                       const long k_count PARAMETERS) {
  const long row_groups = (m_count + 63) / 64, chunks = (k_count + K_BLOCK - 1) / K_BLOCK;
  OB_FOR(piece, batches * row_groups * chunks) {
    const long b = piece / (row_groups * chunks), m_from = piece / chunks % row_groups * 64;
    const long k_from = piece % chunks * K_BLOCK, m_to = m_from + 64 < m_count ? m_from + 64 : m_count;
    const int depth = k_count - k_from < K_BLOCK ? (int)(k_count - k_from) : K_BLOCK;
    OB_GLOBAL ITEM* to = rows + (b * m_count + m_from) * k_count + k_from;
@BODY@
  }
}
"""

_BY_ELEMENTS = r"""
    A_INNER_T inner[K_BLOCK];
    for (int k = 0; k < depth; ++k) { A_SET_INNER(inner[k], b, k_from + k); }
    for (long m = m_from; m < m_to; ++m, to += k_count) {
      A_OUTER_T outer;
      A_SET_OUTER(outer, b, m);
      for (int k = 0; k < depth; ++k) to[k] = A_ITEM(outer, inner[k]);
    }
"""

_BY_SQUARES = r"""
    long m = m_from;
    for (; m + LANES <= m_to; m += LANES, to += LANES * k_count) {
      OB_GLOBAL const ITEM* from = A_START(b, m) + k_from * A_STEP;
      int k = 0;
      for (; k + LANES <= depth; k += LANES) TRANSPOSE_AS(ITEMS, PUT_ITEMS, to + k, COLUMN_PART)
      for (; k < depth; ++k)
        for (int l = 0; l < LANES; ++l) to[l * k_count + k] = from[k * A_STEP + l];
    }
    for (; m < m_to; ++m, to += k_count)
      for (int k = 0; k < depth; ++k) to[k] = A_START(b, m)[(k_from + k) * A_STEP];
"""

#: Writes A as rows of consecutive items, through its element macros, where it cannot be read as it lies.
ARRANGE = "#ifndef A_ITEM\n#define A_ITEM A_AT\n#endif\n" + _ARRANGE.replace("@BODY@\n", _BY_ELEMENTS)

#: The same for a matrix whose columns are consecutive items, which is described as if it were read as it lies.
ARRANGE_COLUMNS = """
#define PUT_ITEMS(to, number, items) COPY_ITEMS((to) + (number) * k_count, items)
#define COLUMN_PART(l) ITEMS_AT(from + (k + (l)) * A_STEP)
""" + _ARRANGE.replace("@BODY@\n", _BY_SQUARES)
