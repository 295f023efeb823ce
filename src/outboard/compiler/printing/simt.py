# SPDX-License-Identifier: Apache-2.0
"""Loops for SIMT devices: many short work-items, local memory, sub-groups (``loops.simt``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence

import sympy

from ..dialects import c
from ..dialects.c import groups
from ..loops.nest import LoopKernel, Region, Store, Value, compute_dtype
from ..loops.schedule import Sharing, SimtSchedule, Terms
from ..target import Target
from .reductions import ReductionPrinter, named


class SimtPrinter(ReductionPrinter):
    """Prints one kernel for a SIMT device."""

    schedule: SimtSchedule
    looping = False  #: whether what is printed is for one term, not for all that share a reduction
    combining = False  #: whether what is printed is for the work-group that combines pieces

    def __init__(self, kernel: LoopKernel, schedule: SimtSchedule, target: Target, entry: str) -> None:
        super().__init__(kernel, schedule, target, entry)
        self.sharing, self.group = schedule.sharing, schedule.launch.group
        self.number = "t" if schedule.in_pieces else "0"
        self.meeting = groups.Meeting(self.prelude, schedule.sub_group)
        self.arrays: dict[str, str] = {}  #: arrays in local memory, and their types
        self.packs: dict[int, str] = {}  #: accesses of several neighbours, by the statement's id, and what holds them

    # ---- structure ----

    def _attribute(self) -> str:
        alone = self.sharing is Sharing.ITEM and not self.schedule.in_pieces
        return "" if alone else f" {self.meeting.attribute()}".rstrip()

    def _structure(self) -> None:
        if self.sharing is Sharing.ITEM and self.schedule.in_pieces:
            self._pieces_of_items()
        elif self.sharing is Sharing.ITEM:
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
        if self.schedule.each == 1:
            self.write(f"const long {self.x.inner} = OB_ITEM_ID(0);")
            self.write(f"if ({self.x.inner} >= {self.size(self.x.length)}) return;")
        o = self.x.outer
        with contextlib.ExitStack() as loop:
            if self.x.rows is not None and self.schedule.in_turn:
                step = f"for (long {o} = OB_ITEM_ID(1); {o} < {self.size(self.x.rows)}; {o} += OB_ITEM_COUNT(1))"
                loop.enter_context(self.block(step))
            elif self.x.rows is not None:
                self.write(f"const long {o} = OB_ITEM_ID(1);")
            if self.schedule.each > 1:
                self._neighbours()
            else:
                self.point()

    def _neighbours(self) -> None:
        """An item's few neighbouring points: each access that is packed is one for all, where addresses are multiples
        of its size. Where they are not, a group's items take its points in turn."""
        i, each, group = self.x.inner, self.schedule.each, self.group
        length = self.size(self.x.length)
        for value in named(self.schedule.hoisted, list(self.kernel.values())):
            self.value(value)
        self.hoisted = set(self.schedule.hoisted)
        loads, stores = _packed(self.kernel.statements(), self.schedule.packed)
        self.write(f"const long {i}_group = (long)OB_GROUP_ID(0) * {group * each};")
        misaligned = self._misaligned([*loads, *stores], each, {self.x.inner: f"{i}_group"})
        self.write(f"const int {i}_packed = !({misaligned});")
        self.write(f"const long {i}_from = {i}_group + OB_LOCAL_ID(0) * ({i}_packed ? {each} : 1);")
        self.write(f"const long {i}_step = {i}_packed ? 1 : {group};")
        self.write(f"const long {i}_to = min({i}_packed ? {i}_from + {each} : {i}_group + {group * each}, {length});")
        with self.block(f"if ({i}_packed && {i}_from + {each} <= {length})"):
            with self._packs(loads, stores, each, {self.x.inner: f"{i}_from"}):
                self.write(f"const long {i} = {i}_from + e;")
                self.point()
        with self.block(f"else for (long {i} = {i}_from; {i} < {i}_to; {i} += {i}_step)"):
            self.point()
        self.hoisted = set()

    def _misaligned(self, accesses: Sequence[Value | Store], each: int, first: dict[sympy.Symbol, str]) -> str:
        """Whether the address of an access at a first place is no multiple of its size."""
        by_size: dict[int, list[str]] = {}
        for access in accesses:
            size = self.kernel.buffers[access.buffer].itemsize * each
            by_size.setdefault(size, []).append(f"(ulong){self._address(access, first)}")
        return " || ".join(f"(({' | '.join(dict.fromkeys(each))}) & {size - 1}) != 0" for size, each in by_size.items())

    def _address(self, access: Value | Store, place: dict[sympy.Symbol, str]) -> str:
        """The address of an access where some indices go by other names than their own."""
        self.renamed.update(place)
        text, _ = self.index(access.index)
        self.renamed.clear()
        return f"({self.buffers[access.buffer]} + ({text}))"

    @contextlib.contextmanager
    def _packs(
        self, loads: Sequence[Value], stores: Sequence[Store], each: int, place: dict[sympy.Symbol, str]
    ) -> Iterator[None]:
        """A loop over ``each`` neighbours, ``e``: its loads come before it in one access, its stores after it."""
        addresses = {}
        accesses: list[Value | Store] = [*loads, *stores]
        for access in accesses:
            dtype = self.kernel.buffers[access.buffer]
            name = access.name if isinstance(access, Value) else f"{self.buffers[access.buffer]}_new"
            kind, address = c.pack(self.prelude, dtype, each), self._address(access, place)
            self.packs[id(access)] = f"{name}_p"
            addresses[id(access)] = kind, address
            loaded = f" = *(OB_GLOBAL const {kind}*){address}" if isinstance(access, Value) else ""
            self.write(f"{kind} {name}_p{loaded};")
        self.write(f"OB_UNROLL({each})")
        with self.block(f"for (int e = 0; e < {each}; ++e)"):
            yield
        for store in stores:
            kind, address = addresses[id(store)]
            self.write(f"*(OB_GLOBAL {kind}*){address} = {self.packs[id(store)]};")
        self.packs.clear()

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
        self._piece("OB_ITEM_ID(1)", "OB_GROUP_ID(0)")

    def _pieces_of_items(self) -> None:
        """A work-item takes one piece of one reduction, and what follows from its result if there is no other."""
        self.write(f"if (OB_ITEM_ID(0) >= {self.size(self.x.numel)}) return;")
        self._piece("OB_ITEM_ID(0)", "OB_ITEM_ID(1)")

    def _leave_partial_results(self, piece: str) -> None:
        """One of those that share a piece writes its results."""
        if self.sharing is Sharing.ITEM:
            super()._leave_partial_results(piece)
            return
        with self.block("if (t == 0)"):
            super()._leave_partial_results(piece)

    def _combine_pieces(self) -> None:
        """A work-group combines the partial results of one reduction."""
        self.combining = True
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

        def term() -> None:
            self.body(region.body)
            for value in reduces:
                self._accumulate(value, f"{value.name}_{'b' if value in sums else 'a'}")

        def counted(count: int) -> None:
            if sums:
                with self.block(f"if (({sums[0].name}_pending += {count}) >= {terms.each})"):
                    self.write(f"{sums[0].name}_pending = 0;")
                    self._flush(sums)

        self._terms(region, terms, term, counted)
        self._flush(sums)
        for value in sums:
            self.write(f"{value.name}_a = {self._total(value, 1)};")
        self._results(reduces)

    def _terms(self, region: Region, terms: Terms, term: Callable[[], None], counted: Callable[[int], None]) -> None:
        """Loops over this work-item's terms: over packs of neighbours, where there are such, then over what is left.
        ``term`` prints what is done with one, ``counted`` what is done after so many."""
        assert self.r is not None
        first, last = ("first", "last") if self.schedule.in_pieces else ("0", self.size(self.r.numel))
        self.looping = True
        if terms.pack > 1:
            first = self._packed_terms(region, terms, first, last, term, counted)
        with self._turns(first, last, 1):
            term()
            counted(1)
        self.looping = False

    def _packed_terms(
        self,
        region: Region,
        terms: Terms,
        first: str,
        last: str,
        term: Callable[[], None],
        counted: Callable[[int], None],
    ) -> str:
        """A loop over packs of terms, where addresses are multiples of their sizes; returns what is left's begin."""
        assert self.r is not None
        o, i, each = self.r.outer, self.r.inner, terms.pack
        loads, stores = _packed(region.body, terms.packed)
        accesses: list[Value | Store] = [*loads, *stores]
        self.counter += 1
        rest = f"rest_{self.counter}"
        self.write(f"long {rest} = {first};")
        begin = {i: first} if self.r.rows is None else {o: "0L", i: "0L"}
        conditions = [f"!({self._misaligned(accesses, each, begin)})"]
        if self.r.rows is not None:  # no pack lies in two rows
            steps = [self.accesses.step(access.index, o) for access in accesses]
            lengths = [self.size(length) for length in (self.r.length, *steps) if length is not None]
            conditions += [f"{length} % {each} == 0" for length in dict.fromkeys(lengths)]
        with self.block(f"if ({' && '.join(conditions)})"):
            with self._turns(first, last, each, suffix="_from"):
                with self._packs(loads, stores, each, {i: f"{i}_from"}):
                    self.write(f"const long {i} = {i}_from + e;")
                    term()
                counted(each)
            self.write(f"{rest} += ({last} - {first}) / {each} * {each};")
        return rest

    @contextlib.contextmanager
    def _turns(self, first: str, last: str, each: int, suffix: str = "") -> Iterator[None]:
        """A loop in which those that share a reduction take ``each`` terms in turn, from that of the reduction's inner
        index with a suffix on."""
        assert self.r is not None
        o, i = self.r.outer, f"{self.r.inner}{suffix}"
        step = f"{self.group * each}" if self.sharing is Sharing.GROUP else f"(long)size * {each}"
        begin = f"{first} + t" if each == 1 else f"{first} + t * {each}"
        self.counter += 1
        row, place = f"{o}_{self.counter}", f"{self.r.inner}_{self.counter}"
        if self.r.rows is not None:  # divided once: a division costs more than most terms
            length = f"max({self.size(self.r.length)}, 1L)"
            self.write(f"long {row} = ({begin}) / {length}, {place} = {begin} - {row} * {length};")
            self.write(f"const long {row}_step = {step} / {length}, {place}_step = {step} - {row}_step * {length};")
        end = f"k < {last}" if each == 1 else f"k + {each} <= {last}"
        with self.block(f"for (long k = {begin}; {end}; k += {step})"):
            self.write(f"const long {i} = k;" if self.r.rows is None else f"const long {o} = {row}, {i} = {place};")
            yield
            if self.r.rows is not None:
                self.write(f"{row} += {row}_step; {place} += {place}_step;")
                self.write(f"if ({place} >= {length}) {{ {place} -= {length}; ++{row}; }}")

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

    def _load(self, value: Value) -> None:
        pack = self.packs.get(id(value))
        if pack is None:
            super()._load(value)
            return
        self.define(value, c.packed(self.prelude, f"{pack}.v[e]", self.kernel.buffers[value.buffer]), False)

    def store(self, store: Store) -> None:
        """What has been computed together is stored once."""
        pack = self.packs.get(id(store))
        if pack is not None:
            dtype = self.kernel.buffers[store.buffer]
            value = self.operand(store.value, compute_dtype(dtype), False)
            self.write(f"{pack}.v[e] = {c.to_pack(self.prelude, value, dtype)};")
            return
        if self.looping or (self.sharing is Sharing.ITEM and not self.combining):
            super().store(store)
            return
        with self.block("if (t == 0)"):
            super().store(store)


def _part(value: Value) -> groups.Part:
    """What a work-item has of a reduction."""
    return groups.Part(value.kind, value.term_dtype)


def _packed(statements: list[Value | Store], packed: Collection[str]) -> tuple[list[Value], list[Store]]:
    """The loads of these names, and the stores to buffers of these names."""
    loads = [s for s in statements if isinstance(s, Value) and s.name in packed]
    return loads, [s for s in statements if isinstance(s, Store) and s.buffer in packed]
