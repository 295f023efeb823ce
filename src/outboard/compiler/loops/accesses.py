# SPDX-License-Identifier: Apache-2.0
"""How the accesses of a nest go along its loops: along which index they are contiguous, and what varies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sympy

from ..dialects import Unsupported
from .nest import Entry, LoopKernel, Store, Value, moves
from .splits import Split, exact, split_root

#: Terms that a reduction of unknown length is taken to have.
USUAL_TERMS = 8192


class Accesses:
    """A nest whose roots are nested ranges: ``x``, the points, and ``r``, the terms of each, if it reduces.

    ``formulas`` are the entries in terms of the outer and inner indices of both."""

    def __init__(
        self, kernel: LoopKernel, x: Split, r: Split | None, formulas: Mapping[sympy.Symbol, sympy.Expr]
    ) -> None:
        self.kernel = kernel
        self.x = x
        self.r = r
        self.formulas = formulas
        self._steps: dict[tuple[sympy.Expr, sympy.Symbol], sympy.Expr | None] = {}
        self._variation: dict[tuple[str, sympy.Symbol], bool] = {}

    @staticmethod
    def of(kernel: LoopKernel) -> Accesses:
        """Splits the roots of a nest. Raises Unsupported if there are several of a kind."""
        points = [root for root in kernel.roots if not root.is_reduction]
        # Pointwise kernels come with a reduction root of one point, which nothing uses.
        reduces = any(region.in_reduction for region in kernel.regions)
        reductions = [root for root in kernel.roots if root.is_reduction and reduces]
        if len(points) != 1 or len(reductions) > 1:
            raise Unsupported("more than one range per kind")
        used = _used_symbols(kernel)
        entries = [entry for symbol, entry in kernel.entries.items() if symbol in used]
        splits = {
            root.name: split_root(root, [e for e in entries if e.root is root]) for root in (*points, *reductions)
        }
        formulas = {entry.symbol: _formula(entry, splits[entry.root.name]) for entry in entries}
        return Accesses(kernel, splits[points[0].name], splits[reductions[0].name] if reductions else None, formulas)

    def expand(self, index: sympy.Expr) -> sympy.Expr:
        """An index in terms of outer and inner indices."""
        return index.xreplace({s: self.formulas[s] for s in index.free_symbols if s in self.formulas})

    def step(self, index: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
        """The step of an index along a symbol, or None if it is not a constant one."""
        key = index, symbol
        if key not in self._steps:
            self._steps[key] = self._find_step(index, symbol)
        return self._steps[key]

    def _find_step(self, index: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
        expanded = sympy.expand(self.expand(index))
        if any(self.varies(value, symbol) for value in self.kernel.looked_up(expanded)):
            return None
        if symbol not in expanded.free_symbols:
            return sympy.S.Zero
        step = expanded.coeff(symbol, 1)
        rest = sympy.expand(expanded - step * symbol)
        return step if symbol not in rest.free_symbols and symbol not in step.free_symbols else None

    def varies(self, value: Value, symbol: sympy.Symbol) -> bool:
        """Whether a value may differ between steps along a symbol: looked up rows are the same all along a row."""
        known = self._variation.get((value.name, symbol))
        if known is None:
            known = self._variation[value.name, symbol] = self._find_variation(value, symbol)
        return known

    def _find_variation(self, value: Value, symbol: sympy.Symbol) -> bool:
        if value.op == "reduce" or (value.mask is not None and self.varies(value.mask, symbol)):
            return True
        if value.op in ("load", "index_expr"):
            index = self.expand(value.index)
            looked_up = self.kernel.looked_up(index)
            return symbol in index.free_symbols or any(self.varies(found, symbol) for found in looked_up)
        return any(self.varies(argument, symbol) for argument in value.args)

    def uniform(self) -> dict[str, None]:
        """The values, in order, that are the same all along a row of points. The compiler of the dialect cannot compute
        them before its loop by itself: for all it knows, the stores of the loop change what is loaded."""
        uniform: dict[str, None] = {}
        for value in self.kernel.values():
            if self._is_uniform(value, uniform):
                uniform[value.name] = None
        return uniform

    def _is_uniform(self, value: Value, uniform: Mapping[str, None]) -> bool:
        """Whether a value depends only on uniform ones and not on the place in the row. No loop is empty, so a check
        may come first."""
        if value.op in ("assertion", "reduce") or (value.mask and value.mask.name not in uniform):
            return False
        if value.op == "load" and value.buffer in self.kernel.written:
            return False
        moving = {self.x.inner, *(s for s, v in self.kernel.indirect.items() if v.name not in uniform)}
        if value.op in ("load", "index_expr") and moving & self.expand(value.index).free_symbols:
            return False
        return all(argument.name in uniform for argument in value.args)

    def contiguity(self, split: Split) -> float:
        """How much of what touches memory goes from element to element, or stays, along the inner index of a root."""
        steps = ((self.step(statement.index, split.inner), runs) for statement, runs in self._all())
        return sum(runs * (2.0 if step == 1 else 0.5 if step == 0 else 0.0) for step, runs in steps)

    def _all(self) -> Iterator[tuple[Value | Store, float]]:
        """What touches memory, and how often it does for each time that the body of a reduction is run. What is done
        once for each result must not outweigh what is done for each term."""
        terms = sympy.Integer(1) if self.r is None else self.r.numel
        seldom = 1.0 / max(int(terms) if terms.is_Integer else USUAL_TERMS, 1)
        for region in self.kernel.regions:
            inside = {id(statement) for statement in region.body} if region.in_reduction else set()
            for statement in moves(region.statements()):
                yield statement, 1.0 if id(statement) in inside else seldom


def _used_symbols(kernel: LoopKernel) -> set[sympy.Symbol]:
    used: set[sympy.Symbol] = set()
    for statement in kernel.statements():
        used |= statement.index.free_symbols
        if isinstance(statement, Value):
            used |= statement.size.free_symbols
    return used


def _formula(entry: Entry, split: Split) -> sympy.Expr:
    """An entry in terms of the outer and inner index of its root."""
    floor, modulo = sympy.Function("FloorDiv"), sympy.Function("Mod")
    if split.rows is None:
        if entry.divisor == 1 and entry.outermost:
            return split.inner
        base = split.inner
    else:
        if entry.divisor == 1 and entry.length == split.length:
            return split.inner
        step = exact(entry.divisor, split.length)
        if step is not None:
            rows = split.outer if step == 1 else floor(split.outer, step)
            return rows if entry.outermost else modulo(rows, entry.length)
        wrap = exact(entry.length, split.length) if entry.divisor == 1 else None
        if wrap is not None and not entry.outermost:
            return modulo(split.outer, wrap) * split.length + split.inner
        base = split.outer * split.length + split.inner
    quotient = base if entry.divisor == 1 else floor(base, entry.divisor)
    return quotient if entry.outermost else modulo(quotient, entry.length)
