# SPDX-License-Identifier: Apache-2.0
"""What all kernels of attention share: shapes, masks, and the parameters that all of them take."""

from __future__ import annotations

import dataclasses
from typing import Any

import sympy
import torch

from ...plans import plan as p
from ...plans.builder import PlanBuilder, Size, TensorArg
from .. import common

#: Widest head; a plan for a head of unknown width is guarded by it.
MAX_WIDTH = 256

MACROS = r"""
#define scale (given_scale == given_scale ? given_scale : 1 / sqrt((ACC)width))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define Q_ROW(i) (b * q_b + h * q_h + (q_from + (i)) * q_l)
#define K_ROW(j) (b * k_b + h / share * k_h + (k_from + (j)) * k_l)
#define V_ROW(j) (b * v_b + h / share * v_h + (k_from + (j)) * v_l)
#define GRAD_ROW(i) (b * grad_b + h * grad_h + (q_from + (i)) * grad_l)
#define OUT_ROW(i) (b * out_b + h * out_h + (q_from + (i)) * out_l)
#define RESULT_ROW(i) (b * result_b + h * result_h + (q_from + (i)) * result_l)
#define OF_KEY_ROW(j) (b * of_key_b + h * of_key_h + (k_from + (j)) * of_key_l)
#define OF_VALUE_ROW(j) (b * of_value_b + h * of_value_h + (k_from + (j)) * of_value_l)
#define LSE_PLACE(i) (b * lse_b + h * lse_h + (q_from + (i)) * lse_l)
#define LSE_AT(i) ((ACC)lse[LSE_PLACE(i)])

/* Packed sequences lie one behind the other, without padding: SEQUENCE(b) says where one begins and how long it is,
   ALL_SEQUENCES takes all of them for one. Rows of no sequence, before the first or behind the last, become 0. */
#if PACKED
#define WITHIN(place, least, most) ((place) < (least) ? (least) : LEAST(place, most))
#define SEQUENCE(b)                                                                 \
  const long q_from = WITHIN((long)q_starts[b], 0L, all_queries),                   \
             k_from = WITHIN((long)k_starts[b], 0L, all_keys),                      \
             queries = WITHIN((long)q_starts[(b) + 1], q_from, all_queries) - q_from, \
             keys = WITHIN((long)k_starts[(b) + 1], k_from, all_keys) - k_from;
#define ALL_SEQUENCES const long q_from = 0, queries = all_queries;
#define QUERY_ROWS (heads * all_queries)
#define QUERY_ROW(i) (h * all_queries + q_from + (i))
#define FOR_OUTSIDE(row, starts, all, count)                                                                \
  const long before = WITHIN((long)starts[0], 0L, all), behind = WITHIN((long)starts[batches], before, all); \
  OB_FOR(row, (count) * (before + all - behind))
#define OUTSIDE(place) ((place) < before ? (place) : (place) - before + behind)
#define CLEAR(to, row, step, width) for (long e = 0; e < width; ++e) IN_STORE(to, row + e * step, 0);
#define CLEAR_OUTSIDE_QUERIES                                                       \
  FOR_OUTSIDE(outside, q_starts, all_queries, heads) {                              \
    const long h = outside % heads, i = OUTSIDE(outside / heads), b = 0, q_from = 0; \
    CLEAR(out, OUT_ROW(i), out_e, value_width)                                      \
    lse[LSE_PLACE(i)] = 0;                                                          \
  }
#define CLEAR_OUTSIDE_RESULT                                                        \
  FOR_OUTSIDE(outside, q_starts, all_queries, heads) {                              \
    const long h = outside % heads, i = OUTSIDE(outside / heads), b = 0, q_from = 0; \
    CLEAR(result, RESULT_ROW(i), result_e, width)                                   \
  }
#define CLEAR_OUTSIDE_KEYS                                                                  \
  FOR_OUTSIDE(outside, k_starts, all_keys, key_heads) {                                     \
    const long h = outside % key_heads, j = OUTSIDE(outside / key_heads), b = 0, k_from = 0; \
    CLEAR(of_key, OF_KEY_ROW(j), of_key_e, width)                                           \
    CLEAR(of_value, OF_VALUE_ROW(j), of_value_e, value_width)                               \
  }
#else
#define SEQUENCE(b)
#define ALL_SEQUENCES
#define CLEAR_OUTSIDE_QUERIES
#define CLEAR_OUTSIDE_RESULT
#define CLEAR_OUTSIDE_KEYS
#define q_from 0L
#define k_from 0L
#define most_queries queries
#define most_keys keys
#define QUERY_ROWS (batches * heads * queries)
#define QUERY_ROW(i) ((b * heads + h) * queries + (i))
#endif

/* Score of one query and key, with what the mask makes of it. */
#if MASK == 1
#define MASKED(score, i, j) (mask[b * mask_b + h * mask_h + (i) * mask_l + (j) * mask_s] ? (score) : (ACC)-INFINITY)
#elif MASK == 2
#define MASKED(score, i, j) \
  ((score) + (ACC)MASK_LOAD(mask, b * mask_b + h * mask_h + (i) * mask_l + (j) * mask_s))
#else
#define MASKED(score, i, j) (score)
#endif
"""


@dataclasses.dataclass(frozen=True)
class Packed:
    """Sequences one behind the other: where each begins and the last ends (int32 or int64, one more than there are
    sequences), and how many queries and keys there are in all."""

    query_starts: TensorArg
    key_starts: TensorArg
    queries: Size
    keys: Size


class Problem:
    """One call. ``strides`` names the strides of the tensors that only some kernels read or write; of packed sequences
    ``query``, ``key`` and ``value`` have as many places as the longest."""

    def __init__(self, builder: PlanBuilder, values: dict[str, Any], packed: Packed | None = None) -> None:
        self.builder = builder
        self.packed = packed
        self.query, self.key, self.value = (values[name] for name in ("query", "key", "value"))
        self.mask: TensorArg | None = values.get("attn_mask", values.get("attn_bias"))
        self.causal = bool(values["is_causal"])
        self.scale = values["scale"]
        self.dropout = values.get("dropout_p", 0.0)
        self.strides: dict[str, list[Size]] = {}
        self.lse_dtype = torch.float32

    def covered(self) -> bool:
        """Whether dtypes, ranks, sizes and options are those the kernels know."""
        dtype = self.query.dtype
        tensors = (self.query, self.key, self.value)
        if any(len(tensor.sizes) != 4 or tensor.dtype != dtype for tensor in tensors):
            return False
        if dtype not in common.FLOAT_DTYPES or not common.supported(self.builder, dtype):
            return False
        masks = {torch.bool, dtype} | ({torch.float32} if self.accumulate == "float" else set())
        if self.mask is not None and self.mask.dtype not in masks:
            return False
        if not isinstance(self.dropout, (int, float)) or self.dropout != 0:
            return False
        if not isinstance(self.scale, (float, int, type(None))):
            return False
        widths = [common.static_int(tensor.sizes[3]) for tensor in (self.query, self.value)]
        return all(width is None or width <= MAX_WIDTH for width in widths)

    @property
    def accumulate(self) -> str:
        """The type that scores are computed in."""
        return common.ELEMENT_TYPES[self.query.dtype].compute

    @property
    def mask_dtype(self) -> torch.dtype | None:
        """The dtype of the mask, if there is one."""
        return self.mask.dtype if self.mask is not None else None

    def text(self, body: str, **defines: object) -> str:
        """A program's text."""
        constants = {
            "ACC": self.accumulate,
            "MASK": 0 if self.mask is None else 1 if self.mask.dtype == torch.bool else 2,
            "MAX_WIDTH": MAX_WIDTH,
            "PACKED": int(self.packed is not None),
            "PARAMETERS": self._parameters(),
        }
        types = {"IN": self.query.dtype, "LSE": self.lse_dtype, "MASK": self.mask_dtype or torch.bool}
        if self.packed is not None:
            types |= {"Q_STARTS": self.packed.query_starts.dtype, "K_STARTS": self.packed.key_starts.dtype}
        return common.source(self.builder, MACROS + body, {**constants, **defines}, types)

    def _longs(self) -> dict[str, Size]:
        batches, heads, queries, width = self.query.sizes
        most = "" if self.packed is None else "most_"
        numbers: dict[str, Size] = {
            "batches": batches,
            "heads": heads,
            "share": self.share,
            f"{most}queries": queries,
            f"{most}keys": self.key.sizes[2],
            "width": width,
            "value_width": self.value.sizes[3],
            "causal": sympy.Integer(int(self.causal)),
        }
        if self.packed is not None:
            numbers |= {"all_queries": self.packed.queries, "all_keys": self.packed.keys}
        for name, tensor in (("q", self.query), ("k", self.key), ("v", self.value)):
            numbers |= {f"{name}_{axis}": stride for axis, stride in zip("bhle", tensor.strides, strict=True)}
        if self.mask is not None:
            steps = common.broadcast_strides(self.mask, [batches, heads, queries, self.key.sizes[2]])
            numbers |= {f"mask_{axis}": stride for axis, stride in zip("bhls", steps, strict=True)}
        for name, strides in self.strides.items():
            numbers |= {f"{name}_{axis}": stride for axis, stride in zip("bhle", strides, strict=False)}
        return numbers

    @property
    def share(self) -> Size:
        """How many heads of queries share one of keys and values."""
        return common.floor_div(self.query.sizes[1], self.key.sizes[1])

    @property
    def query_rows(self) -> Size:
        """How many queries there are, of all heads."""
        batches, heads, queries, _ = self.query.sizes
        return batches * heads * queries if self.packed is None else heads * self.packed.queries

    def _parameters(self) -> str:
        starts = [f", OB_GLOBAL const {side}_STARTS_T* {side.lower()}_starts" for side in "QK" if self.packed]
        longs = [f", const long {name}" for name in self._longs()]
        return "".join([", const ACC given_scale", *starts, *longs])

    def numbers(self) -> list[p.Argument]:
        """The values of the parameters that all kernels take."""
        starts = [] if self.packed is None else [self.packed.query_starts, self.packed.key_starts]
        return [
            self._scale_argument(),
            *map(self.builder.pointer, starts),
            *map(self.builder.int64, self._longs().values()),
        ]

    def _scale_argument(self) -> p.Argument:
        # NaN stands for the usual scale, which depends on the run-time width.
        scale = float("nan") if self.scale is None else float(self.scale)
        return common.float_value(self.builder, scale, self.accumulate == "double")

    def guard(self) -> None:
        """Restricts the plan to heads that fit."""
        for tensor in (self.query, self.value):
            if common.static_int(tensor.sizes[3]) is None:
                self.builder.guard(sympy.Le(tensor.sizes[3], MAX_WIDTH))

    def pointers(self) -> list[p.Argument]:
        """Queries, keys, values and mask (any pointer where there is none)."""
        mask = self.mask if self.mask is not None else self.query
        return [self.builder.pointer(tensor) for tensor in (self.query, self.key, self.value, mask)]
