# SPDX-License-Identifier: Apache-2.0
"""Attention for SIMT devices: a team of work-items owns one query (or, for the gradients of keys and values, one key)
and walks the other side, which its group loads into local memory tile by tile, the forward with a running maximum and
sum. The backward recomputes probabilities from the logarithms of the sums.

Each item of a team keeps a part of every row in registers. So all loops over parts have constant bounds and are
unrolled: what a variable counts would lie in memory.
"""

from __future__ import annotations

import dataclasses

from ...plans.builder import PlanBuilder
from .. import common

#: Items of a group, bytes of a part, of a tile, of which there are two, and pairs whose scores an item has at once.
_GROUP, _PART_BYTES, _TILE_BYTES, _BLOCK = 128, 128, 8192, 4
#: Rows are filled up to one of these widths.
WIDTHS = (32, 64, 128, 256)


@dataclasses.dataclass(frozen=True)
class Teams:
    """How a device's work-items share rows of at most ``width`` numbers of the type ``accumulate``."""

    width: int
    group: int  #: work-items of a group
    team: int  #: work-items of a team
    tile: int  #: rows of the other side in local memory
    sub_group: int  #: of the device; 1 if it has none

    @staticmethod
    def of(builder: PlanBuilder, width: int, accumulate: str) -> Teams:
        """Those of the builder's device. Without sub-groups each item is a team, whose registers may not do."""
        size = common.compute_size(accumulate)
        group = common.group_size(builder, _GROUP)
        sub_group = builder.target.sub_group_size
        room = min(_TILE_BYTES, builder.target.local_memory // 2)
        team = max(1, width * size // _PART_BYTES)
        return Teams(width, group, min(team, sub_group, group), max(1, room // (width * size)), sub_group)

    @property
    def rows(self) -> int:
        """Rows of a group, one of each team."""
        return self.group // self.team

    def defines(self) -> dict[str, object]:
        """The macros of the kernels' texts."""
        return {
            "WIDTH": self.width,
            "TEAM": self.team,
            "PART": self.width // self.team,
            "ROWS": self.rows,
            "TILE": self.tile,
            "BLOCK": min(_BLOCK, self.tile),
            "TEAM_KERNEL": "OB_KERNEL" + (f" OB_SUB_GROUPS_OF({self.sub_group})" if self.team > 1 else ""),
        }


_TEAMS = r"""
#if TEAM > 1
#define ITEM ((int)(OB_SUB_GROUP_ID() * OB_SUB_GROUP_SIZE() + OB_SUB_GROUP_ITEM()))
ACC sum_of_team(ACC value) {
  OB_UNROLL(8) for (uint reach = 1; reach < TEAM; reach *= 2)
    value += OB_SHUFFLE(value, OB_SUB_GROUP_ITEM() ^ reach);
  return value;
}
#else
#define ITEM OB_LOCAL_ID(0)
#define sum_of_team(value) (value)
#endif
#define EACH_BLOCK OB_UNROLL(BLOCK) for (int p = 0; p < BLOCK; ++p)
#define EACH OB_UNROLL(PART) for (int r = 0; r < PART; ++r)
/* The element that an item keeps as its r-th: four beside each other, then those of the rest of the team, so that their
   loads from local memory are of different banks. */
#define ELEMENT ((r / 4 * TEAM + part) * 4 + r % 4)
#define IN_TILE(tile, row) tile[(row) * WIDTH + ELEMENT]
#define FOR_TILES(n, count) \
  for (long n = OB_GROUP_ID(0); n < (count); n += OB_GROUP_COUNT(0))

/* Rows of the other side, filled up with zeros. */
void load_tile(OB_LOCAL ACC* tile, OB_GLOBAL const IN_T* from, long step, long e_step, int count, long width) {
  for (int n = OB_LOCAL_ID(0); n < TILE * WIDTH; n += ROWS * TEAM) {
    const int row = n / WIDTH, e = n % WIDTH;
    tile[n] = row < count && e < width ? (ACC)IN_LOAD(from, row * step + e * e_step) : (ACC)0;
  }
}
#define LOAD_ROW(to, from, row, step, count) \
  EACH to[r] = ELEMENT < (count) ? (ACC)IN_LOAD(from, row + ELEMENT * step) : (ACC)0;
#define STORE_ROW(to, row, step, count, value) \
  EACH if (ELEMENT < (count)) IN_STORE(to, row + ELEMENT * step, value);
"""

SUM_PRODUCTS = r"""
/* The product of gradient and result of each query, summed. */
OB_KERNEL void sum_products(OB_GLOBAL const IN_T* grad, OB_GLOBAL const IN_T* out, OB_GLOBAL ACC* products PARAMETERS) {
  ALL_SEQUENCES
  OB_FOR(row, QUERY_ROWS) {
    const long i = row % queries, h = row / queries % heads, b = row / queries / heads;
    ACC total = 0;
    for (long e = 0; e < value_width; ++e)
      total += (ACC)IN_LOAD(grad, GRAD_ROW(i) + e * grad_e) * (ACC)IN_LOAD(out, OUT_ROW(i) + e * out_e);
    products[row] = total;
  }
}

#define PRODUCT_AT(i) products[QUERY_ROW(i)]
"""

#: Rows of queries of a head, each a team's; closed by the kernel.
_QUERIES = r"""
  OB_SHARED ACC key_tile[TILE * WIDTH] OB_ALIGNED(16);
  OB_SHARED ACC value_tile[TILE * WIDTH] OB_ALIGNED(16);
  const int row = ITEM / TEAM, part = ITEM % TEAM;
  const long tiles = (most_queries + ROWS - 1) / ROWS;
  FOR_TILES(piece, batches * heads * tiles) {
    const long first = piece % tiles * ROWS, h = piece / tiles % heads, b = piece / tiles / heads;
    SEQUENCE(b)
    if (first >= queries) continue;
    const long i = LEAST(first + row, queries - 1), last = LEAST(first + ROWS, queries);
    const long end = causal ? LEAST(last, keys) : keys, seen = causal ? LEAST(i + 1, keys) : keys;
"""

#: Their keys and values tile by tile; closed by the kernel.
_KEYS = r"""
    for (long start = 0; start < end; start += TILE) {
      const int count = (int)LEAST(end - start, (long)TILE);
      OB_BARRIER();
      load_tile(key_tile, key + K_ROW(start), k_l, k_e, count, width);
      load_tile(value_tile, value + V_ROW(start), v_l, v_e, count, value_width);
      OB_BARRIER();
"""


def filled(text: str, **parts: str) -> str:
    """A text with what its kernels have in common in the places that are marked: ``QUERIES`` in ``@QUERIES@``."""
    for name, part in parts.items():
        text = text.replace(f"@{name}@\n", part.lstrip("\n"))
    return text


FORWARD = filled(
    _TEAMS
    + r"""
TEAM_KERNEL void attend(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                        OB_GLOBAL const MASK_T* mask, OB_GLOBAL IN_T* out, OB_GLOBAL LSE_T* lse PARAMETERS) {
@QUERIES@
    ACC q[PART], sum[PART], most = -INFINITY, total = 0;
    LOAD_ROW(q, query, Q_ROW(i), q_e, width)
    EACH {
      q[r] *= scale;
      sum[r] = 0;
    }
@KEYS@
      for (int j = 0; j < count; j += BLOCK) {
        ACC score[BLOCK], peak = most;
        EACH_BLOCK {
          ACC s = 0;
          EACH s += q[r] * IN_TILE(key_tile, j + p);
          s = sum_of_team(s);
          score[p] = start + j + p < seen ? MASKED(s, i, start + j + p) : (ACC)-INFINITY;
          peak = fmax(peak, score[p]);
        }
        /* A query that may look at nothing yet subtracts 0, not -inf. */
        const ACC base = peak == (ACC)-INFINITY ? (ACC)0 : peak, shrink = exp(most - base);
        most = peak;
        total *= shrink;
        EACH sum[r] *= shrink;
        EACH_BLOCK {
          const ACC weight = exp(score[p] - base);
          total += weight;
          if (start + j + p < seen) EACH sum[r] += weight * IN_TILE(value_tile, j + p);
        }
      }
    }
    if (first + row < queries) {
      const ACC inverse = total == 0 ? (ACC)0 : 1 / total;
      STORE_ROW(out, OUT_ROW(i), out_e, value_width, sum[r] * inverse)
      if (part == 0) lse[LSE_PLACE(i)] = (LSE_T)(most + log(total));
    }
  }
  CLEAR_OUTSIDE_QUERIES
}
""",
    QUERIES=_QUERIES,
    KEYS=_KEYS,
)

BACKWARD = filled(
    _TEAMS
    + SUM_PRODUCTS
    + r"""
/* A masked pair has no part in anything, even where a query may look at nothing. */
#define PROBABILITY(score, lse) ((score) == (ACC)-INFINITY ? (ACC)0 : exp((score) - (lse)))

TEAM_KERNEL void query_gradient(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                                OB_GLOBAL const MASK_T* mask, OB_GLOBAL const IN_T* grad, OB_GLOBAL const LSE_T* lse,
                                OB_GLOBAL const ACC* products, OB_GLOBAL IN_T* result PARAMETERS) {
@QUERIES@
    const ACC of_lse = LSE_AT(i), product = PRODUCT_AT(i);
    ACC q[PART], g[PART], sum[PART];
    LOAD_ROW(q, query, Q_ROW(i), q_e, width)
    LOAD_ROW(g, grad, GRAD_ROW(i), grad_e, value_width)
    EACH {
      q[r] *= scale;
      sum[r] = 0;
    }
@KEYS@
      for (int j = 0; j < count; ++j) {
        ACC s = 0, change = 0;
        EACH {
          s += q[r] * IN_TILE(key_tile, j);
          change += g[r] * IN_TILE(value_tile, j);
        }
        s = sum_of_team(s);
        change = sum_of_team(change);
        if (start + j >= seen) continue;
        s = MASKED(s, i, start + j);
        const ACC slope = PROBABILITY(s, of_lse) * (change - product) * scale;
        EACH sum[r] += slope * IN_TILE(key_tile, j);
      }
    }
    if (first + row < queries) { STORE_ROW(result, RESULT_ROW(i), result_e, width, sum[r]) }
  }
  CLEAR_OUTSIDE_RESULT
}

TEAM_KERNEL void key_gradients(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                               OB_GLOBAL const MASK_T* mask, OB_GLOBAL const IN_T* grad, OB_GLOBAL const LSE_T* lse,
                               OB_GLOBAL const ACC* products, OB_GLOBAL IN_T* of_key, OB_GLOBAL IN_T* of_value
                               PARAMETERS) {
  OB_SHARED ACC query_tile[TILE * WIDTH] OB_ALIGNED(16);
  OB_SHARED ACC grad_tile[TILE * WIDTH] OB_ALIGNED(16);
  const int row = ITEM / TEAM, part = ITEM % TEAM;
  const long key_heads = heads / share, tiles = (most_keys + ROWS - 1) / ROWS;
  FOR_TILES(piece, batches * key_heads * tiles) {
    const long first = piece % tiles * ROWS, key_head = piece / tiles % key_heads, b = piece / tiles / key_heads;
    SEQUENCE(b)
    if (first >= keys) continue;
    const long j = LEAST(first + row, keys - 1);
    ACC k[PART], v[PART], k_sum[PART], v_sum[PART];
    {
      const long h = key_head * share;
      LOAD_ROW(k, key, K_ROW(j), k_e, width)
      LOAD_ROW(v, value, V_ROW(j), v_e, value_width)
    }
    EACH {
      k_sum[r] = 0;
      v_sum[r] = 0;
    }
    for (long h = key_head * share; h < (key_head + 1) * share; ++h)
      for (long start = causal ? first : 0; start < queries; start += TILE) {
        const int count = (int)LEAST(queries - start, (long)TILE);
        OB_BARRIER();
        load_tile(query_tile, query + Q_ROW(start), q_l, q_e, count, width);
        load_tile(grad_tile, grad + GRAD_ROW(start), grad_l, grad_e, count, value_width);
        OB_BARRIER();
        for (int n = 0; n < count; ++n) {
          const long i = start + n;
          ACC s = 0, change = 0;
          EACH {
            s += k[r] * IN_TILE(query_tile, n);
            change += v[r] * IN_TILE(grad_tile, n);
          }
          s = sum_of_team(s);
          change = sum_of_team(change);
          if (causal && i < j) continue;
          s = MASKED(s * scale, i, j);
          const ACC weight = PROBABILITY(s, LSE_AT(i)), slope = weight * (change - PRODUCT_AT(i)) * scale;
          EACH {
            k_sum[r] += slope * IN_TILE(query_tile, n);
            v_sum[r] += weight * IN_TILE(grad_tile, n);
          }
        }
      }
    if (first + row < keys) {
      const long h = key_head;
      STORE_ROW(of_key, OF_KEY_ROW(j), of_key_e, width, k_sum[r])
      STORE_ROW(of_value, OF_VALUE_ROW(j), of_value_e, value_width, v_sum[r])
    }
  }
  CLEAR_OUTSIDE_KEYS
}
""",
    QUERIES=_QUERIES,
    KEYS=_KEYS,
)
