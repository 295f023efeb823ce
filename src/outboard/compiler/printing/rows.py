# SPDX-License-Identifier: Apache-2.0
"""Reductions of rows on CPUs: vectors along a row, several of them at once, and several rows side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import sympy
import torch

from ..dialects import c as cl
from ..loops import LoopKernel, Region, Store, Value
from ..target import Target
from .analysis import BLOCK, TERMS
from .reductions import ReductionPrinter, reduces_of
from .splits import Split, floordiv

#: Vectors of one reduction step taken together: additions that do not wait for one another, whole cache lines.
UNROLL = cl.TOGETHER
#: A loop body of more statements than this is not unrolled: it would run out of registers.
UNROLL_LIMIT = 12
#: Rows that go through the loops of a kernel side by side, at most, and the elements that they may have together.
SIDE_BY_SIDE = 8
SIDE_BY_SIDE_ELEMENTS = 2048


@dataclasses.dataclass(frozen=True)
class _Part:
    """Statements of an unrolled loop that follow ``head``, which was computed for all vectors of a step at once."""

    head: Value | None
    body: list[Value | Store]


class RowPrinter(ReductionPrinter):
    """Prints reductions whose lanes lie along the reduction."""

    def __init__(self, kernel: LoopKernel, target: Target, entry: str) -> None:
        super().__init__(kernel, target, entry)
        self.streams = self._find_streams()

    def _find_streams(self) -> dict[str, str]:
        """Loads, in loops along rows which lie one after another, that also ask for what comes later, and how many
        elements later. The first loop to read a row does, as it must wait for it otherwise; better still is a second
        one of three, which reads what is near and has the time, and asks for the rows that come next."""
        if self.r is None or self.in_pieces or self.lane_symbol != self.r.inner or self.r.rows is not None:
            return {}
        stages = self._stages()
        between = self._first_loads(stages[1]) if len(stages) > 2 else {}
        streams: dict[str, str] = {}
        for buffer, name in self._first_loads(self.kernel.regions).items():
            near = str(self.target.tuning.ahead // self._memory_dtype(buffer).itemsize)
            streams[between.get(buffer, name)] = "extra2" if buffer in between else near
        return streams

    def _first_loads(self, regions: list[Region]) -> dict[str, str]:
        """The names of the first loads, by buffer, that read rows which lie one after another."""
        assert self.r is not None
        first: dict[str, str] = {}
        for value in (s for region in regions if region.in_reduction for s in region.body if isinstance(s, Value)):
            if value.op != "load" or value.mask is not None or value.buffer in self.kernel.written:
                continue
            if self._stride(value.index, self.r.inner) == 1 and self._rows_follow(value.index):
                first.setdefault(value.buffer, value.name)
        return first

    def _rows_follow(self, index: sympy.Expr) -> bool:
        """Whether the row of a point ends where that of the next one begins."""
        assert self.r is not None
        step = self._stride(index, self.x.inner)
        return step is not None and sympy.expand(step - self.r.root.numel) == 0

    def _reduce(self, region: Region) -> None:
        """A loop over the reduction root, or over this work-item's piece of it."""
        if self.r is not None and self.lane_symbol == self.r.inner:
            self._row_reduction(region, reduces_of(region))
        else:
            super()._reduce(region)

    def _row_reduction(self, region: Region, reduces: list[Value]) -> None:
        """Lanes along the reduction: vector accumulators, then one lane at a time for the rest, then both as one."""
        assert self.r is not None
        i, wide = self.r.inner, self.lanes
        for value in reduces:
            self._declare(value, f"{value.name}_a", wide)
            self._declare(value, f"{value.name}_s", 1)
            if self._counts_nan(value):
                bits = cl.bits_dtype(value.dtype)
                start = cl.broadcast(cl.literal(0, bits), bits, wide)
                self.write(f"{cl.type_name(bits, wide)} {value.name}_n = {start};")
        short = self.r.length.is_Integer and self.r.length < 2 * UNROLL * wide
        unrolled = not short and len(region.body) <= UNROLL_LIMIT
        together = wide * (UNROLL if unrolled else 1)
        sums = self._sums(reduces, together)
        self._declare_totals(sums, wide)
        tails = sums if self.r.rows is not None else []
        for value in tails:
            for suffix in ("t", "tl"):
                self._declare(value, f"{value.name}_{suffix}", 1)
        if sums:
            self.write(f"long {sums[0].name}_pending = 0, {sums[0].name}_parts = 0;")
        together = together if self.r.rows is None else wide  # many short rows are few steps each
        block = TERMS * together if sums and not (self.in_pieces and unrolled) else BLOCK * wide
        flushing = self._counted(sums, TERMS * together, lambda: self._flush_rows(sums, tails))
        with self._rows(self.r), self._blocks(self.r, block), flushing:
            self.write(f"long {i} = {i}_from;")
            stores = [s for s in region.body if isinstance(s, Store)]
            self._declare_far(stores, self.x.root.numel * self.r.root.numel)
            if unrolled:
                self._unrolled_row(region, reduces, sums)
            with self.block(f"for (; {i} + {wide} <= {i}_to; {i} += {wide})"):
                self.width = wide
                saved = set(self.vectors)
                self._lane_vector()
                self.body(region.body)
                for value in reduces:
                    self._accumulate(value, f"{value.name}_{'b' if value in sums else 'a'}")
                self.width = 1
                self.vectors = saved
            with self.block(f"for (; {i} < {i}_to; ++{i})"):
                self.body(region.body)
                for value in reduces:
                    self._accumulate(value, f"{value.name}_{'t' if value in tails else 's'}")
        self._total_rows(sums, tails)
        for value in reduces:
            self._combine_lanes(value)

    def _total_rows(self, sums: list[Value], tails: list[Value]) -> None:
        """The totals of sums. Rows are mostly so short that there is one part only, which is the total."""
        if not sums:
            return
        with self.block(f"if ({sums[0].name}_parts > 0)"):
            self._flush_rows(sums, tails)
            for value in sums:
                self.write(f"{value.name}_a = {self._total(value, self.lanes)};")
            for value in tails:
                function = self.prelude.use("with_lost", value.dtype, 1)
                self.write(f"{value.name}_s = {function}({value.name}_s, {value.name}_tl);")
        with self.block("else"):
            for value in sums:
                self.write(f"{value.name}_a = {value.name}_b;")
            for value in tails:
                self.write(f"{value.name}_s = {value.name}_t;")

    def _flush_rows(self, sums: list[Value], tails: list[Value]) -> None:
        """Adds the partial sums of lanes, and those of what fills no vectors, to their totals."""
        self.write(f"++{sums[0].name}_parts;")
        for value in sums:
            self._add_partial(value, self.lanes)
        for value in tails:
            function = self.prelude.use("add_to", value.dtype, 1)
            self.write(f"{function}(&{value.name}_s, &{value.name}_tl, {value.name}_t);")
            self.write(f"{value.name}_t = {cl.identity_of(value.kind, value.dtype)};")

    def _unrolled_row(self, region: Region, reduces: list[Value], sums: list[Value]) -> None:
        """Steps of several vectors along a row, each with its own accumulator. They lie side by side or, where a
        reduction is in pieces, far apart, because processors fetch ahead in several places at once."""
        assert self.r is not None
        i, step = self.r.inner, UNROLL * self.lanes
        self.width = self.lanes
        saved = set(self.vectors)
        self._declare_arrays(reduces, "u")
        if self.in_pieces:
            self._distant_steps(region, reduces, sums)
        else:
            with self.block(f"for (; {i} + {step} <= {i}_to; {i} += {step})"):
                self.write(f"const long {i}_base = {i};")
                self._unrolled_step(region, reduces, str(self.lanes))
            self._join_accumulators([value for value in reduces if value in sums], "b")
        self._join_accumulators([value for value in reduces if value not in sums], "a")
        self.width = 1
        self.vectors = saved

    def _distant_steps(self, region: Region, reduces: list[Value], sums: list[Value]) -> None:
        """The steps of a block in several places, with sums added to their totals every ``TERMS`` steps."""
        assert self.r is not None
        i, step = self.r.inner, UNROLL * self.lanes
        self.write(f"const long distance = ({i}_to - {i}) / {step} * {self.lanes}, part_to = {i} + distance;")
        most = TERMS if sums else BLOCK
        with self.block(f"while ({i} < part_to)"):
            self.write(f"const long some_to = min({i} + {most * self.lanes}, part_to);")
            with self.block(f"for (; {i} < some_to; {i} += {self.lanes})"):
                self.write(f"const long {i}_base = {i};")
                self._unrolled_step(region, reduces, "distance")
            if sums:
                self.write(f"++{sums[0].name}_parts;")
            self._join_accumulators(sums, "b")
            for value in sums:
                self._add_partial(value, self.width)
                for number in range(UNROLL):
                    self.write(f"{value.name}_u[{number}] = {self._nothing(value, self.width)};")
        self.write(f"{i} += {UNROLL - 1} * distance;")

    def _join_accumulators(self, reduces: list[Value], into: str) -> None:
        """Adds the accumulators of an unrolled step to one."""
        for value in reduces:
            total = f"{value.name}_{into}"
            for number in range(UNROLL):
                self.write(f"{total} = {self._combine(value, total, f'{value.name}_u[{number}]', self.width)};")

    def _unrolled_step(self, region: Region, reduces: list[Value], distance: str) -> None:
        """All vectors of a step: a loop over them up to each operation that takes them together, and one for the rest.
        What waits for a later loop does so in arrays, which are registers once the loops are unrolled."""
        assert self.r is not None
        parts = self._parts(region.body)
        waiting = self._waiting(parts)
        for value in waiting:
            self.write(f"{cl.type_name(value.dtype, self.width)} {value.name}_w[{UNROLL}];")
        for number, part in enumerate(parts):
            following = parts[number + 1].head if part is not parts[-1] else None
            with self._each_vector(self.r, distance):
                self._part(part, following, waiting)
                if following is None:
                    for value in reduces:
                        self._accumulate(value, f"{value.name}_u[u]")
            if following is not None:
                self.write(f"{self._together(following)}({following.name}_w);")

    def _part(self, part: _Part, following: Value | None, waiting: list[Value]) -> None:
        """The statements of a part for one vector, up to the argument of the operation that ``following`` is."""
        own = {id(statement) for statement in part.body}
        taken = self._taken(part, following)
        for value in waiting:
            if id(value) in taken and id(value) not in own:
                self.define(value, f"{value.name}_w[u]", True)
        self.body(part.body)
        for value in waiting:
            if id(value) in own:
                self.write(f"{value.name}_w[u] = {self.operand(value, value.dtype, True)};")
        if following is not None:
            argument = self.operand(following.args[0], following.dtype, True)
            self.write(f"{following.name}_w[u] = {argument};")

    def _parts(self, body: list[Value | Store]) -> list[_Part]:
        """The statements of a loop, cut at each operation that takes several vectors together."""
        parts = [_Part(None, [])]
        for statement in body:
            if isinstance(statement, Value) and self._together(statement) is not None:
                parts.append(_Part(statement, []))
            else:
                parts[-1].body.append(statement)
        return parts

    def _together(self, value: Value) -> str | None:
        """The function that computes a value for all vectors of a step, if that is better."""
        return cl.operator_together(self.prelude, value.op, value.dtype, self.lanes)

    def _taken(self, part: _Part, following: Value | None) -> set[int]:
        """The ``id`` of each value that a part, or the operation after it, takes."""
        return self._operands(part.body) | ({id(following.args[0])} if following else set())

    def _waiting(self, parts: list[_Part]) -> list[Value]:
        """The values of a part that later ones take, and those computed between parts."""
        later: set[int] = set()
        waiting: list[Value] = []
        for part, following in zip(reversed(parts), [None, *reversed(parts)], strict=False):
            head = following.head if following else None
            values = [s for s in part.body if isinstance(s, Value) and s.op != "constant" and id(s) in later]
            waiting = [*([part.head] if part.head else []), *values, *waiting]
            later |= self._taken(part, head)
        return waiting

    @contextmanager
    def _each_vector(self, split: Split, distance: str = "") -> Iterator[None]:
        """A loop over the vectors of one unrolled step, which begins at ``<inner>_base``. Vectors are
        ``distance`` apart, or next to each other."""
        i = split.inner
        self.write("#pragma unroll")
        with self.block(f"for (int u = 0; u < {UNROLL}; ++u)"):
            self.write(f"const long {i} = {i}_base + u * {distance or self.lanes};")
            self._lane_vector()
            yield

    def _declare_arrays(self, reduces: list[Value], suffix: str) -> None:
        """Accumulators of an unrolled step, with their neutral elements."""
        for value in reduces:
            start = cl.broadcast(cl.identity_of(value.kind, value.dtype), value.dtype, self.width)
            starts = ", ".join([start] * UNROLL)
            self.write(f"{cl.type_name(value.dtype, self.width)} {value.name}_{suffix}[{UNROLL}] = {{{starts}}};")

    def _declare_far(self, stores: list[Store], points: sympy.Expr) -> None:
        """Decides for each buffer that ``stores`` fill with ``points`` contiguous elements from here on, in whole
        vectors, whether these go past the caches."""
        self.far.clear()
        touched = [s.buffer for s in self.kernel.statements() if isinstance(s, Store) or s.op == "load"]
        for store in stores:
            itemsize = self._memory_dtype(store.buffer).itemsize
            times = floordiv(points * itemsize, sympy.Integer(self.target.tuning.far))
            if points.is_Integer and int(points) * itemsize < self.target.tuning.far:
                continue
            if touched.count(store.buffer) > 1 or self.kernel.indirect.keys() & store.index.free_symbols:
                continue
            if self.lane_symbol is None or self._stride(store.index, self.lane_symbol) != 1 or store.atomic_add:
                continue
            pointer = self.buffers[store.buffer]
            is_large = "1" if points.is_Integer else f"{self.size(times)} > 0"
            address = f"(ulong)({pointer} + ({self._base(store.index)}))"
            self.write(f"const int {pointer}_far = {is_large} && {address} % {itemsize * self.lanes} == 0;")
            self.far[store.buffer] = f"{pointer}_far"

    def _combine_lanes(self, value: Value) -> None:
        """Folds a vector accumulator and a scalar one into the value."""
        name, width = f"{value.name}_a", self.lanes
        while width > 1:
            half = width // 2
            halves = f"{name}.lo", f"{name}.hi"
            self.counter += 1
            folded = f"f{self.counter}"
            self.write(f"const {cl.type_name(value.dtype, half)} {folded} = {self._combine(value, *halves, half)};")
            name, width = folded, half
        if self._counts_nan(value):
            name = cl.with_nan(self.prelude, name, f"{value.name}_n", value.dtype, self.lanes)
        if value.dtype == torch.bool:
            name = f"({name} & 1)"
        self.vectors.discard(value.name)
        self._result(value, cl.combine(self.prelude, value.kind, name, f"{value.name}_s", value.dtype, 1), 1)

    def _stages(self) -> list[list[Region]]:
        """The regions, a loop of the reduction in each list, with what follows from its results."""
        stages: list[list[Region]] = [[]]
        for region in self.kernel.regions:
            if region.in_reduction and any(other.in_reduction for other in stages[-1]):
                stages.append([])
            stages[-1].append(region)
        return stages

    def _side_by_side(self, stages: list[list[Region]]) -> None:
        """Takes some rows through each stage before the next one. What a stage knows of a row is the end of a long
        chain, across lanes: meanwhile the processor is busy with other rows instead of waiting for it."""
        kept = self._kept_values(stages)
        with self.block("for (long some = from; some < to; some += extra1)"):
            self.write("const long some_to = min(some + extra1, to);")
            for value in kept:
                self.write(f"{cl.type_name(value.dtype)} {value.name}_rows[{SIDE_BY_SIDE}];")
            for stage in stages:
                with self.block("for (long x = some; x < some_to; ++x)"):
                    self._place()
                    self._row_stage(stage, kept)

    def _row_stage(self, stage: list[Region], kept: list[Value]) -> None:
        """One stage of row ``x``, with the values that earlier stages kept for it and those that it keeps itself."""
        own = {id(s) for region in stage for s in region.body}
        needed = self._operands(statements_of(stage))
        for value in kept:
            if id(value) not in own and id(value) in needed:
                self._result(value, f"{value.name}_rows[x - some]", 1)
        for region in stage:
            self._region(region)
        for value in kept:
            if id(value) in own:
                self.write(f"{value.name}_rows[x - some] = {value.name};")

    def _kept_values(self, stages: list[list[Region]]) -> list[Value]:
        """The values of a row that a later stage needs."""
        kept: list[Value] = []
        for number, stage in enumerate(stages):
            later = self._operands(statements_of([region for other in stages[number + 1 :] for region in other]))
            values = [s for region in stage for s in region.body if isinstance(s, Value) and s.op != "constant"]
            kept += [value for value in values if id(value) in later]
        return kept

    def _operands(self, statements: list[Value | Store]) -> set[int]:
        """The ``id`` of each value that some statements take."""
        found: list[Value] = []
        for statement in statements:
            found += [statement.value] if isinstance(statement, Store) else statement.args
            if isinstance(statement, Value) and statement.mask is not None:
                found.append(statement.mask)
            found += [self.kernel.indirect[s] for s in statement.index.free_symbols if s in self.kernel.indirect]
        return {id(value) for value in found}


def statements_of(regions: list[Region]) -> list[Value | Store]:
    """What some regions do, in order."""
    return [statement for region in regions for statement in (*region.body, *region.after)]
