# SPDX-License-Identifier: Apache-2.0
"""Rows of operators: that they are of operators, and that C++ has what Python has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor import decomposition, inductor_prims

from outboard import _C, compilers
from outboard.compiler.adapter import executables
from outboard.compiler.adapter.operators import mistaken_shapes
from outboard.compiler.operators import facts
from outboard.compiler.operators.facts import FACTS
from tools import operator_facts

#: Operators of a library that need not be there, and what is made for it.
OPTIONAL = ("torchvision::", "outboard::nms_keep")


def overloads(name: str) -> set[str]:
    return {o or "default" for n, o in map(_parts, torch._C._dispatch_get_all_op_names()) if n == name}


def _parts(name: str) -> tuple[str, str]:
    base, _, overload = name.partition(".")
    return base, overload


def test_the_headers_are_what_the_rows_say() -> None:
    written = {path: path.read_text() for path in operator_facts.files()}
    assert written == operator_facts.files(), "run: python tools/operator_facts.py"


def test_rows_are_of_operators() -> None:
    known = {_parts(name)[0] for name in torch._C._dispatch_get_all_op_names()}
    assert sorted(name for name in FACTS if name not in known and not name.startswith(OPTIONAL)) == []


def test_rows_name_overloads_and_arguments_that_there_are() -> None:
    wrong = []
    for name, row in FACTS.items():
        if name.startswith(OPTIONAL):
            continue
        schemas = torch._C._jit_get_schemas_for_operator(name)
        arguments = {argument.name for schema in schemas for argument in schema.arguments}
        wrong += [f"{name}.{overload}" for overload in row.whole if overload not in overloads(name)]
        wrong += [f"{name}({argument})" for argument in row.run_time if argument not in arguments]
    assert wrong == []


def test_rows_name_functions_and_operators_that_there_are() -> None:
    known = {_parts(name)[0] for name in torch._C._dispatch_get_all_op_names()}
    functions = {row.mistaken for row in FACTS.values()} - {""}
    others = {row.shaped_as for row in FACTS.values()} - {""}
    assert [name for name in functions if not hasattr(mistaken_shapes, name)] == []
    assert others <= known


def test_no_row_says_nothing() -> None:
    assert [name for name, row in FACTS.items() if row == facts.Facts()] == []


@pytest.mark.parametrize(
    ("op", "arguments", "numbers"),
    [
        ("roll", ([1], [0]), {("shifts", 0)}),
        ("bernoulli_.float", (0.5,), {("p", -1)}),
        ("random_.from", (1, 5), {("from", -1), ("to", -1)}),
        ("random_.to", (5,), {("to", -1)}),
        ("random_", (), set()),
        ("sum.dim_IntList", ([0], True), set()),
        ("add.Scalar", (2.0, 1), {("other", -1), ("alpha", -1)}),
    ],
)
def test_numbers_that_no_code_depends_on(
    device: str, op: str, arguments: tuple[Any, ...], numbers: set[tuple[str, int]]
) -> None:
    call = _C.signed_call(f"aten::{op}", (torch.ones(3, device=device), *arguments), {}, False)
    assert {(leaf.argument, leaf.item) for leaf in call.leaves if leaf.kind != "tensor"} == numbers
    baked = _C.signed_call(f"aten::{op}", call.args, {}, True)
    assert [leaf.kind for leaf in baked.leaves] == ["tensor"]


def test_results_that_are_given_leave_nothing_open(device: str) -> None:
    x, out = torch.ones(3, device=device), torch.empty(3, device=device)
    call = _C.signed_call("aten::roll.out", (x, [1], [0]), {"out": out}, False)
    assert [leaf.kind for leaf in call.leaves] == ["tensor", "tensor"]


def test_graph_compilers_get_no_operators_of_inductors_own() -> None:
    """But random numbers of seeds, which docs/write-a-graph-compiler.md names."""
    own = {name for name, value in vars(inductor_prims).items() if isinstance(value, torch._ops.OpOverload)}
    assert len(own) > 10

    def found(table: dict[Any, Callable[..., Any]]) -> set[str]:
        operators = {key: each for key, each in table.items() if isinstance(key, torch._ops.OpOverload)}
        return {key._schema.name for key, each in operators.items() if names_in(each) & (own - {"randint"})}

    softmax, table = {"aten::_softmax_backward_data"}, decomposition.select_decomp_table()
    assert found(table) == facts.with_fact(lambda row: row.inductors_own) | softmax
    of_compiler = executables.decompositions_for(compilers.load("outboard-sim"), table)
    assert not found(of_compiler) and softmax <= {key._schema.name for key in of_compiler if hasattr(key, "_schema")}


def names_in(function: Callable[..., Any]) -> set[str]:
    """What a decomposition of Inductor's speaks of, itself or in functions beside it."""
    pending: list[Any] = [inspect.unwrap(function)]
    seen: list[Any] = []
    found: set[str] = set()
    while pending:
        each = pending.pop()
        if getattr(each, "__module__", None) != decomposition.__name__ or each in seen:
            continue
        seen.append(each)
        names = set(inspect.unwrap(each).__code__.co_names)
        found |= names
        pending += [each.__globals__.get(name) for name in names]
    return found
