# SPDX-License-Identifier: Apache-2.0
"""What follows a matrix product or a convolution element by element, computed where the product stores its results.

A pointwise kernel that reads each element of a product once, and nothing else in another order, need not be a pass over
memory of its own: it becomes two functions, for one element and for a vector of them, that the product's store calls.
What depends on an element's row only (a channel's scale from its variance, say) and is more than a load is computed
before, once per row, by a small kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import sympy

from ..dialects import c
from ..loops.accesses import Accesses
from ..loops.nest import Entry, LoopKernel, Region, Root, Store, Value, compute_dtype
from ..printing import EmittedKernel, emit
from ..printing.statements import StatementPrinter

if TYPE_CHECKING:
    from ..plans import plan as p
    from ..plans.builder import PlanBuilder, Size, TensorArg
    from ..target import Target


@dataclasses.dataclass(frozen=True)
class Axis:
    """A coordinate of a product's element: ``(place // divisor) % length``; ``place`` counts elements in order."""

    divisor: Size
    length: Size


@dataclasses.dataclass(frozen=True)
class Finish:
    """Text in C that defines ``FINISH(at, row, column, value)`` and ``FINISH_VECTOR(...)``: statements that store what
    becomes of one element of a product, or of consecutive ones of a row, from place ``at`` on. ``parameters`` and
    ``arguments`` are what the kernel that uses them takes besides its own; ``helpers`` are functions that the text
    calls, by name, of which the kernel's own text may need some, too."""

    text: str
    helpers: Mapping[str, str]
    parameters: str
    arguments: list[p.Argument]


@dataclasses.dataclass
class Epilogue:
    """A pointwise kernel ``loops`` to be computed in the store of the product that made its operand ``source``.

    ``tensors`` are the kernel's buffers, without ``source``, which is never written to memory."""

    loops: LoopKernel
    source: str
    tensors: Mapping[str, TensorArg]

    @staticmethod
    def suits(loops: LoopKernel, source: str) -> bool:
        """Whether a kernel is pointwise and reads ``source`` element by element in the order in which it writes."""
        if any(region.in_reduction for region in loops.regions):
            return False
        statements = loops.statements()
        stores = [s for s in statements if isinstance(s, Store)]
        loads = [s for s in statements if isinstance(s, Value) and s.op == "load"]
        return (
            all(not s.atomic_add and s.buffer != source and _is_flat(loops, s.index) for s in stores)
            and all(s.mask is None and s.constant == 0 for s in loads)
            and all(_is_flat(loops, s.index) for s in loads if s.buffer == source)
            and not any(isinstance(s, Value) and s.op in _REFUSED for s in statements)
        )

    def finish(
        self, builder: PlanBuilder, numel: Size, lanes: int, row: Axis, column: Axis | None = None
    ) -> Finish | None:
        """Appends the steps that prepare rows, and returns what a product of ``numel`` elements with these coordinates
        calls, on CPUs ``lanes`` elements at a time, else one by one. None, and nothing appended, if the kernel is not
        about all elements or needs other coordinates."""
        places = _places(self.loops, row, column)
        points = next(root.numel for root in self.loops.roots if not root.is_reduction)
        if places is None or not _equal(points, numel):
            return None
        hoisted = _row_values(self.loops, self.source, places)
        buffers = [name for name in self.loops.buffers if name != self.source]
        names = {name: f"e{number}" for number, name in enumerate(buffers)}
        tensors = [builder.pointer(self.tensors[name]) for name in buffers]
        rows = self._prepare_rows(builder, row, places, hoisted)
        helpers: dict[str, str] = {}
        signature = ", ".join(
            [f"OB_GLOBAL {c.memory_type(self.loops.buffers[name])}* {names[name]}" for name in buffers]
            + [f"OB_GLOBAL const {c.type_name(value.dtype)}* h{n}" for n, value in enumerate(hoisted)]
        )
        functions, widest = "", lanes if builder.target.tuning.vectors else 1
        for width in sorted({1, widest}):
            printer = _Printer(self, builder.target, names, places, hoisted, width)
            functions += printer.function(signature)
            helpers.update(printer.prelude.snippets)
        given = "".join(f", {name}" for name in [*names.values(), *(f"h{n}" for n in range(len(hoisted)))])
        macros = "".join(
            f"#define {macro}(at, row, column, value) finish_{width}(at, row, column, value{given})\n"
            for macro, width in (("FINISH", 1), ("FINISH_VECTOR", widest))
        )
        return Finish(functions + macros, helpers, f", {signature}", [*tensors, *map(builder.pointer, rows)])

    def _prepare_rows(
        self, builder: PlanBuilder, row: Axis, places: Mapping[sympy.Expr, str], hoisted: list[Value]
    ) -> list[int]:
        """Appends the launch that computes what only rows decide; returns a buffer for each value."""
        if not hoisted:
            return []
        buffers = [builder.allocate(row.length * value.dtype.itemsize) for value in hoisted]
        kernel, names = _row_kernel(self.loops, places, hoisted, builder.target)
        count = {_ROWS: sympy.sympify(row.length)}
        pointers = [
            builder.pointer(buffers[names.index(name)] if name in names else self.tensors[name])
            for name in kernel.buffers
        ]
        arguments = [*pointers, *(builder.int64(expr.xreplace(count)) for expr in kernel.longs)]
        grid = [expr.xreplace(count) for expr in kernel.grid]
        builder.launch(builder.kernel(kernel.source, kernel.entry), grid, arguments, kernel.local_size)
        return buffers


_TYPICAL_ROWS = 256
#: What has no place in an epilogue: values that depend on the place itself, and effects.
_REFUSED = ("index_expr", "checked_index", "assertion", "rand", "randn", "randint64", "reduce")


def _entry(loops: LoopKernel, index: sympy.Expr) -> Entry | None:
    return loops.entries.get(index) if isinstance(index, sympy.Symbol) else None


def _equal(a: Size, b: Size) -> bool:
    return bool(sympy.expand(sympy.sympify(a) - sympy.sympify(b)) == 0)


def _is_flat(loops: LoopKernel, index: sympy.Expr) -> bool:
    """Whether an index counts the points of the kernel in order."""
    expanded = sympy.expand(index)
    entries = [loops.entries[s] for s in expanded.free_symbols if s in loops.entries]
    rest = expanded - sum(entry.symbol * entry.divisor for entry in entries)
    if not entries or sympy.expand(rest) != 0:
        return False
    entries.sort(key=lambda entry: entry.divisor_hint)
    reach: Size = sympy.Integer(1)
    for entry in entries:
        if not _equal(entry.divisor, reach):
            return False
        reach = entry.divisor * entry.length
    return _equal(reach, entries[-1].root.numel)


def _places(loops: LoopKernel, row: Axis, column: Axis | None) -> dict[sympy.Expr, str] | None:
    """What each index of the kernel is called in a product's store; None if there is one that it does not know."""
    places: dict[sympy.Expr, str] = {}
    for statement in loops.statements():
        if isinstance(statement, Value) and statement.op != "load":
            continue
        index, entry = statement.index, _entry(loops, statement.index)
        if _is_flat(loops, index):
            places[index] = "at"
        elif index.is_Integer:
            places[index] = str(int(index))
        elif entry is not None and _equal(entry.divisor, row.divisor) and _equal(entry.length, row.length):
            places[index] = "row"
        elif column and entry and _equal(entry.divisor, column.divisor) and _equal(entry.length, column.length):
            places[index] = "column"
        else:
            return None
    return places


def _row_values(loops: LoopKernel, source: str, places: Mapping[sympy.Expr, str]) -> list[Value]:
    """The values that depend on the row only, and are more than a load, of which others are made."""
    uniform: set[int] = set()
    values = [s for s in loops.statements() if isinstance(s, Value)]
    for value in values:
        if value.op == "load":
            fixed = value.buffer != source and value.buffer not in loops.written and places[value.index] == "row"
        else:
            fixed = bool(value.args) and all(id(a) in uniform or a.op == "constant" for a in value.args)
        if fixed:
            uniform.add(id(value))
    wanted = {id(a) for v in values if id(v) not in uniform for a in v.args}
    wanted |= {id(s.value) for s in loops.statements() if isinstance(s, Store)}
    return [v for v in values if id(v) in uniform and id(v) in wanted and v.op != "load" and v.dtype.is_floating_point]


def _needed(values: Iterable[Value], known: Collection[int] = ()) -> set[int]:
    """The ids of the values and of all that they are made of, except what only those with ids in ``known`` need."""
    seen: set[int] = set()
    work = list(values)
    while work:
        value = work.pop()
        if id(value) not in seen:
            seen.add(id(value))
            work.extend(() if id(value) in known else value.args)
    return seen


#: The number of rows, which is an argument: products of all sizes share a program.
_ROWS = sympy.Symbol("rows", integer=True, positive=True)


def _row_kernel(
    loops: LoopKernel, places: Mapping[sympy.Expr, str], hoisted: list[Value], target: Target
) -> tuple[EmittedKernel, list[str]]:
    """The kernel that computes ``hoisted`` for ``_ROWS`` rows, and what it calls the results' buffers, in order."""
    needed = _needed(hoisted)
    index = sympy.Symbol("row", integer=True, nonnegative=True)
    root = Root("x", _ROWS, False, _TYPICAL_ROWS)
    entry = Entry(index, root, sympy.Integer(1), _ROWS, True, 1, _TYPICAL_ROWS)
    copies: dict[int, Value] = {}
    for value in (s for s in loops.statements() if isinstance(s, Value) and id(s) in needed):
        place = index if value.op == "load" and places[value.index] == "row" else value.index
        args = tuple(copies[id(a)] for a in value.args)
        copies[id(value)] = dataclasses.replace(value, args=args, index=place)
    names = [f"row value {number}" for number in range(len(hoisted))]
    stores = [Store(name, index, copies[id(value)]) for name, value in zip(names, hoisted, strict=True)]
    loads = {v.buffer: loops.buffers[v.buffer] for v in copies.values() if v.op == "load"}
    buffers = {**loads, **{name: value.dtype for name, value in zip(names, hoisted, strict=True)}}
    region = Region(False, [*copies.values(), *stores])
    kernel = LoopKernel([root], {index: entry}, [region], buffers, set(names), {}, set())
    return emit(kernel, target), names


class _Printer(StatementPrinter):
    """Prints one of the two functions."""

    def __init__(
        self,
        epilogue: Epilogue,
        target: Target,
        names: dict[str, str],
        places: Mapping[sympy.Expr, str],
        hoisted: list[Value],
        width: int,
    ) -> None:
        super().__init__(Accesses.of(epilogue.loops), target)
        self.source = epilogue.source
        self.buffers = names
        self.places = places
        self.rows = {id(value): f"h{number}[row]" for number, value in enumerate(hoisted)}
        stored = (s.value for s in epilogue.loops.statements() if isinstance(s, Store))
        self.needed = _needed(stored, known=self.rows)
        self.width = width

    def function(self, signature: str) -> str:
        """The function's definition, under the name ``finish_<width>``."""
        loads = (s for s in self.kernel.values() if s.op == "load" and s.buffer == self.source)
        dtype = compute_dtype(next(loads).src_dtype or self.kernel.buffers[self.source])
        for statement in self.kernel.statements():
            if isinstance(statement, Store):
                self.store(statement)
            elif id(statement) in self.needed:
                self.value(statement)
        head = f"long at, long row, long column, {c.type_name(dtype, self.width)} value"
        body = "\n".join(self.lines)
        return f"void finish_{self.width}({head}, {signature}) {{\n{body}\n}}\n"

    def value(self, value: Value) -> None:
        """Prints the computation of a value."""
        if id(value) in self.rows:
            self.define(value, self.rows[id(value)], False)
        else:
            super().value(value)

    def _load(self, value: Value) -> None:
        if value.buffer == self.source:
            dtype = value.src_dtype  # of what is moved only
            self.define(value, c.narrow_bits(self.prelude, "value", dtype, self.width) if dtype else "value", True)
            return
        place = self.places[value.index]
        vector = place in ("at", "column") and self.width > 1
        pointer, dtype = self.buffers[value.buffer], self.kernel.buffers[value.buffer]
        self.define(value, c.load(self.prelude, pointer, dtype, place, self.width if vector else 1), vector)

    def store(self, store: Store) -> None:
        """Prints a store."""
        dtype = self.kernel.buffers[store.buffer]
        value = self.operand(store.value, compute_dtype(dtype), self.width > 1)
        self.write(c.store(self.prelude, self.buffers[store.buffer], dtype, "at", value, self.width))
