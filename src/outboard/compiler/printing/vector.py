# SPDX-License-Identifier: Apache-2.0
"""Loops for CPUs.

A work-item takes a long piece of the iteration space and runs it in explicit vectors (*lanes*), with a scalar copy of
the body for what is left over. Lanes lie along the innermost piece of one root: of the reduction when rows are reduced
(``rows``), of the other root otherwise, so that most memory accesses are contiguous.

A few long reductions would leave most cores idle if each were one work-item's. They are cut into pieces: a first kernel
reduces each piece, a second one combines the partial results and does what follows from them. Both are entries of one
definition. If there is one piece only, the first kernel does everything.
"""

from __future__ import annotations

import sympy
import torch

from ..dialects import c as cl
from ..loops import Store, Value
from ..units import COMPUTE_UNITS
from .analysis import BLOCK, TERMS
from .emitted import Grid
from .reductions import PIECE_ALIGNMENT, PIECES, reduces_of
from .rows import SIDE_BY_SIDE, SIDE_BY_SIDE_ELEMENTS, UNROLL, UNROLL_LIMIT, RowPrinter
from .splits import Split, ceildiv, floordiv, maximum, minimum
from .statements import TILE

#: Elements that one work-item of a CPU handles, so that starting it costs little in comparison.
ELEMENTS_PER_ITEM = 8192
#: Looked-up rows asked for before they are copied.
ROWS_AHEAD = 4


class VectorPrinter(RowPrinter):
    """Prints one kernel for a CPU."""

    def _is_long(self, split: Split) -> bool:
        """Whether the inner range is to be taken for one that fills vectors.

        Where only one range is looped over, that of unknown length is: the sizes of the first call say little about
        those of the next, and the long ones are what takes time."""
        return self._looped_alone(split) or split.length_hint >= self.lanes

    def _looped_alone(self, split: Split) -> bool:
        alone = split is self.r if self.in_pieces else self.r is None
        return alone and split.rows is None and not split.length.is_Integer

    def _choose_lanes(self) -> sympy.Symbol | None:
        """The inner index along which vectors lie; None for tiny ranges.

        What this takes for granted about lengths that are unknown goes to ``assumptions``."""
        choices = [self.x] if self.r is None else [self.r, self.x]
        long = [split for split in choices if self._is_long(split)]
        best = self._best_lanes(long)
        for split in choices:
            if split.length.is_Integer or self._looped_alone(split):
                continue
            without = [other for other in long if other is not split]
            others = without if split in long else [s for s in choices if s is split or s in long]
            if self._best_lanes(others) is not best:
                relation = sympy.Ge if split in long else sympy.Lt
                self.assumptions.append(relation(split.length, self.lanes))
        return best

    def _structure(self) -> Grid:
        """Prints the outer loops; returns (grid, local size, extra arguments)."""
        if self.in_pieces:
            return self._pieces()
        if self.r is not None and self.lane_symbol != self.x.inner:
            return self._points()
        return self._chunks()

    def _points(self) -> Grid:
        """A work-item takes some points of the non-reduction root, one after another."""
        assert self.r is not None
        per_item = maximum(sympy.S.One, floordiv(sympy.Integer(ELEMENTS_PER_ITEM), self.r.root.numel))
        numel = self.size(self.x.root.numel)
        self.write("const long from = (long)OB_ITEM_ID(0) * extra0;")
        self.write(f"const long to = min(from + extra0, {numel});")
        extra = [per_item]
        stages = self._stages()
        if len(stages) > 1 and self.lane_symbol == self.r.inner:
            ahead = "extra2" in self.streams.values()
            # Where the first loop waits for memory, more rows would be too much at once and then nothing for too long.
            elements = SIDE_BY_SIDE_ELEMENTS if ahead else SIDE_BY_SIDE_ELEMENTS // 2
            few = floordiv(sympy.Integer(elements), self.r.root.numel)
            rows = maximum(sympy.S.One, minimum(sympy.Integer(SIDE_BY_SIDE), few))
            extra.append(rows)
            if ahead:
                extra.append(minimum(rows * self.r.root.numel, sympy.Integer(2 * SIDE_BY_SIDE_ELEMENTS)))
            self._side_by_side(stages)
        else:
            with self.block("for (long x = from; x < to; ++x)"):
                self._place()
                self.point()
        return (ceildiv(self.x.root.numel, per_item), sympy.S.One), (1, 1, 1), extra

    def _pieces(self) -> Grid:
        """A work-item takes one piece of one reduction, and what follows from its result if there is no other piece."""
        assert self.r is not None
        region = self.kernel.regions[0]
        results, terms = self.x.root.numel, self.r.root.numel
        most = ceildiv(PIECES * COMPUTE_UNITS, results)
        pieces = maximum(sympy.S.One, minimum(most, floordiv(terms * results, self._long()) * PIECES))
        length = ceildiv(ceildiv(terms, pieces), PIECE_ALIGNMENT) * PIECE_ALIGNMENT
        self.write("const long x = OB_ITEM_ID(1);")
        self.write("const long first = (long)OB_ITEM_ID(0) * extra0;")
        self.write(f"const long last = min(first + extra0, {self.size(terms)});")
        self._place()
        self._reduce(region)
        with self.block("if (extra1 > 1)"):
            self._leave_partial_results("OB_ITEM_ID(0)")
            self.write("return;")
        self._conclude()
        return (pieces, results), (1, 1, 1), [length, pieces]

    def _chunks(self) -> Grid:
        """A work-item takes a block of rows and, of each, a contiguous chunk."""
        i = self.x.inner
        cost = sympy.S.One if self.r is None else self.r.root.numel
        chunk = sympy.Integer(ELEMENTS_PER_ITEM)
        if self.r is not None:
            chunk = maximum(sympy.Integer(64), floordiv(floordiv(4 * chunk, cost), 64) * 64)
        length = self.size(self.x.length)
        self.write(f"const long {i}_from = (long)OB_ITEM_ID(0) * extra0;")
        self.write(f"const long {i}_to = min({i}_from + extra0, {length});")
        extra = [chunk]
        rows: sympy.Expr = sympy.S.One
        if self.x.rows is None:
            self._chunk()
        else:
            row = self.x.length * cost if self.r is not None else self.x.length
            per_item = maximum(sympy.S.One, floordiv(chunk, row))
            extra.append(per_item)
            rows = ceildiv(self.x.rows, per_item)
            o = self.x.outer
            if self._crosses_rows():
                return self._tiles(extra)
            self.write(f"const long {o}_to = min(((long)OB_ITEM_ID(1) + 1) * extra1, {self.size(self.x.rows)});")
            with self.block(f"for (long {o} = (long)OB_ITEM_ID(1) * extra1; {o} < {o}_to; ++{o})"):
                self._chunk()
        return (ceildiv(self.x.length, chunk), rows), (1, 1, 1), extra

    def _chunk(self) -> None:
        """Lanes along the non-reduction root, then what is left one by one."""
        i = self.x.inner
        if self.r is None:
            self._hoist()
        self.write(f"long {i} = {i}_from;")
        if self.r is None:
            self._declare_far([s for s in self.kernel.statements() if isinstance(s, Store)], self.x.root.numel)
        ahead = self._declare_ahead()
        if self._unrolls_columns():
            step = UNROLL * self.lanes
            with self.block(f"for (; {i} + {step} <= {i}_to; {i} += {step})"):
                self.width = self.lanes
                self._unrolled_columns()
                self.width = 1
                self.vectors.clear()
        if self.lane_symbol is not None:
            with self.block(f"for (; {i} + {self.lanes} <= {i}_to; {i} += {self.lanes})"):
                for pointer in ahead:
                    self.write(f"{self.prelude.use('fetch', torch.uint64, 1)}((ulong)({pointer} + ({i} - {i}_from)));")
                self.width = self.lanes
                self.point()
                self.width = 1
                self.vectors.clear()
        with self.block(f"for (; {i} < {i}_to; ++{i})"):
            self.point()

    def _unrolls_columns(self) -> bool:
        """Whether the kernel is one loop of reductions along columns, and what follows from its results."""
        if self.r is None or self.lane_symbol != self.x.inner:
            return False
        return self._reduces_once() and len(self.kernel.regions[0].body) <= UNROLL_LIMIT

    def _unrolled_columns(self) -> None:
        assert self.r is not None
        region, *rest = self.kernel.regions
        reduces = reduces_of(region)
        self.write(f"const long {self.x.inner}_base = {self.x.inner};")
        sums = self._sums(reduces)
        self._declare_arrays(reduces, "a")
        self._declare_arrays(sums, "b")
        self._declare_arrays(sums, "l")
        if sums:
            self.write(f"long {sums[0].name}_pending = 0;")
        flushing = self._counted(sums, TERMS, lambda: self._flush_columns(sums))
        with self._rows(self.r), self._blocks(self.r, TERMS if sums else BLOCK), flushing:
            i = self.r.inner
            with self.block(f"for (long {i} = {i}_from; {i} < {i}_to; ++{i})"):
                with self._each_vector(self.x):
                    self.body(region.body)
                    for value in reduces:
                        self._accumulate(value, f"{value.name}_{'b' if value in sums else 'a'}[u]")
        self._flush_columns(sums)
        with self._each_vector(self.x):
            for value in reduces:
                self.vectors.add(value.name)
                total = self._total(value, self.width, "[u]") if value in sums else f"{value.name}_a[u]"
                self._result(value, total, self.width)
            self.body(list(region.after))
            for following in rest:
                self.body([*following.body, *following.after])

    def _flush_columns(self, sums: list[Value]) -> None:
        """Adds the partial sums of all vectors of a step to their totals."""
        if not sums:
            return
        with self.block(f"for (int u = 0; u < {UNROLL}; ++u)"):
            for value in sums:
                self._add_partial(value, self.width, "[u]")

    def _crosses_rows(self) -> bool:
        """Whether some operand of a pointwise kernel is contiguous neither along a row nor constant along it."""
        if self.r is not None or self.lane_symbol is None:
            return False
        steps = [self._stride(s.index, self.x.inner) for s in self._values() if s.op == "load"]
        return any(step is not None and step not in (0, 1) for step in steps)

    def _tiles(self, extra: list[sympy.Expr]) -> Grid:
        """A work-item takes a block of rows and goes through it in tiles of ``TILE`` rows by one vector."""
        assert self.x.rows is not None
        i, o = self.x.inner, self.x.outer
        extra[1] = maximum(sympy.Integer(TILE), floordiv(extra[1], TILE) * TILE)
        self.write(f"const long {o}_end = min(((long)OB_ITEM_ID(1) + 1) * extra1, {self.size(self.x.rows)});")
        start = f"long {o}_from = (long)OB_ITEM_ID(1) * extra1"
        with self.block(f"for ({start}; {o}_from < {o}_end; {o}_from += {TILE})"):
            self.write(f"const long {o}_to = min({o}_from + {TILE}, {o}_end);")
            self.write(f"long {i} = {i}_from;")
            with self.block(f"for (; {i} + {self.lanes} <= {i}_to; {i} += {self.lanes})"):
                crossing = self._crossing_loads()
                if crossing:
                    with self.block(f"if ({o}_to - {o}_from == {TILE})"):
                        self._load_tiles(crossing)
                        self._tile_rows()
                        self.write("continue;")
                self.tiles.clear()
                self._tile_rows()
            with self.block(f"for (; {i} < {i}_to; ++{i})"):
                with self.block(f"for (long {o} = {o}_from; {o} < {o}_to; ++{o})"):
                    self.point()
        return (ceildiv(self.x.length, extra[0]), ceildiv(self.x.rows, extra[1])), (1, 1, 1), extra

    def _tile_rows(self) -> None:
        """One vector of each row of a tile."""
        o = self.x.outer
        with self.block(f"for (long {o} = {o}_from; {o} < {o}_to; ++{o})"):
            self.width = self.lanes
            self.point()
            self.width = 1
            self.vectors.clear()

    def _crossing_loads(self) -> list[Value]:
        """Loads that are contiguous across the rows."""
        return [
            value
            for value in self._values()
            if value.op == "load"
            and value.mask is None
            and self._stride(value.index, self.x.outer) == 1
            and self._stride(value.index, self.x.inner) not in (None, 0, 1)
        ]

    def _load_tiles(self, loads: list[Value]) -> None:
        """Copies the operands' tiles, along their own contiguous direction, to private memory."""
        i, o, width = self.x.inner, self.x.outer, self.lanes
        self.write(f"const long {i}_base = {i};")
        for value in loads:
            name = f"{value.name}_tile"
            vector = cl.type_name(value.dtype, width)
            self.write(f"{vector} {name}_rows[{TILE}];")
            self.write(f"const {cl.type_name(value.dtype)}* {name} = (const {cl.type_name(value.dtype)}*){name}_rows;")
            with self.block(f"for (int k = 0; k < {width}; ++k)"):
                self.write(f"const long {i} = {i}_base + k, {o} = {o}_from;")
                dtype = self._memory_dtype(value.buffer)
                text = cl.load(self.prelude, self.buffers[value.buffer], dtype, self._base(value.index), width)
                self.write(f"{name}_rows[k] = {text};")
            self.tiles[value.name] = name

    def _declare_ahead(self) -> list[str]:
        """Finds where the chunk of a row that comes soon begins in operands whose rows are looked up, which no
        processor can guess; returns pointers to these places."""
        if self.r is not None or self.x.rows is None or self.lane_symbol is None:
            return []
        moved = self.x.outer
        loads = [v for v in self._values() if v.op == "load" and v.mask is None and self._looks_up_row(v)]
        for load in loads:
            kind = cl.memory_type(self._memory_dtype(load.buffer))
            self.write(f"const OB_GLOBAL {kind}* {load.name}_ahead;")
            with self.block(""):
                last = f"{self.size(self.x.rows)} - 1"
                self.write(f"const long next = min({moved} + {ROWS_AHEAD}, {last}), {moved} = next;")
                needed = self._needed_for(load.index)
                for value in self._values():
                    if value.name in needed:
                        self.value(value)
                self.write(f"{load.name}_ahead = {self.buffers[load.buffer]} + ({self._base(load.index)});")
        return [f"{load.name}_ahead" for load in loads]

    def _looks_up_row(self, load: Value) -> bool:
        """Whether elements come from a row whose number is looked up, and lie side by side there."""
        indirect = [self.kernel.indirect[s] for s in load.index.free_symbols if s in self.kernel.indirect]
        lookups = bool(indirect) and all(value.name in self.hoisted for value in indirect)
        return lookups and self._stride(load.index, self.x.inner) == 1

    def _needed_for(self, index: sympy.Expr) -> set[str]:
        """The names of the values that an index is computed from."""
        needed: set[str] = set()
        work = [self.kernel.indirect[s] for s in index.free_symbols if s in self.kernel.indirect]
        while work:
            value = work.pop()
            needed.add(value.name)
            work += [*value.args, *([value.mask] if value.mask else [])]
            work += [self.kernel.indirect[s] for s in value.index.free_symbols if s in self.kernel.indirect]
        return needed

    def _hoist(self) -> None:
        """Computes first what is the same all along the chunk. The compiler of the dialect cannot: for all it knows,
        the stores of the loop change what is loaded."""
        uniform: set[str] = set()
        for value in self._values():
            if self._is_uniform(value, uniform):
                uniform.add(value.name)
                self.value(value)
        self.hoisted = uniform

    def _is_uniform(self, value: Value, uniform: set[str]) -> bool:
        """Whether a value depends only on uniform ones and not on the place in the chunk. No chunk is empty, so a check
        may come first."""
        if value.op in ("assertion", "reduce") or (value.mask and value.mask.name not in uniform):
            return False
        if value.op == "load" and value.buffer in self.kernel.written:
            return False
        moving = {self.x.inner, *(s for s, v in self.kernel.indirect.items() if v.name not in uniform)}
        if value.op in ("load", "index_expr") and moving & self._expand(value.index).free_symbols:
            return False
        return all(argument.name in uniform for argument in value.args)
