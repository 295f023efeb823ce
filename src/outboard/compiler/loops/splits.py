# SPDX-License-Identifier: Apache-2.0
"""Ranges of a kernel as two nested loops, and sizes in the terms of plans."""

from __future__ import annotations

import dataclasses

import sympy

from .nest import Entry, Root


@dataclasses.dataclass(frozen=True)
class Split:
    """A root of ``numel`` points as two nested ranges: ``root = outer * length + inner``. ``rows`` is None if there is
    one range only. ``hint`` and ``length_hint`` are typical values: what was decided by them is compared, not they."""

    root: str
    numel: sympy.Expr
    length: sympy.Expr
    rows: sympy.Expr | None
    inner: sympy.Symbol
    outer: sympy.Symbol
    hint: int = dataclasses.field(compare=False)
    length_hint: int = dataclasses.field(compare=False)

    def __str__(self) -> str:
        ranges = str(self.length) if self.rows is None else f"{self.rows} x {self.length}"
        return f"{self.root} = {ranges}"


def ceildiv(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """The quotient, rounded up."""
    return sympy.Function("CeilDiv")(a, b)


def floordiv(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """The quotient, rounded down."""
    return sympy.Function("FloorDiv")(a, b)


def maximum(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """The greater one."""
    return sympy.Function("Max")(a, b)


def minimum(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """The lesser one."""
    return sympy.Function("Min")(a, b)


def exact(numerator: sympy.Expr, denominator: sympy.Expr) -> sympy.Expr | None:
    """The quotient where it is an integer whatever the symbols are, else None."""
    quotient = sympy.cancel(numerator / denominator)
    _, rest = quotient.as_numer_denom()
    return quotient if rest == 1 else None


def split_root(root: Root, entries: list[Entry]) -> Split:
    """Splits a root at the finest boundary that its entries have."""
    inner = sympy.Symbol(f"{root.name}i", integer=True, nonnegative=True)
    outer = sympy.Symbol(f"{root.name}o", integer=True, nonnegative=True)
    candidates: list[tuple[int, sympy.Expr]] = []
    for entry in entries:
        if entry.divisor == 1 and not entry.outermost:
            candidates.append((entry.length_hint, entry.length))
        elif entry.divisor != 1:
            candidates.append((entry.divisor_hint, entry.divisor))
    for hint, length in sorted(candidates, key=lambda pair: pair[0]):
        rows = exact(root.numel, length)
        if rows is not None and hint > 1:
            return Split(root.name, root.numel, length, rows, inner, outer, root.hint, hint)
        if hint > 1:
            break
    return Split(root.name, root.numel, root.numel, None, inner, outer, root.hint, root.hint)
