# SPDX-License-Identifier: Apache-2.0
"""Distances between rows: cdist and its gradient, pdist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from ..plans.builder import PlanBuilder, Size, TensorArg
from . import common

if TYPE_CHECKING:
    from .call import ExternCall

_DISTANCE = r"""
#define KIND_ZERO (exponent == 0)
#define KIND_MAX (exponent == INFINITY)

ACC distance(OB_GLOBAL const IN_T* a, OB_GLOBAL const IN_T* b, long a_at, long b_at, long a_step, long b_step,
                       long count, ACC exponent) {
  ACC total = 0;
  for (long k = 0; k < count; ++k) {
    const ACC gap = fabs((ACC)IN_LOAD(a, a_at + k * a_step) - (ACC)IN_LOAD(b, b_at + k * b_step));
    if (KIND_ZERO) total += gap > 0 ? (ACC)1 : gap;
    else if (KIND_MAX) total = gap > total || gap != gap ? gap : total;
    else if (exponent == 1) total += gap;
    else if (exponent == 2) total += gap * gap;
    else total += pow(gap, exponent);
  }
  if (KIND_ZERO || KIND_MAX || exponent == 1) return total;
  return exponent == 2 ? sqrt(total) : pow(total, 1 / exponent);
}
"""

_PAIRS = r"""
/* Elements of the result are (row, i, j); a has na rows per matrix and b nb. */
OB_KERNEL void pairs(OB_GLOBAL const IN_T* a, OB_GLOBAL const IN_T* b, OB_GLOBAL IN_T* out, const long matrices,
                     const long na, const long nb, const long count, const ACC exponent, const long a_i, const long a_k,
                     const long b_j, const long b_k, const long out_i, const long out_j ROW_PARAMETERS) {
  OB_FOR(element, matrices * na * nb) {
    const long j = element % nb, i = element / nb % na;
    ROW_OFFSETS(element / nb / na);
    IN_STORE(out, out_row + i * out_i + j * out_j,
             distance(a, b, a_row + i * a_i, b_row + j * b_j, a_k, b_k, count, exponent));
  }
}
"""

_UPPER_PAIRS = r"""
/* The strict upper triangle of the distances of a with itself, row after row. */
OB_KERNEL void upper_pairs(OB_GLOBAL const IN_T* a, OB_GLOBAL IN_T* out, const long na, const long count,
                           const ACC exponent, const long a_i, const long a_k, const long out_i) {
  OB_FOR(i, na) {
    const long start = i * (2 * na - i - 1) / 2;
    for (long j = i + 1; j < na; ++j)
      IN_STORE(out, (start + j - i - 1) * out_i, distance(a, a, i * a_i, j * a_i, a_k, a_k, count, exponent));
  }
}
"""

_PAIRS_BACKWARD = r"""
/* Gradient with respect to a: elements are (row, i, k). */
OB_KERNEL void pairs_backward(OB_GLOBAL const IN_T* grad, OB_GLOBAL const IN_T* a, OB_GLOBAL const IN_T* b,
                              OB_GLOBAL const IN_T* distances, OB_GLOBAL IN_T* out, const long matrices, const long na,
                              const long nb, const long count, const ACC exponent, const long grad_i, const long grad_j,
                              const long a_i, const long a_k, const long b_j, const long b_k, const long distances_i,
                              const long distances_j, const long out_i, const long out_k ROW_PARAMETERS) {
  OB_FOR(element, matrices * na * count) {
    const long k = element % count, i = element / count % na;
    ROW_OFFSETS(element / count / na);
    ACC total = 0;
    for (long j = 0; j < nb; ++j) {
      const ACC gap = (ACC)IN_LOAD(a, a_row + i * a_i + k * a_k) - (ACC)IN_LOAD(b, b_row + j * b_j + k * b_k);
      const ACC g = (ACC)IN_LOAD(grad, grad_row + i * grad_i + j * grad_j);
      const ACC far = (ACC)IN_LOAD(distances, distances_row + i * distances_i + j * distances_j);
      const ACC sign = gap > 0 ? (ACC)1 : gap < 0 ? (ACC)-1 : (ACC)0;
      if (KIND_ZERO) continue;
      if (exponent == 1) total += g * sign;
      else if (KIND_MAX) total += fabs(gap) == far ? g * sign : (ACC)0;
      else if (far == 0 || gap == 0) continue;
      else if (exponent == 2) total += g * gap / far;
      else total += g * sign * pow(fabs(gap), exponent - 1) * pow(far, 1 - exponent);
    }
    IN_STORE(out, out_row + i * out_i + k * out_k, total);
  }
}
"""


def _lead(tensor: TensorArg, sizes: list[Size]) -> list[Size] | None:
    """Strides of the leading dimensions, broadcast to ``sizes``."""
    missing = len(sizes) - (len(tensor.sizes) - 2)
    if missing < 0:
        return None
    own = zip(tensor.sizes[:-2], tensor.strides[:-2], sizes[missing:], strict=True)
    return [sympy.Integer(0)] * missing + [
        sympy.Integer(0) if size == 1 and target != 1 else stride for size, stride, target in own
    ]


def _covered(builder: PlanBuilder, tensors: list[TensorArg]) -> bool:
    dtypes = {tensor.dtype for tensor in tensors}
    return len(dtypes) == 1 and dtypes <= common.FLOAT_DTYPES and common.supported(builder, *dtypes)


def lower_cdist(builder: PlanBuilder, call: ExternCall) -> bool:
    """``_cdist_forward`` and ``_cdist_backward``."""
    values, out = call.bind(), call.outputs()[0]
    a, b, exponent, backward = values["x1"], values["x2"], values["p"], "cdist" in values
    tensors = {"a": a, "b": b, "out": out}
    if backward:
        grad = next(iter(values.values()))  # the first one, whose name is another from PyTorch 2.14 on
        tensors = {"grad": grad, "a": a, "b": b, "distances": values["cdist"], "out": out}
    lead = list(out.sizes[:-2])
    strides = {name: _lead(tensor, lead) for name, tensor in tensors.items()}
    known = {name: items for name, items in strides.items() if items is not None}
    if len(known) < len(strides) or not _covered(builder, list(tensors.values())):
        return False
    rows = common.Rows(lead, known)
    accumulate = common.ELEMENT_TYPES[a.dtype].compute
    body = _PAIRS_BACKWARD if backward else _PAIRS
    text = common.source(builder, rows.macros() + _DISTANCE + body, {"ACC": accumulate}, {"IN": a.dtype})
    arguments = [builder.pointer(tensor) for tensor in tensors.values()]
    arguments += [builder.int64(size) for size in (rows.count, a.sizes[-2], b.sizes[-2], a.sizes[-1])]
    arguments.append(common.float_value(builder, exponent, accumulate == "double"))
    for tensor in tensors.values():
        arguments += [builder.int64(stride) for stride in tensor.strides[-2:]]
    arguments += rows.arguments(builder)
    kernel = builder.kernel(text, "pairs_backward" if backward else "pairs")
    common.launch_items(builder, kernel, out.numel(), arguments, grain=16)
    return True


def lower_pdist(builder: PlanBuilder, call: ExternCall) -> bool:
    """``_pdist_forward``."""
    values, out = call.bind(), call.outputs()[0]
    a, exponent = values["self"], values["p"]
    if not _covered(builder, [a, out]):
        return False
    accumulate = common.ELEMENT_TYPES[a.dtype].compute
    text = common.source(builder, _DISTANCE + _UPPER_PAIRS, {"ACC": accumulate}, {"IN": a.dtype})
    numbers = [builder.int64(size) for size in a.sizes]
    numbers.append(common.float_value(builder, exponent, accumulate == "double"))
    strides = [builder.int64(stride) for stride in (*a.strides, out.strides[0])]
    arguments = [builder.pointer(a), builder.pointer(out), *numbers, *strides]
    common.launch_items(builder, builder.kernel(text, "upper_pairs"), a.sizes[0], arguments, grain=1)
    return True
