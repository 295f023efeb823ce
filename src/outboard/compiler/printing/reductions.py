# SPDX-License-Identifier: Apache-2.0
"""Prints kernels whatever their outer loops are: reductions one term at a time, partial results, the definition."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from ..dialects import c
from ..dialects.c import groups
from ..loops.nest import LoopKernel, Region, Value
from ..loops.reductions import slots_of
from ..loops.schedule import Schedule, Terms
from ..loops.splits import Split
from ..target import Target
from .emitted import EmittedKernel, assertion, combining_name
from .statements import StatementPrinter


class ReductionPrinter(StatementPrinter):
    """Prints regions: loops over the terms of reductions, and what follows from their results."""

    #: The number of a work-item among those that combine the partial results of one reduction.
    number = "0"

    def __init__(self, kernel: LoopKernel, schedule: Schedule, target: Target, entry: str) -> None:
        super().__init__(schedule.accesses(kernel), target)
        self.entry = entry
        self.schedule = schedule
        self.terms = {id(region): terms for region, terms in zip(kernel.regions, schedule.terms, strict=True) if terms}
        self.apart = {name for terms in self.terms.values() for name in terms.apart}

    @abstractmethod
    def _structure(self) -> None:
        """Prints the outer loops."""

    def emit(self) -> EmittedKernel:
        """The whole kernel."""
        self._structure()
        bodies = {self.entry: self._take_lines()}
        if self.schedule.in_pieces:
            self._combine_pieces()
            bodies[combining_name(self.entry)] = self._take_lines()
        signature = self._signature()
        attributes = f"OB_GROUP_OF({', '.join(map(str, self.schedule.launch.local_size))}) {self._attribute()}"
        definitions = [
            f"OB_KERNEL {attributes} void {name}({signature}) {{\n{body}\n}}" for name, body in bodies.items()
        ]
        return EmittedKernel(
            helpers={**self.prelude.snippets, **self.atomics},
            definition="\n".join(definitions),
            entry=self.entry,
            buffers=list(self.buffers),
            longs=[*self.schedule.launch.extra, *self.longs],
            floats=list(self.floats),
            doubles=self.doubles,
            assertions=[assertion(message) for message in self.kernel.assertions()],
            grid=self.schedule.launch.grid,
            local_size=self.schedule.launch.local_size,
            assumptions=list(self.schedule.assumptions),
            combination=self.schedule.combination,
        )

    def _take_lines(self) -> str:
        """What was written since the last call."""
        text = "\n".join(self.lines)
        self.lines.clear()
        return text

    def _signature(self) -> str:
        parameters = []
        for name, inner in self.buffers.items():
            constness = "" if name in self.kernel.written else "const "
            parameters.append(f"OB_GLOBAL {constness}{c.memory_type(self.kernel.buffers[name])}* {inner}")
        parameters += [f"long extra{number}" for number in range(len(self.schedule.launch.extra))]
        parameters += [f"long {name}" for name in self.longs.values()]
        parameters += [
            f"{'double' if symbol in self.doubles else 'float'} {name}" for symbol, name in self.floats.items()
        ]
        if self.kernel.assertions():
            parameters.append("OB_GLOBAL int* failed")
        if self.schedule.in_pieces:
            parameters.append("OB_GLOBAL long* partial")
        return ", ".join(parameters)

    def _attribute(self) -> str:
        """What the kernels say of themselves besides the size of their work-groups."""
        return ""

    def point(self) -> None:
        """The code for one point (or one vector of points) of the non-reduction root."""
        if self.width > 1 and self.lane == self.x.inner:
            self._lane_vector()
        for region in self.kernel.regions:
            self._region(region)

    def _region(self, region: Region) -> None:
        """The code of one region for one point."""
        if region.in_reduction:
            self._reduction(region)
        else:
            self.body([*region.body, *region.after])

    def _reduction(self, region: Region) -> None:
        """A loop over the reduction root, then what depends on its results."""
        self._reduce(region)
        self.body(list(region.after))

    def _reduce(self, region: Region) -> None:
        """A loop over the reduction root, or over this work-item's piece of it."""
        self._scalar_reduction(region, self.terms[id(region)])

    def _lane_vector(self) -> None:
        lanes = ", ".join(str(lane) for lane in range(self.width))
        self.write(f"const long{self.width} {self.lane}v = {self.lane} + (long{self.width})({lanes});")

    def _accumulate(self, value: Value, total: str) -> None:
        """Adds this iteration's term to accumulator ``total``."""
        (source,) = value.args
        vector = self.width > 1
        term = self.operand(source, value.term_dtype, vector)
        if value.finds_place:
            self._accumulate_arg(value, total, term)
            return
        if not vector:
            self.write(f"{total} = {c.combine(self.prelude, value.kind, total, term, value.dtype, 1)};")
            return
        self.write(f"{total} = {self._combine(value, total, term, self.width)};")
        if value.name in self.apart:
            seen = f"{value.name}_n"
            self.write(f"{seen} = {c.nan_bits(self.prelude, seen, term, value.dtype, self.width)};")

    def _combine(self, value: Value, one: str, other: str, width: int) -> str:
        """Two accumulators that have, or once had, lanes as one."""
        combine = c.quick_combine if value.name in self.apart else c.combine
        return combine(self.prelude, value.kind, one, other, value.dtype, width)

    def _accumulate_arg(self, value: Value, total: str, term: str) -> None:
        assert self.r is not None
        position = self._linear(self.r)
        dtype = value.term_dtype
        lanes = range(self.width) if self.width > 1 else [None]
        self.counter += 1
        name = f"w{self.counter}"
        self.write(f"const {c.type_name(dtype, self.width)} {name} = {term};")
        for lane in lanes:
            suffix = "" if lane is None else f".s{'0123456789abcdef'[lane]}"
            element, best, where = f"{name}{suffix}", f"{total}_best{suffix}", f"{total}{suffix}"
            compare_dtype = dtype
            if dtype == torch.bool and lane is not None:
                element = f"(-{element})"
                best_text = f"(-{best})"
            else:
                best_text = best
            condition = c.better(value.kind, element, best_text, position, where, compare_dtype)
            self.write(f"if ({condition} || {where} < 0) {{ {best} = {name}{suffix}; {where} = {position}; }}")

    def _linear(self, split: Split) -> str:
        if split.rows is None:
            return str(split.inner)
        return f"({split.outer} * {self.size(split.length)} + {split.inner})"

    def _declare(self, value: Value, name: str, width: int, constant: str | None = None) -> None:
        """Declares an accumulator with its neutral element."""
        if value.finds_place:
            dtype = value.term_dtype
            start = c.broadcast(c.identity_of(value.kind, dtype), dtype, width)
            self.write(f"{c.type_name(dtype, width)} {name}_best = {start};")
            self.write(f"{c.type_name(torch.int64, width)} {name} = ({c.type_name(torch.int64, width)})(-1);")
            return
        start = c.broadcast(constant or c.identity_of(value.kind, value.dtype), value.dtype, width)
        self.write(f"{c.type_name(value.dtype, width)} {name} = {start};")

    def _declare_totals(self, sums: list[Value], width: int) -> None:
        """Declares, for accumulators ``_a`` of sums, what partial sums ``_b`` they get and what they lose (``_l``)."""
        for value in sums:
            self._declare(value, f"{value.name}_b", width)
            self._declare(value, f"{value.name}_l", width)

    def _add_partial(self, value: Value, width: int, place: str = "") -> None:
        """Adds a partial sum to the total, exactly, and clears it."""
        name, function = value.name, self.prelude.use("add_to", value.dtype, width)
        self.write(f"{function}(&{name}_a{place}, &{name}_l{place}, {name}_b{place});")
        self.write(f"{name}_b{place} = {self._nothing(value, width)};")

    def _nothing(self, value: Value, width: int) -> str:
        """The neutral element in all lanes."""
        return c.broadcast(c.identity_of(value.kind, value.dtype), value.dtype, width)

    def _total(self, value: Value, width: int, place: str = "") -> str:
        """The sum that ``_a`` and ``_l`` are together."""
        function = self.prelude.use("with_lost", value.dtype, width)
        return f"{function}({value.name}_a{place}, {value.name}_l{place})"

    @contextmanager
    def _counted(self, sums: list[Value], limit: int, flush: Callable[[], None]) -> Iterator[None]:
        """One block in a loop over blocks. ``flush`` prints what adds partial sums to their totals, which is done after
        every ``limit`` terms, be they of one long row or of many short ones."""
        yield
        if not sums:
            return
        assert self.r is not None
        i = self.r.inner
        pending = f"{sums[0].name}_pending"
        self.write(f"{pending} += {i}_to - {i}_from;")
        with self.block(f"if ({pending} >= {limit})"):
            self.write(f"{pending} = 0;")
            flush()

    def _flush(self, sums: list[Value]) -> None:
        """Adds all partial sums to their totals."""
        for value in sums:
            self._add_partial(value, self.width)

    def _scalar_reduction(self, region: Region, terms: Terms) -> None:
        """One reduction index at a time, all lanes along the other root."""
        assert self.r is not None
        reduces = region.reductions()
        sums = named(terms.in_parts, reduces)
        for value in reduces:
            self._declare(value, f"{value.name}_a", self.width)
        self._declare_totals(sums, self.width)
        if sums:
            self.write(f"long {sums[0].name}_pending = 0;")
        flushing = self._counted(sums, terms.all, lambda: self._flush(sums))
        with self._rows(self.r), self._blocks(self.r, terms.block), flushing:
            i = self.r.inner
            with self.block(f"for (long {i} = {i}_from; {i} < {i}_to; ++{i})"):
                self.body(region.body)
                for value in reduces:
                    self._accumulate(value, f"{value.name}_{'b' if value in sums else 'a'}")
        self._flush(sums)
        for value in reduces:
            if self.width > 1:
                self.vectors.add(value.name)
            else:
                self.vectors.discard(value.name)
            total = self._total(value, self.width) if value in sums else f"{value.name}_a"
            self._result(value, total, self.width)

    def _result(self, value: Value, text: str, width: int) -> None:
        self.write(f"const {c.type_name(value.dtype, width)} {value.name} = {text};")

    @contextmanager
    def _rows(self, split: Split) -> Iterator[None]:
        if split.rows is None:
            with self.block(""):
                yield
            return
        o, rows, length = split.outer, self.size(split.rows), self.size(split.length)
        header = f"for (long {o} = 0; {o} < {rows}; ++{o})"
        if self.schedule.in_pieces:
            header = f"for (long {o} = first / max({length}, 1L); {o} * {length} < last; ++{o})"
        with self.block(header):
            yield

    @contextmanager
    def _blocks(self, split: Split, block: int) -> Iterator[None]:
        i = split.inner
        start, end = self._bounds(split)
        with self.block(f"for (long {i}_from = {start}; {i}_from < {end}; {i}_from += {block})"):
            self.write(f"const long {i}_to = min({i}_from + {block}, {end});")
            yield

    def _bounds(self, split: Split) -> tuple[str, str]:
        """The range of the inner index of the reduction, in this row of this piece."""
        length = self.size(split.length)
        if not self.schedule.in_pieces:
            return "0", length
        if split.rows is None:
            return "first", "last"
        row = f"{split.outer} * {length}"
        return f"max(first - {row}, 0L)", f"min(last - {row}, {length})"

    def _place(self) -> None:
        """The indices of point ``x`` of the non-reduction root."""
        if self.x.rows is None:
            self.write(f"const long {self.x.inner} = x;")
            return
        length = self.size(self.x.length)
        self.write(f"const long {self.x.outer} = x / {length};")
        self.write(f"const long {self.x.inner} = x - {self.x.outer} * {length};")

    def _piece(self, point: str, piece: str) -> None:
        """A piece, by its number, of the reduction of a point, and what follows from its result if there is no other
        piece."""
        assert self.r is not None
        self.write(f"const long x = {point};")
        self.write(f"const long first = (long){piece} * extra0;")
        self.write(f"const long last = min(first + extra0, {self.size(self.r.numel)});")
        self._place()
        self._reduce(self.kernel.regions[0])
        with self.block("if (extra1 > 1)"):
            self._leave_partial_results(piece)
            self.write("return;")
        self._conclude()

    def _leave_partial_results(self, piece: str) -> None:
        """Writes the results of a piece where ``_combine_pieces`` finds them."""
        found, each = self._slots()
        self.write(f"OB_GLOBAL long* slots = partial + (x * extra1 + (long){piece}) * {each};")
        for value, slot in found:
            if value.finds_place:
                self.write(f"*(OB_GLOBAL {c.type_name(value.term_dtype)}*)(slots + {slot + 1}) = {value.name}_a_best;")
            self.write(f"*(OB_GLOBAL {c.type_name(value.dtype)}*)(slots + {slot}) = {value.name};")

    def _slots(self) -> tuple[list[tuple[Value, int]], int]:
        """The first slot of each partial result of a piece, and how many slots all of them are."""
        found, count = [], 0
        for value in self.kernel.regions[0].reductions():
            found.append((value, count))
            count += slots_of(value)
        return found, count

    def _conclude(self) -> None:
        """What follows from the results of a reduction in pieces."""
        region, *rest = self.kernel.regions
        self.body(list(region.after))
        for following in rest:
            self.body([*following.body, *following.after])

    def _combine_pieces(self) -> None:
        """Prints the kernel that combines partial results, in order so that each run gives the same."""
        assert self.schedule.combination is not None
        reduces, items = self.kernel.regions[0].reductions(), self.schedule.combination.local_size[0]
        found, each = self._slots()
        self.write("const long x = OB_ITEM_ID(1);")
        self._place()
        self.write(f"const OB_GLOBAL long* slots = partial + x * extra1 * {each};")
        sums = [value for value in reduces if value.is_sum_of_floats]
        for value in reduces:
            self._declare(value, f"{value.name}_a", 1)
        for value in sums:
            self._declare(value, f"{value.name}_l", 1)
        with self.block(f"for (long piece = {self.number}; piece < extra1; piece += {items})"):
            for value, slot in found:
                term = self._slot(value.dtype, each, slot)
                total = f"{value.name}_a"
                if value.finds_place:
                    part = groups.Part(value.kind, value.term_dtype)
                    other = [self._slot(value.term_dtype, each, slot + 1), term]
                    self.write(part.merge(self.prelude, [f"{total}_best", total], other))
                elif value in sums:
                    self.write(f"{self.prelude.use('add_to', value.dtype, 1)}(&{total}, &{value.name}_l, {term});")
                else:
                    self.write(f"{total} = {c.combine(self.prelude, value.kind, total, term, value.dtype, 1)};")
        for value in sums:
            self.write(f"{value.name}_a = {self._total(value, 1)};")
        self._results(reduces)
        self._conclude()

    def _slot(self, dtype: torch.dtype, each: int, slot: int) -> str:
        """What a slot of a piece holds."""
        return f"*(const OB_GLOBAL {c.type_name(dtype)}*)(slots + piece * {each} + {slot})"

    def _results(self, reduces: list[Value]) -> None:
        """The results of accumulators, which all work-items that share a reduction learn."""
        for value in reduces:
            self._result(value, f"{value.name}_a", 1)


def named(names: Iterable[str], values: list[Value]) -> list[Value]:
    """Those of some values that have one of these names."""
    wanted = set(names)
    return [value for value in values if value.name in wanted]
