# SPDX-License-Identifier: Apache-2.0
"""Prints a :class:`~outboard.compiler.loops.LoopKernel` as OpenCL C, with the grid to launch it on.

Here are the statements, which all devices share, and the loops for CPUs: a work-item takes a long piece of the
iteration space and runs it in explicit vectors (*lanes*), with a scalar copy of the body for what is left over. Lanes
lie along the innermost piece of one root: of the reduction when rows are reduced, of the other root otherwise, so that
most memory accesses are contiguous. The loops for SIMT devices are in ``simt``.

On a CPU, a few long reductions would leave most cores idle if each were one work-item's. They are cut into pieces: a
first kernel reduces each piece, a second one combines the partial results and does what follows from them. Both are
entries of one definition. If there is one piece only, the first kernel does everything.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import sympy
import torch

from .dialects import opencl as cl
from .loops import (
    EXPENSIVE,
    INDEX_ERROR,
    Entry,
    LoopKernel,
    Region,
    Root,
    Store,
    Value,
    compute_dtype,
    keep_terms,
)
from .plan import Assertion, AssertionKind
from .target import Target

#: Elements that one work-item of a CPU handles, so that starting it costs little in comparison.
ELEMENTS_PER_ITEM = 8192
#: Terms summed before the partial sum is added to the total, which bounds the rounding error of long sums.
BLOCK = 8192
#: Vectors of one reduction step taken together: additions that do not wait for one another, whole cache lines.
UNROLL = cl.TOGETHER
#: A loop body of more statements than this is not unrolled: it would run out of registers.
UNROLL_LIMIT = 12
#: Rows taken together where an operand lies across the rows, so that each of its cache lines is used whole.
TILE = 16
#: At most this many results are reduced in pieces; more keep the cores busy with a work-item each.
FEW = 8
#: Cheap terms that are worth a second launch and waking other cores, and are then cut into ``PIECES`` pieces or more.
LONG = 1 << 19
#: Cheap terms that take as long as one with an expensive operation, or with an element apart from its neighbours'.
EXPENSIVE_COST = 8
#: Pieces per compute unit, so that a core that comes late or is slow does not hold up the others.
PIECES = 8
#: Boundaries of pieces are multiples of this: only the last piece has a rest that fills no vectors.
PIECE_ALIGNMENT = 1024
#: Bytes of a partial result, whatever its type.
SLOT = 8
#: Results of as many bytes are written past the caches, which would not hold them until the next kernel and which would
#: have to read each line before it is overwritten.
FAR = 32 << 20
#: Bytes by which a kernel that reads row after row, twice each, runs ahead of itself: while it computes, no processor
#: goes on reading. A few rows of usual lengths, and a fraction of the first cache.
AHEAD = 8 << 10
#: Bytes that memory delivers together on usual processors.
LINE = 64
#: Looked-up rows asked for before they are copied.
ROWS_AHEAD = 4
#: Rows that go through the loops of a kernel side by side, at most, and the elements that they may have together.
SIDE_BY_SIDE = 8
SIDE_BY_SIDE_ELEMENTS = 2048


def assertion(message: str) -> Assertion:
    """What kernels report as ``message``, under a code that is the same in all of them and never 0."""
    kind = AssertionKind.INDEX_ERROR if message == INDEX_ERROR else AssertionKind.RUNTIME_ERROR
    return Assertion(zlib.crc32(message.encode()) >> 2 | 1 << 30, kind, message)


@dataclasses.dataclass(frozen=True)
class Combination:
    """The launch that turns the partial results of a reduction in pieces into results.

    It takes the same arguments as the launch before it. The grid is empty if there is one piece only.
    ``scratch`` is the size in bytes of the memory for partial results.
    """

    grid: tuple[sympy.Expr, sympy.Expr]
    scratch: sympy.Expr
    local_size: tuple[int, int, int] = (1, 1, 1)


@dataclasses.dataclass
class EmittedKernel:
    """Source of one kernel and how to launch it.

    ``buffers``, ``longs``, ``floats`` are the arguments in the order of the signature: pointers, then ``long``
    (expressions over size symbols), then ``float``/``double`` (``doubles`` tells which), then, if there are
    ``assertions``, a pointer to the ``int`` that takes the code of one that failed. ``sizes`` are all size symbols that
    a launch needs.
    ``helpers`` are the functions (by name) that ``definition``, the kernel itself, calls.
    ``assertions`` are all that the kernel may report.
    ``assumptions`` are conditions on sizes under which the kernel is the right choice; elsewhere it is only slow.
    ``combination``, if any, is to be launched afterwards as ``combining_entry``; both launches then take a last
    argument more, a pointer to scratch memory.
    """

    helpers: dict[str, str]
    definition: str
    entry: str
    buffers: list[str]
    longs: list[sympy.Expr]
    floats: list[sympy.Symbol]
    doubles: set[sympy.Symbol]
    assertions: list[Assertion]
    grid: tuple[sympy.Expr, sympy.Expr]
    local_size: tuple[int, int, int]
    assumptions: list[sympy.Basic]
    combination: Combination | None = None

    @property
    def sizes(self) -> list[sympy.Symbol]:
        """Size symbols, sorted by name."""
        expressions = [*self.longs, *self.grid]
        if self.combination is not None:
            expressions += [*self.combination.grid, self.combination.scratch]
        return sorted({symbol for expr in expressions for symbol in expr.free_symbols}, key=str)

    @property
    def combining_entry(self) -> str:
        """The name of the kernel that ``combination`` launches."""
        return _combining_entry(self.entry)

    @property
    def source(self) -> str:
        """The kernel as a program of its own."""
        return program([self])

    def renamed(self, entry: str) -> EmittedKernel:
        """The same kernel under another name."""
        definition = self.definition.replace(f"void {self.entry}(", f"void {entry}(", 1)
        definition = definition.replace(f"void {self.combining_entry}(", f"void {_combining_entry(entry)}(", 1)
        return dataclasses.replace(self, definition=definition, entry=entry)


def _combining_entry(entry: str) -> str:
    return f"{entry}_combine"


def program(kernels: list[EmittedKernel]) -> str:
    """One source of several kernels, of different names, that share their helpers. Built at once, they cost a good
    deal less than one by one: compilers of OpenCL C spend most of their time on their own headers."""
    helpers: dict[str, str] = {}
    for kernel in kernels:
        helpers.update(kernel.helpers)
    parts = [*helpers.values(), *(kernel.definition for kernel in kernels)]
    if any("double" in part for part in parts):
        parts.insert(0, "#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
    return "\n".join(parts) + "\n"


@dataclasses.dataclass
class _Split:
    """A root as two nested ranges: ``root = outer * length + inner``. ``rows`` is None if there is one range only."""

    root: Root
    length: sympy.Expr
    rows: sympy.Expr | None
    length_hint: int
    inner: sympy.Symbol
    outer: sympy.Symbol


@dataclasses.dataclass(frozen=True)
class _Part:
    """Statements of an unrolled loop that follow ``head``, which was computed for all vectors of a step at once."""

    head: Value | None
    body: list[Value | Store]


def ceildiv(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """The quotient, rounded up."""
    return sympy.Function("CeilDiv")(a, b)


def floordiv(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """The quotient, rounded down."""
    return sympy.Function("FloorDiv")(a, b)


def maximum(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """The greater one."""
    return sympy.Function("Max")(a, b)


def minimum(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """The lesser one."""
    return sympy.Function("Min")(a, b)


def _exact(numerator: sympy.Expr, denominator: sympy.Expr) -> sympy.Expr | None:
    """The quotient where it is an integer whatever the symbols are, else None."""
    quotient = sympy.cancel(numerator / denominator)
    _, rest = quotient.as_numer_denom()
    return quotient if rest == 1 else None


def _split_root(root: Root, entries: list[Entry]) -> _Split:
    """Splits a root at the finest boundary that its entries have."""
    inner = sympy.Symbol(f"{root.name}i", integer=True, nonnegative=True)
    outer = sympy.Symbol(f"{root.name}o", integer=True, nonnegative=True)
    candidates: list[tuple[int, sympy.Expr]] = []
    for entry in entries:
        if entry.divisor == 1 and not entry.outermost:
            candidates.append((entry.length_hint, entry.length))
        elif entry.divisor != 1:
            candidates.append((entry.divisor_hint, entry.divisor))
    for hint, length in sorted(candidates, key=lambda pair: pair[0]):
        rows = _exact(root.numel, length)
        if rows is not None and hint > 1:
            return _Split(root, length, rows, hint, inner, outer)
        if hint > 1:
            break
    return _Split(root, root.numel, None, root.hint, inner, outer)


class Printer:
    """State of the printing of one kernel, and the loops for CPUs."""

    def __init__(self, kernel: LoopKernel, target: Target, entry: str) -> None:
        self.kernel = kernel
        self.variation: dict[tuple[str, sympy.Symbol], bool] = {}  #: what _varies found out
        self.target = target
        self.entry = entry
        self.prelude = cl.Prelude()
        self.atomics: dict[str, str] = {}
        self.lines: list[str] = []
        self.indent = 1
        self.buffers = {name: f"p{number}" for number, name in enumerate(kernel.buffers)}
        #: What only sizes decide is an argument, named in order of use: the text does not tell sizes apart, and kernels
        #: that differ in nothing else are one program.
        self.longs: dict[sympy.Expr, str] = {}
        self.floats: dict[sympy.Symbol, str] = {}
        self.doubles: set[sympy.Symbol] = set()
        points = [root for root in kernel.roots if not root.is_reduction]
        # Pointwise kernels come with a reduction root of one point, which nothing uses.
        reduces = any(region.in_reduction for region in kernel.regions)
        reductions = [root for root in kernel.roots if root.is_reduction and reduces]
        if len(points) != 1 or len(reductions) > 1:
            raise cl.Unsupported("more than one range per kind")
        used = self._used_symbols()
        self.entries = [entry for symbol, entry in kernel.entries.items() if symbol in used]
        self.x = _split_root(points[0], [e for e in self.entries if e.root is points[0]])
        self.r = None
        if reductions:
            self.r = _split_root(reductions[0], [e for e in self.entries if e.root is reductions[0]])
        self.formulas = {entry.symbol: self._formula(entry) for entry in self.entries}
        self.in_pieces = self._pays_pieces()
        self.assumptions: list[sympy.Basic] = []
        self.lane_symbol = self._choose_lanes()
        # What changes while the body is printed: the width, and what each value is called and whether it has lanes.
        self.width = 1
        self.vectors: set[str] = set()
        self.tiles: dict[str, str] = {}  #: value -> private array that holds its tile
        self.hoisted: set[str] = set()  #: values computed before the innermost loop
        self.streams = self._find_streams()  #: loads that run ahead
        self.far: dict[str, str] = {}  #: buffer -> variable that tells whether its vectors go past the caches
        self.counter = 0

    # ---- analysis ----

    def _used_symbols(self) -> set[sympy.Symbol]:
        used: set[sympy.Symbol] = set()
        for statement in self.kernel.statements():
            used |= statement.index.free_symbols
            if isinstance(statement, Value):
                used |= statement.size.free_symbols
        return used

    def _formula(self, entry: Entry) -> sympy.Expr:
        """An entry in terms of the outer and inner index of its root."""
        split = self.x if entry.root is self.x.root else self.r
        assert split is not None
        floor, modulo = sympy.Function("FloorDiv"), sympy.Function("Mod")
        if split.rows is None:
            if entry.divisor == 1 and entry.outermost:
                return split.inner
            base = split.inner
        else:
            if entry.divisor == 1 and entry.length == split.length:
                return split.inner
            step = _exact(entry.divisor, split.length)
            if step is not None:
                rows = split.outer if step == 1 else floor(split.outer, step)
                return rows if entry.outermost else modulo(rows, entry.length)
            wrap = _exact(entry.length, split.length) if entry.divisor == 1 else None
            if wrap is not None and not entry.outermost:
                return modulo(split.outer, wrap) * split.length + split.inner
            base = split.outer * split.length + split.inner
        quotient = base if entry.divisor == 1 else floor(base, entry.divisor)
        return quotient if entry.outermost else modulo(quotient, entry.length)

    def _expand(self, index: sympy.Expr) -> sympy.Expr:
        """An index in terms of outer and inner indices."""
        return index.xreplace({s: self.formulas[s] for s in index.free_symbols if s in self.formulas})

    def _stride(self, index: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
        """The step of an index along a symbol, or None if it is not a constant one."""
        expanded = sympy.expand(self._expand(index))
        indirect = self.kernel.indirect
        if any(self._varies(indirect[s], symbol) for s in expanded.free_symbols if s in indirect):
            return None
        if symbol not in expanded.free_symbols:
            return sympy.S.Zero
        step = expanded.coeff(symbol, 1)
        rest = sympy.expand(expanded - step * symbol)
        return step if symbol not in rest.free_symbols and symbol not in step.free_symbols else None

    def _varies(self, value: Value, symbol: sympy.Symbol) -> bool:
        """Whether a value may differ between steps along a symbol: looked up rows are the same all along a row."""
        known = self.variation.get((value.name, symbol))
        if known is None:
            known = self.variation[value.name, symbol] = self._find_variation(value, symbol)
        return known

    def _find_variation(self, value: Value, symbol: sympy.Symbol) -> bool:
        if value.op == "reduce" or (value.mask is not None and self._varies(value.mask, symbol)):
            return True
        if value.op in ("load", "index_expr"):
            found = self._expand(value.index).free_symbols
            indirect = self.kernel.indirect
            return symbol in found or any(self._varies(indirect[s], symbol) for s in found if s in indirect)
        return any(self._varies(argument, symbol) for argument in value.args)

    def _pays_pieces(self) -> bool:
        """Whether the kernel consists of so few reductions, and possibly so long ones, that several work-items share
        each."""
        if self.r is None or not self._reduces_once():
            return False
        results, terms = self.x.root.numel, self.r.root.numel
        return bool(results.is_Integer and results <= FEW and not (terms.is_Integer and terms * results < self._long()))

    def _long(self) -> int:
        """Terms of the kernel's reductions that take as long as ``LONG`` cheap ones."""
        assert self.r is not None
        inner = self.r.inner
        values = [value for value in self.kernel.regions[0].body if isinstance(value, Value)]
        expensive = [
            value
            for value in values
            if value.op in EXPENSIVE or (value.op == "load" and self._stride(value.index, inner) not in (0, 1))
        ]
        return LONG // (1 + EXPENSIVE_COST * len(expensive))

    def _reduces_once(self) -> bool:
        """Whether the kernel is one loop of reductions, arg-reductions aside, and what follows from its results."""
        first, *rest = self.kernel.regions
        return (
            first.in_reduction
            and not any(region.in_reduction for region in rest)
            and not any(self._is_arg(value) for value in self._values())
        )

    def _is_long(self, split: _Split) -> bool:
        """Whether the inner range is to be taken for one that fills vectors.

        Where only one range is looped over, that of unknown length is: the sizes of the first call say little about
        those of the next, and the long ones are what takes time."""
        return self._looped_alone(split) or split.length_hint >= cl.WIDTH

    def _looped_alone(self, split: _Split) -> bool:
        alone = split is self.r if self.in_pieces else self.r is None
        return alone and split.rows is None and not split.length.is_Integer

    def _choose_lanes(self) -> sympy.Symbol | None:
        """The inner index along which vectors lie; None for tiny ranges.

        What this takes for granted about lengths that are unknown goes to ``assumptions``."""
        choices = [self.x] if self.r is None else [self.r, self.x]
        long = [split for split in choices if self._is_long(split)]
        best = self._best_lanes(long)
        for split in choices:
            if split.length.is_Integer or self._looped_alone(split):
                continue
            without = [other for other in long if other is not split]
            others = without if split in long else [s for s in choices if s is split or s in long]
            if self._best_lanes(others) is not best:
                relation = sympy.Ge if split in long else sympy.Lt
                self.assumptions.append(relation(split.length, cl.WIDTH))
        return best

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
            near = str(AHEAD // self._memory_dtype(buffer).itemsize)
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

    def _best_lanes(self, choices: list[_Split]) -> sympy.Symbol | None:
        """The inner index, of those given, along which most memory accesses are contiguous."""
        best, best_score = None, -1.0
        for split in choices:
            score = self._contiguity(split)
            if split is self.r and any(s.kind in ("argmax", "argmin") for s in self._values()):
                score -= 1000.0
            if score > best_score:
                best, best_score = split.inner, score
        return best

    def _contiguity(self, split: _Split) -> float:
        """How much of what touches memory goes from element to element, or stays, along the inner index of a root."""
        steps = ((self._stride(statement.index, split.inner), runs) for statement, runs in self._accesses())
        return sum(runs * (2.0 if step == 1 else 0.5 if step == 0 else 0.0) for step, runs in steps)

    def _accesses(self) -> Iterator[tuple[Value | Store, float]]:
        """What touches memory, and how often it does for each time that the body of a reduction is run. What is done
        once for each result must not outweigh what is done for each term. Reductions of unknown length are long."""
        terms = sympy.Integer(1) if self.r is None else self.r.root.numel
        seldom = 1.0 / max(int(terms) if terms.is_Integer else BLOCK, 1)
        for region in self.kernel.regions:
            for statement in (*region.body, *region.after):
                if isinstance(statement, Store) or statement.op == "load":
                    inside = region.in_reduction and statement in region.body
                    yield statement, 1.0 if inside else seldom

    def _values(self) -> Iterator[Value]:
        return (s for s in self.kernel.statements() if isinstance(s, Value))

    # ---- text ----

    def write(self, line: str) -> None:
        self.lines.append("  " * self.indent + line)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        self.write(header + " {")
        self.indent += 1
        yield
        self.indent -= 1
        self.write("}")

    def size(self, expr: sympy.Expr) -> str:
        """A scalar expression over size symbols."""
        return self._index_printer(scalar=True)(expr)

    def _argument(self, expr: sympy.Expr) -> str:
        """The argument that holds an expression over size symbols."""
        return self.longs.setdefault(expr, f"n{len(self.longs)}")

    def _index_printer(self, scalar: bool = False) -> cl.IndexPrinter:
        names: dict[sympy.Symbol, str] = {}
        vectors: set[sympy.Symbol] = set()
        for split in (self.x, self.r):
            if split is not None:
                names[split.inner] = str(split.inner)
                names[split.outer] = str(split.outer)
        if self.width > 1 and not scalar and self.lane_symbol is not None:
            names[self.lane_symbol] = f"{self.lane_symbol}v"
            vectors.add(self.lane_symbol)
        for symbol, value in self.kernel.indirect.items():
            if value.name in self.vectors:
                names[symbol] = f"convert_long{self.width}({value.name})"
                vectors.add(symbol)
            else:
                names[symbol] = f"((long){value.name})"
        return cl.IndexPrinter(self.prelude, names, vectors, self.width, self._argument)

    def index(self, expr: sympy.Expr) -> tuple[str, bool]:
        """(text, whether it has lanes) of an index expression."""
        expanded = self._expand(expr)
        printer = self._index_printer()
        return printer(expanded), printer.is_vector(expanded)

    # ---- statements ----

    def operand(self, value: Value, dtype: torch.dtype, vector: bool) -> str:
        """A value converted to a compute dtype, with lanes if wanted."""
        is_vector = value.name in self.vectors
        if value.op == "constant":
            text = cl.literal(value.constant, dtype)
            return cl.broadcast(text, dtype, self.width) if vector and self.width > 1 else text
        width = self.width if is_vector else 1
        text = cl.convert(value.name, value.dtype, dtype, width)
        if vector and not is_vector and self.width > 1:
            return cl.broadcast(text, dtype, self.width)
        return text

    def define(self, value: Value, text: str, vector: bool) -> None:
        """Declares a value."""
        if vector and self.width > 1:
            self.vectors.add(value.name)
        else:
            self.vectors.discard(value.name)
        width = self.width if value.name in self.vectors else 1
        self.write(f"const {cl.type_name(value.dtype, width)} {value.name} = {text};")

    def value(self, value: Value) -> None:
        """Prints the computation of a value."""
        handler = {
            "load": self._load,
            "constant": self._constant,
            "index_expr": self._index_expr,
            "checked_index": self._checked_index,
            "assertion": self._assertion,
        }.get(value.op, self._operator)
        handler(value)

    def _constant(self, value: Value) -> None:
        # Constants are printed where they are used.
        self.vectors.discard(value.name)

    def _vector_args(self, value: Value) -> bool:
        return self.width > 1 and any(argument.name in self.vectors for argument in value.args)

    def _operator(self, value: Value) -> None:
        vector = self._vector_args(value)
        width = self.width if vector else 1
        op = value.op
        if op == "to_dtype":
            self.define(value, self._to_dtype(value, vector), vector)
            return
        if op == "to_dtype_bitcast":
            assert value.src_dtype is not None
            text = self.operand(value.args[0], compute_dtype(value.src_dtype), vector)
            self.define(value, cl.bitcast(text, value.src_dtype, value.dtype, width), vector)
            return
        dtypes = self._operand_dtypes(value)
        args = [self.operand(a, d, vector) for a, d in zip(value.args, dtypes, strict=True)]
        if op in ("rand", "randn", "randint64"):
            function = self.prelude.use(op, value.dtype, width)
            self.define(value, f"{function}({', '.join(args)})", vector)
            return
        if op in ("truediv", "div_rn") and vector and self._divides_by_one(value):
            function = self.prelude.use("divide_by", value.dtype, width)
            divisor = self.operand(value.args[1], value.dtype, False)
            self.define(value, f"{function}({args[0]}, {divisor})", vector)
            return
        if op == "pow" and value.dtype.is_floating_point and self._is_argument(value.args[1]):
            function = self.prelude.use("pow_by", value.dtype, width)
            exponent = self.operand(value.args[1], value.dtype, False)
            self.define(value, f"{function}({args[0]}, {exponent})", vector)
            return
        self.define(value, cl.operator(self.prelude, op, args, dtypes, value.dtype, width), vector)

    def _is_argument(self, value: Value) -> bool:
        """Whether a value is a number that the kernel was called with, whatever its type is in the end."""
        if value.op == "to_dtype":
            return self._is_argument(value.args[0])
        return value.op == "index_expr" and not value.index.free_symbols & self.kernel.entries.keys()

    def _divides_by_one(self, value: Value) -> bool:
        """Whether all lanes are divided by the same number."""
        return value.dtype == torch.float32 and value.args[1].name not in self.vectors

    def _to_dtype(self, value: Value, vector: bool) -> str:
        return self.operand(value.args[0], value.dtype, vector)

    def _operand_dtypes(self, value: Value) -> list[torch.dtype]:
        """The compute dtype each operand is converted to."""
        op, args = value.op, value.args
        if op in ("rand", "randn"):
            return [torch.uint64, torch.uint64]
        if op == "randint64":
            return [torch.uint64, torch.uint64, torch.int64, torch.int64]
        if op in ("eq", "ne", "lt", "gt", "le", "ge"):
            return [promote(args)] * 2
        if op in ("isnan", "isinf", "signbit"):
            return [args[0].dtype]
        if op in ("logical_and", "logical_or", "logical_xor", "logical_not"):
            return [torch.bool] * len(args)
        if op == "where":
            return [torch.bool, value.dtype, value.dtype]
        return [value.dtype] * len(args)

    def _index_expr(self, value: Value) -> None:
        expr = value.index
        if self._is_float(expr):
            self.define(value, self._float_expr(expr, value.dtype), False)
            return
        text, vector = self.index(expr)
        if expr.is_Boolean or expr.is_Relational:
            source = torch.int64 if vector else torch.bool
            text = cl.convert(text, source, value.dtype, self.width if vector else 1)
        else:
            text = cl.convert(f"({text})", torch.int64, value.dtype, self.width if vector else 1)
        self.define(value, text, vector)

    def _is_float(self, expr: sympy.Expr) -> bool:
        """Whether an expression is not one over integers."""
        if expr.free_symbols & self.kernel.floats:
            return True
        if any(not float(number).is_integer() for number in expr.atoms(sympy.Float)):
            return True
        kinds = {type(node).__name__ for node in sympy.preorder_traversal(expr)}
        return bool(kinds & {"IntTrueDiv", "FloatTrueDiv", "ToFloat", "FloatPow"})

    def _float_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> str:
        """An expression over float arguments."""
        for symbol in sorted(expr.free_symbols & self.kernel.floats, key=str):
            self.floats.setdefault(symbol, f"z{len(self.floats)}")
            if dtype == torch.float64:
                self.doubles.add(symbol)
        text = self._float_text(expr)
        return f"(({cl.type_name(dtype)})({text}))" if dtype != torch.bool else f"(({text}) != 0)"

    def _float_text(self, expr: sympy.Expr) -> str:
        kind = type(expr).__name__
        if isinstance(expr, sympy.Symbol):
            return self.floats[expr] if expr in self.floats else f"((double){self.size(expr)})"
        if expr.is_number:
            return cl.literal(float(expr), torch.float64)
        args = [self._float_text(a) for a in expr.args]
        if kind in ("Add", "FloatAdd"):
            return "(" + " + ".join(args) + ")"
        if kind in ("Mul", "FloatMul"):
            return "(" + " * ".join(args) + ")"
        if kind in ("FloatTrueDiv", "IntTrueDiv"):
            return f"({args[0]} / {args[1]})"
        if kind in ("Pow", "FloatPow", "PowByNatural"):
            return f"pow((double){args[0]}, (double){args[1]})"
        if kind in ("ToFloat", "Identity"):
            return args[0]
        if kind == "OpaqueUnaryFn_sqrt":
            return f"sqrt((double){args[0]})"
        if kind in ("Max", "Min"):
            function = f"f{kind.lower()}"
            return functools.reduce(lambda a, b: f"{function}((double){a}, (double){b})", args)
        raise cl.Unsupported(f"float expression {kind}")

    def _checked_index(self, value: Value) -> None:
        (source,) = value.args
        vector = source.name in self.vectors or (value.mask is not None and value.mask.name in self.vectors)
        index = self.operand(source, torch.int64, vector)
        size = self.size(value.size)
        width = self.width if vector else 1
        self.counter += 1
        raw, bad = f"i{self.counter}", f"e{self.counter}"
        long = cl.type_name(torch.int64, width)
        self.write(f"const {long} {raw} = {index};")
        outside = f"(({raw} < 0L) | ({raw} >= {size}))"
        if value.mask is not None:
            mask = self.operand(value.mask, torch.bool, vector)
            wide = f"convert_long{width}({mask})"
            outside = f"({outside} & {cl.convert(mask, torch.bool, torch.bool, width) if width == 1 else wide})"
        self.write(f"const {long} {bad} = {outside};")
        self.write(f"if ({self._any(bad, torch.int64, width)}) *failed = {assertion(value.message).code};")
        limit = f"max({size} - 1L, 0L)"
        text = f"clamp({raw}, ({long})(0), ({long})({limit}))"
        self.define(value, cl.convert(text, torch.int64, value.dtype, width), vector)

    def _any(self, mask: str, dtype: torch.dtype, width: int) -> str:
        """Whether a mask, whose lanes are as wide as those of ``dtype``, holds anywhere."""
        return f"{self.prelude.use('any', dtype, width)}({mask})" if width > 1 else mask

    def _assertion(self, value: Value) -> None:
        (condition,) = value.args
        vector = condition.name in self.vectors or (value.mask is not None and value.mask.name in self.vectors)
        failed = f"!({self.operand(condition, torch.bool, vector)})"
        if value.mask is not None:
            failed = f"({failed} & {self.operand(value.mask, torch.bool, vector)})"
        width = self.width if vector else 1
        self.write(f"if ({self._any(failed, torch.bool, width)}) *failed = {assertion(value.message).code};")
        self.vectors.discard(value.name)

    def _memory_dtype(self, buffer: str) -> torch.dtype:
        return self.kernel.buffers[buffer]

    def _load(self, value: Value) -> None:
        pointer = self.buffers[value.buffer]
        dtype = self._memory_dtype(value.buffer)
        cl.memory_type(dtype)
        text, vector = self.index(value.index)
        mask = None
        if value.mask is not None:
            vector_mask = value.mask.name in self.vectors
            vector = vector or (vector_mask and self.width > 1)
            mask = self.operand(value.mask, torch.bool, vector)
        if not vector or self.width == 1:
            loaded = cl.load(self.prelude, pointer, dtype, text, 1)
            if mask is not None:
                loaded = f"({mask} ? {loaded} : {cl.literal(0, value.dtype)})"
            self.define(value, loaded, False)
            return
        self._vector_load(value, pointer, dtype, mask)

    def _vector_load(self, value: Value, pointer: str, dtype: torch.dtype, mask: str | None) -> None:
        assert self.lane_symbol is not None
        if value.name in self.tiles:
            self.define(value, self._from_tile(value), True)
            return
        step = self._stride(value.index, self.lane_symbol)
        contiguous = step == 1
        name = value.name
        kind = cl.type_name(value.dtype, self.width)
        if contiguous and mask is None:
            if name in self.streams:
                for begin in range(0, self.width * dtype.itemsize, LINE):
                    later = f"{self.streams[name]} + {begin // dtype.itemsize}"
                    place = f"{pointer} + ({self._base(value.index)} + {later})"
                    self.write(f"{self.prelude.use('fetch', torch.uint64, 1)}((ulong)({place}));")
            self.define(value, cl.load(self.prelude, pointer, dtype, self._base(value.index), self.width), True)
            return
        zero = cl.broadcast(cl.literal(0, value.dtype), value.dtype, self.width)
        if mask is None:
            lanes = self._gather(pointer, dtype, value.index, step, None)
            self.define(value, lanes, True)
            return
        self.vectors.add(name)
        self.counter += 1
        held = f"m{self.counter}"
        self.write(f"{kind} {name} = {zero};")
        self.write(f"const int{self.width} {held} = {mask};")
        any_held = self._any(held, torch.bool, self.width)
        if contiguous:
            with self.block(f"if (!{self._any(f'~{held}', torch.bool, self.width)})"):
                self.write(f"{name} = {cl.load(self.prelude, pointer, dtype, self._base(value.index), self.width)};")
            with self.block(f"else if ({any_held})"):
                self.write(f"{name} = {self._gather(pointer, dtype, value.index, step, held)};")
            return
        with self.block(f"if ({any_held})"):
            self.write(f"{name} = {self._gather(pointer, dtype, value.index, step, held)};")

    def _base(self, index: sympy.Expr) -> str:
        """The index of lane 0."""
        return self._index_printer(scalar=True)(self._expand(index))

    def _gather(
        self, pointer: str, dtype: torch.dtype, index: sympy.Expr, step: sympy.Expr | None, mask: str | None
    ) -> str:
        """A vector of elements loaded one by one."""
        self.counter += 1
        name = f"g{self.counter}"
        addresses = []
        if step is not None:
            self.write(f"const long {name} = {self._base(index)};")
            stride = self.size(step)
            addresses = [f"({pointer} + ({name} + {lane} * {stride}))" for lane in range(self.width)]
        else:
            text, vector = self.index(index)
            if not vector:
                text = f"(long{self.width})({text})"
            self.write(f"const long{self.width} {name} = {text};")
            addresses = [f"({pointer} + {cl.lane(name, lane)})" for lane in range(self.width)]
        loads = [cl.load_pointer(address, dtype) for address in addresses]
        compute = compute_dtype(dtype)
        if dtype == torch.bool:
            loads = [f"-{load}" for load in loads]
        if mask is not None:
            zero = cl.literal(0, compute)
            loads = [f"({cl.lane(mask, lane)} ? {load} : {zero})" for lane, load in enumerate(loads)]
        return f"({cl.type_name(compute, self.width)})({', '.join(loads)})"

    def store(self, store: Store) -> None:
        """Prints a store."""
        pointer = self.buffers[store.buffer]
        dtype = self._memory_dtype(store.buffer)
        compute = compute_dtype(dtype)
        text, vector_index = self.index(store.index)
        vector = self.width > 1 and (vector_index or store.value.name in self.vectors)
        value = self.operand(store.value, compute, vector)
        if store.atomic_add:
            self._atomic(pointer, dtype, text, vector_index, value, vector)
            return
        if not vector:
            self.write(cl.store(self.prelude, pointer, dtype, text, value, 1))
            return
        assert self.lane_symbol is not None
        step = self._stride(store.index, self.lane_symbol)
        if step == 1:
            far = self.far.get(store.buffer)
            self.write(cl.store(self.prelude, pointer, dtype, self._base(store.index), value, self.width, far))
            return
        self.counter += 1
        name, place = f"w{self.counter}", f"a{self.counter}"
        self.write(f"const {cl.type_name(compute, self.width)} {name} = {value};")
        addresses = self._lane_addresses(place, text, vector_index)
        for lane, address in enumerate(addresses):
            element = cl.lane(name, lane)
            if dtype == torch.bool:
                element = f"({element} & 1)"
            self.write(cl.store(self.prelude, pointer, dtype, address, element, 1))

    def _lane_addresses(self, name: str, text: str, vector: bool) -> list[str]:
        if not vector:
            self.write(f"const long {name} = {text};")
            return [name] * self.width
        self.write(f"const long{self.width} {name} = {text};")
        return [cl.lane(name, lane) for lane in range(self.width)]

    def _atomic(
        self, pointer: str, dtype: torch.dtype, text: str, vector_index: bool, value: str, vector: bool
    ) -> None:
        function, source = cl.atomic_add_helper(dtype)
        if dtype == torch.bfloat16:
            self.prelude.use("bf16", torch.float32, 1)
        self.atomics[function] = source
        if not vector:
            self.write(f"{function}({pointer} + ({text}), {value});")
            return
        self.counter += 1
        name, place = f"w{self.counter}", f"a{self.counter}"
        self.write(f"const {cl.type_name(compute_dtype(dtype), self.width)} {name} = {value};")
        for lane, address in enumerate(self._lane_addresses(place, text, vector_index)):
            element = cl.lane(name, lane)
            if dtype == torch.bool:
                element = f"({element} & 1)"
            self.write(f"{function}({pointer} + {address}, {element});")

    def _declare_far(self, stores: list[Store], points: sympy.Expr) -> None:
        """Decides for each buffer that ``stores`` fill with ``points`` contiguous elements from here on, in whole
        vectors, whether these go past the caches."""
        self.far.clear()
        touched = [s.buffer for s in self.kernel.statements() if isinstance(s, Store) or s.op == "load"]
        for store in stores:
            itemsize = self._memory_dtype(store.buffer).itemsize
            times = floordiv(points * itemsize, sympy.Integer(FAR))
            if points.is_Integer and int(points) * itemsize < FAR:
                continue
            if touched.count(store.buffer) > 1 or self.kernel.indirect.keys() & store.index.free_symbols:
                continue
            if self.lane_symbol is None or self._stride(store.index, self.lane_symbol) != 1 or store.atomic_add:
                continue
            pointer = self.buffers[store.buffer]
            is_large = "1" if points.is_Integer else f"{self.size(times)} > 0"
            address = f"(ulong)({pointer} + ({self._base(store.index)}))"
            self.write(f"const int {pointer}_far = {is_large} && {address} % {itemsize * cl.WIDTH} == 0;")
            self.far[store.buffer] = f"{pointer}_far"

    # ---- structure ----

    def body(self, statements: list[Value | Store]) -> None:
        for statement in statements:
            if isinstance(statement, Store):
                self.store(statement)
            elif statement.op != "reduce" and statement.name not in self.hoisted:
                self.value(statement)

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

    def _lane_vector(self) -> None:
        lanes = ", ".join(str(lane) for lane in range(self.width))
        self.write(f"const long{self.width} {self.lane_symbol}v = {self.lane_symbol} + (long{self.width})({lanes});")

    def _reduction(self, region: Region) -> None:
        """A loop over the reduction root, then what depends on its results."""
        self._reduce(region)
        self.body(list(region.after))

    def _reduce(self, region: Region) -> None:
        """A loop over the reduction root, or over this work-item's piece of it."""
        assert self.r is not None
        reduces = reduces_of(region)
        if self.lane_symbol == self.r.inner:
            self._row_reduction(region, reduces)
        else:
            self._scalar_reduction(region, reduces)

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

    def _is_arg(self, value: Value) -> bool:
        return value.kind in ("argmax", "argmin")

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

    def _linear(self, split: _Split) -> str:
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

    def _scalar_reduction(self, region: Region, reduces: list[Value]) -> None:
        """One reduction index at a time, all lanes along the other root."""
        assert self.r is not None
        for value in reduces:
            self._declare(value, f"{value.name}_a", self.width)
        with self._rows(self.r):
            with self._blocks(self.r):
                inner = [v for v in reduces if self._flushed(v)]
                for value in inner:
                    self._declare(value, f"{value.name}_b", self.width)
                i = self.r.inner
                with self.block(f"for (long {i} = {i}_from; {i} < {i}_to; ++{i})"):
                    self.body(region.body)
                    for value in reduces:
                        self._accumulate(value, f"{value.name}_{'b' if value in inner else 'a'}")
                for value in inner:
                    self.write(f"{value.name}_a += {value.name}_b;")
        for value in reduces:
            if self.width > 1:
                self.vectors.add(value.name)
            else:
                self.vectors.discard(value.name)
            self._result(value, f"{value.name}_a", self.width)

    def _unrolls_columns(self) -> bool:
        """Whether the kernel is one loop of reductions along columns, and what follows from its results."""
        if self.r is None or self.lane_symbol != self.x.inner:
            return False
        return self._reduces_once() and len(self.kernel.regions[0].body) <= UNROLL_LIMIT

    @contextmanager
    def _each_vector(self, split: _Split, distance: str = str(cl.WIDTH)) -> Iterator[None]:
        """A loop over the vectors of one unrolled step, which begins at ``<inner>_base``."""
        i = split.inner
        self.write("#pragma unroll")
        with self.block(f"for (int u = 0; u < {UNROLL}; ++u)"):
            self.write(f"const long {i} = {i}_base + u * {distance};")
            self._lane_vector()
            yield

    def _unrolled_columns(self) -> None:
        assert self.r is not None
        region, *rest = self.kernel.regions
        reduces = reduces_of(region)
        self.write(f"const long {self.x.inner}_base = {self.x.inner};")
        self._declare_arrays(reduces, "a")
        with self._rows(self.r):
            with self._blocks(self.r):
                inner = [v for v in reduces if self._flushed(v)]
                self._declare_arrays(inner, "b")
                i = self.r.inner
                with self.block(f"for (long {i} = {i}_from; {i} < {i}_to; ++{i})"):
                    with self._each_vector(self.x):
                        self.body(region.body)
                        for value in reduces:
                            self._accumulate(value, f"{value.name}_{'b' if value in inner else 'a'}[u]")
                for value in inner:
                    self.write(f"for (int u = 0; u < {UNROLL}; ++u) {value.name}_a[u] += {value.name}_b[u];")
        with self._each_vector(self.x):
            for value in reduces:
                self.vectors.add(value.name)
                self._result(value, f"{value.name}_a[u]", self.width)
            self.body(list(region.after))
            for following in rest:
                self.body([*following.body, *following.after])

    def _declare_arrays(self, reduces: list[Value], suffix: str) -> None:
        """Accumulators of an unrolled step, with their neutral elements."""
        for value in reduces:
            start = cl.broadcast(cl.identity_of(value.kind, value.dtype), value.dtype, self.width)
            starts = ", ".join([start] * UNROLL)
            self.write(f"{cl.type_name(value.dtype, self.width)} {value.name}_{suffix}[{UNROLL}] = {{{starts}}};")

    def _unrolled_row(self, region: Region, reduces: list[Value], flushed: list[Value]) -> None:
        """Steps of several vectors along a row, each with its own accumulator. They lie side by side or, where a
        reduction is in pieces, far apart, because processors fetch ahead in several places at once."""
        assert self.r is not None
        i, step = self.r.inner, UNROLL * cl.WIDTH
        distance, header = str(cl.WIDTH), f"for (; {i} + {step} <= {i}_to; {i} += {step})"
        if self.in_pieces:
            distance = "distance"
            self.write(f"const long distance = ({i}_to - {i}) / {step} * {cl.WIDTH}, part_to = {i} + distance;")
            header = f"for (; {i} < part_to; {i} += {cl.WIDTH})"
        self.width = cl.WIDTH
        saved = set(self.vectors)
        self._declare_arrays(reduces, "u")
        with self.block(header):
            self.write(f"const long {i}_base = {i};")
            self._unrolled_step(region, reduces, distance)
        if self.in_pieces:
            self.write(f"{i} += {UNROLL - 1} * distance;")
        for value in reduces:
            total = f"{value.name}_{'b' if value in flushed else 'a'}"
            for number in range(UNROLL):
                self.write(f"{total} = {self._combine(value, total, f'{value.name}_u[{number}]', self.width)};")
        self.width = 1
        self.vectors = saved

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
        return cl.operator_together(self.prelude, value.op, value.dtype, cl.WIDTH)

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

    def _result(self, value: Value, text: str, width: int) -> None:
        self.write(f"const {cl.type_name(value.dtype, width)} {value.name} = {text};")

    @contextmanager
    def _rows(self, split: _Split) -> Iterator[None]:
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
    def _blocks(self, split: _Split, block: int = BLOCK) -> Iterator[None]:
        i = split.inner
        start, end = self._bounds(split)
        with self.block(f"for (long {i}_from = {start}; {i}_from < {end}; {i}_from += {block})"):
            self.write(f"const long {i}_to = min({i}_from + {block}, {end});")
            yield

    def _bounds(self, split: _Split) -> tuple[str, str]:
        """The range of the inner index of the reduction, in this row of this piece."""
        length = self.size(split.length)
        if not self.in_pieces:
            return "0", length
        if split.rows is None:
            return "first", "last"
        row = f"{split.outer} * {length}"
        return f"max(first - {row}, 0L)", f"min(last - {row}, {length})"

    def _row_reduction(self, region: Region, reduces: list[Value]) -> None:
        """Lanes along the reduction: vector accumulators, then one lane at a time for the rest, then both as one."""
        assert self.r is not None
        i, wide = self.r.inner, cl.WIDTH
        for value in reduces:
            self._declare(value, f"{value.name}_a", wide)
            self._declare(value, f"{value.name}_s", 1)
            if self._counts_nan(value):
                bits = cl.bits_dtype(value.dtype)
                start = cl.broadcast(cl.literal(0, bits), bits, wide)
                self.write(f"{cl.type_name(bits, wide)} {value.name}_n = {start};")
        flushed = [v for v in reduces if self._flushed(v)]
        with self._rows(self.r):
            with self._blocks(self.r, BLOCK * wide):
                for value in flushed:
                    self._declare(value, f"{value.name}_b", wide)
                self.write(f"long {i} = {i}_from;")
                stores = [s for s in region.body if isinstance(s, Store)]
                self._declare_far(stores, self.x.root.numel * self.r.root.numel)
                short = self.r.length.is_Integer and self.r.length < 2 * UNROLL * wide
                if not short and len(region.body) <= UNROLL_LIMIT:
                    self._unrolled_row(region, reduces, flushed)
                with self.block(f"for (; {i} + {wide} <= {i}_to; {i} += {wide})"):
                    self.width = wide
                    saved = set(self.vectors)
                    self._lane_vector()
                    self.body(region.body)
                    for value in reduces:
                        self._accumulate(value, f"{value.name}_{'b' if value in flushed else 'a'}")
                    self.width = 1
                    self.vectors = saved
                for value in flushed:
                    self.write(f"{value.name}_a += {value.name}_b;")
                with self.block(f"for (; {i} < {i}_to; ++{i})"):
                    self.body(region.body)
                    for value in reduces:
                        self._accumulate(value, f"{value.name}_s")
        for value in reduces:
            self._combine_lanes(value)

    def _combine_lanes(self, value: Value) -> None:
        """Folds a vector accumulator and a scalar one into the value."""
        name, width = f"{value.name}_a", cl.WIDTH
        while width > 1:
            half = width // 2
            halves = f"{name}.lo", f"{name}.hi"
            self.counter += 1
            folded = f"f{self.counter}"
            self.write(f"const {cl.type_name(value.dtype, half)} {folded} = {self._combine(value, *halves, half)};")
            name, width = folded, half
        if self._counts_nan(value):
            name = cl.with_nan(self.prelude, name, f"{value.name}_n", value.dtype, cl.WIDTH)
        if value.dtype == torch.bool:
            name = f"({name} & 1)"
        self.vectors.discard(value.name)
        self._result(value, cl.combine(self.prelude, value.kind, name, f"{value.name}_s", value.dtype, 1), 1)

    def emit(self) -> EmittedKernel:
        """The whole kernel."""
        grid, local, extra = self._structure()
        bodies = {self.entry: self._take_lines()}
        combination = None
        if self.in_pieces:
            combination = self._combination(extra[1])
            bodies[_combining_entry(self.entry)] = self._take_lines()
        signature = self._signature(extra)
        attributes = f"__attribute__((reqd_work_group_size({', '.join(map(str, local))}))){self._attribute()}"
        definitions = [
            f"__kernel {attributes} void {name}({signature}) {{\n{body}\n}}" for name, body in bodies.items()
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

    def _attribute(self) -> str:
        """What the kernels say of themselves besides the size of their work-groups."""
        return ""

    def _take_lines(self) -> str:
        """What was written since the last call."""
        text = "\n".join(self.lines)
        self.lines.clear()
        return text

    def _signature(self, extra: list[sympy.Expr]) -> str:
        parameters = []
        for name, inner in self.buffers.items():
            constness = "" if name in self.kernel.written else "const "
            parameters.append(f"__global {constness}{cl.memory_type(self.kernel.buffers[name])}* {inner}")
        parameters += [f"long extra{number}" for number in range(len(extra))]
        parameters += [f"long {name}" for name in self.longs.values()]
        parameters += [
            f"{'double' if symbol in self.doubles else 'float'} {name}" for symbol, name in self.floats.items()
        ]
        if self.kernel.assertions():
            parameters.append("__global int* failed")
        if self.in_pieces:
            parameters.append("__global long* partial")
        return ", ".join(parameters)

    def _structure(self) -> tuple[tuple[sympy.Expr, sympy.Expr], tuple[int, int, int], list[sympy.Expr]]:
        """Prints the outer loops; returns (grid, local size, extra arguments)."""
        if self.in_pieces:
            return self._pieces()
        if self.r is not None and self.lane_symbol != self.x.inner:
            return self._points()
        return self._chunks()

    def _points(self) -> tuple[tuple[sympy.Expr, sympy.Expr], tuple[int, int, int], list[sympy.Expr]]:
        """A work-item takes some points of the non-reduction root, one after another."""
        assert self.r is not None
        per_item = maximum(sympy.S.One, floordiv(sympy.Integer(ELEMENTS_PER_ITEM), self.r.root.numel))
        numel = self.size(self.x.root.numel)
        self.write("const long from = (long)get_global_id(0) * extra0;")
        self.write(f"const long to = min(from + extra0, {numel});")
        extra = [per_item]
        stages = self._stages()
        if len(stages) > 1 and self.lane_symbol == self.r.inner:
            ahead = "extra2" in self.streams.values()
            # Where the first loop waits for memory, more rows would be too much at once and then nothing for too long.
            elements = SIDE_BY_SIDE_ELEMENTS if ahead else SIDE_BY_SIDE_ELEMENTS // 2
            few = floordiv(sympy.Integer(elements), self.r.root.numel)
            rows = maximum(sympy.S.One, minimum(sympy.Integer(SIDE_BY_SIDE), few))
            extra.append(rows)
            if ahead:
                extra.append(minimum(rows * self.r.root.numel, sympy.Integer(2 * SIDE_BY_SIDE_ELEMENTS)))
            self._side_by_side(stages)
        else:
            with self.block("for (long x = from; x < to; ++x)"):
                self._place()
                self.point()
        return (ceildiv(self.x.root.numel, per_item), sympy.S.One), (1, 1, 1), extra

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
        needed = self._operands(_statements(stage))
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
            later = self._operands(_statements([region for other in stages[number + 1 :] for region in other]))
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

    def _place(self) -> None:
        """The indices of point ``x`` of the non-reduction root."""
        if self.x.rows is None:
            self.write(f"const long {self.x.inner} = x;")
            return
        length = self.size(self.x.length)
        self.write(f"const long {self.x.outer} = x / {length};")
        self.write(f"const long {self.x.inner} = x - {self.x.outer} * {length};")

    def _pieces(self) -> tuple[tuple[sympy.Expr, sympy.Expr], tuple[int, int, int], list[sympy.Expr]]:
        """A work-item takes one piece of one reduction, and what follows from its result if there is no other piece."""
        assert self.r is not None
        region = self.kernel.regions[0]
        results, terms = self.x.root.numel, self.r.root.numel
        most = sympy.Integer(-(-PIECES * self.target.compute_units // int(results)))
        pieces = maximum(sympy.S.One, minimum(most, floordiv(terms * results, self._long()) * PIECES))
        length = ceildiv(ceildiv(terms, pieces), PIECE_ALIGNMENT) * PIECE_ALIGNMENT
        self.write("const long x = get_global_id(1);")
        self.write("const long first = (long)get_global_id(0) * extra0;")
        self.write(f"const long last = min(first + extra0, {self.size(terms)});")
        self._place()
        self._reduce(region)
        with self.block("if (extra1 > 1)"):
            self._leave_partial_results("get_global_id(0)")
            self.write("return;")
        self._conclude()
        return (pieces, results), (1, 1, 1), [length, pieces]

    def _leave_partial_results(self, piece: str) -> None:
        """Writes the results of a piece where ``_combination`` finds them."""
        reduces = reduces_of(self.kernel.regions[0])
        self.write(f"__global long* slots = partial + (x * extra1 + (long){piece}) * {len(reduces)};")
        for slot, value in enumerate(reduces):
            self.write(f"*(__global {cl.type_name(value.dtype)}*)(slots + {slot}) = {value.name};")

    def _conclude(self) -> None:
        """What follows from the results of a reduction in pieces."""
        region, *rest = self.kernel.regions
        self.body(list(region.after))
        for following in rest:
            self.body([*following.body, *following.after])

    def _combination(self, pieces: sympy.Expr) -> Combination:
        """Prints the kernel that combines partial results, in order so that each run gives the same."""
        reduces = reduces_of(self.kernel.regions[0])
        self.write("const long x = get_global_id(1);")
        self._place()
        self.write(f"const __global long* slots = partial + x * extra1 * {len(reduces)};")
        for value in reduces:
            self._declare(value, f"{value.name}_a", 1)
        with self.block(f"for (long piece = 0; piece < extra1; ++piece, slots += {len(reduces)})"):
            for slot, value in enumerate(reduces):
                term = f"*(const __global {cl.type_name(value.dtype)}*)(slots + {slot})"
                total = f"{value.name}_a"
                self.write(f"{total} = {cl.combine(self.prelude, value.kind, total, term, value.dtype, 1)};")
        for value in reduces:
            self._result(value, f"{value.name}_a", 1)
        self._conclude()
        results = self.x.root.numel
        return Combination((minimum(sympy.S.One, pieces - 1), results), SLOT * len(reduces) * results * pieces)

    def _chunks(self) -> tuple[tuple[sympy.Expr, sympy.Expr], tuple[int, int, int], list[sympy.Expr]]:
        """A work-item takes a block of rows and, of each, a contiguous chunk."""
        i = self.x.inner
        cost = sympy.S.One if self.r is None else self.r.root.numel
        chunk = sympy.Integer(ELEMENTS_PER_ITEM)
        if self.r is not None:
            chunk = maximum(sympy.Integer(64), floordiv(floordiv(4 * chunk, cost), 64) * 64)
        length = self.size(self.x.length)
        self.write(f"const long {i}_from = (long)get_global_id(0) * extra0;")
        self.write(f"const long {i}_to = min({i}_from + extra0, {length});")
        extra = [chunk]
        rows: sympy.Expr = sympy.S.One
        if self.x.rows is None:
            self._chunk()
        else:
            row = self.x.length * cost if self.r is not None else self.x.length
            per_item = maximum(sympy.S.One, floordiv(chunk, row))
            extra.append(per_item)
            rows = ceildiv(self.x.rows, per_item)
            o = self.x.outer
            if self._crosses_rows():
                return self._tiles(extra)
            self.write(f"const long {o}_to = min(((long)get_global_id(1) + 1) * extra1, {self.size(self.x.rows)});")
            with self.block(f"for (long {o} = (long)get_global_id(1) * extra1; {o} < {o}_to; ++{o})"):
                self._chunk()
        return (ceildiv(self.x.length, chunk), rows), (1, 1, 1), extra

    def _crosses_rows(self) -> bool:
        """Whether some operand of a pointwise kernel is contiguous neither along a row nor constant along it."""
        if self.r is not None or self.lane_symbol is None:
            return False
        steps = [self._stride(s.index, self.x.inner) for s in self._values() if s.op == "load"]
        return any(step is not None and step not in (0, 1) for step in steps)

    def _tiles(
        self, extra: list[sympy.Expr]
    ) -> tuple[tuple[sympy.Expr, sympy.Expr], tuple[int, int, int], list[sympy.Expr]]:
        """A work-item takes a block of rows and goes through it in tiles of ``TILE`` rows by one vector."""
        assert self.x.rows is not None
        i, o = self.x.inner, self.x.outer
        extra[1] = maximum(sympy.Integer(TILE), floordiv(extra[1], TILE) * TILE)
        self.write(f"const long {o}_end = min(((long)get_global_id(1) + 1) * extra1, {self.size(self.x.rows)});")
        start = f"long {o}_from = (long)get_global_id(1) * extra1"
        with self.block(f"for ({start}; {o}_from < {o}_end; {o}_from += {TILE})"):
            self.write(f"const long {o}_to = min({o}_from + {TILE}, {o}_end);")
            self.write(f"long {i} = {i}_from;")
            with self.block(f"for (; {i} + {cl.WIDTH} <= {i}_to; {i} += {cl.WIDTH})"):
                crossing = self._crossing_loads()
                if crossing:
                    with self.block(f"if ({o}_to - {o}_from == {TILE})"):
                        self._load_tiles(crossing)
                        self._tile_rows()
                        self.write("continue;")
                self.tiles.clear()
                self._tile_rows()
            with self.block(f"for (; {i} < {i}_to; ++{i})"):
                with self.block(f"for (long {o} = {o}_from; {o} < {o}_to; ++{o})"):
                    self.point()
        return (ceildiv(self.x.length, extra[0]), ceildiv(self.x.rows, extra[1])), (1, 1, 1), extra

    def _tile_rows(self) -> None:
        """One vector of each row of a tile."""
        o = self.x.outer
        with self.block(f"for (long {o} = {o}_from; {o} < {o}_to; ++{o})"):
            self.width = cl.WIDTH
            self.point()
            self.width = 1
            self.vectors.clear()

    def _crossing_loads(self) -> list[Value]:
        """Loads that are contiguous across the rows."""
        return [
            value
            for value in self._values()
            if value.op == "load"
            and value.mask is None
            and self._stride(value.index, self.x.outer) == 1
            and self._stride(value.index, self.x.inner) not in (None, 0, 1)
        ]

    def _load_tiles(self, loads: list[Value]) -> None:
        """Copies the operands' tiles, along their own contiguous direction, to private memory."""
        i, o, width = self.x.inner, self.x.outer, cl.WIDTH
        self.write(f"const long {i}_base = {i};")
        for value in loads:
            name = f"{value.name}_tile"
            vector = cl.type_name(value.dtype, width)
            self.write(f"{vector} {name}_rows[{TILE}];")
            self.write(f"const {cl.type_name(value.dtype)}* {name} = (const {cl.type_name(value.dtype)}*){name}_rows;")
            with self.block(f"for (int k = 0; k < {width}; ++k)"):
                self.write(f"const long {i} = {i}_base + k, {o} = {o}_from;")
                dtype = self._memory_dtype(value.buffer)
                text = cl.load(self.prelude, self.buffers[value.buffer], dtype, self._base(value.index), width)
                self.write(f"{name}_rows[k] = {text};")
            self.tiles[value.name] = name

    def _from_tile(self, value: Value) -> str:
        """This row's vector of a tile."""
        row = f"{self.x.outer} - {self.x.outer}_from"
        lanes = ", ".join(f"{self.tiles[value.name]}[{k * TILE} + {row}]" for k in range(self.width))
        return f"({cl.type_name(value.dtype, self.width)})({lanes})"

    def _chunk(self) -> None:
        """Lanes along the non-reduction root, then what is left one by one."""
        i = self.x.inner
        if self.r is None:
            self._hoist()
        self.write(f"long {i} = {i}_from;")
        if self.r is None:
            self._declare_far([s for s in self.kernel.statements() if isinstance(s, Store)], self.x.root.numel)
        ahead = self._declare_ahead()
        if self._unrolls_columns():
            step = UNROLL * cl.WIDTH
            with self.block(f"for (; {i} + {step} <= {i}_to; {i} += {step})"):
                self.width = cl.WIDTH
                self._unrolled_columns()
                self.width = 1
                self.vectors.clear()
        if self.lane_symbol is not None:
            with self.block(f"for (; {i} + {cl.WIDTH} <= {i}_to; {i} += {cl.WIDTH})"):
                for pointer in ahead:
                    self.write(f"{self.prelude.use('fetch', torch.uint64, 1)}((ulong)({pointer} + ({i} - {i}_from)));")
                self.width = cl.WIDTH
                self.point()
                self.width = 1
                self.vectors.clear()
        with self.block(f"for (; {i} < {i}_to; ++{i})"):
            self.point()

    def _declare_ahead(self) -> list[str]:
        """Finds where the chunk of a row that comes soon begins in operands whose rows are looked up, which no
        processor can guess; returns pointers to these places."""
        if self.r is not None or self.x.rows is None or self.lane_symbol is None:
            return []
        moved = self.x.outer
        loads = [v for v in self._values() if v.op == "load" and v.mask is None and self._looks_up_row(v)]
        for load in loads:
            kind = cl.memory_type(self._memory_dtype(load.buffer))
            self.write(f"const __global {kind}* {load.name}_ahead;")
            with self.block(""):
                last = f"{self.size(self.x.rows)} - 1"
                self.write(f"const long next = min({moved} + {ROWS_AHEAD}, {last}), {moved} = next;")
                needed = self._needed_for(load.index)
                for value in self._values():
                    if value.name in needed:
                        self.value(value)
                self.write(f"{load.name}_ahead = {self.buffers[load.buffer]} + ({self._base(load.index)});")
        return [f"{load.name}_ahead" for load in loads]

    def _looks_up_row(self, load: Value) -> bool:
        """Whether elements come from a row whose number is looked up, and lie side by side there."""
        indirect = [self.kernel.indirect[s] for s in load.index.free_symbols if s in self.kernel.indirect]
        lookups = bool(indirect) and all(value.name in self.hoisted for value in indirect)
        return lookups and self._stride(load.index, self.x.inner) == 1

    def _needed_for(self, index: sympy.Expr) -> set[str]:
        """The names of the values that an index is computed from."""
        needed: set[str] = set()
        work = [self.kernel.indirect[s] for s in index.free_symbols if s in self.kernel.indirect]
        while work:
            value = work.pop()
            needed.add(value.name)
            work += [*value.args, *([value.mask] if value.mask else [])]
            work += [self.kernel.indirect[s] for s in value.index.free_symbols if s in self.kernel.indirect]
        return needed

    def _hoist(self) -> None:
        """Computes first what is the same all along the chunk. The compiler of the dialect cannot: for all it knows,
        the stores of the loop change what is loaded."""
        uniform: set[str] = set()
        for value in self._values():
            if self._is_uniform(value, uniform):
                uniform.add(value.name)
                self.value(value)
        self.hoisted = uniform

    def _is_uniform(self, value: Value, uniform: set[str]) -> bool:
        """Whether a value depends only on uniform ones and not on the place in the chunk. No chunk is empty, so a check
        may come first."""
        if value.op in ("assertion", "reduce") or (value.mask and value.mask.name not in uniform):
            return False
        if value.op == "load" and value.buffer in self.kernel.written:
            return False
        moving = {self.x.inner, *(s for s, v in self.kernel.indirect.items() if v.name not in uniform)}
        if value.op in ("load", "index_expr") and moving & self._expand(value.index).free_symbols:
            return False
        return all(argument.name in uniform for argument in value.args)


def _statements(regions: list[Region]) -> list[Value | Store]:
    """What some regions do, in order."""
    return [statement for region in regions for statement in (*region.body, *region.after)]


def reduces_of(region: Region) -> list[Value]:
    """The reductions of a region."""
    return [s for s in region.body if isinstance(s, Value) and s.op == "reduce"]


def promote(values: tuple[Value, ...]) -> torch.dtype:
    """The compute dtype of an operator's operands: constants give way to others unless they are of a higher kind."""
    strong = [v.dtype for v in values if v.op != "constant"]
    dtypes = strong or [v.dtype for v in values]
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = _promote_pair(result, dtype)
    for value in values:
        if value.op != "constant":
            continue
        higher_kind = value.dtype.is_floating_point and not result.is_floating_point
        if higher_kind or (result == torch.bool and value.dtype != torch.bool):
            result = value.dtype
    return result


def _promote_pair(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    unsigned = {torch.uint16: 2, torch.uint32: 4, torch.uint64: 8}
    if a == b:
        return a
    if (a in unsigned or b in unsigned) and not (a.is_floating_point or b.is_floating_point):
        # PyTorch refuses to promote these; inside a kernel the wider one, signed on a tie, holds every index.
        return torch.int64 if max(a.itemsize, b.itemsize) == 8 else max((a, b), key=lambda d: d.itemsize)
    return torch.promote_types(a, b)


def emit(kernel: LoopKernel, target: Target, entry: str = "kernel0") -> EmittedKernel:
    """Prints a kernel for a device. Raises ``Unsupported`` for what the dialect cannot express."""
    if not target.is_cpu:
        from .simt import SimtPrinter  # which is made of this module's printer

        return SimtPrinter(kernel, target, entry).emit()
    keep_terms(kernel)
    return Printer(kernel, target, entry).emit()


def clean_name(text: str) -> str:
    """A C identifier like ``text``."""
    return re.sub(r"\W+", "_", text)[:60]
