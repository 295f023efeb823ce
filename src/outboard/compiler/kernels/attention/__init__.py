# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention, forward and backward, without the matrix of scores in memory.

CPUs have kernels of explicit vectors: for many queries, which multiply tiles of scores in registers (``tiles``,
``forward``), for few (``decode``), and for gradients (``backward``). SIMT devices have kernels that give each query a
team of work-items (``simt``), and, where they have units for products of matrices of halves, those (``matrix``).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import sympy
import torch

from ...plans import plan as p
from ...plans.builder import PlanBuilder, Size, TensorArg
from ...units import COMPUTE_UNITS
from .. import common
from ..blocked import Blocking
from . import backward, decode, forward, matrix, simt, tiles
from .problem import MAX_WIDTH, Packed, Problem

if TYPE_CHECKING:
    from ..call import ExternCall


def lower_forward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``_scaled_dot_product_fused_attention_overrideable`` and ``_scaled_dot_product_flash_attention_for_cpu``, without
    dropout. Results beyond the output and the logarithms of the sums are left as they are."""
    values, results = call.bind(), call.outputs()
    problem = Problem(builder, values)
    if len(results) < 2 or not problem.covered() or results[0].dtype != problem.query.dtype:
        return False
    out, lse = results[0], results[1]
    if lse.dtype not in (torch.float32, torch.float64) or values.get("return_debug_mask"):
        return False
    problem.guard()
    problem.lse_dtype = lse.dtype
    problem.strides = {"out": list(out.strides), "lse": list(lse.strides)}
    arguments = [*problem.pointers(), builder.pointer(out), builder.pointer(lse)]
    queries = problem.query.sizes[2]
    if not builder.target.tuning.vectors:
        _attend_by_items(builder, problem, arguments)
    elif common.holds(builder, sympy.Le(queries, decode.MOST_QUERIES)):
        _attend_with_few(builder, problem, arguments)
    else:
        _attend_by_tiles(builder, problem, arguments)
    return True


def lower_packed_forward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``attend_packed``: (queries of all sequences, heads, width), and the logarithms of the sums (heads, queries)."""
    values, (out, lse) = call.bind(), call.outputs()
    problem = _packed_problem(builder, values)
    if not problem.covered() or out.dtype != problem.query.dtype:
        return False
    problem.guard()
    problem.lse_dtype = lse.dtype
    problem.strides = {"out": list(_sequences(out, 0, 0).strides), "lse": [0, *lse.strides]}
    emit = _attend_by_tiles if builder.target.tuning.vectors else _attend_by_items
    emit(builder, problem, [*problem.pointers(), builder.pointer(out), builder.pointer(lse)])
    return True


def _packed_problem(builder: PlanBuilder, values: dict[str, Any]) -> Problem:
    """The problem of a call whose ``query``, ``key`` and ``value`` are (places of all sequences, heads, width)."""
    query, key, starts = values["query"], values["key"], values["query_starts"]
    packed = Packed(starts, values["key_starts"], query.sizes[0], key.sizes[0])
    most = {"query": values["most_queries"], "key": values["most_keys"], "value": values["most_keys"]}
    sequences = {name: _sequences(values[name], starts.sizes[0] - 1, places) for name, places in most.items()}
    return Problem(builder, values | sequences, packed)


def _sequences(packed: TensorArg, batches: Size, places: Size) -> TensorArg:
    """A tensor (places of all sequences, heads, width) as (batches, heads, places of one, width): kernels know where
    each begins."""
    _, heads, width = packed.sizes
    strides = (sympy.Integer(0), packed.strides[1], packed.strides[0], packed.strides[2])
    return dataclasses.replace(packed, sizes=(batches, heads, places, width), strides=strides)


def _attend_by_items(builder: PlanBuilder, problem: Problem, arguments: list[p.Argument]) -> None:
    batches, heads, queries, _ = problem.query.sizes
    text, rows, group = _by_items(builder, problem, simt.FORWARD, matrix.FORWARD)
    pieces = batches * heads * common.ceil_div(queries, rows)
    common.launch_groups(builder, builder.kernel(text, "attend"), pieces, [*arguments, *problem.numbers()], group)


def _by_items(builder: PlanBuilder, problem: Problem, of_teams: str, of_matrices: str) -> tuple[str, int, int]:
    """A program's text, by matrix units where they can, rows of a group, and its work-items. The plan is restricted to
    heads of the width that the text is for."""
    width = _matrix_width(builder, problem)
    if width is not None:
        return (
            problem.text(of_matrices, **matrix.defines(problem, width, of_matrices is matrix.FORWARD)),
            matrix.ROWS,
            matrix.GROUP,
        )
    teams = _teams(builder, problem)
    return problem.text(of_teams, **teams.defines()), teams.rows, teams.group


def _matrix_width(builder: PlanBuilder, problem: Problem) -> int | None:
    """The width of heads if matrix units can attend to them, else None."""
    if not matrix.has_units(problem):
        return None
    return next((width for width in matrix.WIDTHS if common.holds(builder, matrix.is_width(problem, width))), None)


def _teams(builder: PlanBuilder, problem: Problem) -> simt.Teams:
    """How work-items share rows; the plan is restricted to heads of up to that width."""
    wider = common.larger(problem.query.sizes[3], problem.value.sizes[3])
    width = next(
        (width for width in simt.WIDTHS[:-1] if common.holds(builder, sympy.Le(wider, width))), simt.WIDTHS[-1]
    )
    return simt.Teams.of(builder, width, problem.accumulate)


def _attend_by_tiles(builder: PlanBuilder, problem: Problem, arguments: list[p.Argument]) -> None:
    batches, heads, queries, _ = problem.query.sizes
    shape = Blocking.for_target(builder.target, problem.accumulate)
    if common.holds(builder, sympy.Le(queries, shape.lanes)):
        shape = dataclasses.replace(shape, rows=2 * shape.rows, vectors=1)
    numbers = forward.numbers(MAX_WIDTH, shape)
    text = _tiled(problem, shape, forward.text(shape), numbers, problem.key, problem.value)
    pieces = batches * heads * common.ceil_div(queries, shape.columns)
    arguments = [*arguments, *problem.numbers()]
    common.launch_items(builder, builder.kernel(text, "attend"), pieces, arguments, grain=1)


def _attend_with_few(builder: PlanBuilder, problem: Problem, arguments: list[p.Argument]) -> None:
    shape = Blocking.for_target(builder.target, problem.accumulate)
    batches, heads, queries, _ = problem.query.sizes
    pieces = batches * problem.key.sizes[1] * common.ceil_div(queries * problem.share, decode.GROUP)
    split = not common.holds(builder, sympy.Ge(pieces, COMPUTE_UNITS))
    extra = {"SPLIT": int(split), "GROUP": decode.GROUP, "BLOCK": decode.KEYS}
    text = _tiled(problem, shape, decode.text(shape), decode.numbers(MAX_WIDTH), **extra)
    kernel, numbers = builder.kernel(text, "decode"), problem.numbers()
    if not split:
        unused = builder.pointer(problem.query)
        common.launch_items(builder, kernel, pieces, [*arguments, unused, builder.int64(1), *numbers], grain=1)
        return
    wanted = common.ceil_div(2 * COMPUTE_UNITS, common.larger(1, pieces))
    parts = common.larger(1, common.smaller(wanted, common.ceil_div(problem.key.sizes[2], decode.LEAST_PART)))
    rows, size = batches * heads * queries, common.compute_size(problem.accumulate)
    partial = builder.allocate(parts * rows * (problem.value.sizes[3] + 2) * size)
    part_arguments = [builder.pointer(partial), builder.int64(parts), *numbers]
    common.launch_items(builder, kernel, pieces * parts, [*arguments, *part_arguments], grain=1)
    combine = [builder.pointer(partial), *arguments[-2:], builder.int64(parts), *numbers]
    common.launch_items(builder, builder.kernel(text, "combine"), rows, combine, grain=4)
    builder.free(partial)


def _tiled(problem: Problem, shape: Blocking, body: str, numbers: int, *rows: TensorArg, **extra: object) -> str:
    """The text of a program made of tiles, which hold so many numbers; it multiplies them by ``rows``."""
    plain = common.stored_as(problem.query.dtype, problem.accumulate)
    in_place = plain and all(tensor.strides[3] == 1 for tensor in rows)
    near = tiles.tile_space(problem.builder.target, numbers, problem.accumulate)
    mask = "long" if problem.accumulate == "double" else "int"
    defines = {
        **shape.defines(),
        "NEAR": near,
        "KEYS": forward.KEYS,
        "QUERIES": backward.QUERIES,
        "IN_PLACE": int(in_place),
        "ROW_SPACE": "OB_GLOBAL" if in_place else near,
        "AS_VECTOR": f"as_{problem.accumulate}{shape.lanes}",
        "AS_LANE_MASK": f"as_{mask}{shape.lanes}",
        **extra,
    }
    head = tiles.head(shape, problem.query.dtype, problem.mask_dtype, in_place)
    return problem.text(head + body, **defines)


def lower_backward(builder: PlanBuilder, call: ExternCall) -> bool:
    """The gradients of query, key and value for both forward operators; not that of a mask."""
    values, results = call.bind(), call.outputs()
    problem = Problem(builder, values)
    grad, out, lse = values["grad_out"], values["out"], values["logsumexp"]
    wanted = [bool(flag) for flag in values.get("grad_input_mask", [True, True, True, False])]
    if not problem.covered() or len(results) < 3 or any(wanted[3:]) or not all(wanted[:3]):
        return False
    if lse.dtype not in (torch.float32, torch.float64):
        return False
    problem.guard()
    problem.lse_dtype = lse.dtype
    tensors = {"grad": grad, "out": out, "result": results[0], "of_key": results[1], "of_value": results[2]}
    problem.strides = {name: list(tensor.strides) for name, tensor in tensors.items()} | {"lse": list(lse.strides)}
    _emit_gradients(builder, problem, tensors, lse)
    return True


def lower_packed_backward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``attend_packed_backward``: the gradients of query, key and value."""
    values, results = call.bind(), call.outputs()
    problem = _packed_problem(builder, values)
    if not problem.covered():
        return False
    problem.guard()
    lse = values["logsumexp"]
    problem.lse_dtype = lse.dtype
    given = [values["grad_out"], values["out"], *results]
    names = ("grad", "out", "result", "of_key", "of_value")
    tensors = {name: _sequences(tensor, 0, 0) for name, tensor in zip(names, given, strict=True)}
    problem.strides = {name: list(tensor.strides) for name, tensor in tensors.items()} | {"lse": [0, *lse.strides]}
    _emit_gradients(builder, problem, tensors, lse)
    return True


def _emit_gradients(builder: PlanBuilder, problem: Problem, tensors: dict[str, TensorArg], lse: TensorArg) -> None:
    size = common.compute_size(problem.accumulate)
    products = builder.allocate(common.larger(size, problem.query_rows * size))
    emit = _gradients_by_tiles if builder.target.tuning.vectors else _gradients_by_items
    emit(builder, problem, tensors, lse, products)
    builder.free(products)


def _gradients_by_tiles(
    builder: PlanBuilder, problem: Problem, tensors: dict[str, TensorArg], lse: TensorArg, products: int
) -> None:
    shape = Blocking.for_target(builder.target, problem.accumulate)
    batches, _, _, width = problem.query.sizes
    text = _tiled(
        problem, shape, backward.text(shape), backward.numbers(MAX_WIDTH, shape), problem.query, tensors["grad"]
    )
    pointers = {name: builder.pointer(tensor) for name, tensor in tensors.items()}
    numbers = problem.numbers()
    rows = problem.query_rows
    kernel = builder.kernel(text, "sum_products")
    arguments = [pointers["grad"], pointers["out"], builder.pointer(products), *numbers]
    common.launch_items(builder, kernel, rows, arguments, grain=64)
    key_heads = batches * problem.key.sizes[1]
    wanted = common.ceil_div(4 * COMPUTE_UNITS, common.larger(1, key_heads))
    parts = common.larger(1, common.smaller(wanted, common.ceil_div(problem.key.sizes[2], shape.columns)))
    size = common.compute_size(problem.accumulate) * shape.columns * common.ceil_div(width, shape.columns)
    sums = builder.allocate(common.larger(size, parts * rows * size))
    arguments = [*problem.pointers(), pointers["grad"], builder.pointer(lse), builder.pointer(products)]
    arguments += [builder.pointer(sums), pointers["of_key"], pointers["of_value"], builder.int64(parts), *numbers]
    common.launch_items(builder, builder.kernel(text, "gradients"), key_heads * parts, arguments, grain=1)
    arguments = [builder.pointer(sums), pointers["result"], builder.int64(parts), *numbers]
    common.launch_items(builder, builder.kernel(text, "query_gradient"), rows, arguments, grain=64)
    builder.free(sums)


def _gradients_by_items(
    builder: PlanBuilder, problem: Problem, tensors: dict[str, TensorArg], lse: TensorArg, products: int
) -> None:
    batches, heads, queries, _ = problem.query.sizes
    text, rows, group = _by_items(builder, problem, simt.BACKWARD, matrix.BACKWARD)
    numbers = problem.numbers()
    pointers = {name: builder.pointer(tensor) for name, tensor in tensors.items()}
    kernel = builder.kernel(text, "sum_products")
    arguments = [pointers["grad"], pointers["out"], builder.pointer(products), *numbers]
    common.launch_items(builder, kernel, problem.query_rows, arguments)
    shared = [*problem.pointers(), pointers["grad"], builder.pointer(lse), builder.pointer(products)]
    kernel = builder.kernel(text, "query_gradient")
    pieces = batches * heads * common.ceil_div(queries, rows)
    common.launch_groups(builder, kernel, pieces, [*shared, pointers["result"], *numbers], group)
    kernel = builder.kernel(text, "key_gradients")
    arguments = [*shared, pointers["of_key"], pointers["of_value"], *numbers]
    pieces = batches * problem.key.sizes[1] * common.ceil_div(problem.key.sizes[2], rows)
    common.launch_groups(builder, kernel, pieces, arguments, group)
