# SPDX-License-Identifier: Apache-2.0
"""Decides how a nest goes through a SIMT device: many short work-items, local memory, sub-groups, neighbours reading
neighbouring elements.

A pointwise kernel has a work-item for each few neighbouring points that memory delivers in one access, or for each
point. A reduction has

* a work-group for each result, where its terms are many: work-items take terms in turn and then meet
  (``dialects.groups``);
* a sub-group for each result, on devices that have them, where its terms lie side by side and would not keep a
  work-group busy: nobody waits for another sub-group;
* a work-item for each result, where terms are few, or where neighbouring results lie side by side in memory and there
  are enough of them to fill the device;
* several work-groups for each result, where there are a few long reductions: a first kernel reduces pieces, a second
  one combines them (``vector`` tells how); or several work-items, where neighbouring results lie side by side and
  there are not enough of them to fill the device.

All orders of addition are fixed: each run gives the same bits.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection
from typing import Any

import sympy
import torch

from ..dialects.c import groups
from ..target import Limits
from ..units import COMPUTE_UNITS
from .accesses import Accesses
from .nest import LoopKernel, Region, Store, Value, moves
from .reductions import FEW, PIECES, combination_of, length_of_pieces, one_by_one, pays_pieces, reduces_once
from .schedule import Launch, Sharing, SimtSchedule, Terms
from .splits import Split, ceildiv, floordiv, maximum, minimum

#: Work-items of a work-group that takes points, and at most of one that takes long rows of them or reduces.
GROUP, LARGEST_GROUP = 64, 256
#: Bytes of one access of a work-item, points that it takes at most, and statements that are worth repeating for each.
ACCESS, MOST_EACH, REPEATED = 16, 8, 400
#: Terms that are worth a work-group, and points of a row that are worth items of their own, without a division each.
WORTH_A_GROUP, WORTH_A_ROW = 32, 8
#: Results that fill a device with a work-item each.
MANY = 1 << 14
#: Terms that are worth a work-group of their own, or a work-item, among several for one result.
PIECE, ITEMS_PIECE = 1 << 13, 64
#: Results that keep a device busy with a work-group each, and work-items that keep a compute unit busy.
BUSY_GROUPS, BUSY_ITEMS = 1 << 10, 1 << 11
#: Results of one loop that meet at the same barrier, at most, and as local memory allows: each has arrays there.
TOGETHER = 4
#: Rows of work-groups in a launch: CUDA has no more in any dimension but the first.
MOST_ROWS = 65535


def schedule_simt(kernel: LoopKernel, limits: Limits) -> SimtSchedule:
    """The schedule of a nest for a device of many short work-items. Raises Unsupported if it has too many ranges."""
    return _Decision(kernel, limits).schedule()


def keeps_apart(results: int, terms: int) -> bool:
    """Whether a reduction and one that waits for it are better kernels of their own, each cut into pieces, than two
    loops of one kernel: so few results leave most of the device idle."""
    return results < BUSY_GROUPS and terms >= 2 * PIECE


def _at_least_one(length: sympy.Expr) -> sympy.Expr:
    """A length, as a divisor."""
    return length if length.is_Integer and length > 0 else maximum(sympy.S.One, length)


class _Decision:
    """What is known while a schedule is made."""

    def __init__(self, kernel: LoopKernel, limits: Limits) -> None:
        self.kernel, self.limits = kernel, limits
        self.accesses = Accesses.of(kernel)
        self.x, self.r = self.accesses.x, self.accesses.r
        self.assumptions: list[sympy.Basic] = []
        self.along = self.r is not None and self.accesses.contiguity(self.r) >= self.accesses.contiguity(self.x)
        self.in_pieces = pays_pieces(self.accesses, 2 * PIECE) or self._pays_pieces()
        self.sharing = self._choose_sharing()
        self.together = TOGETHER
        self.group = self._group_size()
        self._keep_to_local_memory()

    def schedule(self) -> SimtSchedule:
        """The whole."""
        if self.sharing is Sharing.ITEM:
            return self._pieces_of_items() if self.in_pieces else self._items()
        if self.sharing is Sharing.SUB_GROUP:
            return self._sub_groups()
        return self._pieces() if self.in_pieces else self._groups()

    def _made(self, launch: Launch, **decided: Any) -> SimtSchedule:
        """A schedule of what was decided, with what follows from who shares reductions."""
        items = self.group if self.sharing is Sharing.GROUP else 1
        return SimtSchedule(
            x=self.x,
            r=self.r,
            formulas=tuple(self.accesses.formulas.items()),
            terms=tuple(self._terms(region, items) if region.in_reduction else None for region in self.kernel.regions),
            launch=launch,
            assumptions=tuple(dict.fromkeys(self.assumptions)),
            sharing=self.sharing,
            sub_group=self.limits.sub_group,
            together=self.together if self.sharing is Sharing.GROUP else 1,
            **decided,
        )

    # ---- who shares a reduction ----

    def _choose_sharing(self) -> Sharing:
        if self.r is None:
            return Sharing.ITEM
        if self.in_pieces:
            return Sharing.GROUP if self.along or not self._has_neighbours() else Sharing.ITEM
        if self.along and self._pays_sub_groups():
            return Sharing.SUB_GROUP
        if not self._has_terms(WORTH_A_GROUP):
            return Sharing.ITEM
        many = not self.along and self._is_at_least(self.x.numel, self.x.hint, MANY)
        return Sharing.ITEM if many else Sharing.GROUP

    def _pays_pieces(self) -> bool:
        """Whether there are not enough results to keep the device busy, and enough terms for several pieces each."""
        if self.r is None or not reduces_once(self.kernel):
            return False
        if self.along:
            return not self._is_at_least(self.x.numel, self.x.hint, BUSY_GROUPS) and self._has_terms(2 * PIECE)
        if not self._has_neighbours() or self._is_at_least(self.x.numel, self.x.hint, MANY):
            return False
        return self._has_terms(4 * ITEMS_PIECE)

    def _has_neighbours(self) -> bool:
        """Whether results are as many as are worth a work-item each, side by side."""
        return self.x.hint >= self.limits.sub_group and self.x.hint > FEW

    def _pays_sub_groups(self) -> bool:
        """Whether the terms, which lie side by side, are enough for most items of a sub-group and few for a group."""
        size = self.limits.sub_group
        return size > 1 and self._has_terms(size // 2) and not self._has_terms(groups.STEPS * size)

    def _has_terms(self, least: int) -> bool:
        assert self.r is not None
        return self._is_at_least(self.r.numel, self.r.hint, least)

    def _is_at_least(self, length: sympy.Expr, hint: int, least: int) -> bool:
        """Whether a length is that great; of one that is unknown it becomes an assumption."""
        answer = hint >= least
        if not length.is_Integer:
            self.assumptions.append((sympy.Ge if answer else sympy.Lt)(length, least))
        return answer

    def _group_size(self) -> int:
        most = min(LARGEST_GROUP, max(1, self.limits.work_group))
        largest = 1 << (most.bit_length() - 1)
        if self.sharing is Sharing.ITEM:
            return min(GROUP, largest) if self.r is not None else largest
        if self.sharing is Sharing.SUB_GROUP:
            return largest
        assert self.r is not None
        terms = self.r.numel
        wanted = int(terms) if terms.is_Integer else LARGEST_GROUP // 2
        size = largest
        while size > WORTH_A_GROUP and size >= 2 * wanted:
            size //= 2
        return size

    def _keep_to_local_memory(self) -> None:
        """Has fewer results meet at once, and then fewer work-items, where local memory has no room for all."""
        if self.sharing is not Sharing.GROUP:
            return
        while self.together > 1 and self.group * self._bytes_each() > self.limits.local_memory:
            self.together //= 2
        while self.group > 1 and self.group * self._bytes_each() > self.limits.local_memory:
            self.group //= 2

    def _bytes_each(self) -> int:
        """Bytes of local memory for each work-item: those of the arrays that meetings take turns to use."""
        most: Counter[torch.dtype] = Counter()
        for region in self.kernel.regions:
            reduces = region.reductions()
            for begin in range(0, len(reduces), self.together):
                parts = [groups.Part(v.kind, v.term_dtype) for v in reduces[begin : begin + self.together]]
                most |= Counter(dtype for part in parts for dtype in part.dtypes)
        return sum(max(dtype.itemsize, 1) * count for dtype, count in most.items())

    # ---- loops ----

    def _items(self) -> SimtSchedule:
        """A work-item for each point or few points, neighbours along a row if rows are long enough to fill groups. No
        launch has more rows than any device takes; its items go on with those behind them."""
        if self.x.rows is not None and not self._is_at_least(self.x.length, self.x.length_hint, WORTH_A_ROW):
            return self._made(self._launch(ceildiv(self.x.numel, sympy.Integer(self.group))))
        packed, each = self._packed()
        across, down = self._shape_of_group(each)
        columns, rows = ceildiv(self.x.length, sympy.Integer(across * each)), sympy.S.One
        if self.x.rows is not None:
            rows = self.x.rows if down == 1 else ceildiv(self.x.rows, sympy.Integer(down))
        in_turn = down > 1 or not (rows.is_Integer and rows <= MOST_ROWS)
        if in_turn:
            rows = minimum(rows, sympy.Integer(MOST_ROWS))
        launch = Launch((columns * across, rows * down), (across, down, 1))
        hoisted = tuple(self.accesses.uniform()) if each > 1 else ()
        return self._made(launch, by_rows=True, in_turn=in_turn, each=each, packed=packed, hoisted=hoisted)

    def _shape_of_group(self, each: int) -> tuple[int, int]:
        """Items of a group along a row of points and across rows: short rows share a group."""
        if self.x.rows is None:
            return self.group, 1
        across = self.group
        while across > 1 and across // 2 * each >= self.x.length_hint:
            across //= 2
        return across, self.group // across

    def _packed(self) -> tuple[tuple[str, ...], int]:
        """What an item takes as one access of several neighbouring points, and how many these are: nothing and 1 where
        there is no such access, or where others would go from line to line."""
        if self.r is not None:
            return (), 1
        statements = self.kernel.statements()
        steps = [(s, self.accesses.step(s.index, self.x.inner)) for s in moves(statements)]
        if any(step not in (None, 0, 1) for s, step in steps if isinstance(s, Store) or s.mask is None):
            return (), 1
        if any(isinstance(s, Store) and s.atomic_add and step == 1 for s, step in steps):
            return (), 1  # neighbours' atomics belong to one line
        return self._together(statements, self.x, self.accesses.uniform())

    def _terms(self, region: Region, items: int) -> Terms:
        """How those that share a reduction take its terms: few neighbouring ones at a time, where they lie so."""
        terms = one_by_one(self.accesses, region, items)
        if self.r is None or self.sharing is Sharing.ITEM:
            return terms
        packed, pack = self._together(region.body, self.r, {})
        return dataclasses.replace(terms, packed=packed, pack=pack)

    def _together(
        self, statements: list[Value | Store], split: Split, known: Collection[str]
    ) -> tuple[tuple[str, ...], int]:
        """Loads and buffers of stores that may be one access of several neighbours along a root, and of how many. An
        index may be made of values that are ``known`` before."""
        packed = [
            s
            for s in moves(statements)
            if self.accesses.step(s.index, split.inner) == 1
            and (split.rows is None or split is self.x or self.accesses.step(s.index, split.outer) is not None)
            and all(value.name in known for value in self.kernel.looked_up(s.index))
            and (_stores_once(s, statements) if isinstance(s, Store) else _loads_first(s, statements))
        ]
        if not packed:
            return (), 1
        each = min(MOST_EACH, ACCESS // max(self.kernel.buffers[s.buffer].itemsize for s in packed))
        if each < 2 or len(statements) * each > REPEATED:
            return (), 1
        return tuple(s.buffer if isinstance(s, Store) else s.name for s in packed), each

    def _groups(self) -> SimtSchedule:
        """A work-group for each point of the non-reduction root."""
        return self._made(self._launch(self.x.numel))

    def _sub_groups(self) -> SimtSchedule:
        """A sub-group for each point of the non-reduction root. A work-group has the points of sub-groups of the usual
        size; should they be larger, and so fewer, they take points in turn."""
        points = max(1, self.group // self.limits.sub_group)
        return self._made(self._launch(ceildiv(self.x.numel, sympy.Integer(points))), points=points)

    def _pieces(self) -> SimtSchedule:
        """A work-group takes one piece of one reduction, and what follows from its result if there is no other."""
        assert self.r is not None
        pieces = self._count_pieces(PIECES, PIECE)
        launch = self._launch(pieces, self.x.numel, (length_of_pieces(self.r.numel, pieces), pieces))
        return self._made(launch, combination=combination_of(self.accesses, pieces, self.group))

    def _pieces_of_items(self) -> SimtSchedule:
        """A work-item takes one piece of one reduction, neighbours those of neighbouring results."""
        assert self.r is not None
        pieces = self._count_pieces(BUSY_ITEMS, ITEMS_PIECE)
        columns = ceildiv(self.x.numel, sympy.Integer(self.group))
        launch = self._launch(columns, pieces, (ceildiv(self.r.numel, pieces), pieces))
        return self._made(launch, combination=combination_of(self.accesses, pieces, self.group))

    def _count_pieces(self, busy: int, least: int) -> sympy.Expr:
        """Pieces of each reduction: all together as many as keep a compute unit ``busy``, none of less than ``least``
        terms."""
        assert self.r is not None
        most = floordiv(busy * COMPUTE_UNITS, _at_least_one(self.x.numel))
        return maximum(sympy.S.One, minimum(most, floordiv(self.r.numel, sympy.Integer(least))))

    def _launch(self, count: sympy.Expr, rows: sympy.Expr = sympy.S.One, extra: tuple[sympy.Expr, ...] = ()) -> Launch:
        """``count`` work-groups by so many rows."""
        return Launch((count * self.group, rows), (self.group, 1, 1), extra)


def _stores_once(store: Store, statements: list[Value | Store]) -> bool:
    """Whether no other of the statements stores to the buffer, or loads from it later."""
    others = [s for s in statements if isinstance(s, Store) and s.buffer == store.buffer and s is not store]
    later = statements[statements.index(store) :]
    return not store.atomic_add and not others and all(isinstance(s, Store) or s.buffer != store.buffer for s in later)


def _loads_first(load: Value, statements: list[Value | Store]) -> bool:
    """Whether the load may come before all else: there is no mask, and nothing before it stores to its buffer."""
    before = statements[: statements.index(load)]
    return load.mask is None and not any(isinstance(s, Store) and s.buffer == load.buffer for s in before)
