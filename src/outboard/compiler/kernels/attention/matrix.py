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
from .simt import SUM_PRODUCTS

#: Work-items of a group, and rows that they have.
GROUP, ROWS = 128, 64
#: Widths of heads.
WIDTHS = tuple(range(16, 129, 16))
_SUB_GROUP = 32


def has_units(problem: Problem) -> bool:
    """Whether the device has units for the problem's dtype, and groups that can use them."""
    target = problem.builder.target
    halves = problem.query.dtype in (torch.float16, torch.bfloat16)
    sizes = target.sub_group_size == _SUB_GROUP and target.max_work_group_size >= GROUP
    return halves and target.matrix_units and sizes and target.local_memory >= 2 * ROWS * (WIDTHS[-1] + 8) * 2


def is_width(problem: Problem, width: int) -> sympy.Basic:
    """The condition that heads of queries, keys and values are so wide."""
    return sympy.And(*(sympy.Eq(tensor.sizes[3], width) for tensor in (problem.query, problem.value)))


def defines(problem: Problem, width: int) -> dict[str, object]:
    """The macros of the kernels' texts."""
    name = "half" if problem.query.dtype == torch.float16 else "bfloat16"
    return {
        "WIDTH": width,
        "ROWS": ROWS,
        "GROUP": GROUP,
        "KEYS": 64 if width <= 64 else 32,
        "QUERIES": 32 if width <= 64 else 16,
        "MULTIPLY_ADD": f"ob_multiply_{name}",
        "PACK": f"ob_pack_{name}",
    }


_MATRICES = r"""
/* Rows of halves in local memory, 16 bytes apart, by which eight rows beside each other lie in different banks. */
#define PITCH (WIDTH + 8)
#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f
typedef struct OB_ALIGNED(16) { uint x[4]; } quad_t;
#define FOR(n, count) OB_UNROLL(64) for (int n = 0; n < (count); ++n)
#define FOR_TILES(n, count) for (long n = OB_GROUP_ID(0); n < (count); n += OB_GROUP_COUNT(0))

/* `rows` rows become a tile, those from `count` on zeros. All loads are on their way before the first is stored. */
#define QUADS (WIDTH / 8)
#define QUADS_OF_ITEM(rows) (((rows) * QUADS + GROUP - 1) / GROUP)
#define FOR_QUADS(x, rows) FOR(x, QUADS_OF_ITEM(rows))
#define LOAD_TILE(tile, rows, from, step, e_step, count)                                      \
  {                                                                                           \
    OB_GLOBAL const ushort* const first_row = (OB_GLOBAL const ushort*)(from);                \
    const int wide = (e_step) == 1 && (step) % 8 == 0 && (ulong)first_row % 16 == 0;          \
    quad_t held[QUADS_OF_ITEM(rows)];                                                         \
    FOR_QUADS(x, rows) {                                                                      \
      const int n = x * GROUP + OB_LOCAL_ID(0), row = n / QUADS, e = n % QUADS * 8;           \
      OB_GLOBAL const ushort* p = first_row + row * (step) + e * (e_step);                    \
      FOR(y, 4) held[x].x[y] = 0;                                                             \
      if (row < (count) && wide) {                                                            \
        held[x] = *(OB_GLOBAL const quad_t*)p;                                                \
      } else if (row < (count)) {                                                             \
        FOR(y, 4) held[x].x[y] = p[2 * y * (e_step)] | (uint)p[(2 * y + 1) * (e_step)] << 16; \
      }                                                                                       \
    }                                                                                         \
    FOR_QUADS(x, rows) {                                                                      \
      const int n = x * GROUP + OB_LOCAL_ID(0), row = n / QUADS, e = n % QUADS * 8;           \
      if (row < (rows)) *(OB_LOCAL quad_t*)((tile) + row * PITCH + e) = held[x];              \
    }                                                                                         \
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

FORWARD = (
    _MATRICES
    + r"""
OB_KERNEL void attend(
    OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value, OB_GLOBAL const MASK_T* mask,
    OB_GLOBAL IN_T* out, OB_GLOBAL LSE_T* lse PARAMETERS) {
  OB_SHARED ushort tile[2 * KEYS * PITCH] OB_ALIGNED(16);
  OB_LOCAL ushort* const value_tile = tile + KEYS * PITCH;
  const int warp = OB_LOCAL_ID(0) / 32, lane = OB_LOCAL_ID(0) % 32;
  const long tiles = (most_queries + ROWS - 1) / ROWS;
  FOR_TILES(piece, batches * heads * tiles) {
    /* Causal: the longest first. */
    const long first = (tiles - 1 - piece % tiles) * ROWS, h = piece / tiles % heads, b = piece / tiles / heads;
    SEQUENCE(b)
    if (first >= queries) continue;
    const long last = LEAST(first + ROWS, queries), end = causal ? LEAST(last, keys) : keys;
    uint q[WIDTH / 16][4];
    OB_BARRIER();
    LOAD_TILE(tile, ROWS, query + Q_ROW(first), q_l, q_e, (int)(last - first))
    OB_BARRIER();
    FOR(k, WIDTH / 16) LOAD_LEFT(q[k], tile, warp * 16, k * 16)
    float sum[WIDTH / 8][4], most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    CLEAR_SUM(sum, WIDTH / 8)
    for (long start = 0; start < end; start += KEYS) {
      const int count = (int)LEAST(end - start, (long)KEYS);
      OB_BARRIER();
      LOAD_TILE(tile, KEYS, key + K_ROW(start), k_l, k_e, count)
      LOAD_TILE(value_tile, KEYS, value + V_ROW(start), v_l, v_e, count)
      OB_BARRIER();
      float score[KEYS / 8][4];
      CLEAR_SUM(score, KEYS / 8)
      FOR(k, WIDTH / 16) ADD_ROWS(score, q[k], tile, k * 16, KEYS / 8)
      if (MASK || count < KEYS || (causal && start + KEYS > first + warp * 16)) {
        FOR(n, KEYS / 8) FOR(c, 4) {
          const long i = LEAST(first + ROW_OF(c), queries - 1), j = start + COLUMN_OF(n, c);
          const float s = score[n][c] * scale;
          score[n][c] = j < end && !(causal && j > i) ? MASKED(s, i, j) * LOG2_E : -INFINITY;
        }
      } else {
        FOR(n, KEYS / 8) FOR(c, 4) score[n][c] *= scale * LOG2_E;
      }
      FOR(r, 2) {
        float peak = most[r];
        FOR(n, KEYS / 8) peak = fmax(peak, fmax(score[n][2 * r], score[n][2 * r + 1]));
        OF_ROW(fmax, peak)
        /* A query that may look at nothing yet subtracts 0, not -inf. */
        const float base = peak == -INFINITY ? 0.0f : peak, shrink = exp2(most[r] - base);
        most[r] = peak;
        total[r] *= shrink;
        FOR(n, KEYS / 8) FOR(c, 2) {
          score[n][2 * r + c] = exp2(score[n][2 * r + c] - base);
          total[r] += score[n][2 * r + c];
        }
        FOR(n, WIDTH / 8) FOR(c, 2) sum[n][2 * r + c] *= shrink;
      }
      ADD_MIXED(sum, score, value_tile, KEYS)
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
"""
)

BACKWARD = (
    _MATRICES
    + SUM_PRODUCTS
    + r"""
/* A masked pair has no part in anything, even where a query may look at nothing. */
#define PROBABILITY(score, lse) ((score) == -INFINITY ? 0.0f : exp2(((score) - (lse)) * LOG2_E))

OB_KERNEL void query_gradient(
    OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value, OB_GLOBAL const MASK_T* mask,
    OB_GLOBAL const IN_T* grad, OB_GLOBAL const LSE_T* lse, OB_GLOBAL const ACC* products,
    OB_GLOBAL IN_T* result PARAMETERS) {
  OB_SHARED ushort tile[2 * KEYS * PITCH] OB_ALIGNED(16);
  OB_LOCAL ushort* const value_tile = tile + KEYS * PITCH;
  const int warp = OB_LOCAL_ID(0) / 32, lane = OB_LOCAL_ID(0) % 32;
  const long tiles = (most_queries + ROWS - 1) / ROWS;
  FOR_TILES(piece, batches * heads * tiles) {
    /* Causal: the longest first. */
    const long first = (tiles - 1 - piece % tiles) * ROWS, h = piece / tiles % heads, b = piece / tiles / heads;
    SEQUENCE(b)
    if (first >= queries) continue;
    const long last = LEAST(first + ROWS, queries), end = causal ? LEAST(last, keys) : keys;
    uint q[WIDTH / 16][4], g[WIDTH / 16][4];
    OB_BARRIER();
    LOAD_TILE(tile, ROWS, query + Q_ROW(first), q_l, q_e, (int)(last - first))
    OB_BARRIER();
    FOR(k, WIDTH / 16) LOAD_LEFT(q[k], tile, warp * 16, k * 16)
    OB_BARRIER();
    LOAD_TILE(tile, ROWS, grad + GRAD_ROW(first), grad_l, grad_e, (int)(last - first))
    OB_BARRIER();
    FOR(k, WIDTH / 16) LOAD_LEFT(g[k], tile, warp * 16, k * 16)
    float sum[WIDTH / 8][4], of_lse[2], product[2];
    CLEAR_SUM(sum, WIDTH / 8)
    FOR(r, 2) {
      const long i = LEAST(first + ROW_OF(2 * r), queries - 1);
      of_lse[r] = LSE_AT(i);
      product[r] = PRODUCT_AT(i);
    }
    for (long start = 0; start < end; start += KEYS) {
      const int count = (int)LEAST(end - start, (long)KEYS);
      OB_BARRIER();
      LOAD_TILE(tile, KEYS, key + K_ROW(start), k_l, k_e, count)
      LOAD_TILE(value_tile, KEYS, value + V_ROW(start), v_l, v_e, count)
      OB_BARRIER();
      float score[KEYS / 8][4], change[KEYS / 8][4];
      CLEAR_SUM(score, KEYS / 8)
      CLEAR_SUM(change, KEYS / 8)
      FOR(k, WIDTH / 16) {
        ADD_ROWS(score, q[k], tile, k * 16, KEYS / 8)
        ADD_ROWS(change, g[k], value_tile, k * 16, KEYS / 8)
      }
      FOR(n, KEYS / 8) FOR(c, 4) {
        const long i = LEAST(first + ROW_OF(c), queries - 1), j = start + COLUMN_OF(n, c);
        float s = score[n][c] * scale;
        s = j < end && !(causal && j > i) ? MASKED(s, i, j) : -INFINITY;
        const float weight = PROBABILITY(s, of_lse[c / 2]);
        score[n][c] = s == -INFINITY ? 0.0f : weight * (change[n][c] - product[c / 2]);
      }
      ADD_MIXED(sum, score, tile, KEYS)
    }
    FOR(r, 2) {
      const long i = first + ROW_OF(2 * r);
      if (i < queries) FOR(n, WIDTH / 8)
        STORE_PAIR(result, RESULT_ROW(i), result_e, n, sum[n][2 * r] * scale, sum[n][2 * r + 1] * scale)
    }
  }
  CLEAR_OUTSIDE_RESULT
}

OB_KERNEL void key_gradients(
    OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value, OB_GLOBAL const MASK_T* mask,
    OB_GLOBAL const IN_T* grad, OB_GLOBAL const LSE_T* lse, OB_GLOBAL const ACC* products, OB_GLOBAL IN_T* of_key,
    OB_GLOBAL IN_T* of_value PARAMETERS) {
  OB_SHARED ushort key_tile[ROWS * PITCH] OB_ALIGNED(16);
  OB_SHARED ushort value_tile[ROWS * PITCH] OB_ALIGNED(16);
  OB_SHARED ushort query_tile[QUERIES * PITCH] OB_ALIGNED(16);
  OB_SHARED ushort grad_tile[QUERIES * PITCH] OB_ALIGNED(16);
  OB_SHARED float of_lse[QUERIES];
  OB_SHARED float product[QUERIES];
  const int warp = OB_LOCAL_ID(0) / 32, lane = OB_LOCAL_ID(0) % 32;
  const long key_heads = heads / share, tiles = (most_keys + ROWS - 1) / ROWS;
  FOR_TILES(piece, batches * key_heads * tiles) {
    const long first = piece % tiles * ROWS, key_head = piece / tiles % key_heads, b = piece / tiles / key_heads;
    SEQUENCE(b)
    if (first >= keys) continue;
    OB_BARRIER();
    {
      const long h = key_head * share;
      const int count = (int)LEAST(keys - first, (long)ROWS);
      LOAD_TILE(key_tile, ROWS, key + K_ROW(first), k_l, k_e, count)
      LOAD_TILE(value_tile, ROWS, value + V_ROW(first), v_l, v_e, count)
    }
    float k_sum[WIDTH / 8][4], v_sum[WIDTH / 8][4];
    CLEAR_SUM(k_sum, WIDTH / 8)
    CLEAR_SUM(v_sum, WIDTH / 8)
    for (long h = key_head * share; h < (key_head + 1) * share; ++h)
      for (long start = causal ? first : 0; start < queries; start += QUERIES) {
        const int count = (int)LEAST(queries - start, (long)QUERIES);
        OB_BARRIER();
        LOAD_TILE(query_tile, QUERIES, query + Q_ROW(start), q_l, q_e, count)
        LOAD_TILE(grad_tile, QUERIES, grad + GRAD_ROW(start), grad_l, grad_e, count)
        if (OB_LOCAL_ID(0) < count) {
          of_lse[OB_LOCAL_ID(0)] = LSE_AT(start + OB_LOCAL_ID(0));
          product[OB_LOCAL_ID(0)] = PRODUCT_AT(start + OB_LOCAL_ID(0));
        }
        OB_BARRIER();
        float weight[QUERIES / 8][4], slope[QUERIES / 8][4];
        CLEAR_SUM(weight, QUERIES / 8)
        CLEAR_SUM(slope, QUERIES / 8)
        FOR(k, WIDTH / 16) {
          uint left[4];
          LOAD_LEFT(left, key_tile, warp * 16, k * 16)
          ADD_ROWS(weight, left, query_tile, k * 16, QUERIES / 8)
          LOAD_LEFT(left, value_tile, warp * 16, k * 16)
          ADD_ROWS(slope, left, grad_tile, k * 16, QUERIES / 8)
        }
        FOR(n, QUERIES / 8) FOR(c, 4) {
          const int column = COLUMN_OF(n, c);
          const long i = start + column, j = LEAST(first + ROW_OF(c), keys - 1);
          float s = weight[n][c] * scale;
          s = column < count && !(causal && j > i) ? MASKED(s, i, j) : -INFINITY;
          weight[n][c] = PROBABILITY(s, of_lse[column]);
          slope[n][c] = s == -INFINITY ? 0.0f : weight[n][c] * (slope[n][c] - product[column]);
        }
        ADD_MIXED(v_sum, weight, grad_tile, QUERIES)
        ADD_MIXED(k_sum, slope, query_tile, QUERIES)
      }
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
"""
)
