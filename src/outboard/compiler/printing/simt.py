# SPDX-License-Identifier: Apache-2.0
"""Loops for SIMT devices: many short work-items, local memory, sub-groups (``loops.simt``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..dialects.c import groups
from ..loops.nest import LoopKernel, Region, Store, Value
from ..loops.schedule import Sharing, SimtSchedule
from ..target import Target
from .reductions import ReductionPrinter, named


class SimtPrinter(ReductionPrinter):
    """Prints one kernel for a SIMT device."""

    schedule: SimtSchedule
    looping = False  #: whether what is printed is for one term, not for all that share a reduction

    def __init__(self, kernel: LoopKernel, schedule: SimtSchedule, target: Target, entry: str) -> None:
        super().__init__(kernel, schedule, target, entry)
        self.sharing, self.group = schedule.sharing, schedule.launch.group
        self.number = "t" if schedule.in_pieces else "0"
        self.meeting = groups.Meeting(self.prelude, schedule.sub_group)
        self.arrays: dict[str, str] = {}  #: arrays in local memory, and their types

    # ---- structure ----

    def _attribute(self) -> str:
        return "" if self.sharing is Sharing.ITEM else f" {self.meeting.attribute()}".rstrip()

    def _structure(self) -> None:
        if self.sharing is Sharing.ITEM:
            self._items()
        elif self.sharing is Sharing.SUB_GROUP:
            self._sub_groups()
        else:
            self._groups()
            self._declare_shared()

    def _declare_shared(self) -> None:
        """Puts before what was written what it takes for granted."""
        arrays = [f"  OB_SHARED {kind} {name}[{self.group}];" for name, kind in self.arrays.items()]
        self.lines[:0] = [*arrays, "  const int t = OB_LOCAL_ID(0);"]
        self.arrays.clear()

    def _items(self) -> None:
        """A work-item for each point, or for the same place of some rows."""
        if not self.schedule.by_rows:
            self.write("const long x = OB_ITEM_ID(0);")
            self.write(f"if (x >= {self.size(self.x.numel)}) return;")
            self._place()
            self.point()
            return
        self.write(f"const long {self.x.inner} = OB_ITEM_ID(0);")
        self.write(f"if ({self.x.inner} >= {self.size(self.x.length)}) return;")
        o = self.x.outer
        with contextlib.ExitStack() as loop:
            if self.x.rows is not None and self.schedule.in_turn:
                step = f"for (long {o} = OB_ITEM_ID(1); {o} < {self.size(self.x.rows)}; {o} += OB_ITEM_COUNT(1))"
                loop.enter_context(self.block(step))
            elif self.x.rows is not None:
                self.write(f"const long {o} = OB_ITEM_ID(1);")
            self.point()

    def _groups(self) -> None:
        """A work-group for each point of the non-reduction root, or for a piece of it."""
        if self.schedule.in_pieces:
            self._pieces()
            return
        self.write("const long x = OB_GROUP_ID(0);")
        self._place()
        self.point()

    def _sub_groups(self) -> None:
        """A sub-group for each point of the non-reduction root."""
        points = self.schedule.points
        self.write("const int size = OB_SUB_GROUP_SIZE(), t = OB_SUB_GROUP_ITEM();")
        self.write(f"const long from = (long)OB_GROUP_ID(0) * {points};")
        self.write(f"const long to = min(from + {points}, {self.size(self.x.numel)});")
        with self.block("for (long x = from + OB_SUB_GROUP_ID(); x < to; x += OB_SUB_GROUP_COUNT())"):
            self._place()
            self.point()

    def _pieces(self) -> None:
        """A work-group takes one piece of one reduction, and what follows from its result if there is no other."""
        assert self.r is not None
        self.write("const long x = OB_ITEM_ID(1);")
        self.write("const long first = (long)OB_GROUP_ID(0) * extra0;")
        self.write(f"const long last = min(first + extra0, {self.size(self.r.numel)});")
        self._place()
        self._reduce(self.kernel.regions[0])
        with self.block("if (extra1 > 1)"):
            with self.block("if (t == 0)"):
                self._leave_partial_results("OB_GROUP_ID(0)")
            self.write("return;")
        self._conclude()

    def _combine_pieces(self) -> None:
        """A work-group combines the partial results of one reduction."""
        super()._combine_pieces()
        self._declare_shared()

    # ---- reductions ----

    def _reduction(self, region: Region) -> None:
        super()._reduction(region)
        # Terms that follow may load what the first work-item has stored.
        if self.sharing is not Sharing.ITEM and region.after and region is not self.kernel.regions[-1]:
            self.write(groups.BARRIER if self.sharing is Sharing.GROUP else groups.SUB_GROUP_BARRIER)

    def _reduce(self, region: Region) -> None:
        if self.sharing is Sharing.ITEM:
            super()._reduce(region)
            return
        terms, reduces = self.terms[id(region)], region.reductions()
        sums = named(terms.in_parts, reduces)
        for value in reduces:
            self._declare(value, f"{value.name}_a", 1)
        self._declare_totals(sums, 1)
        if sums:
            self.write(f"int {sums[0].name}_pending = 0;")
        with self._terms():
            self.body(region.body)
            for value in reduces:
                self._accumulate(value, f"{value.name}_{'b' if value in sums else 'a'}")
            if sums:
                with self.block(f"if (++{sums[0].name}_pending == {terms.each})"):
                    self.write(f"{sums[0].name}_pending = 0;")
                    self._flush(sums)
        self._flush(sums)
        for value in sums:
            self.write(f"{value.name}_a = {self._total(value, 1)};")
        self._results(reduces)

    @contextlib.contextmanager
    def _terms(self) -> Iterator[None]:
        """A loop over this work-item's terms."""
        assert self.r is not None
        first, last = ("first", "last") if self.schedule.in_pieces else ("0", self.size(self.r.numel))
        step = str(self.group) if self.sharing is Sharing.GROUP else "size"
        with self.block(f"for (long k = {first} + t; k < {last}; k += {step})"):
            if self.r.rows is None:
                self.write(f"const long {self.r.inner} = k;")
            else:
                length = self.size(self.r.length)
                self.write(f"const long {self.r.outer} = k / {length}, {self.r.inner} = k - k / {length} * {length};")
            self.looping = True
            yield
            self.looping = False

    def _results(self, reduces: list[Value]) -> None:
        """Combines what those that share a reduction have found; all of them learn the whole."""
        if self.sharing is Sharing.SUB_GROUP:
            for value in reduces:
                self.write(f"{self.meeting.near(_part(value))}({self._addresses(value)});")
        else:
            for begin in range(0, len(reduces), self.schedule.together):
                self._meet_in_group(reduces[begin : begin + self.schedule.together])
        for value in reduces:
            self._result(value, f"{value.name}_a", 1)

    def _meet_in_group(self, reduces: list[Value]) -> None:
        parts = [_part(value) for value in reduces]
        shared = self._shared(parts)
        for value, part, names in zip(reduces, parts, shared, strict=True):
            self.write(f"{self.meeting.leave(part)}({', '.join([*self._variables(value), *names])});")
        self.write(groups.BARRIER)
        for value, part, names in zip(reduces, parts, shared, strict=True):
            self.write(f"{self.meeting.learn(part)}({', '.join([self._addresses(value), *names])});")
        self.write(groups.BARRIER)  # before the arrays are used again

    def _variables(self, value: Value) -> list[str]:
        """What a work-item has found."""
        total = f"{value.name}_a"
        return [f"{total}_best", total] if value.finds_place else [total]

    def _addresses(self, value: Value) -> str:
        return ", ".join(f"&{variable}" for variable in self._variables(value))

    def _shared(self, parts: list[groups.Part]) -> list[list[str]]:
        """Arrays in local memory for all variables of some parts, which later ones may use again."""
        taken: dict[str, int] = {}

        def array(kind: str) -> str:
            number = taken[kind] = taken.get(kind, -1) + 1
            name = f"shared_{kind}_{number}"
            self.arrays[name] = kind
            return name

        return [[array(kind) for kind in part.types] for part in parts]

    # ---- statements ----

    def store(self, store: Store) -> None:
        """What has been computed together is stored once."""
        if self.sharing is Sharing.ITEM or self.looping:
            super().store(store)
            return
        with self.block("if (t == 0)"):
            super().store(store)


def _part(value: Value) -> groups.Part:
    """What a work-item has of a reduction."""
    return groups.Part(value.kind, value.term_dtype)
