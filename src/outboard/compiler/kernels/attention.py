# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention, forward and backward, without the matrix of scores in memory.

A work-item owns ``LANES`` neighbouring queries (or, for the gradients of keys and values, keys), one to a lane of a
vector on a CPU and a single one on SIMT devices, and walks the other side in blocks. The forward keeps a running
maximum and sum per query; the backward recomputes probabilities from their logarithm's sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy
import torch

from .. import plan as p
from ..builder import PlanBuilder, Size, TensorArg
from . import common

if TYPE_CHECKING:
    from ..calls import ExternCall

_COMMON = r"""
#if LANES > 1
#define LANE(vector, l) ((ACC*)&(vector))[l]
#else
#define LANE(vector, l) (vector)
#endif
#define scale (given_scale == given_scale ? given_scale : 1 / sqrt((ACC)width))
#define Q_ROW(i) (b * q_b + h * q_h + (i) * q_l)
#define K_ROW(j) (b * k_b + h / share * k_h + (j) * k_l)
#define V_ROW(j) (b * v_b + h / share * v_h + (j) * v_l)

#if MASK == 1
#define MASKED(score, i, j) (mask[b * mask_b + h * mask_h + (i) * mask_l + (j) * mask_s] ? (score) : (ACC)-INFINITY)
#elif MASK == 2
#define MASKED(score, i, j) \
  ((score) + (ACC)MASK_LOAD(mask, b * mask_b + h * mask_h + (i) * mask_l + (j) * mask_s))
#else
#define MASKED(score, i, j) (score)
#endif
/* Score of one query and key, with what the masks make of it. */
#define SCORE(score, i, j) (causal && (j) > (i) ? (ACC)-INFINITY : MASKED(score, i, j))
"""

_FORWARD = r"""
OB_KERNEL void attend(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                      OB_GLOBAL const MASK_T* mask, OB_GLOBAL IN_T* out, OB_GLOBAL LSE_T* lse PARAMETERS) {
  const long blocks = (queries + LANES - 1) / LANES;
  OB_FOR(piece, batches * heads * blocks) {
    const long first = piece % blocks * LANES, h = piece / blocks % heads, b = piece / blocks / heads;
    const int lanes = queries - first < LANES ? (int)(queries - first) : LANES;
    VEC q[MAX_WIDTH], sum[MAX_WIDTH];
    ACC rows[BLOCK * MAX_WIDTH];
    for (long e = 0; e < width; ++e) {
      q[e] = 0;
      for (int l = 0; l < lanes; ++l) LANE(q[e], l) = (ACC)IN_LOAD(query, Q_ROW(first + l) + e * q_e) * scale;
    }
    for (long e = 0; e < value_width; ++e) sum[e] = 0;
    VEC most = (VEC)((ACC)-INFINITY), total = 0;
    const long end = causal && first + lanes < keys ? first + lanes : keys;
    for (long start = 0; start < end; start += BLOCK) {
      const int count = end - start < BLOCK ? (int)(end - start) : BLOCK;
      VEC score[BLOCK];
      for (int j = 0; j < count; ++j)
        for (long e = 0; e < width; ++e) rows[j * MAX_WIDTH + e] = (ACC)IN_LOAD(key, K_ROW(start + j) + e * k_e);
      for (int j = 0; j < count; ++j) score[j] = 0;
      for (int j = count; j < BLOCK; ++j) {
        score[j] = (VEC)((ACC)-INFINITY);
        for (long e = 0; e < value_width; ++e) rows[j * MAX_WIDTH + e] = 0;
      }
      for (int j = 0; j < count; ++j) {
        VEC s = 0;
        for (long e = 0; e < width; ++e) s += q[e] * rows[j * MAX_WIDTH + e];
        if (MASK || causal) {
          for (int l = 0; l < lanes; ++l) LANE(s, l) = SCORE(LANE(s, l), first + l, start + j);
        }
        score[j] = s;
      }
      VEC peak = most;
      for (int j = 0; j < count; ++j) peak = fmax(peak, score[j]);
      /* A query that may look at nothing yet subtracts 0, not -inf. */
      VEC base = peak;
      for (int l = 0; l < LANES; ++l) if (LANE(base, l) == (ACC)-INFINITY) LANE(base, l) = 0;
      const VEC shrink = exp(most - base);
      most = peak;
      total *= shrink;
      for (int j = 0; j < BLOCK; ++j) {
        score[j] = exp(score[j] - base);
        total += score[j];
      }
      for (int j = 0; j < count; ++j)
        for (long e = 0; e < value_width; ++e)
          rows[j * MAX_WIDTH + e] = (ACC)IN_LOAD(value, V_ROW(start + j) + e * v_e);
      for (long e = 0; e < value_width; ++e) {
        VEC s = sum[e] * shrink;
        for (int j = 0; j < BLOCK; ++j) s += score[j] * rows[j * MAX_WIDTH + e];
        sum[e] = s;
      }
    }
    for (int l = 0; l < lanes; ++l) {
      const ACC all = LANE(total, l);
      const ACC inverse = all == 0 ? (ACC)0 : 1 / all;
      for (long e = 0; e < value_width; ++e)
        IN_STORE(out, b * out_b + h * out_h + (first + l) * out_l + e * out_e, LANE(sum[e], l) * inverse);
      lse[b * lse_b + h * lse_h + (first + l) * lse_l] = (LSE_T)(LANE(most, l) + log(all));
    }
  }
}
"""

_BACKWARD = r"""
/* The product of gradient and result of each query, summed. */
OB_KERNEL void sum_products(OB_GLOBAL const IN_T* grad, OB_GLOBAL const IN_T* out, OB_GLOBAL ACC* products PARAMETERS) {
  OB_FOR(row, batches * heads * queries) {
    const long i = row % queries, h = row / queries % heads, b = row / queries / heads;
    ACC total = 0;
    for (long e = 0; e < value_width; ++e)
      total += (ACC)IN_LOAD(grad, b * grad_b + h * grad_h + i * grad_l + e * grad_e) *
               (ACC)IN_LOAD(out, b * out_b + h * out_h + i * out_l + e * out_e);
    products[row] = total;
  }
}

#define GRAD_ROW(i) (b * grad_b + h * grad_h + (i) * grad_l)
#define LSE_AT(i) ((ACC)lse[b * lse_b + h * lse_h + (i) * lse_l])
#define PRODUCT_AT(i) products[(b * heads + h) * queries + (i)]
/* A masked pair has no part in anything, even where a query may look at nothing. */
#define PROBABILITY(score, i) ((score) == (ACC)-INFINITY ? (ACC)0 : exp((score) - LSE_AT(i)))

OB_KERNEL void query_gradient(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                              OB_GLOBAL const MASK_T* mask, OB_GLOBAL const IN_T* grad, OB_GLOBAL const LSE_T* lse,
                              OB_GLOBAL const ACC* products, OB_GLOBAL IN_T* result PARAMETERS) {
  const long blocks = (queries + LANES - 1) / LANES;
  OB_FOR(piece, batches * heads * blocks) {
    const long first = piece % blocks * LANES, h = piece / blocks % heads, b = piece / blocks / heads;
    const int lanes = queries - first < LANES ? (int)(queries - first) : LANES;
    VEC q[MAX_WIDTH], g[MAX_WIDTH], sum[MAX_WIDTH];
    ACC k_row[MAX_WIDTH], v_row[MAX_WIDTH];
    for (long e = 0; e < width; ++e) {
      q[e] = 0;
      sum[e] = 0;
      for (int l = 0; l < lanes; ++l) LANE(q[e], l) = (ACC)IN_LOAD(query, Q_ROW(first + l) + e * q_e) * scale;
    }
    for (long e = 0; e < value_width; ++e) {
      g[e] = 0;
      for (int l = 0; l < lanes; ++l) LANE(g[e], l) = (ACC)IN_LOAD(grad, GRAD_ROW(first + l) + e * grad_e);
    }
    const long end = causal && first + lanes < keys ? first + lanes : keys;
    for (long j = 0; j < end; ++j) {
      for (long e = 0; e < width; ++e) k_row[e] = (ACC)IN_LOAD(key, K_ROW(j) + e * k_e);
      for (long e = 0; e < value_width; ++e) v_row[e] = (ACC)IN_LOAD(value, V_ROW(j) + e * v_e);
      VEC s = 0, change = 0;
      for (long e = 0; e < width; ++e) s += q[e] * k_row[e];
      for (long e = 0; e < value_width; ++e) change += g[e] * v_row[e];
      VEC slope = 0;
      for (int l = 0; l < lanes; ++l) {
        const ACC masked = SCORE(LANE(s, l), first + l, j);
        LANE(slope, l) = PROBABILITY(masked, first + l) * (LANE(change, l) - PRODUCT_AT(first + l)) * scale;
      }
      for (long e = 0; e < width; ++e) sum[e] += slope * k_row[e];
    }
    for (int l = 0; l < lanes; ++l)
      for (long e = 0; e < width; ++e)
        IN_STORE(result, b * result_b + h * result_h + (first + l) * result_l + e * result_e, LANE(sum[e], l));
  }
}

OB_KERNEL void key_gradients(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                             OB_GLOBAL const MASK_T* mask, OB_GLOBAL const IN_T* grad, OB_GLOBAL const LSE_T* lse,
                             OB_GLOBAL const ACC* products, OB_GLOBAL IN_T* of_key, OB_GLOBAL IN_T* of_value
                             PARAMETERS) {
  const long blocks = (keys + LANES - 1) / LANES, key_heads = heads / share;
  OB_FOR(piece, batches * key_heads * blocks) {
    const long first = piece % blocks * LANES, key_head = piece / blocks % key_heads, b = piece / blocks / key_heads;
    const int lanes = keys - first < LANES ? (int)(keys - first) : LANES;
    VEC k[MAX_WIDTH], v[MAX_WIDTH], k_sum[MAX_WIDTH], v_sum[MAX_WIDTH];
    ACC q_row[MAX_WIDTH], g_row[MAX_WIDTH];
    {
      const long h = key_head * share;
      for (long e = 0; e < width; ++e) {
        k[e] = 0;
        k_sum[e] = 0;
        for (int l = 0; l < lanes; ++l) LANE(k[e], l) = (ACC)IN_LOAD(key, K_ROW(first + l) + e * k_e);
      }
      for (long e = 0; e < value_width; ++e) {
        v[e] = 0;
        v_sum[e] = 0;
        for (int l = 0; l < lanes; ++l) LANE(v[e], l) = (ACC)IN_LOAD(value, V_ROW(first + l) + e * v_e);
      }
    }
    for (long h = key_head * share; h < (key_head + 1) * share; ++h) {
      for (long i = causal ? first : 0; i < queries; ++i) {
        for (long e = 0; e < width; ++e) q_row[e] = (ACC)IN_LOAD(query, Q_ROW(i) + e * q_e) * scale;
        for (long e = 0; e < value_width; ++e) g_row[e] = (ACC)IN_LOAD(grad, GRAD_ROW(i) + e * grad_e);
        VEC s = 0, change = 0;
        for (long e = 0; e < width; ++e) s += k[e] * q_row[e];
        for (long e = 0; e < value_width; ++e) change += v[e] * g_row[e];
        VEC weight = 0, slope = 0;
        for (int l = 0; l < lanes; ++l) {
          const ACC masked = SCORE(LANE(s, l), i, first + l);
          const ACC probability = PROBABILITY(masked, i);
          LANE(weight, l) = probability;
          LANE(slope, l) = probability * (LANE(change, l) - PRODUCT_AT(i));
        }
        for (long e = 0; e < width; ++e) k_sum[e] += slope * q_row[e];
        for (long e = 0; e < value_width; ++e) v_sum[e] += weight * g_row[e];
      }
    }
    for (int l = 0; l < lanes; ++l) {
      for (long e = 0; e < width; ++e)
        IN_STORE(of_key, b * of_key_b + key_head * of_key_h + (first + l) * of_key_l + e * of_key_e, LANE(k_sum[e], l));
      for (long e = 0; e < value_width; ++e)
        IN_STORE(of_value, b * of_value_b + key_head * of_value_h + (first + l) * of_value_l + e * of_value_e,
                 LANE(v_sum[e], l));
    }
  }
}
"""

#: Widest head; a plan for a head of unknown width is guarded by it.
_MAX_WIDTH = 256


class _Problem:
    """What forward and backward share: shapes, masks, and the parameters that all kernels take."""

    def __init__(self, builder: PlanBuilder, values: dict[str, Any], mask: TensorArg | None) -> None:
        self.builder = builder
        self.query, self.key, self.value = (values[name] for name in ("query", "key", "value"))
        self.mask = mask
        self.causal = bool(values["is_causal"])
        self.scale = values["scale"]
        self.strides: dict[str, list[Size]] = {}
        self.lse_dtype = torch.float32

    def covered(self, dropout: object) -> bool:
        """Whether dtypes, ranks, sizes and options are those the kernels know."""
        tensors = (self.query, self.key, self.value)
        if any(len(tensor.sizes) != 4 or tensor.dtype != self.query.dtype for tensor in tensors):
            return False
        if self.query.dtype not in common.FLOAT_DTYPES or not common.supported(self.builder, self.query.dtype):
            return False
        if self.mask is not None and self.mask.dtype not in (torch.bool, self.query.dtype):
            return False
        if (
            not isinstance(dropout, (int, float))
            or dropout != 0
            or not isinstance(self.scale, (float, int, type(None)))
        ):
            return False
        widths = [common.static_int(tensor.sizes[3]) for tensor in (self.query, self.value)]
        return all(width is None or width <= _MAX_WIDTH for width in widths)

    @property
    def accumulate(self) -> str:
        return common.ELEMENT_TYPES[self.query.dtype].compute

    def text(self, body: str, **defines: object) -> str:
        """A program's text."""
        cpu = self.builder.target.is_cpu
        lanes = 1 if not cpu else 8 if self.accumulate == "double" else 16
        mask_kind = 0 if self.mask is None else 1 if self.mask.dtype == torch.bool else 2
        constants = {
            "ACC": self.accumulate,
            "LANES": lanes,
            "VEC": self.accumulate if lanes == 1 else f"{self.accumulate}{lanes}",
            "MASK": mask_kind,
            "BLOCK": 16 if cpu else 4,
            "MAX_WIDTH": _MAX_WIDTH,
            "PARAMETERS": self._parameters(),
        }
        types = {"IN": self.query.dtype, "LSE": self.lse_dtype, "MASK": self.mask.dtype if self.mask else torch.bool}
        return common.source(self.builder, _COMMON + body, {**constants, **defines}, types)

    def _longs(self) -> dict[str, Size]:
        batches, heads, queries, width = self.query.sizes
        numbers: dict[str, Size] = {
            "batches": batches,
            "heads": heads,
            "share": common.floor_div(heads, self.key.sizes[1]),
            "queries": queries,
            "keys": self.key.sizes[2],
            "width": width,
            "value_width": self.value.sizes[3],
            "causal": sympy.Integer(int(self.causal)),
        }
        for name, tensor in (("q", self.query), ("k", self.key), ("v", self.value)):
            numbers |= {f"{name}_{axis}": stride for axis, stride in zip("bhle", tensor.strides, strict=True)}
        if self.mask is not None:
            missing = 4 - len(self.mask.sizes)
            steps = [sympy.Integer(0)] * missing + [
                sympy.Integer(0) if size == 1 else stride
                for size, stride in zip(self.mask.sizes, self.mask.strides, strict=True)
            ]
            numbers |= {f"mask_{axis}": stride for axis, stride in zip("bhls", steps, strict=True)}
        for name, strides in self.strides.items():
            numbers |= {f"{name}_{axis}": stride for axis, stride in zip("bhle", strides, strict=False)}
        return numbers

    def _parameters(self) -> str:
        return ", const ACC given_scale" + "".join(f", const long {name}" for name in self._longs())

    def numbers(self) -> list[p.Argument]:
        """The values of the parameters that all kernels take."""
        return [self._scale_argument(), *(self.builder.int64(value) for value in self._longs().values())]

    def _scale_argument(self) -> p.Argument:
        # NaN stands for the usual scale, which depends on the run-time width.
        scale = float("nan") if self.scale is None else float(self.scale)
        return common.float_constant(self.builder, scale, self.accumulate == "double")

    def guard(self) -> None:
        """Restricts the plan to heads that fit."""
        for tensor in (self.query, self.value):
            if common.static_int(tensor.sizes[3]) is None:
                self.builder.guard(sympy.Le(tensor.sizes[3], _MAX_WIDTH))

    def pieces(self, heads: Size, rows: Size) -> Size:
        """How many work-items own something."""
        lanes = (8 if self.accumulate == "double" else 16) if self.builder.target.is_cpu else 1
        return self.query.sizes[0] * heads * common.ceil_div(rows, lanes)

    def mask_pointer(self) -> p.Argument:
        """The mask, or any pointer where there is none."""
        return self.builder.pointer(self.mask if self.mask is not None else self.query)


def _mask_of(values: dict[str, Any]) -> TensorArg | None:
    mask: TensorArg | None = values.get("attn_mask", values.get("attn_bias"))
    return mask


def lower_forward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``_scaled_dot_product_fused_attention_overrideable`` and ``_scaled_dot_product_flash_attention_for_cpu``, without
    dropout. Results beyond the output and the logarithms of the sums are left as they are."""
    values, results = common.bind(call), common.outputs(call)
    problem = _Problem(builder, values, _mask_of(values))
    if len(results) < 2 or not problem.covered(values["dropout_p"]) or results[0].dtype != problem.query.dtype:
        return False
    out, lse = results[0], results[1]
    if lse.dtype not in (torch.float32, torch.float64) or values.get("return_debug_mask"):
        return False
    problem.guard()
    problem.lse_dtype = lse.dtype
    problem.strides = {"out": list(out.strides), "lse": list(lse.strides)}
    kernel = builder.kernel(problem.text(_FORWARD), "attend")
    tensors = [builder.pointer(tensor) for tensor in (problem.query, problem.key, problem.value)]
    arguments = [*tensors, problem.mask_pointer(), builder.pointer(out), builder.pointer(lse), *problem.numbers()]
    pieces = problem.pieces(problem.query.sizes[1], problem.query.sizes[2])
    common.launch_items(builder, kernel, pieces, arguments, grain=1)
    return True


def lower_backward(builder: PlanBuilder, call: ExternCall) -> bool:
    """The gradients of query, key and value for both forward operators; not that of a mask."""
    values, results = common.bind(call), common.outputs(call)
    problem = _Problem(builder, values, _mask_of(values))
    grad, out, lse = values["grad_out"], values["out"], values["logsumexp"]
    wanted = [bool(flag) for flag in values.get("grad_input_mask", [True, True, True, False])]
    if not problem.covered(values["dropout_p"]) or len(results) < 3 or any(wanted[3:]) or not all(wanted[:3]):
        return False
    if lse.dtype not in (torch.float32, torch.float64):
        return False
    problem.guard()
    problem.lse_dtype = lse.dtype
    tensors = {"grad": grad, "out": out, "result": results[0], "of_key": results[1], "of_value": results[2]}
    problem.strides = {name: list(tensor.strides) for name, tensor in tensors.items()} | {"lse": list(lse.strides)}
    batches, heads, queries, _ = problem.query.sizes
    width = common.compute_size(problem.accumulate)
    products = builder.allocate(common.larger(width, batches * heads * queries * width))
    text, numbers = problem.text(_BACKWARD), problem.numbers()
    arguments = [builder.pointer(grad), builder.pointer(out), builder.pointer(products), *numbers]
    kernel = builder.kernel(text, "sum_products")
    common.launch_items(builder, kernel, batches * heads * queries, arguments, grain=64)
    shared = [builder.pointer(tensor) for tensor in (problem.query, problem.key, problem.value)]
    shared += [problem.mask_pointer(), builder.pointer(grad), builder.pointer(lse), builder.pointer(products)]
    arguments = [*shared, builder.pointer(results[0]), *numbers]
    kernel = builder.kernel(text, "query_gradient")
    common.launch_items(builder, kernel, problem.pieces(heads, queries), arguments, grain=1)
    arguments = [*shared, builder.pointer(results[1]), builder.pointer(results[2]), *numbers]
    kernel = builder.kernel(text, "key_gradients")
    pieces = problem.pieces(problem.key.sizes[1], problem.key.sizes[2])
    common.launch_items(builder, kernel, pieces, arguments, grain=1)
    builder.free(products)
    return True
