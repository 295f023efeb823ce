# SPDX-License-Identifier: Apache-2.0
"""Loops for CPUs, in explicit vectors with a scalar copy of the body for what is left over (``loops.vector``)."""

from __future__ import annotations

import torch

from ..dialects import c
from ..loops.nest import Value
from ..loops.schedule import Order
from .reductions import named
from .rows import RowPrinter


class VectorPrinter(RowPrinter):
    """Prints one kernel for a CPU."""

    def _structure(self) -> None:
        """Prints the outer loops."""
        {
            Order.PIECE: self._pieces,
            Order.POINTS: self._points,
            Order.CHUNKS: self._chunks,
            Order.TILES: self._tiles,
        }[self.schedule.order]()

    def _points(self) -> None:
        """A work-item takes some points of the non-reduction root, one after another."""
        numel = self.size(self.x.numel)
        self.write("const long from = (long)OB_ITEM_ID(0) * extra0;")
        self.write(f"const long to = min(from + extra0, {numel});")
        if self.schedule.stages:
            self._side_by_side()
            return
        with self.block("for (long x = from; x < to; ++x)"):
            self._place()
            self.point()

    def _pieces(self) -> None:
        """A work-item takes one piece of one reduction, and what follows from its result if there is no other piece."""
        self._piece("OB_ITEM_ID(1)", "OB_ITEM_ID(0)")

    def _columns(self) -> None:
        """The chunk of each row that is this work-item's."""
        i, length = self.x.inner, self.size(self.x.length)
        self.write(f"const long {i}_from = (long)OB_ITEM_ID(0) * extra0;")
        self.write(f"const long {i}_to = min({i}_from + extra0, {length});")

    def _chunks(self) -> None:
        """A work-item takes a block of rows and, of each, a contiguous chunk."""
        self._columns()
        if self.x.rows is None:
            self._chunk()
            return
        o = self.x.outer
        self.write(f"const long {o}_to = min(((long)OB_ITEM_ID(1) + 1) * extra1, {self.size(self.x.rows)});")
        with self.block(f"for (long {o} = (long)OB_ITEM_ID(1) * extra1; {o} < {o}_to; ++{o})"):
            self._chunk()

    def _chunk(self) -> None:
        """Lanes along the non-reduction root, then what is left one by one."""
        i = self.x.inner
        for value in named(self.schedule.hoisted, list(self.kernel.values())):
            self.value(value)
        self.hoisted = set(self.schedule.hoisted)
        self.write(f"long {i} = {i}_from;")
        self._declare_far(self.schedule.far)
        ahead = self._declare_ahead()
        if self.schedule.columns > 1:
            step = self.schedule.columns * self.lanes
            with self.block(f"for (; {i} + {step} <= {i}_to; {i} += {step})"):
                self.width = self.lanes
                self._unrolled_columns()
                self.width = 1
                self.vectors.clear()
        if self.lane is not None:
            with self.block(f"for (; {i} + {self.lanes} <= {i}_to; {i} += {self.lanes})"):
                for pointer in ahead:
                    self.write(f"{self.prelude.use('fetch', torch.uint64, 1)}((ulong)({pointer} + ({i} - {i}_from)));")
                self.width = self.lanes
                self.point()
                self.width = 1
                self.vectors.clear()
        if self.lane is not None and self.x.rows is None:  # else rows may be so short that they are all remainder
            self.write(self.prelude.remainder())
        with self.block(f"for (; {i} < {i}_to; ++{i})"):
            self.point()

    def _unrolled_columns(self) -> None:
        assert self.r is not None
        region, *rest = self.kernel.regions
        terms, reduces, count = self.terms[id(region)], region.reductions(), self.schedule.columns
        self.write(f"const long {self.x.inner}_base = {self.x.inner};")
        sums = named(terms.in_parts, reduces)
        self._declare_arrays(reduces, "a", count)
        self._declare_arrays(sums, "b", count)
        self._declare_arrays(sums, "l", count)
        if sums:
            self.write(f"long {sums[0].name}_pending = 0;")
        flushing = self._counted(sums, terms.all, lambda: self._flush_columns(sums))
        with self._rows(self.r), self._blocks(self.r, terms.block), flushing:
            i = self.r.inner
            with self.block(f"for (long {i} = {i}_from; {i} < {i}_to; ++{i})"):
                with self._each_vector(self.x, count):
                    self.body(region.body)
                    for value in reduces:
                        self._accumulate(value, f"{value.name}_{'b' if value in sums else 'a'}[u]")
        self._flush_columns(sums)
        with self._each_vector(self.x, count):
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
        with self.block(f"for (int u = 0; u < {self.schedule.columns}; ++u)"):
            for value in sums:
                self._add_partial(value, self.width, "[u]")

    def _tiles(self) -> None:
        """A work-item takes a block of rows and goes through it in tiles of some rows by one vector."""
        assert self.x.rows is not None
        i, o, rows = self.x.inner, self.x.outer, self.schedule.tile
        crossing = named(self.schedule.crossing, list(self.kernel.values()))
        self._columns()
        self.write(f"const long {o}_end = min(((long)OB_ITEM_ID(1) + 1) * extra1, {self.size(self.x.rows)});")
        start = f"long {o}_from = (long)OB_ITEM_ID(1) * extra1"
        with self.block(f"for ({start}; {o}_from < {o}_end; {o}_from += {rows})"):
            self.write(f"const long {o}_to = min({o}_from + {rows}, {o}_end);")
            self.write(f"long {i} = {i}_from;")
            with self.block(f"for (; {i} + {self.lanes} <= {i}_to; {i} += {self.lanes})"):
                if crossing:
                    with self.block(f"if ({o}_to - {o}_from == {rows})"):
                        self._load_tiles(crossing)
                        self._tile_rows()
                        self.write("continue;")
                self.tiles.clear()
                self._tile_rows()
            with self.block(f"for (; {i} < {i}_to; ++{i})"):
                with self.block(f"for (long {o} = {o}_from; {o} < {o}_to; ++{o})"):
                    self.point()

    def _tile_rows(self) -> None:
        """One vector of each row of a tile."""
        o = self.x.outer
        with self.block(f"for (long {o} = {o}_from; {o} < {o}_to; ++{o})"):
            self.width = self.lanes
            self.point()
            self.width = 1
            self.vectors.clear()

    def _load_tiles(self, loads: list[Value]) -> None:
        """Copies the operands' tiles, along their own contiguous direction, to private memory."""
        i, o, rows = self.x.inner, self.x.outer, self.schedule.tile
        self.write(f"const long {i}_base = {i};")
        for value in loads:
            name, kind = f"{value.name}_tile", c.type_name(value.dtype)
            self.write(f"{c.type_name(value.dtype, rows)} {name}_columns[{self.lanes}];")
            self.write(f"const {kind}* {name} = (const {kind}*){name}_columns;")
            with self.block(f"for (int k = 0; k < {self.lanes}; ++k)"):
                self.write(f"const long {i} = {i}_base + k, {o} = {o}_from;")
                dtype = self.kernel.buffers[value.buffer]
                text = c.load(self.prelude, self.buffers[value.buffer], dtype, self._base(value.index), rows)
                self.write(f"{name}_columns[k] = {text};")
            self.tiles[value.name] = name, rows

    def _declare_ahead(self) -> list[str]:
        """Finds where the chunk of a row that comes soon begins in operands whose rows are looked up; returns pointers
        to these places."""
        moved, loads = self.x.outer, named(self.schedule.looked_up, list(self.kernel.values()))
        for load in loads:
            assert self.x.rows is not None
            kind = c.memory_type(self.kernel.buffers[load.buffer])
            self.write(f"const OB_GLOBAL {kind}* {load.name}_ahead;")
            with self.block(""):
                last = f"{self.size(self.x.rows)} - 1"
                step = f"min({moved} + {self.schedule.rows_ahead}, {last})"
                self.write(f"const long next = {step}, {moved} = next;")
                for value in named(self.kernel.needed_for(load.index), list(self.kernel.values())):
                    self.value(value)
                self.write(f"{load.name}_ahead = {self.buffers[load.buffer]} + ({self._base(load.index)});")
        return [f"{load.name}_ahead" for load in loads]
