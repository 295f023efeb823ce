# SPDX-License-Identifier: Apache-2.0
"""Loops for SIMT devices: many short work-items, local memory, neighbours reading neighbouring elements.

A pointwise kernel has a work-item for each point. A reduction has

* a work-group for each result, where its terms are many: work-items take terms in turn and meet in a tree in local
  memory (after M. Harris, "Optimizing Parallel Reduction in CUDA", 2007);
* a work-item for each result, where terms are few, or where neighbouring results lie side by side in memory and there
  are enough of them to fill the device;
* several work-groups for each result, where there are a few long reductions: a first kernel reduces pieces, a second
  one combines them (``Printer`` tells how).

All orders of addition are fixed: each run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sympy
import torch

from .dialects import opencl as cl
from .emitter import (
    PIECE_ALIGNMENT,
    PIECES,
    Combination,
    Printer,
    ceildiv,
    floordiv,
    maximum,
    minimum,
    reduces_of,
)
from .loops import Region, Store, Value

#: Work-items of a work-group that takes points, and at most of one that reduces.
GROUP, LARGEST_GROUP = 64, 256
#: Terms that are worth a work-group.
WORTH_A_GROUP = 32
#: Results that fill a device with a work-item each.
MANY = 1 << 14
#: Terms that are worth a work-group of their own among several for one result.
PIECE = 1 << 13

_Grid = tuple[tuple[sympy.Expr, sympy.Expr], tuple[int, int, int], list[sympy.Expr]]

_BARRIER = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"


class SimtPrinter(Printer):
    """Prints one kernel for a SIMT device."""

    by_group = False  #: whether a work-group shares a reduction
    looping = False  #: whether what is printed is for one term, not for the whole group

    # ---- analysis ----

    def _pays_pieces(self) -> bool:
        return super()._pays_pieces() and not self._reduces_positions()

    def _long(self) -> int:
        return 2 * PIECE

    def _reduces_positions(self) -> bool:
        return any(self._is_arg(value) for value in self._values())

    def _choose_lanes(self) -> sympy.Symbol | None:
        """None: there are no vectors. Decides who reduces."""
        self.scratch: dict[tuple[str, int], str] = {}
        self.by_group = self.in_pieces or self._pays_groups()
        self.group = self._group_size() if self.by_group else GROUP
        return None

    def _pays_groups(self) -> bool:
        if self.r is None:
            return False
        if not self._is_at_least(self.r.root.numel, self.r.root.hint, WORTH_A_GROUP):
            return False
        if self._best_lanes([self.r, self.x]) is self.r.inner:
            return True
        return not self._is_at_least(self.x.root.numel, self.x.root.hint, MANY)

    def _is_at_least(self, length: sympy.Expr, hint: int, least: int) -> bool:
        """Whether a length is that great; of one that is unknown it becomes an assumption."""
        answer = hint >= least
        if not length.is_Integer:
            self.assumptions.append((sympy.Ge if answer else sympy.Lt)(length, least))
        return answer

    def _group_size(self) -> int:
        assert self.r is not None
        terms = self.r.root.numel
        wanted = int(terms) if terms.is_Integer else LARGEST_GROUP // 2
        size = min(LARGEST_GROUP, max(1, self.target.max_work_group_size))
        while size > WORTH_A_GROUP and size >= 2 * wanted:
            size //= 2
        return 1 << (size.bit_length() - 1)

    # ---- structure ----

    def _structure(self) -> _Grid:
        if not self.by_group:
            return self._items()
        grid = self._pieces() if self.in_pieces else self._groups()
        arrays = [f"  __local {kind} {name}[{self.group}];" for (kind, _), name in self.scratch.items()]
        self.lines[:0] = [*arrays, "  const int t = get_local_id(0);"]
        return grid

    def _items(self) -> _Grid:
        """A work-item for each point, neighbours along a row if rows are long enough to fill groups."""
        length = self.x.length
        if self.x.rows is None or self._is_at_least(length, self.x.length_hint, GROUP):
            rows = sympy.S.One if self.x.rows is None else self.x.rows
            self.write(f"const long {self.x.inner} = get_global_id(0);")
            self.write(f"if ({self.x.inner} >= {self.size(length)}) return;")
            if self.x.rows is not None:
                self.write(f"const long {self.x.outer} = get_global_id(1);")
        else:
            rows, length = sympy.S.One, self.x.root.numel
            self.write("const long x = get_global_id(0);")
            self.write(f"if (x >= {self.size(length)}) return;")
            self._place()
        self.point()
        return (ceildiv(length, sympy.Integer(GROUP)) * GROUP, rows), (GROUP, 1, 1), []

    def _groups(self) -> _Grid:
        """A work-group for each point of the non-reduction root."""
        self.write("const long x = get_group_id(0);")
        self._place()
        self.point()
        return (self.x.root.numel * self.group, sympy.S.One), (self.group, 1, 1), []

    def _pieces(self) -> _Grid:
        """A work-group takes one piece of one reduction, and what follows from its result if there is no other."""
        assert self.r is not None
        results, terms = self.x.root.numel, self.r.root.numel
        most = sympy.Integer(max(1, PIECES * self.target.compute_units // int(results)))
        pieces = maximum(sympy.S.One, minimum(most, floordiv(terms, sympy.Integer(PIECE))))
        length = ceildiv(ceildiv(terms, pieces), PIECE_ALIGNMENT) * PIECE_ALIGNMENT
        self.write("const long x = get_global_id(1);")
        self.write("const long first = (long)get_group_id(0) * extra0;")
        self.write(f"const long last = min(first + extra0, {self.size(terms)});")
        self._place()
        self._reduce(self.kernel.regions[0])
        with self.block("if (extra1 > 1)"):
            with self.block("if (t == 0)"):
                self._leave_partial_results("get_group_id(0)")
            self.write("return;")
        self._conclude()
        return (pieces * self.group, results), (self.group, 1, 1), [length, pieces]

    def _combination(self, pieces: sympy.Expr) -> Combination:
        self.by_group = False  # one work-item combines
        return super()._combination(pieces)

    # ---- reductions ----

    def _reduction(self, region: Region) -> None:
        super()._reduction(region)
        # Terms that follow may load what the first work-item has stored.
        if self.by_group and region.after and region is not self.kernel.regions[-1]:
            self.write(_BARRIER)

    def _reduce(self, region: Region) -> None:
        if not self.by_group:
            super()._reduce(region)
            return
        reduces = reduces_of(region)
        for value in reduces:
            self._declare(value, f"{value.name}_a", 1)
        with self._terms():
            self.body(region.body)
            for value in reduces:
                self._accumulate(value, f"{value.name}_a")
        for value in reduces:
            self._meet(value)

    @contextmanager
    def _terms(self) -> Iterator[None]:
        """A loop over this work-item's terms."""
        assert self.r is not None
        first, last = ("first", "last") if self.in_pieces else ("0", self.size(self.r.root.numel))
        with self.block(f"for (long k = {first} + t; k < {last}; k += {self.group})"):
            if self.r.rows is None:
                self.write(f"const long {self.r.inner} = k;")
            else:
                length = self.size(self.r.length)
                self.write(f"const long {self.r.outer} = k / {length}, {self.r.inner} = k - k / {length} * {length};")
            self.looping = True
            yield
            self.looping = False

    def _array(self, dtype: torch.dtype, number: int = 0) -> str:
        """An array in local memory for results of a type, one for each work-item."""
        kind = cl.type_name(dtype)
        return self.scratch.setdefault((kind, number), f"shared_{kind}_{number}")

    def _meet(self, value: Value) -> None:
        """Combines the work-items' results, in a tree; all of them learn the whole."""
        if self._is_arg(value):
            self._meet_position(value)
            return
        array = self._array(value.dtype)
        self.write(f"{array}[t] = {value.name}_a;")
        with self._tree():
            text = cl.combine(self.prelude, value.kind, f"{array}[t]", f"{array}[t + reach]", value.dtype, 1)
            self.write(f"if (t < reach) {array}[t] = {text};")
        self._result(value, f"{array}[0]", 1)
        self.write(_BARRIER)  # before the array is used again

    def _meet_position(self, value: Value) -> None:
        """The same for the place of the best term; -1 is the place of a work-item that saw none."""
        dtype = self._arg_dtype(value)
        best = self._array(dtype)
        where = self._array(torch.int64, number=int(dtype == torch.int64))
        self.write(f"{best}[t] = {value.name}_a_best;")
        self.write(f"{where}[t] = {value.name}_a;")
        with self._tree(), self.block(f"if (t < reach && {where}[t + reach] >= 0)"):
            there, here = f"{best}[t + reach]", f"{best}[t]"
            better = cl.better(value.kind, there, here, f"{where}[t + reach]", f"{where}[t]", dtype)
            with self.block(f"if ({better} || {where}[t] < 0)"):
                self.write(f"{here} = {there};")
                self.write(f"{where}[t] = {where}[t + reach];")
        self._result(value, f"{where}[0]", 1)
        self.write(_BARRIER)

    @contextmanager
    def _tree(self) -> Iterator[None]:
        self.write(_BARRIER)
        with self.block(f"for (int reach = {self.group // 2}; reach > 0; reach /= 2)"):
            yield
            self.write(_BARRIER)

    # ---- statements ----

    def store(self, store: Store) -> None:
        """What a whole group has computed is stored once."""
        if not self.by_group or self.looping:
            super().store(store)
            return
        with self.block("if (t == 0)"):
            super().store(store)
