# SPDX-License-Identifier: Apache-2.0
"""The plan's builder and format: expressions mean what sympy says, damage is noticed."""

from __future__ import annotations

import dataclasses
import operator
import typing

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from outboard.compiler.plans import plan as p
from outboard.compiler.plans import schema
from outboard.compiler.plans.builder import NotExpressible, PlanBuilder, TensorArg
from outboard.compiler.plans.strided import is_dense
from outboard.compiler.target import Target
from outboard.exporting import format as model_format
from tools import wire_schema

A, B = sympy.symbols("a b", integer=True, positive=True)


def floordiv(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    return sympy.Function("FloorDiv")(a, b)


def evaluate(code: p.Expr, values: list[int]) -> int:
    """What the C++ executor computes."""
    binary = {
        p.Op.ADD: operator.add, p.Op.SUB: operator.sub, p.Op.MUL: operator.mul, p.Op.FLOOR_DIV: operator.floordiv,
        p.Op.MOD: operator.mod, p.Op.CEIL_DIV: lambda a, b: -(-a // b), p.Op.MIN: min, p.Op.MAX: max,
        p.Op.EQ: operator.eq, p.Op.NE: operator.ne, p.Op.LT: operator.lt, p.Op.LE: operator.le,
        p.Op.AND: lambda a, b: bool(a) and bool(b), p.Op.OR: lambda a, b: bool(a) or bool(b), p.Op.POW: operator.pow,
    }  # fmt: skip
    stack: list[int] = []
    for op, immediate in code:
        if op == p.Op.CONST:
            stack.append(immediate)
        elif op == p.Op.SYMBOL:
            stack.append(values[immediate])
        elif op == p.Op.NOT:
            stack.append(int(not stack.pop()))
        else:
            right = stack.pop()
            stack.append(int(binary[op](stack.pop(), right)))
    (result,) = stack
    return result


def builder() -> PlanBuilder:
    made = PlanBuilder(Target())
    made.add_input(p.InputKind.TENSOR)
    made.define_symbol(A, p.SymbolSource.SIZE, 0, 0)
    made.define_symbol(B, p.SymbolSource.SIZE, 0, 1)
    return made


EXPRESSIONS = st.recursive(
    st.one_of(st.sampled_from([A, B]), st.integers(1, 9).map(sympy.Integer)),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda t: t[0] + t[1]),
        st.tuples(inner, inner).map(lambda t: t[0] * t[1]),
        st.tuples(inner, inner).map(lambda t: sympy.Max(*t)),
        st.tuples(inner, inner).map(lambda t: sympy.Min(*t)),
        inner.map(lambda e: e**2),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.integers(1, 50), st.integers(1, 50))
def test_expressions_agree_with_sympy(expr: sympy.Expr, a: int, b: int) -> None:
    assert evaluate(builder().expr(expr), [a, b]) == int(expr.subs({A: a, B: b}))


@given(st.integers(0, 1000), st.integers(1, 30))
def test_quotients_round_down(a: int, b: int) -> None:
    assert evaluate(builder().expr(floordiv(A, B)), [a, b]) == a // b
    assert evaluate(builder().expr(sympy.Function("CeilDiv")(A, B)), [a, b]) == -(-a // b)
    assert evaluate(builder().expr(sympy.Function("ModularIndexing")(A, 3, B)), [a, b]) == (a // 3) % b


def test_relations_are_guards() -> None:
    made = builder()
    made.guard(sympy.Eq(A, B))
    made.guard(sympy.And(A > 2, B <= 7))
    assert [evaluate(guard, [5, 5]) for guard in made.guards] == [1, 1]
    assert [evaluate(guard, [2, 8]) for guard in made.guards] == [0, 0]


def test_what_cannot_be_expressed_raises() -> None:
    with pytest.raises(NotExpressible, match="no source"):
        builder().expr(sympy.Symbol("unknown", integer=True))
    with pytest.raises(NotExpressible):
        builder().expr(sympy.sin(A))
    with pytest.raises(NotExpressible):
        builder().expr(sympy.Integer(2) ** 70)


def test_inputs_come_before_buffers() -> None:
    made = builder()
    made.allocate(8)
    with pytest.raises(ValueError, match="before buffers"):
        made.add_input(p.InputKind.TENSOR)


def test_equal_sources_are_one_program() -> None:
    made = builder()
    first = made.kernel("source", "f")
    assert made.kernel("source", "f") == first
    assert made.kernel("source", "g") != first
    assert len(made.finish().programs) == 1


def test_float_symbols_are_no_integers() -> None:
    made = builder()
    made.add_input(p.InputKind.FLOAT)
    scale = sympy.Symbol("scale", real=True)
    made.define_symbol(scale, p.SymbolSource.FLOAT, 1)
    assert made.call_argument(scale).kind == p.CallArgumentKind.FLOAT_SYMBOL
    with pytest.raises(NotExpressible, match="float"):
        made.expr(scale)


def test_contiguity_is_proved_from_symbols() -> None:
    assert TensorArg(0, torch.float32, (A, B), (B, sympy.Integer(1))).is_contiguous()
    assert not TensorArg(0, torch.float32, (A, B), (sympy.Integer(1), A)).is_contiguous()


@pytest.mark.parametrize("header", wire_schema.HEADERS, ids=lambda header: header.target.name)
def test_cpp_has_the_same_schema(header: wire_schema.Header) -> None:
    """Run ``python -m tools.wire_schema`` if it does not. The layout of the text is clang-format's."""
    assert "".join(wire_schema.text(header).split()) == "".join(header.target.read_text().split())


def test_each_field_of_a_model_is_in_its_schema() -> None:
    for record in model_format.RECORDS:
        if isinstance(record.make, type):
            fields = [field.name for field in dataclasses.fields(record.make)]
            assert [field.name for field in record.fields] == fields, record.name


def test_each_part_of_a_plan_is_in_the_schema() -> None:
    described = [
        (schema.SYMBOL, p.Symbol), (schema.VIEW, p.ViewSpec), (schema.ARGUMENT, p.Argument),
        (schema.CALL_ARGUMENT, p.CallArgument), (schema.OUTPUT, p.Output), (schema.ASSERTION, p.Assertion),
        (schema.PLAN, p.Plan), *((record, kind) for kind, record in schema.STEP.kinds.items()),
    ]  # fmt: skip
    assert set(typing.get_args(p.Step)) == set(schema.STEP.kinds)
    for record, part in described:
        assert {field.name for field in record.fields} == {field.name for field in dataclasses.fields(part)}, part


def test_runtime_refuses_damaged_plans(device: str) -> None:
    from outboard import _C

    data = schema.serialize(builder().finish())
    for damaged in (b"", data[:-1], data[:40] + bytes([data[40] ^ 1]) + data[41:], b"X" + data[1:]):
        with pytest.raises(RuntimeError):
            _C.Plan(damaged, 0)
    _C.Plan(data, 0)


def test_strides_that_step_over_empty_dimensions_are_dense() -> None:
    """PyTorch's symbolic strides have ``Max(1, size)`` where a size may be 0."""
    rows, columns = sympy.Symbol("rows", integer=True), sympy.Symbol("columns", integer=True)
    careful = sympy.Max(1, columns - 2)
    assert is_dense([rows, columns - 2, 3], [3 * careful, 3, 1])
    assert not is_dense([rows, columns - 2, 3], [3 * sympy.Max(4, columns - 2), 3, 1])
    assert not is_dense([rows, columns, 3], [3 * careful, 3, 1])
