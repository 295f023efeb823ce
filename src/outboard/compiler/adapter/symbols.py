# SPDX-License-Identifier: Apache-2.0
"""Numbers that a trace does not know: PyTorch's symbols as sympy's, and what they were when it was traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.numbers import int_oo

from outboard.compilers import symbolic

from ..plans import plan as p
from ..plans.builder import PlanBuilder


class RunTimeFloat(float):
    """A float that a graph holds as what it is at hand, for Inductor has no symbolic floats among an operator's
    arguments, and a plan as its symbol."""

    symbol: sympy.Expr
    #: Whether a call has it as a symbol. If none has, a lowering may have taken it for a constant.
    is_taken = False

    @staticmethod
    def of(number: torch.SymFloat) -> RunTimeFloat:
        """That of a symbolic float. A guard holds for its sign, by which operators refuse some."""
        if not number > 0:
            bool(number < 0)
        made = RunTimeFloat(number.node.hint)
        made.symbol = number.node.expr
        return made


def expression(number: Any) -> Any:
    """A number as plans have it: the sympy expression of a symbolic one, any other as it is."""
    if isinstance(number, RunTimeFloat):
        number.is_taken = True
        return number.symbol
    return symbolic.expression(number)


def hints(sizes: Sequence[Any]) -> list[int]:
    """Sizes or strides as they were when they were traced."""
    return [size.node.hint if isinstance(size, torch.SymInt) else int(size) for size in sizes]


def derived_size(builder: PlanBuilder, shape_env: ShapeEnv, size: sympy.Expr) -> sympy.Expr:
    """A symbol that a plan computes from those of its inputs, for a size that is a sum or product of some; a simpler
    one as it is."""
    if isinstance(size, sympy.Symbol) or size.is_number:
        return size
    value = int(size.xreplace(shape_env.backed_var_to_val))
    symbol = shape_env.create_symbol(
        value,
        source=ConstantSource(f"derived{len(builder.symbols)}"),
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=None,
        positive=None,
        do_not_specialize_zero_one=True,
    )
    assert isinstance(symbol, sympy.Symbol)
    shape_env.constrain_symbol_range(symbol, 0, int_oo)
    builder.define_symbol(symbol, p.SymbolSource.DERIVED, derived=size)
    return symbol
