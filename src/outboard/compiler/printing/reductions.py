# SPDX-License-Identifier: Apache-2.0
"""Prints kernels whatever their outer loops are: reductions one term at a time, partial results, the definition."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sympy
import torch

from ..dialects import c as cl
from ..loops import Region, Value, compute_dtype
from .analysis import BLOCK, TERMS
from .emitted import Combination, EmittedKernel, Grid, assertion, combining_name
from .splits import Split, minimum
from .statements import StatementPrinter

#: Pieces per compute unit, so that a core that comes late or is slow does not hold up the others.
PIECES = 8
#: Boundaries of pieces are multiples of this: only the last piece has a rest that fills no vectors.
PIECE_ALIGNMENT = 1024
#: Bytes of a partial result, whatever its type.
SLOT = 8


class ReductionPrinter(StatementPrinter):
    """Prints regions: loops over the terms of reductions, and what follows from their results."""

    @abstractmethod
    def _structure(self) -> Grid:
        """Prints the outer loops; returns (grid, local size, extra arguments)."""

    def emit(self) -> EmittedKernel:
        """The whole kernel."""
        grid, local, extra = self._structure()
        bodies = {self.entry: self._take_lines()}
        combination = None
        if self.in_pieces:
            combination = self._combination(extra[1])
            bodies[combining_name(self.entry)] = self._take_lines()
        signature = self._signature(extra)
        attributes = f"OB_GROUP_OF({', '.join(map(str, local))}) {self._attribute()}"
        definitions = [
            f"OB_KERNEL {attributes} void {name}({signature}) {{\n{body}\n}}" for name, body in bodies.items()
        ]
        return EmittedKernel(
            helpers={**self.prelude.snippets, **self.atomics},
            definition="\n".join(definitions),
            entry=self.entry,
            buffers=list(self.buffers),
            longs=[*extra, *self.longs],
            floats=list(self.floats),
            doubles=self.doubles,
            assertions=[assertion(message) for message in self.kernel.assertions()],
            grid=grid,
            local_size=local,
            assumptions=self.assumptions,
            combination=combination,
        )

    def _take_lines(self) -> str:
        """What was written since the last call."""
        text = "\n".join(self.lines)
        self.lines.clear()
        return text

    def _signature(self, extra: list[sympy.Expr]) -> str:
        parameters = []
        for name, inner in self.buffers.items():
            constness = "" if name in self.kernel.written else "const "
            parameters.append(f"OB_GLOBAL {constness}{cl.memory_type(self.kernel.buffers[name])}* {inner}")
        parameters += [f"long extra{number}" for number in range(len(extra))]
        parameters += [f"long {name}" for name in self.longs.values()]
        parameters += [
            f"{'double' if symbol in self.doubles else 'float'} {name}" for symbol, name in self.floats.items()
        ]
        if self.kernel.assertions():
            parameters.append("OB_GLOBAL int* failed")
        if self.in_pieces:
            parameters.append("OB_GLOBAL long* partial")
        return ", ".join(parameters)

    def _attribute(self) -> str:
        """What the kernels say of themselves besides the size of their work-groups."""
        return ""

    def point(self) -> None:
        """The code for one point (or one vector of points) of the non-reduction root."""
        if self.width > 1 and self.lane_symbol == self.x.inner:
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
        self._scalar_reduction(region, reduces_of(region))

    def _lane_vector(self) -> None:
        lanes = ", ".join(str(lane) for lane in range(self.width))
        self.write(f"const long{self.width} {self.lane_symbol}v = {self.lane_symbol} + (long{self.width})({lanes});")

    def _accumulate(self, value: Value, total: str) -> None:
        """Adds this iteration's term to accumulator ``total``."""
        (source,) = value.args
        vector = self.width > 1
        term = self.operand(source, value.dtype if not self._is_arg(value) else self._arg_dtype(value), vector)
        if self._is_arg(value):
            self._accumulate_arg(value, total, term)
            return
        if not vector:
            self.write(f"{total} = {cl.combine(self.prelude, value.kind, total, term, value.dtype, 1)};")
            return
        self.write(f"{total} = {self._combine(value, total, term, self.width)};")
        if self._counts_nan(value):
            seen = f"{value.name}_n"
            self.write(f"{seen} = {cl.nan_bits(self.prelude, seen, term, value.dtype, self.width)};")

    def _combine(self, value: Value, one: str, other: str, width: int) -> str:
        """Two accumulators that have, or once had, lanes as one."""
        combine = cl.quick_combine if self._counts_nan(value) else cl.combine
        return combine(self.prelude, value.kind, one, other, value.dtype, width)

    def _counts_nan(self, value: Value) -> bool:
        """Whether lanes of a reduction, the least or greatest of a row of floats, leave NaN to an accumulator of its
        own. An operation that keeps NaN is a chain of several, and each step would have to wait for the one before."""
        along = self.r is not None and self.lane_symbol == self.r.inner
        return along and value.kind in ("min", "max") and value.dtype.is_floating_point

    def _arg_dtype(self, value: Value) -> torch.dtype:
        assert value.src_dtype is not None
        return compute_dtype(value.src_dtype)

    def _accumulate_arg(self, value: Value, total: str, term: str) -> None:
        assert self.r is not None
        position = self._linear(self.r)
        dtype = self._arg_dtype(value)
        lanes = range(self.width) if self.width > 1 else [None]
        self.counter += 1
        name = f"w{self.counter}"
        self.write(f"const {cl.type_name(dtype, self.width)} {name} = {term};")
        for lane in lanes:
            suffix = "" if lane is None else f".s{'0123456789abcdef'[lane]}"
            element, best, where = f"{name}{suffix}", f"{total}_best{suffix}", f"{total}{suffix}"
            compare_dtype = dtype
            if dtype == torch.bool and lane is not None:
                element = f"(-{element})"
                best_text = f"(-{best})"
            else:
                best_text = best
            condition = cl.better(value.kind, element, best_text, position, where, compare_dtype)
            self.write(f"if ({condition} || {where} < 0) {{ {best} = {name}{suffix}; {where} = {position}; }}")

    def _linear(self, split: Split) -> str:
        if split.rows is None:
            return str(split.inner)
        return f"({split.outer} * {self.size(split.length)} + {split.inner})"

    def _declare(self, value: Value, name: str, width: int, constant: str | None = None) -> None:
        """Declares an accumulator with its neutral element."""
        if self._is_arg(value):
            dtype = self._arg_dtype(value)
            start = cl.broadcast(cl.identity_of(value.kind, dtype), dtype, width)
            self.write(f"{cl.type_name(dtype, width)} {name}_best = {start};")
            self.write(f"{cl.type_name(torch.int64, width)} {name} = ({cl.type_name(torch.int64, width)})(-1);")
            return
        start = cl.broadcast(constant or cl.identity_of(value.kind, value.dtype), value.dtype, width)
        self.write(f"{cl.type_name(value.dtype, width)} {name} = {start};")

    def _flushed(self, value: Value) -> bool:
        """Whether an accumulator is summed in blocks."""
        return value.kind == "sum" and value.dtype.is_floating_point

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
        return cl.broadcast(cl.identity_of(value.kind, value.dtype), value.dtype, width)

    def _total(self, value: Value, width: int, place: str = "") -> str:
        """The sum that ``_a`` and ``_l`` are together."""
        function = self.prelude.use("with_lost", value.dtype, width)
        return f"{function}({value.name}_a{place}, {value.name}_l{place})"

    def _sums(self, reduces: list[Value], together: int = 1) -> list[Value]:
        """The accumulators that are summed in parts: unless all terms are few for ``together`` accumulators."""
        assert self.r is not None
        terms = self.r.root.numel
        if terms.is_Integer and terms <= TERMS * together:
            return []
        return [value for value in reduces if self._flushed(value)]

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

    def _scalar_reduction(self, region: Region, reduces: list[Value]) -> None:
        """One reduction index at a time, all lanes along the other root."""
        assert self.r is not None
        sums = self._sums(reduces)
        for value in reduces:
            self._declare(value, f"{value.name}_a", self.width)
        self._declare_totals(sums, self.width)
        if sums:
            self.write(f"long {sums[0].name}_pending = 0;")
        flushing = self._counted(sums, TERMS, lambda: self._flush(sums))
        with self._rows(self.r), self._blocks(self.r, TERMS if sums else BLOCK), flushing:
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
        self.write(f"const {cl.type_name(value.dtype, width)} {value.name} = {text};")

    @contextmanager
    def _rows(self, split: Split) -> Iterator[None]:
        if split.rows is None:
            with self.block(""):
                yield
            return
        o, rows, length = split.outer, self.size(split.rows), self.size(split.length)
        header = f"for (long {o} = 0; {o} < {rows}; ++{o})"
        if self.in_pieces:
            header = f"for (long {o} = first / max({length}, 1L); {o} * {length} < last; ++{o})"
        with self.block(header):
            yield

    @contextmanager
    def _blocks(self, split: Split, block: int = BLOCK) -> Iterator[None]:
        i = split.inner
        start, end = self._bounds(split)
        with self.block(f"for (long {i}_from = {start}; {i}_from < {end}; {i}_from += {block})"):
            self.write(f"const long {i}_to = min({i}_from + {block}, {end});")
            yield

    def _bounds(self, split: Split) -> tuple[str, str]:
        """The range of the inner index of the reduction, in this row of this piece."""
        length = self.size(split.length)
        if not self.in_pieces:
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

    def _leave_partial_results(self, piece: str) -> None:
        """Writes the results of a piece where ``_combination`` finds them."""
        reduces = reduces_of(self.kernel.regions[0])
        self.write(f"OB_GLOBAL long* slots = partial + (x * extra1 + (long){piece}) * {len(reduces)};")
        for slot, value in enumerate(reduces):
            self.write(f"*(OB_GLOBAL {cl.type_name(value.dtype)}*)(slots + {slot}) = {value.name};")

    def _conclude(self) -> None:
        """What follows from the results of a reduction in pieces."""
        region, *rest = self.kernel.regions
        self.body(list(region.after))
        for following in rest:
            self.body([*following.body, *following.after])

    def _combination(self, pieces: sympy.Expr) -> Combination:
        """Prints the kernel that combines partial results, in order so that each run gives the same."""
        reduces = reduces_of(self.kernel.regions[0])
        first, items = self._combiners()
        self.write("const long x = OB_ITEM_ID(1);")
        self._place()
        self.write(f"const OB_GLOBAL long* slots = partial + x * extra1 * {len(reduces)};")
        sums = [value for value in reduces if self._flushed(value)]
        for value in reduces:
            self._declare(value, f"{value.name}_a", 1)
        for value in sums:
            self._declare(value, f"{value.name}_l", 1)
        with self.block(f"for (long piece = {first}; piece < extra1; piece += {items})"):
            for slot, value in enumerate(reduces):
                term = f"*(const OB_GLOBAL {cl.type_name(value.dtype)}*)(slots + piece * {len(reduces)} + {slot})"
                total = f"{value.name}_a"
                if value in sums:
                    self.write(f"{self.prelude.use('add_to', value.dtype, 1)}(&{total}, &{value.name}_l, {term});")
                else:
                    self.write(f"{total} = {cl.combine(self.prelude, value.kind, total, term, value.dtype, 1)};")
        for value in sums:
            self.write(f"{value.name}_a = {self._total(value, 1)};")
        self._results(reduces)
        self._conclude()
        results = self.x.root.numel
        grid = minimum(sympy.S.One, pieces - 1) * items, results
        return Combination(grid, SLOT * len(reduces) * results * pieces, (items, 1, 1))

    def _combiners(self) -> tuple[str, int]:
        """The number of a work-item among those that combine the partial results of one reduction, and how many they
        are."""
        return "0", 1

    def _results(self, reduces: list[Value]) -> None:
        """The results of accumulators, which all work-items that share a reduction learn."""
        for value in reduces:
            self._result(value, f"{value.name}_a", 1)


def reduces_of(region: Region) -> list[Value]:
    """The reductions of a region."""
    return [s for s in region.body if isinstance(s, Value) and s.op == "reduce"]
