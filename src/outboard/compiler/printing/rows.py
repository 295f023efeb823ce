# SPDX-License-Identifier: Apache-2.0
"""Reductions of rows on CPUs: vectors along a row, several of them at once, and several rows side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch

from ..dialects import c
from ..loops.nest import LoopKernel, Region, Store, Value
from ..loops.schedule import Far, Terms, VectorSchedule
from ..loops.splits import Split
from ..target import Target
from .reductions import ReductionPrinter, named


@dataclasses.dataclass(frozen=True)
class _Part:
    """Statements of an unrolled loop that follow ``head``, which ``function`` computed for all vectors of a step."""

    head: Value | None
    function: str
    body: list[Value | Store]


class RowPrinter(ReductionPrinter):
    """Prints reductions whose lanes lie along the reduction."""

    schedule: VectorSchedule

    def __init__(self, kernel: LoopKernel, schedule: VectorSchedule, target: Target, entry: str) -> None:
        super().__init__(kernel, schedule, target, entry)
        self.lane, self.lanes = schedule.lane, schedule.lanes
        self.streams = {
            stream.load: "extra2" if stream.elements is None else str(stream.elements) for stream in schedule.streams
        }

    def _reduce(self, region: Region) -> None:
        """A loop over the reduction root, or over this work-item's piece of it."""
        if self.schedule.along_terms:
            self._row_reduction(region, self.terms[id(region)])
        else:
            super()._reduce(region)

    def _row_reduction(self, region: Region, terms: Terms) -> None:
        """Lanes along the reduction: vector accumulators, then one lane at a time for the rest, then both as one."""
        assert self.r is not None
        i, wide, reduces = self.r.inner, self.lanes, region.reductions()
        for value in reduces:
            self._declare(value, f"{value.name}_a", wide)
            self._declare(value, f"{value.name}_s", 1)
            if value.name in self.apart:
                bits = c.bits_dtype(value.dtype)
                start = c.broadcast(c.literal(0, bits), bits, wide)
                self.write(f"{c.type_name(bits, wide)} {value.name}_n = {start};")
        sums, tails = named(terms.in_parts, reduces), named(terms.tails, reduces)
        self._declare_totals(sums, wide)
        for value in tails:
            for suffix in ("t", "tl"):
                self._declare(value, f"{value.name}_{suffix}", 1)
        if sums:
            self.write(f"long {sums[0].name}_pending = 0, {sums[0].name}_parts = 0;")
        flushing = self._counted(sums, terms.all, lambda: self._flush_rows(sums, tails))
        with self._rows(self.r), self._blocks(self.r, terms.block), flushing:
            self.write(f"long {i} = {i}_from;")
            self._declare_far(terms.far)
            if terms.vectors > 1:
                self._unrolled_row(region, terms, sums)
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
            self.write(f"{value.name}_t = {c.identity_of(value.kind, value.dtype)};")

    def _unrolled_row(self, region: Region, terms: Terms, sums: list[Value]) -> None:
        """Steps of several vectors along a row, each with its own accumulator. They lie side by side or, where a
        reduction is in pieces, far apart, because processors fetch ahead in several places at once."""
        assert self.r is not None
        i, reduces, step = self.r.inner, region.reductions(), terms.vectors * self.lanes
        self.width = self.lanes
        saved = set(self.vectors)
        self._declare_arrays(reduces, "u", terms.vectors)
        if self.schedule.in_pieces:
            self._distant_steps(region, terms, sums)
        else:
            with self.block(f"for (; {i} + {step} <= {i}_to; {i} += {step})"):
                self.write(f"const long {i}_base = {i};")
                self._unrolled_step(region, terms, str(self.lanes))
            self._join_accumulators(sums, "b", terms.vectors)
        self._join_accumulators([value for value in reduces if value not in sums], "a", terms.vectors)
        self.width = 1
        self.vectors = saved

    def _distant_steps(self, region: Region, terms: Terms, sums: list[Value]) -> None:
        """The steps of a block in several places, with sums added to their totals every now and then."""
        assert self.r is not None
        i, step = self.r.inner, terms.vectors * self.lanes
        self.write(f"const long distance = ({i}_to - {i}) / {step} * {self.lanes}, part_to = {i} + distance;")
        with self.block(f"while ({i} < part_to)"):
            self.write(f"const long some_to = min({i} + {terms.each * self.lanes}, part_to);")
            with self.block(f"for (; {i} < some_to; {i} += {self.lanes})"):
                self.write(f"const long {i}_base = {i};")
                self._unrolled_step(region, terms, "distance")
            if sums:
                self.write(f"++{sums[0].name}_parts;")
            self._join_accumulators(sums, "b", terms.vectors)
            for value in sums:
                self._add_partial(value, self.width)
                for number in range(terms.vectors):
                    self.write(f"{value.name}_u[{number}] = {self._nothing(value, self.width)};")
        self.write(f"{i} += {terms.vectors - 1} * distance;")

    def _join_accumulators(self, reduces: list[Value], into: str, count: int) -> None:
        """Adds the accumulators of an unrolled step to one."""
        for value in reduces:
            total = f"{value.name}_{into}"
            for number in range(count):
                self.write(f"{total} = {self._combine(value, total, f'{value.name}_u[{number}]', self.width)};")

    def _unrolled_step(self, region: Region, terms: Terms, distance: str) -> None:
        """All vectors of a step: a loop over them up to each operation that takes them together, and one for the rest.
        What waits for a later loop does so in arrays, which are registers once the loops are unrolled."""
        assert self.r is not None
        parts = self._parts(region.body, terms.together)
        waiting = self._waiting(parts)
        for value in waiting:
            self.write(f"{c.type_name(value.dtype, self.width)} {value.name}_w[{terms.vectors}];")
        for number, part in enumerate(parts):
            following = parts[number + 1] if part is not parts[-1] else None
            head = following.head if following else None
            with self._each_vector(self.r, terms.vectors, distance):
                self._part(part, head, waiting)
                if head is None:
                    for value in region.reductions():
                        self._accumulate(value, f"{value.name}_u[u]")
            if following is not None and head is not None:
                self.write(f"{following.function}({head.name}_w);")

    def _part(self, part: _Part, following: Value | None, waiting: list[Value]) -> None:
        """The statements of a part for one vector, up to the argument of the operation that ``following`` is."""
        own = {id(statement) for statement in part.body}
        taken = self._taken(part, following)
        for value in waiting:
            if value.name in taken and id(value) not in own:
                self.define(value, f"{value.name}_w[u]", True)
        self.body(part.body)
        for value in waiting:
            if id(value) in own:
                self.write(f"{value.name}_w[u] = {self.operand(value, value.dtype, True)};")
        if following is not None:
            argument = self.operand(following.args[0], following.dtype, True)
            self.write(f"{following.name}_w[u] = {argument};")

    def _parts(self, body: list[Value | Store], together: Collection[str]) -> list[_Part]:
        """The statements of a loop, cut at each operation that takes several vectors together."""
        parts = [_Part(None, "", [])]
        for statement in body:
            if isinstance(statement, Value) and statement.name in together:
                function = c.operator_together(self.prelude, statement.op, statement.dtype, self.lanes)
                parts.append(_Part(statement, function, []))
            else:
                parts[-1].body.append(statement)
        return parts

    def _taken(self, part: _Part, following: Value | None) -> set[str]:
        """The name of each value that a part, or the operation after it, takes."""
        return self.kernel.operands(part.body) | ({following.args[0].name} if following else set())

    def _waiting(self, parts: list[_Part]) -> list[Value]:
        """The values of a part that later ones take, and those computed between parts."""
        later: set[str] = set()
        waiting: list[Value] = []
        for part, following in zip(reversed(parts), [None, *reversed(parts)], strict=False):
            head = following.head if following else None
            values = [s for s in part.body if isinstance(s, Value) and s.op != "constant" and s.name in later]
            waiting = [*([part.head] if part.head else []), *values, *waiting]
            later |= self._taken(part, head)
        return waiting

    @contextmanager
    def _each_vector(self, split: Split, count: int, distance: str = "") -> Iterator[None]:
        """A loop over the ``count`` vectors of one unrolled step, which begins at ``<inner>_base``. Vectors are
        ``distance`` apart, or next to each other."""
        i = split.inner
        self.write("#pragma unroll")
        with self.block(f"for (int u = 0; u < {count}; ++u)"):
            self.write(f"const long {i} = {i}_base + u * {distance or self.lanes};")
            self._lane_vector()
            yield

    def _declare_arrays(self, reduces: list[Value], suffix: str, count: int) -> None:
        """Accumulators of an unrolled step, with their neutral elements."""
        for value in reduces:
            start = c.broadcast(c.identity_of(value.kind, value.dtype), value.dtype, self.width)
            starts = ", ".join([start] * count)
            self.write(f"{c.type_name(value.dtype, self.width)} {value.name}_{suffix}[{count}] = {{{starts}}};")

    def _declare_far(self, buffers: tuple[Far, ...]) -> None:
        """Asks of each of some buffers whether its vectors, from here on, go past the caches: only aligned ones may."""
        self.far.clear()
        stores = {s.buffer: s for s in self.kernel.statements() if isinstance(s, Store)}
        for far in buffers:
            pointer, itemsize = self.buffers[far.buffer], self.kernel.buffers[far.buffer].itemsize
            is_large = "1" if far.times is None else f"{self.size(far.times)} > 0"
            address = f"(ulong)({pointer} + ({self._base(stores[far.buffer].index)}))"
            self.write(f"const int {pointer}_far = {is_large} && {address} % {itemsize * self.lanes} == 0;")
            self.far[far.buffer] = f"{pointer}_far"

    def _combine_lanes(self, value: Value) -> None:
        """Folds a vector accumulator and a scalar one into the value."""
        name, width = f"{value.name}_a", self.lanes
        while width > 1:
            half = width // 2
            halves = f"{name}.lo", f"{name}.hi"
            self.counter += 1
            folded = f"f{self.counter}"
            self.write(f"const {c.type_name(value.dtype, half)} {folded} = {self._combine(value, *halves, half)};")
            name, width = folded, half
        if value.name in self.apart:
            name = c.with_nan(self.prelude, name, f"{value.name}_n", value.dtype, self.lanes)
        if value.dtype == torch.bool:
            name = f"({name} & 1)"
        self.vectors.discard(value.name)
        self._result(value, c.combine(self.prelude, value.kind, name, f"{value.name}_s", value.dtype, 1), 1)

    def _side_by_side(self) -> None:
        """Takes some rows through each stage before the next one. What a stage knows of a row is the end of a long
        chain, across lanes: meanwhile the processor is busy with other rows instead of waiting for it."""
        regions = self.kernel.regions
        kept = named(self.schedule.kept, list(self.kernel.values()))
        with self.block("for (long some = from; some < to; some += extra1)"):
            self.write("const long some_to = min(some + extra1, to);")
            for value in kept:
                self.write(f"{c.type_name(value.dtype)} {value.name}_rows[{self.schedule.beside}];")
            for stage in self.schedule.stages:
                with self.block("for (long x = some; x < some_to; ++x)"):
                    self._place()
                    self._row_stage([regions[number] for number in stage], kept)

    def _row_stage(self, stage: list[Region], kept: list[Value]) -> None:
        """One stage of row ``x``, with the values that earlier stages kept for it and those that it keeps itself."""
        own = {id(s) for region in stage for s in region.body}
        needed = self.kernel.operands([s for region in stage for s in region.statements()])
        for value in kept:
            if id(value) not in own and value.name in needed:
                self._result(value, f"{value.name}_rows[x - some]", 1)
        for region in stage:
            self._region(region)
        for value in kept:
            if id(value) in own:
                self.write(f"{value.name}_rows[x - some] = {value.name};")
