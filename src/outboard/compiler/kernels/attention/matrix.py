# SPDX-License-Identifier: Apache-2.0
"""Attention of halves by matrix units, after Dao, "FlashAttention-2" (2023): a sub-group of 32 work-items multiplies
matrices of 16 x 16 and 16 x 8 halves and adds to float32, by words of the dialect (``docs/dialects.md``).

A group of four sub-groups has 64 rows, each sub-group 16 of them, and walks the other side in tiles of rows in local
memory. What the units multiply, and what they make, stays in registers.
"""

from __future__ import annotations

import sympy
import torch

from .problem import Problem
from .simt import SUM_PRODUCTS, filled

#: Work-items of a group, and rows that they have.
GROUP, ROWS = 128, 64
#: Widths of heads.
WIDTHS = tuple(range(16, 129, 16))
_SUB_GROUP, _LOCAL_BYTES = 32, 48 << 10


def has_units(problem: Problem) -> bool:
    """Whether the device has units for the problem's dtype, and groups that can use them."""
    target = problem.builder.target
    halves = problem.query.dtype in (torch.float16, torch.bfloat16)
    sizes = target.sub_group_size == _SUB_GROUP and target.max_work_group_size >= GROUP
    return halves and target.matrix_units and sizes and target.local_memory >= _LOCAL_BYTES


def is_width(problem: Problem, width: int) -> sympy.Basic:
    """The condition that heads of queries, keys and values are so wide."""
    return sympy.And(*(sympy.Eq(tensor.sizes[3], width) for tensor in (problem.query, problem.value)))


def defines(problem: Problem, width: int, forward: bool) -> dict[str, object]:
    """The macros of the kernels' texts. Tiles are as large as registers and local memory allow."""
    name = "half" if problem.query.dtype == torch.float16 else "bfloat16"
    narrow = width <= 64
    queries = 32 if narrow else 16
    staged = (2 * ROWS + 2 * 2 * queries) * (width + 8) * 2 + 2 * 2 * queries * 4
    return {
        "WIDTH": width,
        "ROWS": ROWS,
        "GROUP": GROUP,
        "KEYS": 64 if narrow and forward else 32,
        "QUERIES": queries,
        "STAGES": 2 if staged <= _LOCAL_BYTES else 1,
        "MULTIPLY_ADD": f"ob_multiply_{name}",
        "PACK": f"ob_pack_{name}",
    }


_MATRICES = r"""
/* Rows of halves in local memory, 16 bytes apart, by which eight rows beside each other lie in different banks. */
#define PITCH (WIDTH + 8)
#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f
#define FOR(n, count) OB_UNROLL(64) for (int n = 0; n < (count); ++n)
#define FOR_TILES(n, count) for (long n = OB_GROUP_ID(0); n < (count); n += OB_GROUP_COUNT(0))

/* `rows` rows are on their way to a tile, from row `count` on zeros, until ob_copied and a barrier. QUADS items have a
   row, or rather as many as the next power of two. */
#define QUADS (WIDTH <= 16 ? 2 : WIDTH <= 32 ? 4 : WIDTH <= 64 ? 8 : 16)
#define LOAD_TILE(tile, rows, from, step, e_step, count)                                                          \
  {                                                                                                               \
    const int e = OB_LOCAL_ID(0) % QUADS * 8, wide = (e_step) == 1 && (step) % 8 == 0 && (ulong)(from) % 16 == 0; \
    int row = OB_LOCAL_ID(0) / QUADS;                                                                             \
    OB_GLOBAL const ushort* p = (OB_GLOBAL const ushort*)(from) + row * (step) + e * (e_step);                    \
    OB_LOCAL ushort* place = (tile) + row * PITCH + e;                                                            \
    if (e < WIDTH) OB_UNROLL(1) for (; row < (rows); row += GROUP / QUADS) {                                      \
      if (row < (count) && wide) {                                                                                \
        ob_copy_16(place, p);                                                                                     \
      } else {                                                                                                    \
        FOR(y, 8) place[y] = row < (count) ? p[y * (e_step)] : 0;                                                 \
      }                                                                                                           \
      p += GROUP / QUADS * (step);                                                                                \
      place += GROUP / QUADS * PITCH;                                                                             \
    }                                                                                                             \
  }

/* The 16 x 16 matrix of a tile that begins in this row and column, as a first matrix. */
#define LOAD_LEFT(to, tile, row, column) \
  ob_load_matrices(to, (tile) + ((row) + lane % 16) * PITCH + (column) + lane / 16 * 8);
#define MULTIPLY(sum, left, first, second)                                                \
  {                                                                                       \
    const uint bits[6] = {(left)[0], (left)[1], (left)[2], (left)[3], (first), (second)}; \
    MULTIPLY_ADD(sum, bits);                                                              \
  }
/* sum, 16 x 8 * count, += left * transpose of 8 * count rows of a tile, from this column on. */
#define ADD_ROWS(sum, left, tile, column, count)                                                             \
  FOR(n, (count) / 2) {                                                                                      \
    uint x[4];                                                                                               \
    ob_load_matrices(x, (tile) + (n * 16 + lane % 8 + lane / 16 * 8) * PITCH + (column) + lane / 8 % 2 * 8); \
    MULTIPLY((sum)[2 * n], left, x[0], x[1])                                                                 \
    MULTIPLY((sum)[2 * n + 1], left, x[2], x[3])                                                             \
  }
/* sum, 16 x WIDTH, += numbers * tile; `numbers`, 16 x `rows`, lie as products do, and are rounded. */
#define ADD_MIXED(sum, numbers, tile, rows)                                                                    \
  FOR(k, (rows) / 16) {                                                                                        \
    const uint left[4] = {PACK((numbers)[2 * k][0], (numbers)[2 * k][1]),                                      \
                          PACK((numbers)[2 * k][2], (numbers)[2 * k][3]),                                      \
                          PACK((numbers)[2 * k + 1][0], (numbers)[2 * k + 1][1]),                              \
                          PACK((numbers)[2 * k + 1][2], (numbers)[2 * k + 1][3])};                             \
    FOR(n, WIDTH / 16) {                                                                                       \
      uint x[4];                                                                                               \
      ob_load_transposed(x, (tile) + (k * 16 + lane % 8 + lane / 8 % 2 * 8) * PITCH + n * 16 + lane / 16 * 8); \
      MULTIPLY((sum)[2 * n], left, x[0], x[1])                                                                 \
      MULTIPLY((sum)[2 * n + 1], left, x[2], x[3])                                                             \
    }                                                                                                          \
  }
/* Which row and column of such a sum an item's number `c` of block `n` is. */
#define ROW_OF(c) (warp * 16 + lane / 4 + (c) / 2 * 8)
#define COLUMN_OF(n, c) ((n) * 8 + lane % 4 * 2 + (c) % 2)
#define CLEAR_SUM(sum, count) FOR(n, count) FOR(c, 4) (sum)[n][c] = 0;
/* Scores times log2(e), those hidden -inf. What is not yet `count` or `is_later` is visible; `hides` tells whether the
   causal mask may hide any of the sub-group's. */
#define SCALE_SCORES(score, columns, count, hides, is_later, i, j)                                        \
  if (MASK || (count) < (columns) || (causal && (hides))) {                                               \
    FOR(n, (columns) / 8) FOR(c, 4) {                                                                     \
      const int row = ROW_OF(c), column = COLUMN_OF(n, c);                                                \
      const float s = (score)[n][c] * scale;                                                              \
      (score)[n][c] = column < (count) && !(causal && (is_later)) ? MASKED(s, i, j) * LOG2_E : -INFINITY; \
    }                                                                                                     \
  } else {                                                                                                \
    FOR(n, (columns) / 8) FOR(c, 4) (score)[n][c] *= scale * LOG2_E;                                      \
  }
/* Two stages of keys and values: while one is computed with, the next is on its way. Columns of scores are keys. */
#define STAGE (2 * KEYS * PITCH)
#define LOAD_KEYS(stage, from)                                                \
  {                                                                           \
    OB_LOCAL ushort* const to = tile + (stage) * STAGE;                       \
    const int coming = (int)LEAST(end - (from), (long)KEYS);                  \
    LOAD_TILE(to, KEYS, key + K_ROW(from), k_l, k_e, coming)                  \
    LOAD_TILE(to + KEYS * PITCH, KEYS, value + V_ROW(from), v_l, v_e, coming) \
  }
#define FOR_KEYS(start, stage) \
  for (long start = 0, stage = 0; start < end; start += KEYS, stage ^= 1)
#define NEXT_KEYS(start, stage) \
  ob_copied();                  \
  OB_BARRIER();                 \
  if (start + KEYS < end) LOAD_KEYS(stage ^ 1, start + KEYS)
#define SCALE_SCORES_OF_KEYS(score)                                                                \
  SCALE_SCORES(score, KEYS, (int)LEAST(end - start, (long)KEYS), start + KEYS > first + warp * 16, \
               column > row + (int)(first - start), LEAST(first + row, queries - 1), start + column)
/* The four items that have a row of a sum. */
#define OF_ROW(function, value)                                          \
  {                                                                      \
    value = function(value, OB_SHUFFLE(value, OB_SUB_GROUP_ITEM() ^ 1)); \
    value = function(value, OB_SHUFFLE(value, OB_SUB_GROUP_ITEM() ^ 2)); \
  }
#define ADDED(a, b) ((a) + (b))
/* Two elements beside each other, of column COLUMN_OF(n, 0). */
#define STORE_PAIR(to, row, e_step, n, first, second)         \
  {                                                           \
    const long place = (row) + COLUMN_OF(n, 0) * (e_step);    \
    if ((e_step) == 1 && (ulong)((to) + place) % 4 == 0) {    \
      *(OB_GLOBAL uint*)((to) + place) = PACK(first, second); \
    } else {                                                  \
      IN_STORE(to, place, first);                             \
      IN_STORE(to, place + (e_step), second);                 \
    }                                                         \
  }
"""

#: Rows of queries of a head, 16 of each sub-group; closed by the kernel.
_QUERIES = r"""
  OB_SHARED ushort tile[2 * STAGE] OB_ALIGNED(16);
  const int warp = OB_LOCAL_ID(0) / 32, lane = OB_LOCAL_ID(0) % 32;
  const long tiles = (most_queries + ROWS - 1) / ROWS;
  FOR_TILES(piece, batches * heads * tiles) {
    /* Causal: the longest first. */
    const long first = (tiles - 1 - piece % tiles) * ROWS, h = piece / tiles % heads, b = piece / tiles / heads;
    SEQUENCE(b)
    if (first >= queries) continue;
    const long last = LEAST(first + ROWS, queries), end = causal ? LEAST(last, keys) : keys;
"""


FORWARD = filled(
    _MATRICES
    + r"""
OB_KERNEL void attend(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                      OB_GLOBAL const MASK_T* mask, OB_GLOBAL IN_T* out, OB_GLOBAL LSE_T* lse PARAMETERS) {
@QUERIES@
    uint q[WIDTH / 16][4];
    OB_BARRIER();
    LOAD_TILE(tile + STAGE, ROWS, query + Q_ROW(first), q_l, q_e, (int)(last - first))
    LOAD_KEYS(0, 0)
    ob_copied();
    OB_BARRIER();
    FOR(k, WIDTH / 16) LOAD_LEFT(q[k], tile + STAGE, warp * 16, k * 16)
    float sum[WIDTH / 8][4], most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    CLEAR_SUM(sum, WIDTH / 8)
    FOR_KEYS(start, stage) {
      OB_LOCAL ushort* const now = tile + stage * STAGE;
      NEXT_KEYS(start, stage)
      float score[KEYS / 8][4];
      CLEAR_SUM(score, KEYS / 8)
      FOR(k, WIDTH / 16) ADD_ROWS(score, q[k], now, k * 16, KEYS / 8)
      SCALE_SCORES_OF_KEYS(score)
      FOR(r, 2) {
        float peak = most[r];
        FOR(n, KEYS / 8) peak = fmax(peak, fmax(score[n][2 * r], score[n][2 * r + 1]));
        OF_ROW(fmax, peak)
        /* A query that may look at nothing yet subtracts 0, not -inf. */
        const float base = peak == -INFINITY ? 0.0f : peak, shrink = ob_power_of_two(most[r] - base);
        most[r] = peak;
        total[r] *= shrink;
        FOR(n, KEYS / 8) FOR(c, 2) {
          score[n][2 * r + c] = ob_power_of_two(score[n][2 * r + c] - base);
          total[r] += score[n][2 * r + c];
        }
        FOR(n, WIDTH / 8) FOR(c, 2) sum[n][2 * r + c] *= shrink;
      }
      ADD_MIXED(sum, score, now + KEYS * PITCH, KEYS)
    }
    FOR(r, 2) {
      const long i = first + ROW_OF(2 * r);
      OF_ROW(ADDED, total[r])
      const float inverse = total[r] == 0 ? 0.0f : 1 / total[r];
      if (i < queries) {
        FOR(n, WIDTH / 8)
          STORE_PAIR(out, OUT_ROW(i), out_e, n, sum[n][2 * r] * inverse, sum[n][2 * r + 1] * inverse)
        if (lane % 4 == 0) lse[LSE_PLACE(i)] = (LSE_T)(most[r] * LN_2 + log(total[r]));
      }
    }
  }
  CLEAR_OUTSIDE_QUERIES
}
""",
    QUERIES=_QUERIES,
)

BACKWARD = filled(
    _MATRICES
    + SUM_PRODUCTS
    + r"""
/* What the scores of a query are relative to: 0 where it may look at nothing. */
#define BASE_AT(i) (LSE_AT(i) == -INFINITY ? 0.0f : LSE_AT(i) * LOG2_E)

OB_KERNEL void query_gradient(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                              OB_GLOBAL const MASK_T* mask, OB_GLOBAL const IN_T* grad, OB_GLOBAL const LSE_T* lse,
                              OB_GLOBAL const ACC* products, OB_GLOBAL IN_T* result PARAMETERS) {
@QUERIES@
    uint q[WIDTH / 16][4], g[WIDTH / 16][4];
    OB_BARRIER();
    LOAD_TILE(tile, ROWS, query + Q_ROW(first), q_l, q_e, (int)(last - first))
    LOAD_TILE(tile + STAGE, ROWS, grad + GRAD_ROW(first), grad_l, grad_e, (int)(last - first))
    ob_copied();
    OB_BARRIER();
    FOR(k, WIDTH / 16) {
      LOAD_LEFT(q[k], tile, warp * 16, k * 16)
      LOAD_LEFT(g[k], tile + STAGE, warp * 16, k * 16)
    }
    float sum[WIDTH / 8][4], base[2], product[2];
    CLEAR_SUM(sum, WIDTH / 8)
    FOR(r, 2) {
      const long i = LEAST(first + ROW_OF(2 * r), queries - 1);
      base[r] = BASE_AT(i);
      product[r] = PRODUCT_AT(i);
    }
    OB_BARRIER();
    LOAD_KEYS(0, 0)
    FOR_KEYS(start, stage) {
      OB_LOCAL ushort* const now = tile + stage * STAGE;
      NEXT_KEYS(start, stage)
      float score[KEYS / 8][4], change[KEYS / 8][4];
      CLEAR_SUM(score, KEYS / 8)
      CLEAR_SUM(change, KEYS / 8)
      FOR(k, WIDTH / 16) {
        ADD_ROWS(score, q[k], now, k * 16, KEYS / 8)
        ADD_ROWS(change, g[k], now + KEYS * PITCH, k * 16, KEYS / 8)
      }
      SCALE_SCORES_OF_KEYS(score)
      FOR(n, KEYS / 8) FOR(c, 4)
        score[n][c] = ob_power_of_two(score[n][c] - base[c / 2]) * (change[n][c] - product[c / 2]);
      ADD_MIXED(sum, score, now, KEYS)
    }
    FOR(r, 2) {
      const long i = first + ROW_OF(2 * r);
      if (i < queries) FOR(n, WIDTH / 8)
        STORE_PAIR(result, RESULT_ROW(i), result_e, n, sum[n][2 * r] * scale, sum[n][2 * r + 1] * scale)
    }
    /* A tile of no keys was asked for. */
    ob_copied();
  }
  CLEAR_OUTSIDE_RESULT
}

/* Queries and their gradients on their way to a stage; the numbers of each query wait in registers. */
#define LOAD_QUERIES(stage, step)                                                              \
  {                                                                                            \
    const long h = key_head * share + (step) / steps, from = begin + (step) % steps * QUERIES; \
    const int coming = (int)LEAST(queries - from, (long)QUERIES);                              \
    OB_LOCAL ushort* const to = query_tile + (stage) * 2 * QUERIES * PITCH;                    \
    LOAD_TILE(to, QUERIES, query + Q_ROW(from), q_l, q_e, coming)                              \
    LOAD_TILE(to + QUERIES * PITCH, QUERIES, grad + GRAD_ROW(from), grad_l, grad_e, coming)    \
    if (OB_LOCAL_ID(0) < coming) {                                                             \
      next_base = BASE_AT(from + OB_LOCAL_ID(0));                                              \
      next_product = PRODUCT_AT(from + OB_LOCAL_ID(0));                                        \
    }                                                                                          \
  }

OB_KERNEL void key_gradients(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                             OB_GLOBAL const MASK_T* mask, OB_GLOBAL const IN_T* grad, OB_GLOBAL const LSE_T* lse,
                             OB_GLOBAL const ACC* products, OB_GLOBAL IN_T* of_key, OB_GLOBAL IN_T* of_value
                             PARAMETERS) {
  OB_SHARED ushort key_tile[ROWS * PITCH] OB_ALIGNED(16);
  OB_SHARED ushort value_tile[ROWS * PITCH] OB_ALIGNED(16);
  OB_SHARED ushort query_tile[STAGES * 2 * QUERIES * PITCH] OB_ALIGNED(16);
  OB_SHARED float base[STAGES][QUERIES];
  OB_SHARED float product[STAGES][QUERIES];
  const int warp = OB_LOCAL_ID(0) / 32, lane = OB_LOCAL_ID(0) % 32;
  const long key_heads = heads / share, tiles = (most_keys + ROWS - 1) / ROWS;
  FOR_TILES(piece, batches * key_heads * tiles) {
    const long first = piece % tiles * ROWS, key_head = piece / tiles % key_heads, b = piece / tiles / key_heads;
    SEQUENCE(b)
    if (first >= keys) continue;
    const long begin = causal ? LEAST(first, queries) : 0;
    const int steps = (int)((queries - begin + QUERIES - 1) / QUERIES), all_steps = steps * (int)share;
    float next_base = 0, next_product = 0;
    OB_BARRIER();
    {
      const long h = key_head * share;
      const int coming = (int)LEAST(keys - first, (long)ROWS);
      LOAD_TILE(key_tile, ROWS, key + K_ROW(first), k_l, k_e, coming)
      LOAD_TILE(value_tile, ROWS, value + V_ROW(first), v_l, v_e, coming)
    }
    if (all_steps > 0) LOAD_QUERIES(0, 0)
    float k_sum[WIDTH / 8][4], v_sum[WIDTH / 8][4];
    CLEAR_SUM(k_sum, WIDTH / 8)
    CLEAR_SUM(v_sum, WIDTH / 8)
    for (int step = 0; step < all_steps; ++step) {
      const int stage = step % STAGES;
      OB_LOCAL ushort* const now = query_tile + stage * 2 * QUERIES * PITCH;
      ob_copied();
      if (OB_LOCAL_ID(0) < QUERIES) {
        base[stage][OB_LOCAL_ID(0)] = next_base;
        product[stage][OB_LOCAL_ID(0)] = next_product;
      }
      OB_BARRIER();
      if (STAGES == 2 && step + 1 < all_steps) LOAD_QUERIES(stage ^ 1, step + 1)
      float weight[QUERIES / 8][4], slope[QUERIES / 8][4];
      CLEAR_SUM(weight, QUERIES / 8)
      CLEAR_SUM(slope, QUERIES / 8)
      FOR(k, WIDTH / 16) {
        uint left[4];
        LOAD_LEFT(left, key_tile, warp * 16, k * 16)
        ADD_ROWS(weight, left, now, k * 16, QUERIES / 8)
        LOAD_LEFT(left, value_tile, warp * 16, k * 16)
        ADD_ROWS(slope, left, now + QUERIES * PITCH, k * 16, QUERIES / 8)
      }
      const long h = key_head * share + step / steps, start = begin + step % steps * QUERIES;
      SCALE_SCORES(weight, QUERIES, (int)LEAST(queries - start, (long)QUERIES), start < first + warp * 16 + 15,
                   row > column + (int)(start - first), start + column, LEAST(first + row, keys - 1))
      FOR(n, QUERIES / 8) FOR(c, 4) {
        const int column = COLUMN_OF(n, c);
        weight[n][c] = ob_power_of_two(weight[n][c] - base[stage][column]);
        slope[n][c] = weight[n][c] * (slope[n][c] - product[stage][column]);
      }
      ADD_MIXED(v_sum, weight, now + QUERIES * PITCH, QUERIES)
      ADD_MIXED(k_sum, slope, now, QUERIES)
      if (STAGES == 1) {
        OB_BARRIER();
        if (step + 1 < all_steps) LOAD_QUERIES(0, step + 1)
      }
    }
    ob_copied();
    FOR(r, 2) {
      const long j = first + ROW_OF(2 * r), h = key_head;
      if (j < keys) FOR(n, WIDTH / 8) {
        STORE_PAIR(of_key, OF_KEY_ROW(j), of_key_e, n, k_sum[n][2 * r] * scale, k_sum[n][2 * r + 1] * scale)
        STORE_PAIR(of_value, OF_VALUE_ROW(j), of_value_e, n, v_sum[n][2 * r], v_sum[n][2 * r + 1])
      }
    }
  }
  CLEAR_OUTSIDE_KEYS
}
""",
    QUERIES=_QUERIES,
)
