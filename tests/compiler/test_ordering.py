# SPDX-License-Identifier: Apache-2.0
"""Guards on floats: their places among all floats, and what comes of them in another process."""

from __future__ import annotations

import math

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from outboard.compiler.plans.builder import NotExpressible
from outboard.compiler.plans.ordering import order_of, ordered

X, Y, X_ORDER, Y_ORDER = sympy.symbols("x y x_order y_order", real=True)
ORDERS = {X: X_ORDER, Y: Y_ORDER}
FINITE = st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value or 0.0)


@given(FINITE, FINITE)
def test_places_compare_as_floats_do(a: float, b: float) -> None:
    assert (order_of(a) < order_of(b)) == (a < b)
    assert (order_of(a) == order_of(b)) == (a == b)


def test_places_of_what_calls_are_signed_by() -> None:
    assert order_of(0.0) == 0
    assert order_of(-0.0) == -1
    assert order_of(math.inf) == order_of(float.fromhex("0x1.fffffffffffffp+1023")) + 1


@given(FINITE, FINITE)
def test_conditions_hold_of_places_as_of_floats(a: float, b: float) -> None:
    places = {X_ORDER: order_of(a), Y_ORDER: order_of(b)}
    for condition, truth in (
        (sympy.Gt(X, 0.0), a > 0),
        (sympy.Ne(X, 1), a != 1),
        (sympy.Le(X, sympy.Rational(1, 2)), a <= 0.5),
        (sympy.Lt(X, Y), a < b),
        (sympy.And(sympy.Ge(X, 0), sympy.Le(X, 1)), 0 <= a <= 1),
        (sympy.Not(sympy.Eq(X, 2.0), evaluate=False), a != 2),
    ):
        assert bool(ordered(condition, ORDERS).xreplace(places)) == truth


@pytest.mark.parametrize("condition", [sympy.Gt(2 * X, 1), sympy.Eq(X, sympy.Rational(1, 10)), sympy.Lt(X + Y, 1)])
def test_what_places_cannot_say(condition: sympy.Basic) -> None:
    with pytest.raises(NotExpressible):
        ordered(condition, ORDERS)
