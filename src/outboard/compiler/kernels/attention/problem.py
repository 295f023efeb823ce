# SPDX-License-Identifier: Apache-2.0
"""What all kernels of attention share: shapes, masks, and the parameters that all of them take."""

from __future__ import annotations

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
#define Q_ROW(i) (b * q_b + h * q_h + (i) * q_l)
#define K_ROW(j) (b * k_b + h / share * k_h + (j) * k_l)
#define V_ROW(j) (b * v_b + h / share * v_h + (j) * v_l)
#define GRAD_ROW(i) (b * grad_b + h * grad_h + (i) * grad_l)
#define OUT_ROW(i) (b * out_b + h * out_h + (i) * out_l)
#define RESULT_ROW(i) (b * result_b + h * result_h + (i) * result_l)
#define OF_KEY_ROW(j) (b * of_key_b + h * of_key_h + (j) * of_key_l)
#define OF_VALUE_ROW(j) (b * of_value_b + h * of_value_h + (j) * of_value_l)
#define LSE_AT(i) ((ACC)lse[b * lse_b + h * lse_h + (i) * lse_l])

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


class Problem:
    """One call. ``strides`` names the strides of the tensors that only some kernels read or write."""

    def __init__(self, builder: PlanBuilder, values: dict[str, Any]) -> None:
        self.builder = builder
        self.query, self.key, self.value = (values[name] for name in ("query", "key", "value"))
        self.mask: TensorArg | None = values.get("attn_mask", values.get("attn_bias"))
        self.causal = bool(values["is_causal"])
        self.scale = values["scale"]
        self.dropout = values["dropout_p"]
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
            "PARAMETERS": self._parameters(),
        }
        types = {"IN": self.query.dtype, "LSE": self.lse_dtype, "MASK": self.mask_dtype or torch.bool}
        return common.source(self.builder, MACROS + body, {**constants, **defines}, types)

    def _longs(self) -> dict[str, Size]:
        batches, heads, queries, width = self.query.sizes
        numbers: dict[str, Size] = {
            "batches": batches,
            "heads": heads,
            "share": self.share,
            "queries": queries,
            "keys": self.key.sizes[2],
            "width": width,
            "value_width": self.value.sizes[3],
            "causal": sympy.Integer(int(self.causal)),
        }
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
                self.builder.guard(sympy.Le(tensor.sizes[3], MAX_WIDTH))

    def pointers(self) -> list[p.Argument]:
        """Queries, keys, values and mask (any pointer where there is none)."""
        mask = self.mask if self.mask is not None else self.query
        return [self.builder.pointer(tensor) for tensor in (self.query, self.key, self.value, mask)]
