# SPDX-License-Identifier: Apache-2.0
"""Pooling over windows, and the gradients of pooling and of replication padding."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import sympy

from ..builder import PlanBuilder, Size, TensorArg
from . import common, planes

if TYPE_CHECKING:
    from ..calls import ExternCall

# Windows [<axis>0, <axis>1) in the input, by a kernel or by even division; steps of <axis>t (dilation).
_FIXED = "".join(
    f"long {a}0 = {a} * s{a} - p{a}; long {a}1 = {a}0 + k{a} < i{a} + p{a} ? {a}0 + k{a} : i{a} + p{a}; " for a in "dhw"
)
_DILATED = "".join(
    f"long {a}0 = {a} * s{a} - p{a}; const long {a}t = l{a}; "
    f"long {a}1 = {a}0 + (k{a} - 1) * {a}t + 1 < i{a} ? {a}0 + (k{a} - 1) * {a}t + 1 : i{a}; "
    f"if ({a}0 < 0) {a}0 += (-{a}0 + {a}t - 1) / {a}t * {a}t; "
    for a in "dhw"
)
_EVEN = "".join(
    f"const long {a}0 = {a} * i{a} / o{a}, {a}1 = (({a} + 1) * i{a} + o{a} - 1) / o{a}, {a}t = 1; " for a in "dhw"
)
_LOOP = "for (long z = d0; z < d1; z += {0}) for (long y = h0; y < h1; y += {1}) for (long x = w0; x < w1; x += {2}) "
_EACH = _LOOP.format(1, 1, 1)
_EACH_STEP = _LOOP.format("dt", "ht", "wt")

_DIVISOR = (
    "const long whole = (d1 - d0) * (h1 - h0) * (w1 - w0); "
    + "".join(f"if ({a}0 < 0) {a}0 = 0; if ({a}1 > i{a}) {a}1 = i{a}; " for a in "dhw")
    + "const int empty = d0 >= d1 || h0 >= h1 || w0 >= w1; "
    + "const ACC divisor = (ACC)(divide_by ? divide_by : include_pad ? whole : (d1 - d0) * (h1 - h0) * (w1 - w0)); "
)
_MEAN = "ACC sum = 0; " + _EACH + "sum += (ACC)PLANE_AT(z, y, x); OUT_STORE(out, to, empty ? (ACC)0 : sum / divisor);"
_MEAN_BACKWARD = "if (!empty) { const ACC share = gradient / divisor; " + _EACH + "PLANE_ADD(z, y, x, share); }"
_EVEN_DIVISOR = "const int empty = 0; const ACC divisor = (ACC)((d1 - d0) * (h1 - h0) * (w1 - w0)); "
_MAXIMUM = (
    "ACC best = -INFINITY; long where = (d0 * ih + h0) * iw + w0; "
    + _EACH_STEP
    + "{ const ACC value = (ACC)PLANE_AT(z, y, x); "
    "if (value > best || value != value) { best = value; where = (z * ih + y) * iw + x; } } "
    "OUT_STORE(out, to, best); "
    "indices[n * indices_n + c * indices_c + d * indices_d + h * indices_h + w * indices_w] = where;"
)
_CHOSEN = (
    "const long where = indices[n * indices_n + c * indices_c + d * indices_d + h * indices_h + w * indices_w]; "
    "if (where >= 0 && where < area) sums[where] += gradient;"
)
_CLAMPED = (
    "".join(
        f"long {v} = {a} - p{a}; {v} = {v} < 0 ? 0 : {v} >= i{a} ? i{a} - 1 : {v}; "
        for v, a in zip("zyx", "dhw", strict=True)
    )
    + "PLANE_ADD(z, y, x, gradient);"
)


def spatial_rank(name: str) -> int:
    """The number of spatial dimensions in an operator's name."""
    found = re.search(r"([123])d", name)
    assert found is not None
    return int(found.group(1))


def _window(values: dict[str, Any], spatial: int) -> dict[str, Size] | None:
    """Kernel, stride, padding and dilation as ``k``, ``s``, ``p`` and ``l`` of each axis."""
    kernel = common.int_list(values["kernel_size"], spatial)
    if kernel is None:
        return None
    lists = {
        "k": (kernel, 1),
        "s": (common.int_list(values["stride"] or kernel, spatial), 1),
        "p": (common.int_list(values["padding"], spatial), 0),
        "l": (common.int_list(values.get("dilation", 1), spatial), 1),
    }
    numbers: dict[str, Size] = {}
    for letter, (items, filler) in lists.items():
        if items is None:
            return None
        numbers |= {f"{letter}{axis}": value for axis, value in planes.triple(items, filler).items()}
    return numbers


def lower_average(builder: PlanBuilder, call: ExternCall) -> bool:
    """``avg_pool1d`` to ``3d`` and their ``_backward``."""
    values, out, spatial = common.bind(call), common.outputs(call)[0], spatial_rank(call.name)
    numbers = _window(values, spatial)
    if numbers is None:
        return False
    numbers["divide_by"] = sympy.sympify(values.get("divisor_override") or 0)
    numbers["include_pad"] = sympy.Integer(int(bool(values["count_include_pad"])))
    if "grad_output" in values:
        body = _FIXED + _DIVISOR + _MEAN_BACKWARD
        return planes.Planes(out, values["grad_output"], spatial, body, numbers).backward(builder)
    return planes.Planes(values["self"], out, spatial, _FIXED + _DIVISOR + _MEAN, numbers).forward(builder)


def lower_adaptive_average(builder: PlanBuilder, call: ExternCall) -> bool:
    """``_adaptive_avg_pool2d`` and ``3d`` and their ``_backward``."""
    values, out, spatial = common.bind(call), common.outputs(call)[0], spatial_rank(call.name)
    if "grad_output" in values:
        body = _EVEN + _EVEN_DIVISOR + _MEAN_BACKWARD
        return planes.Planes(out, values["grad_output"], spatial, body).backward(builder)
    return planes.Planes(values["self"], out, spatial, _EVEN + _EVEN_DIVISOR + _MEAN).forward(builder)


def lower_maximum(builder: PlanBuilder, call: ExternCall) -> bool:
    """``max_pool2d_with_indices`` and ``3d``, ``adaptive_max_pool2d`` and ``3d``."""
    values, results, spatial = common.bind(call), common.outputs(call), spatial_rank(call.name)
    if len(results) != 2:
        return False
    numbers: dict[str, Size] | None = {}
    if "kernel_size" in values:
        numbers = _window(values, spatial)
    if numbers is None:
        return False
    window = _DILATED if numbers else _EVEN
    extra = [("indices", "INDEX", results[1])]
    return planes.Planes(values["self"], results[0], spatial, window + _MAXIMUM, numbers, extra=extra).forward(builder)


def lower_maximum_backward(builder: PlanBuilder, call: ExternCall) -> bool:
    """The gradient of any pooling that tells the place of each maximum."""
    values, out, spatial = common.bind(call), common.outputs(call)[0], spatial_rank(call.name)
    indices: TensorArg = values["indices"]
    extra = [("indices", "INDEX", indices)]
    return planes.Planes(out, values["grad_output"], spatial, _CHOSEN, extra=extra).backward(builder)


def lower_replication_backward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``replication_pad1d_backward`` to ``3d``."""
    values, out, spatial = common.bind(call), common.outputs(call)[0], spatial_rank(call.name)
    # Pairs (before, after), last dimension first.
    before = list(reversed(values["padding"][::2]))
    numbers = {f"p{axis}": value for axis, value in planes.triple(before, 0).items()}
    return planes.Planes(out, values["grad_output"], spatial, _CLAMPED, numbers).backward(builder)
