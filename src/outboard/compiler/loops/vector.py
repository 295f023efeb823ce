# SPDX-License-Identifier: Apache-2.0
"""Decides how a nest goes through a CPU.

A work-item takes a long piece of the iteration space and runs it in explicit vectors (*lanes*), with a scalar copy of
the body for what is left over. Lanes lie along the innermost piece of one root: of the reduction when rows are reduced,
of the other root otherwise, so that most memory accesses are contiguous.

A few long reductions would leave most cores idle if each were one work-item's. They are cut into pieces: a first kernel
reduces each piece, a second one combines the partial results and does what follows from them. Both are entries of one
definition. If there is one piece only, the first kernel does everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from ..dialects import c
from ..tuning import Tuning
from ..units import COMPUTE_UNITS
from .accesses import Accesses
from .nest import EXPENSIVE, LoopKernel, Region, Store, Value
from .reductions import (
    BLOCK,
    PIECES,
    TERMS,
    combination_of,
    finds_places,
    length_of_pieces,
    one_by_one,
    pays_pieces,
    reduces_once,
    sums_in_parts,
)
from .schedule import Far, Launch, Order, Stream, Terms, VectorSchedule
from .splits import Split, ceildiv, floordiv, maximum, minimum

#: Elements that one work-item handles, so that starting it costs little in comparison.
ELEMENTS_PER_ITEM = 8192
#: Cheap terms that are worth a second launch and waking other cores, and are then cut into ``PIECES`` pieces or more.
LONG = 1 << 19
#: Cheap terms that take as long as one with an expensive operation, or with an element apart from its neighbours'.
EXPENSIVE_COST = 8
#: Vectors of one reduction step taken together: additions that do not wait for one another, whole cache lines.
UNROLL = c.TOGETHER
#: A loop body of more statements than this is not unrolled: it would run out of registers.
UNROLL_LIMIT = 12
#: Rows that go through the loops of a kernel side by side, at most, and the elements that they may have together.
SIDE_BY_SIDE = 8
SIDE_BY_SIDE_ELEMENTS = 2048
#: Rows taken together where an operand lies across the rows, so that each of its cache lines is used whole.
TILE = 16
#: Looked-up rows asked for before they are copied.
ROWS_AHEAD = 4


def schedule_vector(kernel: LoopKernel, tuning: Tuning) -> VectorSchedule:
    """The schedule of a nest for a device with explicit vectors. Raises Unsupported for a nest of too many ranges."""
    return _Decision(kernel, tuning).schedule()


class _Decision:
    """What is known while a schedule is made."""

    def __init__(self, kernel: LoopKernel, tuning: Tuning) -> None:
        self.kernel, self.tuning, self.lanes = kernel, tuning, tuning.lanes
        self.accesses = Accesses.of(kernel)
        self.x, self.r = self.accesses.x, self.accesses.r
        self.assumptions: list[sympy.Basic] = []
        self.in_pieces = self.r is not None and pays_pieces(self.accesses, self._long())
        self.lane = self._choose_lane()
        self.along_terms = self.r is not None and self.lane == self.r.inner
        self.streams = self._find_streams()

    def schedule(self) -> VectorSchedule:
        """The whole."""
        if self.in_pieces:
            return self._pieces()
        if self.r is not None and self.lane != self.x.inner:
            return self._points()
        return self._chunks()

    def _made(self, order: Order, launch: Launch, **decided: Any) -> VectorSchedule:
        """A schedule of what was decided, with what follows from the lanes alone."""
        take = self._along_row if self.along_terms else lambda region: one_by_one(self.accesses, region)
        return VectorSchedule(
            x=self.x,
            r=self.r,
            formulas=tuple(self.accesses.formulas.items()),
            terms=tuple(take(region) if region.in_reduction else None for region in self.kernel.regions),
            launch=launch,
            assumptions=tuple(self.assumptions),
            order=order,
            lanes=self.lanes,
            lane=self.lane,
            streams=self.streams,
            **decided,
        )

    # ---- where vectors lie ----

    def _long(self) -> int:
        """Terms of the kernel's reductions that take as long as ``LONG`` cheap ones."""
        assert self.r is not None
        inner = self.r.inner
        values = [value for value in self.kernel.regions[0].body if isinstance(value, Value)]
        expensive = [
            value
            for value in values
            if value.op in EXPENSIVE or (value.op == "load" and self.accesses.step(value.index, inner) not in (0, 1))
        ]
        return LONG // (1 + EXPENSIVE_COST * len(expensive))

    def _is_long(self, split: Split) -> bool:
        """Whether the inner range is to be taken for one that fills vectors.

        Where only one range is looped over, that of unknown length is: the sizes of the first call say little about
        those of the next, and the long ones are what takes time."""
        return self._looped_alone(split) or split.length_hint >= self.lanes

    def _looped_alone(self, split: Split) -> bool:
        alone = split is self.r if self.in_pieces else self.r is None
        return alone and split.rows is None and not split.length.is_Integer

    def _choose_lane(self) -> sympy.Symbol | None:
        """The inner index along which vectors lie; None for tiny ranges.

        What this takes for granted about lengths that are unknown goes to ``assumptions``."""
        choices = [self.x] if self.r is None else [self.r, self.x]
        long = [split for split in choices if self._is_long(split)]
        best = self._best(long)
        for split in choices:
            if split.length.is_Integer or self._looped_alone(split):
                continue
            without = [other for other in long if other is not split]
            others = without if split in long else [s for s in choices if s is split or s in long]
            if self._best(others) is not best:
                relation = sympy.Ge if split in long else sympy.Lt
                self.assumptions.append(relation(split.length, self.lanes))
        return best

    def _best(self, choices: list[Split]) -> sympy.Symbol | None:
        """The inner index, of those given, along which most memory accesses are contiguous."""
        best, best_score = None, -1.0
        for split in choices:
            score = self.accesses.contiguity(split)
            if split is self.r and finds_places(self.kernel):
                score -= 1000.0
            if score > best_score:
                best, best_score = split.inner, score
        return best

    # ---- loops ----

    def _pieces(self) -> VectorSchedule:
        """A work-item takes one piece of one reduction, and what follows from its result if there is no other piece."""
        assert self.r is not None
        results, terms = self.x.numel, self.r.numel
        most = ceildiv(PIECES * COMPUTE_UNITS, results)
        pieces = maximum(sympy.S.One, minimum(most, floordiv(terms * results, sympy.Integer(self._long())) * PIECES))
        launch = Launch((pieces, results), extra=(length_of_pieces(terms, pieces), pieces))
        return self._made(Order.PIECE, launch, combination=combination_of(self.accesses, pieces, 1))

    def _points(self) -> VectorSchedule:
        """A work-item takes some points of the non-reduction root, one after another."""
        assert self.r is not None
        per_item = maximum(sympy.S.One, floordiv(sympy.Integer(ELEMENTS_PER_ITEM), self.r.numel))
        grid, extra = (ceildiv(self.x.numel, per_item), sympy.S.One), [per_item]
        stages = self._stages()
        if len(stages) == 1 or not self.along_terms:
            return self._made(Order.POINTS, Launch(grid, extra=tuple(extra)))
        ahead = any(stream.elements is None for stream in self.streams)
        # Where the first loop waits for memory, more rows would be too much at once and then nothing for too long.
        elements = SIDE_BY_SIDE_ELEMENTS if ahead else SIDE_BY_SIDE_ELEMENTS // 2
        few = floordiv(sympy.Integer(elements), self.r.numel)
        rows = maximum(sympy.S.One, minimum(sympy.Integer(SIDE_BY_SIDE), few))
        extra.append(rows)
        if ahead:
            extra.append(minimum(rows * self.r.numel, sympy.Integer(2 * SIDE_BY_SIDE_ELEMENTS)))
        launch = Launch(grid, extra=tuple(extra))
        numbered = tuple(map(tuple, stages))
        return self._made(Order.POINTS, launch, stages=numbered, beside=SIDE_BY_SIDE, kept=self._kept(stages))

    def _chunks(self) -> VectorSchedule:
        """A work-item takes a block of rows and, of each, a contiguous chunk."""
        chunk, row = sympy.Integer(ELEMENTS_PER_ITEM), self.x.length
        if self.r is not None:
            chunk = maximum(sympy.Integer(64), floordiv(floordiv(4 * chunk, self.r.numel), sympy.Integer(64)) * 64)
            row *= self.r.numel
        columns = ceildiv(self.x.length, chunk)
        if self.x.rows is None:
            return self._chunk(Launch((columns, sympy.S.One), extra=(chunk,)))
        per_item = maximum(sympy.S.One, floordiv(chunk, row))
        if not self._crosses_rows():
            return self._chunk(Launch((columns, ceildiv(self.x.rows, per_item)), extra=(chunk, per_item)))
        per_item = maximum(sympy.Integer(TILE), floordiv(per_item, sympy.Integer(TILE)) * TILE)
        launch = Launch((columns, ceildiv(self.x.rows, per_item)), extra=(chunk, per_item))
        return self._made(Order.TILES, launch, tile=TILE, crossing=self._crossing())

    def _chunk(self, launch: Launch) -> VectorSchedule:
        """Lanes along the non-reduction root, then what is left one by one."""
        if self.r is not None:
            unrolled = (
                reduces_once(self.kernel)
                and not finds_places(self.kernel)
                and len(self.kernel.regions[0].body) <= UNROLL_LIMIT
            )
            return self._made(Order.CHUNKS, launch, columns=UNROLL if unrolled else 1)
        hoisted = self.accesses.uniform()
        looked_up = self._looked_up(hoisted)
        stores = [s for s in self.kernel.statements() if isinstance(s, Store)]
        return self._made(
            Order.CHUNKS,
            launch,
            hoisted=tuple(hoisted),
            looked_up=looked_up,
            rows_ahead=ROWS_AHEAD if looked_up else 0,
            far=self._far(stores, self.x.numel),
        )

    # ---- rows ----

    def _along_row(self, region: Region) -> Terms:
        """Lanes along the reduction."""
        assert self.r is not None
        short = self.r.length.is_Integer and self.r.length < 2 * UNROLL * self.lanes
        vectors = UNROLL if not short and len(region.body) <= UNROLL_LIMIT else 1
        sums = sums_in_parts(self.accesses, region, self.lanes * vectors)
        each, is_row = TERMS if sums else BLOCK, self.r.rows is None
        together = self.lanes * (vectors if is_row else 1)  # many short rows are few steps each
        in_parts = sums and not (self.in_pieces and vectors > 1)
        values = [s for s in region.body if isinstance(s, Value)]
        return Terms(
            in_parts=sums,
            tails=() if is_row else sums,
            each=each,
            all=each * together,
            block=each * together if in_parts else BLOCK * self.lanes,
            vectors=vectors,
            together=tuple(v.name for v in values if vectors > 1 and c.pays_together(v.op, v.dtype, self.lanes)),
            apart=tuple(v.name for v in region.reductions() if v.kind in ("min", "max") and v.dtype.is_floating_point),
            far=self._far([s for s in region.body if isinstance(s, Store)], self.x.numel * self.r.numel),
        )

    def _stages(self) -> list[list[int]]:
        """The regions, a loop of the reduction in each list, with what follows from its results."""
        regions = self.kernel.regions
        stages: list[list[int]] = [[]]
        for number, region in enumerate(regions):
            if region.in_reduction and any(regions[other].in_reduction for other in stages[-1]):
                stages.append([])
            stages[-1].append(number)
        return stages

    def _kept(self, stages: list[list[int]]) -> tuple[str, ...]:
        """The values of a row that a later stage needs."""
        kept: list[str] = []
        for place, stage in enumerate(stages):
            following = [self.kernel.regions[number] for other in stages[place + 1 :] for number in other]
            later = self.kernel.operands([s for region in following for s in region.statements()])
            own = [s for number in stage for s in self.kernel.regions[number].body]
            values = [s for s in own if isinstance(s, Value) and s.op != "constant"]
            kept += [value.name for value in values if value.name in later]
        return tuple(kept)

    def _find_streams(self) -> tuple[Stream, ...]:
        """Loads, in loops along rows which lie one after another, that also ask for what comes later, and how many
        elements later. The first loop to read a row does, as it must wait for it otherwise; better still is a second
        one of three, which reads what is near and has the time, and asks for the rows that come next."""
        if self.r is None or self.in_pieces or not self.along_terms or self.r.rows is not None:
            return ()
        stages, regions = self._stages(), self.kernel.regions
        between = self._first_loads([regions[number] for number in stages[1]]) if len(stages) > 2 else {}
        streams: dict[str, int | None] = {}
        for buffer, name in self._first_loads(regions).items():
            near = self.tuning.ahead // self.kernel.buffers[buffer].itemsize
            streams[between.get(buffer, name)] = None if buffer in between else near
        return tuple(Stream(*stream) for stream in streams.items())

    def _first_loads(self, regions: list[Region]) -> dict[str, str]:
        """The names of the first loads, by buffer, that read rows which lie one after another."""
        assert self.r is not None
        first: dict[str, str] = {}
        for value in (s for region in regions if region.in_reduction for s in region.body if isinstance(s, Value)):
            if value.op != "load" or value.mask is not None or value.buffer in self.kernel.written:
                continue
            if self.accesses.step(value.index, self.r.inner) == 1 and self._rows_follow(value.index):
                first.setdefault(value.buffer, value.name)
        return first

    def _rows_follow(self, index: sympy.Expr) -> bool:
        """Whether the row of a point ends where that of the next one begins."""
        assert self.r is not None
        step = self.accesses.step(index, self.x.inner)
        return step is not None and sympy.expand(step - self.r.numel) == 0

    def _far(self, stores: list[Store], points: sympy.Expr) -> tuple[Far, ...]:
        """The buffers that ``stores`` fill with ``points`` contiguous elements, in whole vectors, which may go past the
        caches."""
        touched = [s.buffer for s in self.kernel.statements() if isinstance(s, Store) or s.op == "load"]
        far: list[Far] = []
        for store in stores:
            size, limit = points * self.kernel.buffers[store.buffer].itemsize, self.tuning.far
            if size.is_Integer and size < limit:
                continue
            if touched.count(store.buffer) > 1 or self.kernel.looked_up(store.index) or store.atomic_add:
                continue
            if self.lane is not None and self.accesses.step(store.index, self.lane) == 1:
                far.append(Far(store.buffer, None if size.is_Integer else floordiv(size, sympy.Integer(limit))))
        return tuple(far)

    # ---- chunks ----

    def _crosses_rows(self) -> bool:
        """Whether some operand of a pointwise kernel is contiguous neither along a row nor constant along it."""
        if self.r is not None or self.lane is None:
            return False
        steps = [self.accesses.step(s.index, self.x.inner) for s in self.kernel.values() if s.op == "load"]
        return any(step is not None and step not in (0, 1) for step in steps)

    def _crossing(self) -> tuple[str, ...]:
        """Loads that are contiguous across the rows."""
        return tuple(
            value.name
            for value in self.kernel.values()
            if value.op == "load"
            and value.mask is None
            and self.accesses.step(value.index, self.x.outer) == 1
            and self.accesses.step(value.index, self.x.inner) not in (None, 0, 1)
        )

    def _looked_up(self, uniform: Mapping[str, None]) -> tuple[str, ...]:
        """Loads of elements that lie side by side in a row whose number is looked up: no processor can guess where the
        row that comes soon begins."""
        if self.x.rows is None or self.lane is None:
            return ()
        found: list[str] = []
        for load in (value for value in self.kernel.values() if value.op == "load" and value.mask is None):
            numbers = self.kernel.looked_up(load.index)
            is_uniform = bool(numbers) and all(value.name in uniform for value in numbers)
            if is_uniform and self.accesses.step(load.index, self.x.inner) == 1:
                found.append(load.name)
        return tuple(found)
