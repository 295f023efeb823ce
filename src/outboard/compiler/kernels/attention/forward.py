# SPDX-License-Identifier: Apache-2.0
"""Attention of many queries on CPUs. One piece of work is a tile of queries of one head: it walks the keys in blocks,
with a running maximum and sum of each query, after Milakov and Gimelshein, "Online normalizer calculation for softmax"
(2018), and Dao et al., "FlashAttention" (2022)."""

from __future__ import annotations

from functools import partial

from ..blocked import Blocking
from . import tiles

#: Keys in a block: their weights, and they themselves, stay in a first-level cache.
KEYS = 64

_ATTEND = r"""
OB_GROUP_OF(1, 1, 1)
OB_KERNEL void attend(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                      OB_GLOBAL const MASK_T* mask, OB_GLOBAL IN_T* out, OB_GLOBAL LSE_T* lse PARAMETERS) {
  TILE(asked, MAX_WIDTH);
  TILE(mixed, MAX_WIDTH + ROWS);
  TILE(weights, KEYS + ROWS);
  TILE(totals, 2);
#if MASK
  TILE(hidden, KEYS + ROWS);
#endif
#if !IN_PLACE
  NEAR ACC key_rows[KEYS * MAX_WIDTH] OB_ALIGNED(sizeof(VECTOR));
  NEAR ACC value_rows[KEYS * MAX_WIDTH] OB_ALIGNED(sizeof(VECTOR));
#endif
  const LANE_MASK numbers = (LANE_MASK)(LANE_NUMBERS);
  const long tiles = (most_queries + NR - 1) / NR;
  OB_FOR(piece, batches * heads * tiles) {
    const long first = piece % tiles * NR, h = piece / tiles % heads, b = piece / tiles / heads;
    SEQUENCE(b)
    if (first >= queries) continue;
    const int lanes = (int)LEAST(queries - first, (long)NR);
    load_columns(asked, query + Q_ROW(first), q_l, q_e, lanes, width, scale);
@EMPTY@
    const long end = causal ? LEAST(first + lanes, keys) : keys;
    for (long start = 0; start < end; start += KEYS) {
      const int count = (int)LEAST(end - start, (long)KEYS);
#if IN_PLACE
      const row_pointer_t key_from = key + K_ROW(start), value_from = value + V_ROW(start);
      const long key_step = k_l, value_step = v_l;
#else
      const row_pointer_t key_from = key_rows, value_from = value_rows;
      const long key_step = WHOLE(width), value_step = WHOLE(value_width);
      load_rows(key_rows, key + K_ROW(start), k_l, k_e, count, width);
      load_rows(value_rows, value + V_ROW(start), v_l, v_e, count, value_width);
#endif
#if MASK
      load_hidden(hidden, mask + b * mask_b + h * mask_h + first * mask_l + start * mask_s, mask_s, mask_l, count,
                  lanes);
#endif
@PEAK@
      for (int j = 0; j < count; j += ROWS) {
        const int hiding = causal && start + j + ROWS > first;
@SCORES@
      }
@RENORMALISE@
      for (int j = 0; j < count; ++j) {
@WEIGHTS@
      }
      for (long e = 0; e < value_width; e += ROWS) {
@MIX@
      }
    }
    if (end <= 0)
      for (long e = 0; e < value_width * NR; ++e) mixed[e] = 0;
@FINISH@
    store_columns(mixed, out + OUT_ROW(first), out_l, out_e, lanes, value_width, totals);
    for (int l = 0; l < lanes; ++l) lse[LSE_PLACE(first + l)] = (LSE_T)totals[NR + l];
  }
  CLEAR_OUTSIDE_QUERIES
}
"""


def numbers(most_width: int, shape: Blocking) -> int:
    """How many numbers the kernel's tiles hold at most."""
    return shape.columns * (2 * most_width + 2 * KEYS + 4 * shape.rows) + 2 * KEYS * most_width


def text(shape: Blocking) -> str:
    """The kernel ``attend``."""
    each = partial(tiles.each, shape)
    row_of = "(j + {0} < count ? j + {0} : count - 1)"

    def score(r: int) -> list[str]:
        row = row_of.format(r)
        lines = []
        for v in range(shape.vectors):
            name = f"c{r}_{v}"
            lines.append(f"#if MASK\n{name} += NEAR_VECTOR(hidden + {row} * NR + {v} * LANES);\n#endif")
            later = f"numbers < (LANE_MASK)((int)(start - first) + {row} - {v} * LANES)"
            lines.append(f"if (hiding) {name} = {later} ? (VECTOR)(-INFINITY) : {name};")
            lines.append(f"NEAR_VECTOR(weights + (j + {r}) * NR + {v} * LANES) = {name};")
            lines.append(f"peak{v} = {name} > peak{v} ? {name} : peak{v};")
        return lines

    parts = {
        "EMPTY": each("VECTOR most@ = (VECTOR)(-INFINITY), total@ = (VECTOR)(0);"),
        "PEAK": each("VECTOR peak@ = most@;"),
        "SCORES": tiles.product(
            shape, "width", lambda r: f"key_from + {row_of.format(r)} * key_step", "1", "asked",
            lambda r, v: "(VECTOR)(0)", score,
        ),
        # A query that may look at nothing yet subtracts 0, not -inf.
        "RENORMALISE": each(
            "const VECTOR base@ = peak@ == (VECTOR)(-INFINITY) ? (VECTOR)(0) : peak@; "
            "const VECTOR shrink@ = power_of_e(most@ - base@); most@ = peak@; total@ *= shrink@;"
        ),
        "WEIGHTS": each(
            "const VECTOR w@ = power_of_e(NEAR_VECTOR(weights + j * NR + @ * LANES) - base@); "
            "NEAR_VECTOR(weights + j * NR + @ * LANES) = w@; total@ += w@;"
        ),
        "MIX": tiles.product(
            shape, "count", lambda r: f"value_from + LEAST(e + {r}, value_width - 1)", "value_step", "weights",
            lambda r, v: f"start == 0 ? (VECTOR)(0) : NEAR_VECTOR(mixed + (e + {r}) * NR + {v} * LANES) * shrink{v}",
            lambda r: [
                f"NEAR_VECTOR(mixed + (e + {r}) * NR + {v} * LANES) = c{r}_{v};" for v in range(shape.vectors)
            ],
        ),
        "FINISH": each(
            "NEAR_VECTOR(totals + @ * LANES) = total@ == (VECTOR)(0) ? (VECTOR)(0) : 1 / total@; "
            "NEAR_VECTOR(totals + NR + @ * LANES) = most@ + log(total@);"
        ),
    }  # fmt: skip
    result = _ATTEND
    for name, part in parts.items():
        result = result.replace(f"@{name}@\n", part)
    return result
