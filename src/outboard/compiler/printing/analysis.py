# SPDX-License-Identifier: Apache-2.0
"""What the loops of a kernel are made of: along which index accesses are contiguous, what varies, what takes long."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch

from ..dialects import Unsupported
from ..loops import EXPENSIVE, Entry, LoopKernel, Store, Value
from ..target import Target
from .splits import Split, exact, split_root

#: Terms that one accumulator sums before the partial sum is added to the total, exactly: what long sums round off is
#: what short ones do.
TERMS = 16
#: Terms of a loop that the compiler of the dialect can take as one.
BLOCK = 8192
#: At most this many results are reduced in pieces; more keep the cores busy with a work-item each.
FEW = 8
#: Cheap terms that are worth a second launch and waking other cores, and are then cut into ``PIECES`` pieces or more.
LONG = 1 << 19
#: Cheap terms that take as long as one with an expensive operation, or with an element apart from its neighbours'.
EXPENSIVE_COST = 8


class Analysis:
    """A kernel, its roots as nested ranges, and how its accesses go along them."""

    #: Conditions on sizes under which what was found is the right choice; elsewhere it is only slow.
    assumptions: list[sympy.Basic]

    def __init__(self, kernel: LoopKernel, target: Target) -> None:
        self.kernel = kernel
        self.variation: dict[tuple[str, sympy.Symbol], bool] = {}  #: what _varies found out
        self.target = target
        self.lanes = target.tuning.lanes
        points = [root for root in kernel.roots if not root.is_reduction]
        # Pointwise kernels come with a reduction root of one point, which nothing uses.
        reduces = any(region.in_reduction for region in kernel.regions)
        reductions = [root for root in kernel.roots if root.is_reduction and reduces]
        if len(points) != 1 or len(reductions) > 1:
            raise Unsupported("more than one range per kind")
        used = self._used_symbols()
        self.entries = [entry for symbol, entry in kernel.entries.items() if symbol in used]
        self.x = split_root(points[0], [e for e in self.entries if e.root is points[0]])
        self.r = None
        if reductions:
            self.r = split_root(reductions[0], [e for e in self.entries if e.root is reductions[0]])
        self.formulas = {entry.symbol: self._formula(entry) for entry in self.entries}
        self.in_pieces = self._pays_pieces()
        self.assumptions: list[sympy.Basic] = []
        self.lane_symbol = self._choose_lanes()

    def _choose_lanes(self) -> sympy.Symbol | None:
        """The inner index along which vectors lie, or None."""
        return None

    def _used_symbols(self) -> set[sympy.Symbol]:
        used: set[sympy.Symbol] = set()
        for statement in self.kernel.statements():
            used |= statement.index.free_symbols
            if isinstance(statement, Value):
                used |= statement.size.free_symbols
        return used

    def _formula(self, entry: Entry) -> sympy.Expr:
        """An entry in terms of the outer and inner index of its root."""
        split = self.x if entry.root is self.x.root else self.r
        assert split is not None
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

    def _expand(self, index: sympy.Expr) -> sympy.Expr:
        """An index in terms of outer and inner indices."""
        return index.xreplace({s: self.formulas[s] for s in index.free_symbols if s in self.formulas})

    def _stride(self, index: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
        """The step of an index along a symbol, or None if it is not a constant one."""
        expanded = sympy.expand(self._expand(index))
        indirect = self.kernel.indirect
        if any(self._varies(indirect[s], symbol) for s in expanded.free_symbols if s in indirect):
            return None
        if symbol not in expanded.free_symbols:
            return sympy.S.Zero
        step = expanded.coeff(symbol, 1)
        rest = sympy.expand(expanded - step * symbol)
        return step if symbol not in rest.free_symbols and symbol not in step.free_symbols else None

    def _varies(self, value: Value, symbol: sympy.Symbol) -> bool:
        """Whether a value may differ between steps along a symbol: looked up rows are the same all along a row."""
        known = self.variation.get((value.name, symbol))
        if known is None:
            known = self.variation[value.name, symbol] = self._find_variation(value, symbol)
        return known

    def _find_variation(self, value: Value, symbol: sympy.Symbol) -> bool:
        if value.op == "reduce" or (value.mask is not None and self._varies(value.mask, symbol)):
            return True
        if value.op in ("load", "index_expr"):
            found = self._expand(value.index).free_symbols
            indirect = self.kernel.indirect
            return symbol in found or any(self._varies(indirect[s], symbol) for s in found if s in indirect)
        return any(self._varies(argument, symbol) for argument in value.args)

    def _pays_pieces(self) -> bool:
        """Whether the kernel consists of so few reductions, and possibly so long ones, that several work-items share
        each."""
        if self.r is None or not self._reduces_once():
            return False
        results, terms = self.x.root.numel, self.r.root.numel
        return bool(results.is_Integer and results <= FEW and not (terms.is_Integer and terms * results < self._long()))

    def _long(self) -> int:
        """Terms of the kernel's reductions that take as long as ``LONG`` cheap ones."""
        assert self.r is not None
        inner = self.r.inner
        values = [value for value in self.kernel.regions[0].body if isinstance(value, Value)]
        expensive = [
            value
            for value in values
            if value.op in EXPENSIVE or (value.op == "load" and self._stride(value.index, inner) not in (0, 1))
        ]
        return LONG // (1 + EXPENSIVE_COST * len(expensive))

    def _reduces_once(self) -> bool:
        """Whether the kernel is one loop of reductions, arg-reductions aside, and what follows from its results."""
        first, *rest = self.kernel.regions
        return (
            first.in_reduction
            and not any(region.in_reduction for region in rest)
            and not any(self._is_arg(value) for value in self._values())
        )

    def _best_lanes(self, choices: list[Split]) -> sympy.Symbol | None:
        """The inner index, of those given, along which most memory accesses are contiguous."""
        best, best_score = None, -1.0
        for split in choices:
            score = self._contiguity(split)
            if split is self.r and any(s.kind in ("argmax", "argmin") for s in self._values()):
                score -= 1000.0
            if score > best_score:
                best, best_score = split.inner, score
        return best

    def _contiguity(self, split: Split) -> float:
        """How much of what touches memory goes from element to element, or stays, along the inner index of a root."""
        steps = ((self._stride(statement.index, split.inner), runs) for statement, runs in self._accesses())
        return sum(runs * (2.0 if step == 1 else 0.5 if step == 0 else 0.0) for step, runs in steps)

    def _accesses(self) -> Iterator[tuple[Value | Store, float]]:
        """What touches memory, and how often it does for each time that the body of a reduction is run. What is done
        once for each result must not outweigh what is done for each term. Reductions of unknown length are long."""
        terms = sympy.Integer(1) if self.r is None else self.r.root.numel
        seldom = 1.0 / max(int(terms) if terms.is_Integer else BLOCK, 1)
        for region in self.kernel.regions:
            for statement in (*region.body, *region.after):
                if isinstance(statement, Store) or statement.op == "load":
                    inside = region.in_reduction and statement in region.body
                    yield statement, 1.0 if inside else seldom

    def _values(self) -> Iterator[Value]:
        return (s for s in self.kernel.statements() if isinstance(s, Value))

    def _is_arg(self, value: Value) -> bool:
        return value.kind in ("argmax", "argmin")

    def _memory_dtype(self, buffer: str) -> torch.dtype:
        return self.kernel.buffers[buffer]
