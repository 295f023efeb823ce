# SPDX-License-Identifier: Apache-2.0
"""A matrix product whose operands are described, not given: what gemm and convolution are made of.

``C[b, m, n] = sum over k of A[b, m, k] * B[b, k, n]``, where A and B are read, and C is written, through macros. An
operand X (A or B) walks an outer index (m or n) and k, and defines

* ``X_OUTER_T`` and ``X_INNER_T``: types of what it precomputes for one outer index and for one k;
* ``X_SET_OUTER(v, b, i)`` and ``X_SET_INNER(v, b, k)``: statements that set ``v``;
* ``X_AT(outer, inner)``: the element, of type ``ACC``.

``C_STORE(b, m, n, value)`` is a statement. All see the kernel's extra parameters by name.

Programs: CPUs multiply cache blocks with explicit vectors (``blocked``); SIMT devices use tiles in local memory; where
m or n is known to be 1, every element of C is one dot product, on CPUs in vectors if the operands allow (``row``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from ..plans import plan as p
from ..plans.builder import PlanBuilder, Size
from ..units import COMPUTE_UNITS
from . import blocked, common, formats

_TILES = r"""
/* A group of 16 x 16 items makes a 64 x 64 tile of C, each item 4 x 4 of it. */
#define TILE 64
#define DEPTH 16
#if A_ALONG_K
#define A_PLACE(e, i, k) i = (e) / DEPTH, k = (e) % DEPTH
#else
#define A_PLACE(e, i, k) i = (e) % TILE, k = (e) / TILE
#endif
#if B_ALONG_K
#define B_PLACE(e, i, k) i = (e) / DEPTH, k = (e) % DEPTH
#else
#define B_PLACE(e, i, k) i = (e) % TILE, k = (e) / TILE
#endif

OB_KERNEL void multiply(const long batches, const long m_count, const long n_count, const long k_count PARAMETERS) {
  OB_SHARED ACC a_tile[DEPTH][TILE + 1];
  OB_SHARED ACC b_tile[DEPTH][TILE + 1];
  const int t = OB_LOCAL_ID(0), row = t / 16, column = t % 16;
  const long m_tiles = (m_count + TILE - 1) / TILE, n_tiles = (n_count + TILE - 1) / TILE;
  for (long piece = OB_GROUP_ID(0); piece < batches * m_tiles * n_tiles; piece += OB_GROUP_COUNT(0)) {
    const long b = piece / (m_tiles * n_tiles), rest = piece % (m_tiles * n_tiles);
    const long m0 = rest / n_tiles * TILE, n0 = rest % n_tiles * TILE;
    A_OUTER_T a_outer[4];
    B_OUTER_T b_outer[4];
    for (int e = 0; e < 4; ++e) {
      int i, k;
      A_PLACE(t + e * 256, i, k);
      A_SET_OUTER(a_outer[e], b, (m0 + i < m_count ? m0 + i : 0));
      B_PLACE(t + e * 256, i, k);
      B_SET_OUTER(b_outer[e], b, (n0 + i < n_count ? n0 + i : 0));
    }
    ACC sum[4][4];
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c) sum[r][c] = 0;
    for (long k0 = 0; k0 < k_count; k0 += DEPTH) {
      for (int e = 0; e < 4; ++e) {
        int i, k;
        A_PLACE(t + e * 256, i, k);
        ACC value = 0;
        if (m0 + i < m_count && k0 + k < k_count) {
          A_INNER_T inner;
          A_SET_INNER(inner, b, k0 + k);
          value = A_AT(a_outer[e], inner);
        }
        a_tile[k][i] = value;
        B_PLACE(t + e * 256, i, k);
        value = 0;
        if (n0 + i < n_count && k0 + k < k_count) {
          B_INNER_T inner;
          B_SET_INNER(inner, b, k0 + k);
          value = B_AT(b_outer[e], inner);
        }
        b_tile[k][i] = value;
      }
      OB_BARRIER();
      for (int k = 0; k < DEPTH; ++k) {
        ACC left[4], right[4];
        for (int r = 0; r < 4; ++r) left[r] = a_tile[k][row + 16 * r];
        for (int c = 0; c < 4; ++c) right[c] = b_tile[k][column + 16 * c];
        for (int r = 0; r < 4; ++r)
          for (int c = 0; c < 4; ++c) sum[r][c] += left[r] * right[c];
      }
      OB_BARRIER();
    }
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c) {
        const long m = m0 + row + 16 * r, n = n0 + column + 16 * c;
        if (m < m_count && n < n_count) { C_STORE(b, m, n, sum[r][c]); }
      }
  }
}
"""

_DOTS = r"""
/* One piece is one element of C: by a work-item on a CPU; elsewhere by a group, or a sub-group where sums are short. */
GROUP_KERNEL void dots(const long batches, const long m_count, const long n_count, const long k_count PARAMETERS) {
#if GROUP > 1
  OB_SHARED ACC partial[GROUP];
#ifdef NEAR_SUM
  const int near = k_count < NEAR_TERMS, teams = near ? OB_SUB_GROUP_COUNT() : 1;
  const int t = near ? OB_SUB_GROUP_ITEM() : OB_LOCAL_ID(0), step = near ? OB_SUB_GROUP_SIZE() : GROUP;
  const long first = OB_GROUP_ID(0) * teams + (near ? OB_SUB_GROUP_ID() : 0);
#define DOT_SUM(value) if (near) { NEAR_SUM(value); } else { GROUP_SUM(value, partial); }
#else
  const int teams = 1, t = OB_LOCAL_ID(0), step = GROUP;
  const long first = OB_GROUP_ID(0);
#define DOT_SUM(value) GROUP_SUM(value, partial)
#endif
  for (long piece = first; piece < batches * m_count * n_count; piece += OB_GROUP_COUNT(0) * teams) {
#else
  OB_FOR(piece, batches * m_count * n_count) {
#endif
    const long b = piece / (m_count * n_count), m = piece / n_count % m_count, n = piece % n_count;
    A_OUTER_T a_outer;
    B_OUTER_T b_outer;
    A_SET_OUTER(a_outer, b, m);
    B_SET_OUTER(b_outer, b, n);
#if GROUP > 1
    ACC sum = 0;
    for (long k = t; k < k_count; k += step) {
      A_INNER_T left;
      B_INNER_T right;
      A_SET_INNER(left, b, k);
      B_SET_INNER(right, b, k);
      sum += A_AT(a_outer, left) * B_AT(b_outer, right);
    }
    DOT_SUM(sum);
    if (t == 0) { C_STORE(b, m, n, sum); }
#else
    /* Independent sums that the compiler can keep in one vector. */
    ACC sums[16];
    for (int l = 0; l < 16; ++l) sums[l] = 0;
    long k = 0;
    for (; k + 16 <= k_count; k += 16)
      for (int l = 0; l < 16; ++l) {
        A_INNER_T left;
        B_INNER_T right;
        A_SET_INNER(left, b, k + l);
        B_SET_INNER(right, b, k + l);
        sums[l] += A_AT(a_outer, left) * B_AT(b_outer, right);
      }
    ACC sum = 0;
    for (int l = 0; l < 16; ++l) sum += sums[l];
    for (; k < k_count; ++k) {
      A_INNER_T left;
      B_INNER_T right;
      A_SET_INNER(left, b, k);
      B_SET_INNER(right, b, k);
      sum += A_AT(a_outer, left) * B_AT(b_outer, right);
    }
    { C_STORE(b, m, n, sum); }
#endif
  }
}
"""

_DOT_GROUP = 128
_TILE_GROUP = 256  # what the tiles are written for


@dataclasses.dataclass
class Product:
    """A product to be carried out; see the module's text for ``macros``.

    ``a_along_k`` and ``b_along_k`` tell whether neighbours in memory are neighbours in k (else in m or n).
    """

    batches: Size
    m: Size
    n: Size
    k: Size
    accumulate: str
    macros: str
    parameters: str
    arguments: list[p.Argument]
    types: Mapping[str, torch.dtype]
    a_along_k: bool = True
    b_along_k: bool = False
    thin: bool = False  #: m or n is small, though not known to be 1: prefer dot products
    helpers: Mapping[str, str] = dataclasses.field(default_factory=dict)  #: functions for ``macros``, by name
    #: For CPUs: the dtype of halves if they are multiplied as they lie (``formats``).
    half: torch.dtype | None = None
    #: For CPUs: macros that read A as it lies (``blocked``), where it can be, or once its columns, whose elements are
    #: neighbours, are arranged as rows; and those that fill blocks of B.
    a_in_place: str = ""
    a_columns: bool = False
    b_fill: str = blocked.FILL_ELEMENTS
    #: For CPUs, m or n being 1: a program for that (``row``), and how many elements of C a piece of its work is.
    row: str = ""
    row_width: int = 1
    short: bool = False  #: k is small: a dot product is worth one work-item only

    def emit(self, builder: PlanBuilder) -> None:
        """Appends the steps."""
        if self.row:
            self._emit_row(builder)
        elif self.thin or self.m == 1 or self.n == 1:
            self._emit_dots(builder)
        elif builder.target.tuning.vectors:
            self.emit_blocked(builder)
        elif self._has_room_for_tiles(builder):
            self._emit_tiles(builder)
        else:
            self._emit_dots(builder)

    def _has_room_for_tiles(self, builder: PlanBuilder) -> bool:
        bytes_each = 2 * 16 * (64 + 1) * common.compute_size(self.accumulate) // _TILE_GROUP
        return common.group_size(builder, _TILE_GROUP, bytes_each + 1) == _TILE_GROUP

    def _counts(self, builder: PlanBuilder) -> list[p.Argument]:
        return [builder.int64(count) for count in (self.batches, self.m, self.n, self.k)]

    def _blocking(self, builder: PlanBuilder) -> blocked.Blocking:
        return blocked.Blocking.for_product(builder.target, self.accumulate, self.half)

    def _source(
        self, builder: PlanBuilder, body: str, defines: Mapping[str, object], shape: blocked.Blocking | None = None
    ) -> str:
        """The program's text; with ``shape``, its body uses vectors."""
        head = "\n".join([*self.helpers.values(), ""]) if shape is None else shape.formats(self.helpers)
        defines = {"ACC": self.accumulate, "PARAMETERS": self.parameters, **defines}
        return common.source(builder, head + self.macros + body, defines, self.types)

    def _emit_dots(self, builder: PlanBuilder) -> None:
        size = common.compute_size(self.accumulate)
        group = 1 if self.short else common.group_size(builder, _DOT_GROUP, size)
        functions = common.group_functions(builder, group, self.accumulate)
        kernel = builder.kernel(self._source(builder, functions + _DOTS, {"GROUP": group}), "dots")
        arguments = [*self._counts(builder), *self.arguments]
        count = self.batches * self.m * self.n
        if group == 1:
            common.launch_items(builder, kernel, count, arguments, grain=4)
        else:
            common.launch_groups(builder, kernel, count, arguments, group)

    def _emit_row(self, builder: PlanBuilder) -> None:
        shape = self._blocking(builder)
        defines = {**shape.defines(), "WIDE": self.row_width}
        kernel = builder.kernel(self._source(builder, self.row, defines, shape), "row")
        pieces = self.batches * common.ceil_div(self.m * self.n, self.row_width)
        arguments = [*self._counts(builder), *self.arguments]
        common.launch_items(builder, kernel, pieces, arguments, grain=4 if self.row_width == 1 else 1)

    def _emit_tiles(self, builder: PlanBuilder) -> None:
        defines = {"A_ALONG_K": int(self.a_along_k), "B_ALONG_K": int(self.b_along_k)}
        kernel = builder.kernel(self._source(builder, _TILES, defines), "multiply")
        tiles = self.batches * common.ceil_div(self.m, 64) * common.ceil_div(self.n, 64)
        common.launch_groups(builder, kernel, tiles, [*self._counts(builder), *self.arguments], _TILE_GROUP)

    def emit_blocked(self, builder: PlanBuilder) -> None:
        """Appends the steps for a CPU, whatever the shape."""
        if 0 in (common.static_int(self.batches), common.static_int(self.m), common.static_int(self.n)):
            return
        shape = self._blocking(builder)
        arguments, rows, in_place = list(self.arguments), None, self.a_in_place
        defines: dict[str, object] = {"A_PARAMETER": "", **shape.defines()}
        if not in_place or self.a_columns:
            rows = self._arrange(builder)
            arguments.insert(0, builder.pointer(rows))
            defines["A_PARAMETER"] = ", OB_GLOBAL const ITEM* a_rows"
            in_place = _ARRANGED
        text = self._source(builder, in_place + self.b_fill + shape.text(), defines, shape)
        n_panels = common.ceil_div(self.n, shape.columns)
        # Enough pieces for all compute units, but rows enough in each to be worth the filling of B's blocks.
        wanted = common.ceil_div(4 * COMPUTE_UNITS, common.larger(1, self.batches * n_panels))
        most = common.ceil_div(self.m, 4 * shape.rows)
        m_groups = common.larger(common.ceil_div(self.m, shape.group_rows), common.smaller(wanted, most))
        pieces = self.batches * m_groups * n_panels
        arguments = [*self._counts(builder), builder.int64(m_groups), *arguments]
        common.launch_items(builder, builder.kernel(text, "multiply"), pieces, arguments, grain=1)
        if rows is not None:
            builder.free(rows)

    def _arrange(self, builder: PlanBuilder) -> int:
        shape = self._blocking(builder)
        width = formats.item_size(self.half, self.accumulate)
        rows = builder.allocate(common.larger(width, self.batches * self.m * self.k * width))
        body = self.a_in_place + shape.transpose() + blocked.ARRANGE_COLUMNS if self.a_columns else blocked.ARRANGE
        kernel = builder.kernel(self._source(builder, body, shape.defines(), shape), "arrange")
        pieces = self.batches * common.ceil_div(self.m, 64) * common.ceil_div(self.k, builder.target.tuning.k_block)
        arguments = [builder.pointer(rows), *self._counts(builder), *self.arguments]
        common.launch_items(builder, kernel, pieces, arguments, grain=1)
        return rows


_ARRANGED = """
#define A_START(b, m) (a_rows + ((b) * m_count + (m)) * k_count)
#define A_ROW k_count
#define A_STEP 1
"""


def accumulator(dtype: torch.dtype) -> str:
    """The type in which products of ``dtype`` are summed: float for halves, long for integers."""
    if dtype.is_floating_point:
        return common.ELEMENT_TYPES[dtype].compute
    return "long"


def strided_operand(name: str, buffer: str, split: bool = False, bits: bool = False) -> str:
    """Macros of an operand that is a strided matrix with runtime or literal ``<name>_S_B/_O/_I`` strides.

    ``split``: k counts (batch, inner) pairs of ``<name>_N_I`` inner ones, and ``<name>_S_K`` is the batches' stride.
    ``bits``: its items are the bits of halves."""
    inner = f"(k) * {name}_S_I"
    if split:
        inner = f"(k) / {name}_N_I * {name}_S_K + (k) % {name}_N_I * {name}_S_I"
    return (
        f"#define {name}_OUTER_T long\n#define {name}_INNER_T long\n"
        f"#define {name}_SET_OUTER(v, b, i) v = (b) * {name}_S_B + (i) * {name}_S_O\n"
        f"#define {name}_SET_INNER(v, b, k) v = {inner}\n"
        f"#define {name}_AT(outer, inner) ((ACC){name}_LOAD({buffer}, (outer) + (inner)))\n"
        + (f"#define {name}_ITEM(outer, inner) ((OB_GLOBAL const ITEM*){buffer})[(outer) + (inner)]\n" if bits else "")
    )
