# SPDX-License-Identifier: Apache-2.0
"""Attention of few queries on CPUs, as when text is generated. It is bound by reading the keys and values, which
therefore are read once, in order, in vectors of one row each.

A piece of work is up to ``GROUP`` queries that look at the same keys: of one head, or of the heads that share one of
keys and values. Where there are fewer pieces than cores, each is cut into parts of the keys, which a second kernel puts
together (``SPLIT``).
"""

from __future__ import annotations

from collections.abc import Callable

from ..blocked import Blocking

#: So few queries of a head are better off here than in tiles.
MOST_QUERIES = 8
#: Rows that share one walk.
GROUP = 4
#: Keys in a block.
KEYS = 128
#: A part of the keys that is worth a piece of work, at least.
LEAST_PART = 256
#: Vectors of a row of values that are summed at once.
_WIDE = 4

_DECODE = r"""
OB_GROUP_OF(1, 1, 1)
OB_KERNEL void decode(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                      OB_GLOBAL const MASK_T* mask, OB_GLOBAL IN_T* out, OB_GLOBAL LSE_T* lse,
                      OB_GLOBAL ACC* partial, const long parts PARAMETERS) {
  NEAR ACC asked[GROUP * MAX_WIDTH] OB_ALIGNED(sizeof(VECTOR));
  NEAR ACC mixed[GROUP * MAX_WIDTH] OB_ALIGNED(sizeof(VECTOR));
  NEAR ACC weights[GROUP * BLOCK] OB_ALIGNED(sizeof(VECTOR));
  const long key_heads = heads / share, all = queries * share, groups = (all + GROUP - 1) / GROUP;
  OB_FOR(piece, batches * key_heads * groups * parts) {
    const long part = piece % parts, group = piece / parts % groups;
    const long key_head = piece / (parts * groups) % key_heads, b = piece / (parts * groups * key_heads);
    const long from = keys * part / parts, to = keys * (part + 1) / parts, first = group * GROUP;
    const int rows = (int)LEAST(all - first, (long)GROUP);
    ACC most[GROUP], total[GROUP];
    for (int r = 0; r < rows; ++r) {
      const long h = HEAD_OF(r);
      load_row(asked + r * MAX_WIDTH, query + Q_ROW(QUERY_OF(r)), q_e, width, scale);
      for (long e = 0; e < value_width; ++e) mixed[r * MAX_WIDTH + e] = 0;
      most[r] = -INFINITY;
      total[r] = 0;
    }
    for (long start = from; start < to; start += BLOCK) {
      const int count = (int)LEAST(to - start, (long)BLOCK);
      ACC shrink[GROUP];
      if (rows == 1) {
@SCORES_OF_ONE@
      } else {
@SCORES_OF_ALL@
      }
      for (int r = 0; r < rows; ++r) {
        NEAR ACC* weight = weights + r * BLOCK;
        const long h = HEAD_OF(r), i = QUERY_OF(r);
        if (MASK || causal)
          for (int j = 0; j < count; ++j)
            weight[j] = causal && start + j > i ? (ACC)-INFINITY : MASKED(weight[j], i, start + j);
        for (int j = count; j % LANES; ++j) weight[j] = -INFINITY;
        VECTOR peaks = (VECTOR)(most[r]), sum = (VECTOR)(0);
        for (int j = 0; j < count; j += LANES) {
          const VECTOR score = NEAR_VECTOR(weight + j);
          peaks = score > peaks ? score : peaks;
        }
        const ACC peak = largest_lane(peaks), base = peak == (ACC)-INFINITY ? (ACC)0 : peak;
        for (int j = 0; j < count; j += LANES) {
          const VECTOR power = power_of_e(NEAR_VECTOR(weight + j) - (VECTOR)(base));
          NEAR_VECTOR(weight + j) = power;
          sum += power;
        }
        shrink[r] = power_of_e((VECTOR)(most[r] - base)).s0;
        total[r] = total[r] * shrink[r] + sum_lanes(sum);
        most[r] = peak;
      }
      if (rows == 1) {
@VALUES_OF_ONE@
      } else {
@VALUES_OF_ALL@
      }
    }
    for (int r = 0; r < rows; ++r) {
      const long h = HEAD_OF(r), i = QUERY_OF(r);
#if SPLIT
      OB_GLOBAL ACC* to_part = PART(part, (b * heads + h) * queries + i);
      for (long e = 0; e < value_width; ++e) to_part[e] = mixed[r * MAX_WIDTH + e];
      to_part[value_width] = most[r];
      to_part[value_width + 1] = total[r];
#else
      const ACC inverse = total[r] == 0 ? (ACC)0 : 1 / total[r];
      store_row(mixed + r * MAX_WIDTH, out + OUT_ROW(i), out_e, value_width, inverse);
      lse[b * lse_b + h * lse_h + i * lse_l] = (LSE_T)(most[r] + log(total[r]));
#endif
    }
  }
}
"""

_MACROS = r"""
#define HEAD_OF(r) (key_head * share + (first + (r)) / queries)
#define QUERY_OF(r) ((first + (r)) % queries)
#define PART(part, row) (partial + ((part) * batches * heads * queries + (row)) * (value_width + 2))
void load_row(NEAR ACC* row, OB_GLOBAL const IN_T* from, long step, long width, ACC factor) {
  long e = 0;
  if (step == 1)
    for (; e + LANES <= width; e += LANES) NEAR_VECTOR(row + e) = LOAD_VECTOR((from + e)) * factor;
  for (; e < width; ++e) row[e] = (ACC)IN_LOAD(from, e * step) * factor;
}
void store_row(NEAR const ACC* row, OB_GLOBAL IN_T* to, long step, long width, ACC factor) {
  long e = 0;
  if (step == 1)
    for (; e + LANES <= width; e += LANES) {
      const VECTOR value = *(NEAR const VECTOR*)(row + e) * factor;
      OB_GLOBAL IN_T* p = to + e;
      STORE_VECTOR(p, value)
    }
  for (; e < width; ++e) IN_STORE(to, e * step, row[e] * factor);
}
ACC largest_lane(VECTOR v) {
  ACC lanes[LANES] OB_ALIGNED(sizeof(VECTOR));
  *(VECTOR*)lanes = v;
  ACC most = lanes[0];
  for (int l = 1; l < LANES; ++l) most = lanes[l] > most ? lanes[l] : most;
  return most;
}
"""

_COMBINE = r"""
OB_KERNEL void combine(OB_GLOBAL const ACC* partial, OB_GLOBAL IN_T* out, OB_GLOBAL LSE_T* lse, const long parts
                       PARAMETERS) {
  OB_FOR(row, batches * heads * queries) {
    const long i = row % queries, h = row / queries % heads, b = row / queries / heads;
    ACC most = -INFINITY, total = 0;
    for (long part = 0; part < parts; ++part) {
      const ACC peak = PART(part, row)[value_width];
      most = peak > most ? peak : most;
    }
    const ACC base = most == (ACC)-INFINITY ? (ACC)0 : most;
    for (long part = 0; part < parts; ++part)
      total += PART(part, row)[value_width + 1] * exp(PART(part, row)[value_width] - base);
    const ACC inverse = total == 0 ? (ACC)0 : 1 / total;
    for (long e = 0; e < value_width; ++e) {
      ACC sum = 0;
      for (long part = 0; part < parts; ++part)
        sum += PART(part, row)[e] * exp(PART(part, row)[value_width] - base);
      IN_STORE(out, b * out_b + h * out_h + i * out_l + e * out_e, sum * inverse);
    }
    lse[b * lse_b + h * lse_h + i * lse_l] = (LSE_T)(most + log(total));
  }
}
"""


def numbers(most_width: int) -> int:
    """How many numbers the kernel's arrays hold."""
    return GROUP * (2 * most_width + KEYS)


def text(shape: Blocking) -> str:
    """The kernels ``decode`` and ``combine``."""
    result = shape.sum_lanes() + _MACROS + _DECODE + _COMBINE
    for name, rows in (("ONE", 1), ("ALL", GROUP)):
        result = result.replace(f"@SCORES_OF_{name}@\n", _scores(rows)).replace(f"@VALUES_OF_{name}@\n", _values(rows))
    return result


def _scores(rows: int) -> str:
    """Dot products of up to so many rows with each key of the block."""
    each = _each(rows)
    return f"""
        const long h = key_head * share;
        for (int j = 0; j < count; ++j) {{
          OB_GLOBAL const IN_T* row = key + K_ROW(start + j);
          {each("VECTOR d@ = (VECTOR)(0);")}
          long e = 0;
          if (k_e == 1)
            for (; e + LANES <= width; e += LANES) {{
              const VECTOR k = LOAD_VECTOR((row + e));
              {each("d@ = fma(k, NEAR_VECTOR(asked + @ * MAX_WIDTH + e), d@);")}
            }}
          {each("ACC s@ = sum_lanes(d@);")}
          for (; e < width; ++e) {{
            const ACC k = (ACC)IN_LOAD(row, e * k_e);
            {each("s@ += k * asked[@ * MAX_WIDTH + e];")}
          }}
          {each("weights[@ * BLOCK + j] = s@;")}
        }}
"""


def _values(rows: int) -> str:
    """Adds the values of the block, weighted, to what so many rows have mixed."""
    each = _each(rows)
    walks = "".join(_walk(rows, vectors) for vectors in (_WIDE, 1))
    return f"""
        const long h = key_head * share;
        long e = 0;
        if (v_e == 1) {{
{walks}
        }}
        for (; e < value_width; ++e) {{
          {each("ACC c@ = mixed[@ * MAX_WIDTH + e] * shrink[@];")}
          for (int j = 0; j < count; ++j) {{
            const ACC v = (ACC)IN_LOAD(value, V_ROW(start + j) + e * v_e);
            {each("c@ += v * weights[@ * BLOCK + j];")}
          }}
          {each("mixed[@ * MAX_WIDTH + e] = c@;")}
        }}
"""


def _walk(rows: int, vectors: int) -> str:
    """The same for columns in steps of so many vectors."""
    at = "NEAR_VECTOR(mixed + {0} * MAX_WIDTH + e + {1} * LANES)"
    lines = [f"for (; e + {vectors} * LANES <= value_width; e += {vectors} * LANES) {{"]
    cells = [(r, v) for r in range(rows) for v in range(vectors)]
    lines += [f"  VECTOR c{r}_{v} = {at.format(r, v)} * (VECTOR)(shrink[{r}]);" for r, v in cells]
    lines += ["  for (int j = 0; j < count; ++j) {", "    OB_GLOBAL const IN_T* row = value + V_ROW(start + j) + e;"]
    lines += [f"    const VECTOR v{v} = LOAD_VECTOR((row + {v} * LANES));" for v in range(vectors)]
    for r in range(rows):
        lines.append(f"    const VECTOR w{r} = (VECTOR)(weights[{r} * BLOCK + j]);")
        lines += [f"    c{r}_{v} = fma(w{r}, v{v}, c{r}_{v});" for v in range(vectors)]
    lines += ["  }", *(f"  {at.format(r, v)} = c{r}_{v};" for r, v in cells), "}"]
    return "".join(f"          {line}\n" for line in lines)


def _each(rows: int) -> Callable[[str], str]:
    """Repeats a statement for each row, ``@`` being its number."""
    return lambda line: " ".join(line.replace("@", str(r)) for r in range(rows))
