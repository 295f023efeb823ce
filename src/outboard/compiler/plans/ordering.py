# SPDX-License-Identifier: Apache-2.0
"""Conditions on floats, as conditions on their places among all floats: a plan's guards compare integers only."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import sympy
from sympy.core.relational import Relational

from .builder import NotExpressible


def order_of(value: float) -> int:
    """The place of a float among all floats, 0 for 0.0: the smaller one has the smaller place. -0.0 is next below 0.0,
    and NaN lies beyond an infinity; calls with these are signed by value. ``order_of`` of plan.h is the same."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits ^ (2**63 - 1) if bits < 0 else bits)


def ordered(condition: sympy.Basic, orders: Mapping[sympy.Symbol, sympy.Symbol]) -> sympy.Basic:
    """A condition with the places of floats for the floats, which are the keys of ``orders``.

    Raises NotExpressible where one of them is not compared, as it is, with a double or another one.
    """
    if not condition.free_symbols & orders.keys():
        return condition
    if isinstance(condition, Relational):
        return condition.func(*(_place(side, orders) for side in condition.args))
    if isinstance(condition, (sympy.And, sympy.Or, sympy.Not)):
        return condition.func(*(ordered(each, orders) for each in condition.args))
    raise NotExpressible(f"{condition} is more than a comparison of floats")


def _place(value: sympy.Basic, orders: Mapping[sympy.Symbol, sympy.Symbol]) -> sympy.Basic:
    if isinstance(value, sympy.Symbol) and value in orders:
        return orders[value]
    if value.is_number and value.is_finite and sympy.Rational(float(value)) == sympy.Rational(value):
        return sympy.Integer(order_of(float(value)))
    raise NotExpressible(f"{value} is no double")
