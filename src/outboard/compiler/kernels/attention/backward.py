# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention on CPUs. A piece of work is one head of keys and values, or, where there are few heads, some
of its keys. It walks them in tiles and, for each tile, all queries in blocks, whose weights it computes again from the
logarithms of their sums. No two pieces write to one place: each has its own sum of the queries' gradient, and a second
kernel adds these in order."""

from __future__ import annotations

from ..blocked import Blocking
from . import tiles

#: Queries in a block.
QUERIES = 64

_SUM_PRODUCTS = r"""
/* The product of gradient and result of each query, summed. */
OB_KERNEL void sum_products(OB_GLOBAL const IN_T* grad, OB_GLOBAL const IN_T* out, OB_GLOBAL ACC* products PARAMETERS) {
  ALL_SEQUENCES
  OB_FOR(row, QUERY_ROWS) {
    const long i = row % queries, h = row / queries % heads, b = row / queries / heads;
    OB_GLOBAL const IN_T* left = grad + GRAD_ROW(i);
    OB_GLOBAL const IN_T* right = out + OUT_ROW(i);
    VECTOR sum = (VECTOR)(0);
    long e = 0;
    if (grad_e == 1 && out_e == 1)
      for (; e + LANES <= value_width; e += LANES) sum += LOAD_VECTOR((left + e)) * LOAD_VECTOR((right + e));
    ACC total = sum_lanes(sum);
    for (; e < value_width; ++e) total += (ACC)IN_LOAD(left, e * grad_e) * (ACC)IN_LOAD(right, e * out_e);
    products[row] = total;
  }
}
"""

_GRADIENTS = r"""
#define PADDED ((width + NR - 1) / NR * NR)
/* Keys as rows, in panels of NR columns, filled up with zeros. */
void load_panels(NEAR ACC* panels, OB_GLOBAL const IN_T* from, long step, long e_step, int lanes,
                           long width) {
  for (long e0 = 0; e0 < width; e0 += NR)
    for (int j = 0; j < lanes; ++j) {
      NEAR ACC* to = panels + e0 * NR + j * NR;
      OB_GLOBAL const IN_T* row = from + j * step;
      if (e_step == 1 && e0 + NR <= width) {
        for (int v = 0; v < NR; v += LANES) NEAR_VECTOR(to + v) = LOAD_VECTOR((row + e0 + v));
      } else {
        for (int e = 0; e < NR; ++e) to[e] = e0 + e < width ? (ACC)IN_LOAD(row, (e0 + e) * e_step) : (ACC)0;
      }
    }
}

OB_GROUP_OF(1, 1, 1)
OB_KERNEL void gradients(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                         OB_GLOBAL const MASK_T* mask, OB_GLOBAL const IN_T* grad, OB_GLOBAL const LSE_T* lse,
                         OB_GLOBAL const ACC* products, OB_GLOBAL ACC* query_sums, OB_GLOBAL IN_T* of_key,
                         OB_GLOBAL IN_T* of_value, const long parts PARAMETERS) {
  TILE(key_tile, MAX_WIDTH);
  TILE(value_tile, MAX_WIDTH);
  TILE(key_panels, MAX_WIDTH);
  TILE(key_sums, MAX_WIDTH + ROWS);
  TILE(value_sums, MAX_WIDTH + ROWS);
  TILE(weights, QUERIES + ROWS);
  TILE(slopes, QUERIES + ROWS);
  TILE(factors, 1);
#if MASK
  TILE(hidden, QUERIES + ROWS);
#endif
#if !IN_PLACE
  NEAR ACC query_rows[QUERIES * MAX_WIDTH] OB_ALIGNED(sizeof(VECTOR));
  NEAR ACC grad_rows[QUERIES * MAX_WIDTH] OB_ALIGNED(sizeof(VECTOR));
#endif
  const LANE_MASK numbers = (LANE_MASK)(LANE_NUMBERS);
  const long key_heads = heads / share;
  OB_FOR(piece, batches * key_heads * parts) {
    const long part = piece % parts, key_head = piece / parts % key_heads, b = piece / parts / key_heads;
    SEQUENCE(b)
    const long tiles = (keys + NR - 1) / NR;
    const long tile_from = tiles * part / parts, tile_to = tiles * (part + 1) / parts;
    if (tile_from == tile_to)
      for (long h = key_head * share; h < (key_head + 1) * share; ++h) {
        OB_GLOBAL ACC* sums = query_sums + (part * QUERY_ROWS + QUERY_ROW(0)) * PADDED;
        for (long e = 0; e < queries * PADDED; e += LANES) VSTORE(sums + e, (VECTOR)(0));
      }
    for (long tile = tile_from; tile < tile_to; ++tile) {
      const long first = tile * NR;
      const int lanes = (int)LEAST(keys - first, (long)NR);
      {
        const long h = key_head * share;
        load_columns(key_tile, key + K_ROW(first), k_l, k_e, lanes, width, scale);
        load_columns(value_tile, value + V_ROW(first), v_l, v_e, lanes, value_width, 1);
        load_panels(key_panels, key + K_ROW(first), k_l, k_e, lanes, width);
      }
      for (long e = 0; e < width; ++e)
        for (int v = 0; v < NR; v += LANES) NEAR_VECTOR(key_sums + e * NR + v) = (VECTOR)(0);
      for (long e = 0; e < value_width; ++e)
        for (int v = 0; v < NR; v += LANES) NEAR_VECTOR(value_sums + e * NR + v) = (VECTOR)(0);
      for (long h = key_head * share; h < (key_head + 1) * share; ++h) {
        const long begin = causal ? LEAST(first, queries) : 0;
        OB_GLOBAL ACC* sums = query_sums + (part * QUERY_ROWS + QUERY_ROW(0)) * PADDED;
        if (tile == tile_from)
          for (long e = 0; e < begin * PADDED; e += LANES) VSTORE(sums + e, (VECTOR)(0));
        for (long start = begin; start < queries; start += QUERIES) {
          const int count = (int)LEAST(queries - start, (long)QUERIES);
#if IN_PLACE
          const row_pointer_t query_from = query + Q_ROW(start), grad_from = grad + GRAD_ROW(start);
          const long query_step = q_l, grad_step = grad_l;
#else
          const row_pointer_t query_from = query_rows, grad_from = grad_rows;
          const long query_step = WHOLE(width), grad_step = WHOLE(value_width);
          load_rows(query_rows, query + Q_ROW(start), q_l, q_e, count, width);
          load_rows(grad_rows, grad + GRAD_ROW(start), grad_l, grad_e, count, value_width);
#endif
#if MASK
          load_hidden(hidden, mask + b * mask_b + h * mask_h + start * mask_l + first * mask_s, mask_l, mask_s, count,
                      lanes);
#endif
          for (int i = 0; i < count; i += ROWS) {
            const int hiding = causal && start + i < first + NR;
@WEIGHTS@
@SLOPES@
          }
          for (long e = 0; e < value_width; e += ROWS) {
@OF_VALUE@
          }
          for (long e = 0; e < width; e += ROWS) {
@OF_KEY@
          }
          for (int i = 0; i < count; i += ROWS) {
            OB_GLOBAL ACC* sum = sums + (start + i) * PADDED;
            for (long e = 0; e < width; e += NR) {
@OF_QUERY@
            }
          }
        }
      }
      const long h = key_head;
      for (int v = 0; v < NR; v += LANES) NEAR_VECTOR(factors + v) = (VECTOR)(1);
      store_columns(value_sums, of_value + OF_VALUE_ROW(first), of_value_l, of_value_e, lanes, value_width, factors);
      for (int v = 0; v < NR; v += LANES) NEAR_VECTOR(factors + v) = (VECTOR)(scale);
      store_columns(key_sums, of_key + OF_KEY_ROW(first), of_key_l, of_key_e, lanes, width, factors);
    }
  }
  CLEAR_OUTSIDE_KEYS
}

/* Adds the parts of the queries' gradient. */
OB_KERNEL void query_gradient(OB_GLOBAL const ACC* query_sums, OB_GLOBAL IN_T* result, const long parts PARAMETERS) {
  const long rows = QUERY_ROWS;
  ALL_SEQUENCES
  OB_FOR(row, rows) {
    const long i = row % queries, h = row / queries % heads, b = row / queries / heads;
    OB_GLOBAL const ACC* sums = query_sums + row * PADDED;
    OB_GLOBAL IN_T* to = result + RESULT_ROW(i);
    long e = 0;
    if (result_e == 1)
      for (; e + LANES <= width; e += LANES) {
        VECTOR value = VLOAD(sums + e);
        for (long part = 1; part < parts; ++part) value += VLOAD(sums + part * rows * PADDED + e);
        value *= (VECTOR)(scale);
        OB_GLOBAL IN_T* p = to + e;
        STORE_VECTOR(p, value)
      }
    for (; e < width; ++e) {
      ACC value = sums[e];
      for (long part = 1; part < parts; ++part) value += sums[part * rows * PADDED + e];
      IN_STORE(to, e * result_e, value * scale);
    }
  }
  CLEAR_OUTSIDE_RESULT
}
"""


def numbers(most_width: int, shape: Blocking) -> int:
    """How many numbers the kernels' tiles hold at most."""
    return shape.columns * (5 * most_width + 3 * QUERIES + 8 * shape.rows) + 2 * QUERIES * most_width


def text(shape: Blocking) -> str:
    """The kernels ``sum_products``, ``gradients`` and ``query_gradient``."""
    vectors = range(shape.vectors)
    row_of = "(i + {0} < count ? i + {0} : count - 1)"
    at = "NEAR_VECTOR({} + ({} + {}) * NR + {} * LANES)"

    def weights(r: int) -> list[str]:
        row = row_of.format(r)
        lines = [
            f"const ACC lse{r} = LSE_AT(start + {row});",
            # A query that may look at nothing subtracts 0, not -inf.
            f"const VECTOR base{r} = (VECTOR)(lse{r} == (ACC)-INFINITY ? (ACC)0 : lse{r});",
        ]
        for v in vectors:
            name = f"c{r}_{v}"
            lines.append(f"#if MASK\n{name} += NEAR_VECTOR(hidden + {row} * NR + {v} * LANES);\n#endif")
            later = f"numbers > (LANE_MASK)((int)(start - first) + {row} - {v} * LANES)"
            lines.append(f"if (hiding) {name} = {later} ? (VECTOR)(-INFINITY) : {name};")
            lines.append(f"{at.format('weights', 'i', r, v)} = power_of_e({name} - base{r});")
        return lines

    def slopes(r: int) -> list[str]:
        lines = [f"const VECTOR mean{r} = (VECTOR)(products[QUERY_ROW(start + {row_of.format(r)})]);"]
        for v in vectors:
            weight = at.format("weights", "i", r, v)
            lines.append(f"{at.format('slopes', 'i', r, v)} = {weight} * (c{r}_{v} - mean{r});")
        return lines

    def add(name: str, width: str, rows: str, tile: str) -> str:
        return tiles.product(
            shape, "count", lambda r: f"{rows}_from + LEAST(e + {r}, {width} - 1)", f"{rows}_step", tile,
            lambda r, v: at.format(name, "e", r, v),
            lambda r: [f"{at.format(name, 'e', r, v)} = c{r}_{v};" for v in vectors],
        )  # fmt: skip

    def sum_at(r: int, v: int) -> str:
        return f"sum + {r} * PADDED + e + {v} * LANES"

    def zero(r: int, v: int) -> str:
        return "(VECTOR)(0)"

    parts = {
        "WEIGHTS": tiles.product(
            shape, "width", lambda r: f"query_from + {row_of.format(r)} * query_step", "1", "key_tile", zero, weights
        ),
        "SLOPES": tiles.product(
            shape, "value_width", lambda r: f"grad_from + {row_of.format(r)} * grad_step", "1", "value_tile", zero,
            slopes,
        ),
        "OF_VALUE": add("value_sums", "value_width", "grad", "weights"),
        "OF_KEY": add("key_sums", "width", "query", "slopes"),
        "OF_QUERY": tiles.product(
            shape, "lanes", lambda r: f"slopes + (i + {r}) * NR", "1", "key_panels + e * NR",
            lambda r, v: f"tile == tile_from || i + {r} >= count ? (VECTOR)(0) : VLOAD({sum_at(r, v)})",
            lambda r: [f"if (i + {r} < count) VSTORE({sum_at(r, v)}, c{r}_{v});" for v in vectors],
            pointer="NEAR const ACC*",
        ),
    }  # fmt: skip
    result = shape.sum_lanes() + _SUM_PRODUCTS + _GRADIENTS
    for name, part in parts.items():
        result = result.replace(f"@{name}@\n", part)
    return result
