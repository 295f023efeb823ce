# SPDX-License-Identifier: Apache-2.0
"""What the kernels of attention for CPUs are made of: tiles, and products of rows in memory with tiles.

A *tile* is a small matrix in local memory, ``NR`` elements in a row, that is ``VECTORS`` vectors. Its columns are
queries (or, for the gradients, keys), so that the maximum and the sum of a softmax are sums of vectors, lane by lane.
Every product multiplies rows of elements that are broadcast, keys or values where they lie, with a tile whose rows are
read as vectors: the micro-kernel of ``blocked``, and no operand that is not a tile needs packing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ...dialects import c
from ...target import Target
from .. import blocked, common
from ..blocked import Blocking


def tile_space(target: Target, numbers: int, accumulate: str) -> str:
    """The address space for tiles of so many numbers in all: local memory, unless the device has too little of it."""
    return "OB_LOCAL" if numbers * common.compute_size(accumulate) <= target.local_memory else ""


def head(shape: Blocking, element: torch.dtype, mask: torch.dtype | None, in_place: bool) -> str:
    """Functions and macros that the kernels share; ``element`` is the dtype of queries, keys and values, ``in_place``
    tells whether their rows are multiplied where they lie."""
    prelude = c.Prelude()
    lanes, plain = shape.lanes, common.stored_as(element, shape.accumulate)
    loaded = "VLOAD(p)" if plain else c.load(prelude, "p", element, "0", lanes)
    stored = "VSTORE(p, value);" if plain else c.store(prelude, "p", element, "0", "value", lanes)
    macros = f"#define LOAD_VECTOR(p) {loaded}\n#define STORE_VECTOR(p, value) {stored}\n"
    if mask is not None:
        macros += f"#define HIDDEN_VECTOR(p) {_hidden_vector(prelude, shape, mask)}\n"
    text = (
        "".join(f"{snippet}\n" for snippet in prelude.snippets.values())
        + blocked.VECTORS
        + _NEAR
        + shape.transpose()
        + macros
    )
    text += _ROWS if not in_place else ""
    return text + (_POWER_OF_E if shape.accumulate == "float" else _EXACT) + _COLUMNS + (_HIDDEN if mask else "")


def _hidden_vector(prelude: c.Prelude, shape: Blocking, mask: torch.dtype) -> str:
    if mask == torch.bool:
        integer = "long" if shape.accumulate == "double" else "int"
        seen = f"convert_{integer}{shape.lanes}(vload{shape.lanes}(0, p)) != 0"
        return f"(({seen}) ? (VECTOR)(0) : (VECTOR)(-INFINITY))"
    if common.stored_as(mask, shape.accumulate):
        return "VLOAD(p)"
    return c.load(prelude, "p", mask, "0", shape.lanes)


def each(shape: Blocking, line: str) -> str:
    """A line for every vector of a tile's row, ``@`` being its number."""
    return "".join(line.replace("@", str(v)) + "\n" for v in range(shape.vectors))


def product(
    shape: Blocking,
    count: str,
    row: Callable[[int], str],
    step: str,
    tile: str,
    start: Callable[[int, int], str],
    finish: Callable[[int], Iterable[str]],
    pointer: str = "row_pointer_t",
) -> str:
    """Statements for ``ROWS`` rows of a product: ``c<r>_<v> = start(r, v) + sum over k < count of row(r)[k * step] *
    tile[k]``, then ``finish(r)`` for each row. ``row`` gives pointers, ``tile`` is one."""
    rows, vectors = range(shape.rows), range(shape.vectors)
    lines = [f"{pointer} a{r} = {row(r)};" for r in rows]
    lines += [f"VECTOR c{r}_{v} = {start(r, v)};" for r in rows for v in vectors]
    lines.append(f"for (long k = 0; k < {count}; ++k) {{")
    lines += [f"  const VECTOR b{v} = NEAR_VECTOR({tile} + k * NR + {v} * LANES);" for v in vectors]
    for r in rows:
        lines.append(f"  const VECTOR v{r} = (VECTOR)(a{r}[k * {step}]);")
        lines += [f"  c{r}_{v} = fma(v{r}, b{v}, c{r}_{v});" for v in vectors]
    lines.append("}")
    for r in rows:
        lines += finish(r)
    return "{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


#: Tiles, whatever their address space.
_NEAR = r"""
#undef LOCAL_VECTOR
#define LOCAL_VECTOR(p) NEAR_VECTOR(p)
#define NEAR_VECTOR(p) (*(NEAR VECTOR*)(p))
#define TILE(name, rows) NEAR ACC name[(rows) * NR] OB_ALIGNED(sizeof(VECTOR))
typedef ROW_SPACE const ACC* row_pointer_t;
"""

# By powers of two and a minimax polynomial for the rest. What would be less than an ordinary number is 0; NaN remains.
_POWER_OF_E = r"""
VECTOR power_of_e(VECTOR a) {
  const VECTOR base = (VECTOR)(1.44269504088896341f);
  const VECTOR shifted = fma(a, base, (VECTOR)(12582912.0f)), n = shifted - 12582912.0f, r = fma(a, base, -n);
  VECTOR p = fma((VECTOR)(0.00015353361959569156f), r, (VECTOR)(0.0013398875016719103f));
  p = fma(p, r, (VECTOR)(0.00961843691766262f));
  p = fma(p, r, (VECTOR)(0.055503323674201965f));
  p = fma(p, r, (VECTOR)(0.24022647738456726f));
  p = fma(p, r, (VECTOR)(0.6931471824645996f));
  p = fma(p, r, (VECTOR)(1.0f));
  const LANE_MASK power = (AS_LANE_MASK(shifted) << 23) + 0x3f800000;
  return a < (VECTOR)(-87.0f) ? (VECTOR)(0) : p * AS_VECTOR(power);
}
"""
_EXACT = r"""
VECTOR power_of_e(VECTOR a) { return exp(a); }
"""

#: Rows as the products read them, where they do not lie so in memory.
_ROWS = r"""
#define WHOLE(width) (((width) + LANES - 1) / LANES * LANES)
void load_rows(NEAR ACC* rows, OB_GLOBAL const IN_T* from, long step, long e_step, int count, long width) {
  for (int j = 0; j < count; ++j) {
    NEAR ACC* row = rows + j * WHOLE(width);
    long e = 0;
    if (e_step == 1)
      for (; e + LANES <= width; e += LANES) NEAR_VECTOR(row + e) = LOAD_VECTOR((from + j * step + e));
    for (; e < width; ++e) row[e] = (ACC)IN_LOAD(from, j * step + e * e_step);
  }
}
"""

#: Between rows in memory and the columns of tiles. Where there are fewer rows than lanes, the last one is repeated.
_COLUMNS = r"""
#define LANE_ROW(l) (LOAD_VECTOR((from + LEAST(v + (l), lanes - 1) * step + e)) * factor)
void load_columns(NEAR ACC* tile, OB_GLOBAL const IN_T* from, long step, long e_step, int lanes, long width,
                            ACC factor) {
  ROLLED for (int v = 0; v < NR; v += LANES) {
    long e = 0;
    if (e_step == 1) {
      for (; e + LANES <= width; e += LANES) TRANSPOSE(tile + e * NR + v, LANE_ROW)
    }
    for (; e < width; ++e)
      for (int l = 0; l < LANES; ++l)
        tile[e * NR + v + l] = (ACC)IN_LOAD(from, LEAST(v + l, lanes - 1) * step + e * e_step) * factor;
  }
}

/* Each column times its factor; the tile is used up. */
#define TILE_ROW(i) (NEAR_VECTOR(tile + (e + (i)) * NR + v) * factor)
void store_columns(NEAR ACC* tile, OB_GLOBAL IN_T* to, long step, long e_step, int lanes, long width,
                             NEAR const ACC* factors) {
  ROLLED for (int v = 0; v < NR; v += LANES) {
    const VECTOR factor = *(NEAR const VECTOR*)(factors + v);
    const int rows = LEAST(lanes - v, LANES);
    long e = 0;
    if (e_step == 1) {
      for (; e + LANES <= width; e += LANES) {
        TRANSPOSE(tile + e * NR + v, TILE_ROW)
        for (int l = 0; l < rows; ++l) {
          const VECTOR value = NEAR_VECTOR(tile + (e + l) * NR + v);
          OB_GLOBAL IN_T* p = to + (v + l) * step + e;
          STORE_VECTOR(p, value)
        }
      }
    }
    for (; e < width; ++e)
      for (int l = 0; l < rows; ++l)
        IN_STORE(to, (v + l) * step + e * e_step, tile[e * NR + v + l] * factors[v + l]);
  }
}
"""

#: What a mask adds to scores, as a tile.
_HIDDEN = r"""
#if MASK == 1
#define HIDDEN(i) (from[i] ? (ACC)0 : (ACC)-INFINITY)
#else
#define HIDDEN(i) ((ACC)MASK_LOAD(from, i))
#endif
#define HIDDEN_ROW(l) HIDDEN_VECTOR((from + LEAST(v + (l), lanes - 1) * lane_step + r))
void load_hidden(NEAR ACC* tile, OB_GLOBAL const MASK_T* from, long row_step, long lane_step, int rows,
                           int lanes) {
  if (lane_step == 0) {
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < NR; v += LANES) NEAR_VECTOR(tile + r * NR + v) = (VECTOR)(HIDDEN(r * row_step));
    return;
  }
  if (lane_step == 1 && lanes == NR) {
    for (int r = 0; r < rows; ++r)
      for (int v = 0; v < NR; v += LANES) NEAR_VECTOR(tile + r * NR + v) = HIDDEN_VECTOR((from + r * row_step + v));
    return;
  }
  ROLLED for (int v = 0; v < NR; v += LANES) {
    int r = 0;
    if (row_step == 1) {
      for (; r + LANES <= rows; r += LANES) TRANSPOSE(tile + r * NR + v, HIDDEN_ROW)
    }
    for (; r < rows; ++r)
      for (int l = 0; l < LANES; ++l)
        tile[r * NR + v + l] = HIDDEN(r * row_step + LEAST(v + l, lanes - 1) * lane_step);
  }
}
"""
