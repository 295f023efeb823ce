# SPDX-License-Identifier: Apache-2.0
"""Orthogonal polynomials of a run-time degree: Chebyshev (four kinds, also shifted), Hermite, Laguerre, Legendre."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..plans.builder import PlanBuilder, TensorArg
from . import common

if TYPE_CHECKING:
    from .call import ExternCall

_BODY = r"""
ACC polynomial(ACC given, long degree) {
  if (degree < 0) return 0;
  const ACC x = SHIFTED ? given + given - 1 : given;
  ACC before = 1, now = FIRST;
  if (degree == 0) return before;
  for (long k = 1; k < degree && now == now; ++k) {
    const ACC next = NEXT;
    before = now;
    now = next;
  }
  return now;
}

OB_KERNEL void evaluate(OB_GLOBAL const X_T* x, OB_GLOBAL const N_T* degree, OB_GLOBAL OUT_T* out,
                        const long count ROW_PARAMETERS) {
  OB_FOR(i, count) {
    ROW_OFFSETS(i);
    OUT_STORE(out, out_row, polynomial((ACC)X_LOAD(x, x_row), (long)N_LOAD(degree, degree_row)));
  }
}
"""
_CHEBYSHEV = "(x + x) * now - before"
#: name -> (value of degree 1, value of degree k + 1 from those of k and k - 1)
_KINDS = {
    "chebyshev_polynomial_t": ("x", _CHEBYSHEV),
    "chebyshev_polynomial_u": ("(x + x)", _CHEBYSHEV),
    "chebyshev_polynomial_v": ("(x + x - 1)", _CHEBYSHEV),
    "chebyshev_polynomial_w": ("(x + x + 1)", _CHEBYSHEV),
    "hermite_polynomial_h": ("(x + x)", "(x + x) * now - (ACC)(k + k) * before"),
    "hermite_polynomial_he": ("x", "x * now - (ACC)k * before"),
    "laguerre_polynomial_l": ("(1 - x)", "(((ACC)(k + k + 1) - x) * now - (ACC)k * before) / (ACC)(k + 1)"),
    "legendre_polynomial_p": ("x", "((ACC)(k + k + 1) * x * now - (ACC)k * before) / (ACC)(k + 1)"),
}

#: The operators of this family.
NAMES = tuple(f"special_{name}" for name in _KINDS) + tuple(
    f"special_shifted_chebyshev_polynomial_{kind}" for kind in "tuvw"
)


def lower(builder: PlanBuilder, call: ExternCall) -> bool:
    """Any of ``NAMES`` of two tensors."""
    values, out = call.bind(), call.outputs()[0]
    x, degree = values["x"], values["n"]
    if not isinstance(x, TensorArg) or not isinstance(degree, TensorArg):
        return False
    if out.dtype not in (torch.float32, torch.float64) or not common.supported(
        builder, x.dtype, degree.dtype, out.dtype
    ):
        return False
    name = call.name.partition(".")[0].removeprefix("aten::special_")
    first, following = _KINDS[name.removeprefix("shifted_")]
    strides = {
        "x": common.broadcast_strides(x, out.sizes),
        "degree": common.broadcast_strides(degree, out.sizes),
        "out": list(out.strides),
    }
    rows = common.Rows(out.sizes, strides)
    defines = {
        "ACC": common.ELEMENT_TYPES[out.dtype].compute,
        "SHIFTED": int(name.startswith("shifted_")),
        "FIRST": first,
        "NEXT": f"({following})",
    }
    types = {"X": x.dtype, "N": degree.dtype, "OUT": out.dtype}
    text = common.source(builder, rows.macros() + _BODY, defines, types)
    arguments = [builder.pointer(tensor) for tensor in (x, degree, out)]
    arguments += [builder.int64(rows.count), *rows.arguments(builder)]
    common.launch_items(builder, builder.kernel(text, "evaluate"), rows.count, arguments, grain=64)
    return True
