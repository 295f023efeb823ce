# SPDX-License-Identifier: Apache-2.0
"""Loops for SIMT devices: many short work-items, local memory, sub-groups, neighbours reading neighbouring elements.

A pointwise kernel has a work-item for each point. A reduction has

* a work-group for each result, where its terms are many: work-items take terms in turn and then meet
  (``dialects.groups``);
* a sub-group for each result, on devices that have them, where its terms lie side by side and would not keep a
  work-group busy: nobody waits for another sub-group;
* a work-item for each result, where terms are few, or where neighbouring results lie side by side in memory and there
  are enough of them to fill the device;
* several work-groups for each result, where there are a few long reductions: a first kernel reduces pieces, a second
  one combines them (``vector`` tells how).

All orders of addition are fixed: each run gives the same bits.
"""

from __future__ import annotations

import contextlib
import enum
from collections import Counter
from collections.abc import Iterator

import sympy
import torch

from ..dialects.c import groups
from ..loops import LoopKernel, Region, Store, Value
from ..target import Target
from ..units import COMPUTE_UNITS
from .analysis import TERMS
from .emitted import Combination, Grid
from .reductions import PIECE_ALIGNMENT, PIECES, ReductionPrinter, reduces_of
from .splits import ceildiv, floordiv, maximum, minimum

#: Work-items of a work-group that takes points, and at most of one that reduces.
GROUP, LARGEST_GROUP = 64, 256
#: Terms that are worth a work-group.
WORTH_A_GROUP = 32
#: Results that fill a device with a work-item each.
MANY = 1 << 14
#: Terms that are worth a work-group of their own among several for one result.
PIECE = 1 << 13
#: Results of one loop that meet at the same barrier, at most, and as local memory allows: each has arrays there.
TOGETHER = 4
#: Rows of work-groups in a launch: CUDA has no more in any dimension but the first.
MOST_ROWS = 65535


class Sharing(enum.Enum):
    """Who takes the terms of one reduction, or of a piece of it."""

    ITEM = enum.auto()
    SUB_GROUP = enum.auto()
    GROUP = enum.auto()


class SimtPrinter(ReductionPrinter):
    """Prints one kernel for a SIMT device."""

    sharing = Sharing.ITEM
    looping = False  #: whether what is printed is for one term, not for all that share a reduction

    def __init__(self, kernel: LoopKernel, target: Target, entry: str) -> None:
        super().__init__(kernel, target, entry)
        self.meeting = groups.Meeting(self.prelude, self.target.sub_group_size)
        self.arrays: dict[str, str] = {}  #: arrays in local memory, and their types
        self.sharing = self._choose_sharing()
        self.together = TOGETHER
        self.group = self._group_size()
        self._keep_to_local_memory()

    # ---- analysis ----

    def _pays_pieces(self) -> bool:
        return super()._pays_pieces() and not self._reduces_positions()

    def _long(self) -> int:
        return 2 * PIECE

    def _reduces_positions(self) -> bool:
        return any(self._is_arg(value) for value in self._values())

    def _choose_sharing(self) -> Sharing:
        if self.r is None:
            return Sharing.ITEM
        if self.in_pieces:
            return Sharing.GROUP
        along = self._contiguity(self.r) >= self._contiguity(self.x)
        if along and self._pays_sub_groups():
            return Sharing.SUB_GROUP
        if not self._has_terms(WORTH_A_GROUP):
            return Sharing.ITEM
        many = not along and self._is_at_least(self.x.root.numel, self.x.root.hint, MANY)
        return Sharing.ITEM if many else Sharing.GROUP

    def _pays_sub_groups(self) -> bool:
        """Whether the terms, which lie side by side, are enough for most items of a sub-group and few for a group."""
        size = self.target.sub_group_size
        return size > 1 and self._has_terms(size // 2) and not self._has_terms(groups.STEPS * size)

    def _has_terms(self, least: int) -> bool:
        assert self.r is not None
        return self._is_at_least(self.r.root.numel, self.r.root.hint, least)

    def _is_at_least(self, length: sympy.Expr, hint: int, least: int) -> bool:
        """Whether a length is that great; of one that is unknown it becomes an assumption."""
        answer = hint >= least
        if not length.is_Integer:
            self.assumptions.append((sympy.Ge if answer else sympy.Lt)(length, least))
        return answer

    def _group_size(self) -> int:
        most = min(LARGEST_GROUP, max(1, self.target.max_work_group_size))
        largest = 1 << (most.bit_length() - 1)
        if self.sharing is Sharing.ITEM:
            return min(GROUP, largest)
        if self.sharing is Sharing.SUB_GROUP:
            return largest
        assert self.r is not None
        terms = self.r.root.numel
        wanted = int(terms) if terms.is_Integer else LARGEST_GROUP // 2
        size = largest
        while size > WORTH_A_GROUP and size >= 2 * wanted:
            size //= 2
        return size

    def _keep_to_local_memory(self) -> None:
        """Has fewer results meet at once, and then fewer work-items, where local memory has no room for all."""
        if self.sharing is not Sharing.GROUP:
            return
        while self.together > 1 and self.group * self._bytes_each() > self.target.local_memory:
            self.together //= 2
        while self.group > 1 and self.group * self._bytes_each() > self.target.local_memory:
            self.group //= 2

    def _bytes_each(self) -> int:
        """Bytes of local memory for each work-item: those of the arrays that meetings take turns to use."""
        most: Counter[torch.dtype] = Counter()
        for region in self.kernel.regions:
            reduces = reduces_of(region)
            for begin in range(0, len(reduces), self.together):
                parts = map(self._share, reduces[begin : begin + self.together])
                most |= Counter(dtype for part in parts for dtype in part.dtypes)
        return sum(max(dtype.itemsize, 1) * count for dtype, count in most.items())

    # ---- structure ----

    def _attribute(self) -> str:
        return "" if self.sharing is Sharing.ITEM else f" {self.meeting.attribute()}".rstrip()

    def _structure(self) -> Grid:
        if self.sharing is Sharing.ITEM:
            return self._items()
        if self.sharing is Sharing.SUB_GROUP:
            return self._sub_groups()
        grid = self._pieces() if self.in_pieces else self._groups()
        self._declare_shared()
        return grid

    def _declare_shared(self) -> None:
        """Puts before what was written what it takes for granted."""
        arrays = [f"  OB_SHARED {kind} {name}[{self.group}];" for name, kind in self.arrays.items()]
        self.lines[:0] = [*arrays, "  const int t = OB_LOCAL_ID(0);"]
        self.arrays.clear()

    def _items(self) -> Grid:
        """A work-item for each point, neighbours along a row if rows are long enough to fill groups. No launch has more
        rows than any device takes; its items go on with those behind them."""
        length = self.x.length
        if self.x.rows is None or self._is_at_least(length, self.x.length_hint, self.group):
            rows = sympy.S.One if self.x.rows is None else self.x.rows
            if not (rows.is_Integer and rows <= MOST_ROWS):
                rows = minimum(rows, sympy.Integer(MOST_ROWS))
            self.write(f"const long {self.x.inner} = OB_ITEM_ID(0);")
            self.write(f"if ({self.x.inner} >= {self.size(length)}) return;")
            with contextlib.ExitStack() as loop:
                if self.x.rows is not None and rows == self.x.rows:
                    self.write(f"const long {self.x.outer} = OB_ITEM_ID(1);")
                elif self.x.rows is not None:
                    o = self.x.outer
                    step = f"for (long {o} = OB_ITEM_ID(1); {o} < {self.size(self.x.rows)}; {o} += OB_ITEM_COUNT(1))"
                    loop.enter_context(self.block(step))
                self.point()
        else:
            rows, length = sympy.S.One, self.x.root.numel
            self.write("const long x = OB_ITEM_ID(0);")
            self.write(f"if (x >= {self.size(length)}) return;")
            self._place()
            self.point()
        return (ceildiv(length, sympy.Integer(self.group)) * self.group, rows), (self.group, 1, 1), []

    def _groups(self) -> Grid:
        """A work-group for each point of the non-reduction root."""
        self.write("const long x = OB_GROUP_ID(0);")
        self._place()
        self.point()
        return (self.x.root.numel * self.group, sympy.S.One), (self.group, 1, 1), []

    def _sub_groups(self) -> Grid:
        """A sub-group for each point of the non-reduction root. A work-group has the points of sub-groups of the usual
        size; should they be larger, and so fewer, they take points in turn."""
        points = max(1, self.group // self.target.sub_group_size)
        self.write("const int size = OB_SUB_GROUP_SIZE(), t = OB_SUB_GROUP_ITEM();")
        self.write(f"const long from = (long)OB_GROUP_ID(0) * {points};")
        self.write(f"const long to = min(from + {points}, {self.size(self.x.root.numel)});")
        with self.block("for (long x = from + OB_SUB_GROUP_ID(); x < to; x += OB_SUB_GROUP_COUNT())"):
            self._place()
            self.point()
        return (ceildiv(self.x.root.numel, sympy.Integer(points)) * self.group, sympy.S.One), (self.group, 1, 1), []

    def _pieces(self) -> Grid:
        """A work-group takes one piece of one reduction, and what follows from its result if there is no other."""
        assert self.r is not None
        results, terms = self.x.root.numel, self.r.root.numel
        most = floordiv(PIECES * COMPUTE_UNITS, results)
        pieces = maximum(sympy.S.One, minimum(most, floordiv(terms, sympy.Integer(PIECE))))
        length = ceildiv(ceildiv(terms, pieces), PIECE_ALIGNMENT) * PIECE_ALIGNMENT
        self.write("const long x = OB_ITEM_ID(1);")
        self.write("const long first = (long)OB_GROUP_ID(0) * extra0;")
        self.write(f"const long last = min(first + extra0, {self.size(terms)});")
        self._place()
        self._reduce(self.kernel.regions[0])
        with self.block("if (extra1 > 1)"):
            with self.block("if (t == 0)"):
                self._leave_partial_results("OB_GROUP_ID(0)")
            self.write("return;")
        self._conclude()
        return (pieces * self.group, results), (self.group, 1, 1), [length, pieces]

    def _combination(self, pieces: sympy.Expr) -> Combination:
        """A work-group combines the partial results of one reduction."""
        found = super()._combination(pieces)
        self._declare_shared()
        return found

    def _combiners(self) -> tuple[str, int]:
        return "t", self.group

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
        reduces = reduces_of(region)
        sums = self._sums(reduces, self.group if self.sharing is Sharing.GROUP else 1)
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
                with self.block(f"if (++{sums[0].name}_pending == {TERMS})"):
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
        first, last = ("first", "last") if self.in_pieces else ("0", self.size(self.r.root.numel))
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
                self.write(f"{self.meeting.near(self._share(value))}({self._addresses(value)});")
        else:
            for begin in range(0, len(reduces), self.together):
                self._meet_in_group(reduces[begin : begin + self.together])
        for value in reduces:
            self._result(value, f"{value.name}_a", 1)

    def _meet_in_group(self, reduces: list[Value]) -> None:
        parts = [self._share(value) for value in reduces]
        shared = self._shared(parts)
        for value, part, names in zip(reduces, parts, shared, strict=True):
            self.write(f"{self.meeting.leave(part)}({', '.join([*self._variables(value), *names])});")
        self.write(groups.BARRIER)
        for value, part, names in zip(reduces, parts, shared, strict=True):
            self.write(f"{self.meeting.learn(part)}({', '.join([self._addresses(value), *names])});")
        self.write(groups.BARRIER)  # before the arrays are used again

    def _share(self, value: Value) -> groups.Part:
        return groups.Part(value.kind, self._arg_dtype(value) if self._is_arg(value) else value.dtype)

    def _variables(self, value: Value) -> list[str]:
        """What a work-item has found."""
        total = f"{value.name}_a"
        return [f"{total}_best", total] if self._is_arg(value) else [total]

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
