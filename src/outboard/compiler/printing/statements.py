# SPDX-License-Identifier: Apache-2.0
"""Prints the statements of a kernel, for one point or a vector of points: loads, operators, stores."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import sympy
import torch

from ..dialects import Unsupported, c
from ..loops.accesses import Accesses
from ..loops.nest import Store, Value, compute_dtype
from ..target import Target
from .emitted import failing

#: Bytes that memory delivers together on usual processors.
LINE = 64
#: Functions that are there for integers alone.
_OF_INTEGERS = frozenset({"FloorDiv", "CleanDiv", "CeilDiv", "Mod", "PythonMod"})
#: Functions of floats, by what they are called in every dialect.
_OF_FLOATS = {"OpaqueUnaryFn_sqrt": "sqrt", "TruncToInt": "trunc", "FloorToInt": "floor", "CeilToInt": "ceil"}


class StatementPrinter:
    """The text of a kernel so far, and what its values are called and whether they have lanes."""

    #: The inner index along which vectors lie, where they lie along one.
    lane: sympy.Symbol | None = None

    def __init__(self, accesses: Accesses, target: Target) -> None:
        self.accesses = accesses
        self.kernel = kernel = accesses.kernel
        self.x, self.r = accesses.x, accesses.r
        self.target = target
        self.prelude = c.Prelude()
        self.atomics: dict[str, str] = {}
        self.lines: list[str] = []
        self.indent = 1
        self.buffers = {name: f"p{number}" for number, name in enumerate(kernel.buffers)}
        #: What only sizes decide is an argument, named in order of use: the text does not tell sizes apart, and kernels
        #: that differ in nothing else are one program.
        self.longs: dict[sympy.Expr, str] = {}
        self.floats: dict[sympy.Symbol, str] = {}
        self.doubles: set[sympy.Symbol] = set()
        # What changes while the body is printed: the width, and what each value is called and whether it has lanes.
        self.width = 1
        self.vectors: set[str] = set()
        self.tiles: dict[str, tuple[str, int]] = {}  #: value -> private array that holds its tile, and the tile's rows
        self.renamed: dict[sympy.Symbol, str] = {}  #: indices that go by another name
        self.hoisted: set[str] = set()  #: values computed before the innermost loop
        self.streams: dict[str, str] = {}  #: loads that run ahead, and by how many elements
        self.far: dict[str, str] = {}  #: buffer -> variable that tells whether its vectors go past the caches
        self.counter = 0

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

    def _index_printer(self, scalar: bool = False) -> c.IndexPrinter:
        names: dict[sympy.Symbol, str] = {}
        vectors: set[sympy.Symbol] = set()
        for split in (self.x, self.r):
            if split is not None:
                names[split.inner] = split.inner.name
                names[split.outer] = split.outer.name
        names.update(self.renamed)
        if self.width > 1 and not scalar and self.lane is not None:
            names[self.lane] = f"{self.lane}v"
            vectors.add(self.lane)
        for symbol, value in self.kernel.indirect.items():
            if value.name in self.vectors:
                names[symbol] = f"convert_long{self.width}({value.name})"
                vectors.add(symbol)
            else:
                names[symbol] = f"((long){value.name})"
        return c.IndexPrinter(self.prelude, names, vectors, self.width, self._argument)

    def index(self, expr: sympy.Expr) -> tuple[str, bool]:
        """(text, whether it has lanes) of an index expression."""
        expanded = self.accesses.expand(expr)
        printer = self._index_printer()
        return printer(expanded), printer.is_vector(expanded)

    def operand(self, value: Value, dtype: torch.dtype, vector: bool) -> str:
        """A value converted to a compute dtype, with lanes if wanted."""
        is_vector = value.name in self.vectors
        if value.op == "constant":
            text = c.literal(value.constant, dtype)
            return c.broadcast(text, dtype, self.width) if vector and self.width > 1 else text
        width = self.width if is_vector else 1
        text = c.convert(value.name, value.dtype, dtype, width)
        if vector and not is_vector and self.width > 1:
            return c.broadcast(text, dtype, self.width)
        return text

    def define(self, value: Value, text: str, vector: bool) -> None:
        """Declares a value."""
        if vector and self.width > 1:
            self.vectors.add(value.name)
        else:
            self.vectors.discard(value.name)
        width = self.width if value.name in self.vectors else 1
        self.write(f"const {c.type_name(value.dtype, width)} {value.name} = {text};")

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
        if op == "narrowed":
            assert value.src_dtype is not None
            text = self.operand(value.args[0], value.dtype, vector)
            self.define(value, c.narrowed(self.prelude, text, value.src_dtype, width), vector)
            return
        if op == "to_dtype_bitcast":
            assert value.src_dtype is not None
            text = self.operand(value.args[0], compute_dtype(value.src_dtype), vector)
            self.define(value, c.bitcast(text, value.dtype, width), vector)
            return
        if op in ("bits_of_narrow", "narrow_of_bits"):
            assert value.src_dtype is not None
            text = self.operand(value.args[0], value.args[0].dtype, vector)
            convert = c.narrow_bits if op == "bits_of_narrow" else c.narrow_values
            self.define(value, convert(self.prelude, text, value.src_dtype, width), vector)
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
        self.define(value, c.operator(self.prelude, op, args, dtypes, value.dtype, width), vector)

    def _is_argument(self, value: Value) -> bool:
        """Whether a value is a number that the kernel was called with, whatever its type is in the end."""
        # On the CPU, powers of float16 are none of those that ATen takes otherwise.
        if value.op == "to_dtype" or (value.op == "narrowed" and value.src_dtype == torch.bfloat16):
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
            text = c.convert(text, source, value.dtype, self.width if vector else 1)
        else:
            text = c.convert(f"({text})", torch.int64, value.dtype, self.width if vector else 1)
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
            # Rounded once, to what the value is, as a constant is.
            if dtype == torch.float64 or self.target.has_fp64 and (expr != symbol or not dtype.is_floating_point):
                self.doubles.add(symbol)
        text = self._float_text(expr)
        return f"(({c.type_name(dtype)})({text}))" if dtype != torch.bool else f"(({text}) != 0)"

    def _float_text(self, expr: sympy.Expr) -> str:
        kind, exact = type(expr).__name__, torch.float64 if self.target.has_fp64 else torch.float32
        real = c.type_name(exact)
        if isinstance(expr, sympy.Symbol):
            return self.floats[expr] if expr in self.floats else f"(({real}){self.size(expr)})"
        if expr.is_number:
            return c.literal(float(expr), exact)
        if kind in _OF_INTEGERS and not self._is_float(expr):
            return f"(({real}){self.size(expr)})"
        args = [self._float_text(a) for a in expr.args]
        if kind in ("Add", "FloatAdd"):
            return "(" + " + ".join(args) + ")"
        if kind in ("Mul", "FloatMul"):
            return "(" + " * ".join(args) + ")"
        if kind in ("FloatTrueDiv", "IntTrueDiv"):
            return f"({args[0]} / {args[1]})"
        if kind in ("Pow", "FloatPow", "PowByNatural"):
            return f"pow(({real}){args[0]}, ({real}){args[1]})"
        if kind in ("ToFloat", "Identity"):
            return args[0]
        if kind in _OF_FLOATS:
            return f"{_OF_FLOATS[kind]}(({real}){args[0]})"
        if kind in ("Max", "Min"):
            function = f"f{kind.lower()}"
            return functools.reduce(lambda a, b: f"{function}(({real}){a}, ({real}){b})", args)
        raise Unsupported(f"float expression {kind}")

    def _checked_index(self, value: Value) -> None:
        (source,) = value.args
        vector = source.name in self.vectors or (value.mask is not None and value.mask.name in self.vectors)
        index = self.operand(source, torch.int64, vector)
        size = self.size(value.size)
        width = self.width if vector else 1
        self.counter += 1
        raw, bad = f"i{self.counter}", f"e{self.counter}"
        long = c.type_name(torch.int64, width)
        self.write(f"const {long} {raw} = {index};")
        outside = f"(({raw} < 0L) | ({raw} >= {size}))"
        if value.mask is not None:
            mask = self.operand(value.mask, torch.bool, vector)
            wide = f"convert_long{width}({mask})"
            outside = f"({outside} & {c.convert(mask, torch.bool, torch.bool, width) if width == 1 else wide})"
        self.write(f"const {long} {bad} = {outside};")
        self.write(f"if ({self._any(bad, torch.int64, width)}) {failing(value.message)}")
        limit = f"max({size} - 1L, 0L)"
        text = f"clamp({raw}, ({long})(0), ({long})({limit}))"
        self.define(value, c.convert(text, torch.int64, value.dtype, width), vector)

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
        self.write(f"if ({self._any(failed, torch.bool, width)}) {failing(value.message)}")
        self.vectors.discard(value.name)

    def _load(self, value: Value) -> None:
        pointer = self.buffers[value.buffer]
        dtype = self.kernel.buffers[value.buffer]
        c.memory_type(dtype)
        text, vector = self.index(value.index)
        mask = None
        if value.mask is not None:
            vector_mask = value.mask.name in self.vectors
            vector = vector or (vector_mask and self.width > 1)
            mask = self.operand(value.mask, torch.bool, vector)
        if not vector or self.width == 1:
            loaded = c.load(self.prelude, pointer, dtype, text, 1)
            if mask is not None:
                loaded = f"({mask} ? {loaded} : {c.literal(0, value.dtype)})"
            self.define(value, loaded, False)
            return
        self._vector_load(value, pointer, dtype, mask)

    def _vector_load(self, value: Value, pointer: str, dtype: torch.dtype, mask: str | None) -> None:
        assert self.lane is not None
        if value.name in self.tiles:
            self.define(value, self._from_tile(value), True)
            return
        step = self.accesses.step(value.index, self.lane)
        contiguous = step == 1
        name = value.name
        kind = c.type_name(value.dtype, self.width)
        if contiguous and mask is None:
            if name in self.streams:
                for begin in range(0, self.width * dtype.itemsize, LINE):
                    later = f"{self.streams[name]} + {begin // dtype.itemsize}"
                    place = f"{pointer} + ({self._base(value.index)} + {later})"
                    self.write(f"{self.prelude.use('fetch', torch.uint64, 1)}((ulong)({place}));")
            self.define(value, c.load(self.prelude, pointer, dtype, self._base(value.index), self.width), True)
            return
        zero = c.broadcast(c.literal(0, value.dtype), value.dtype, self.width)
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
                self.write(f"{name} = {c.load(self.prelude, pointer, dtype, self._base(value.index), self.width)};")
            with self.block(f"else if ({any_held})"):
                self.write(f"{name} = {self._gather(pointer, dtype, value.index, step, held)};")
            return
        with self.block(f"if ({any_held})"):
            self.write(f"{name} = {self._gather(pointer, dtype, value.index, step, held)};")

    def _base(self, index: sympy.Expr) -> str:
        """The index of lane 0."""
        return self._index_printer(scalar=True)(self.accesses.expand(index))

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
            addresses = [f"({pointer} + {c.lane(name, lane)})" for lane in range(self.width)]
        loads = [c.load_pointer(self.prelude, address, dtype) for address in addresses]
        compute = compute_dtype(dtype)
        if dtype == torch.bool:
            loads = [f"-{load}" for load in loads]
        if mask is not None:
            zero = c.literal(0, compute)
            loads = [f"({c.lane(mask, lane)} ? {load} : {zero})" for lane, load in enumerate(loads)]
        return f"({c.type_name(compute, self.width)})({', '.join(loads)})"

    def store(self, store: Store) -> None:
        """Prints a store."""
        pointer = self.buffers[store.buffer]
        dtype = self.kernel.buffers[store.buffer]
        compute = compute_dtype(dtype)
        text, vector_index = self.index(store.index)
        vector = self.width > 1 and (vector_index or store.value.name in self.vectors)
        value = self.operand(store.value, compute, vector)
        if store.atomic_add:
            self._atomic(pointer, dtype, text, vector_index, value, vector)
            return
        if not vector:
            self.write(c.store(self.prelude, pointer, dtype, text, value, 1))
            return
        assert self.lane is not None
        step = self.accesses.step(store.index, self.lane)
        if step == 1:
            far = self.far.get(store.buffer)
            self.write(c.store(self.prelude, pointer, dtype, self._base(store.index), value, self.width, far))
            return
        self.counter += 1
        name, place = f"w{self.counter}", f"a{self.counter}"
        self.write(f"const {c.type_name(compute, self.width)} {name} = {value};")
        addresses = self._lane_addresses(place, text, vector_index)
        for lane, address in enumerate(addresses):
            element = c.lane(name, lane)
            if dtype == torch.bool:
                element = f"({element} & 1)"
            self.write(c.store(self.prelude, pointer, dtype, address, element, 1))

    def _lane_addresses(self, name: str, text: str, vector: bool) -> list[str]:
        if not vector:
            self.write(f"const long {name} = {text};")
            return [name] * self.width
        self.write(f"const long{self.width} {name} = {text};")
        return [c.lane(name, lane) for lane in range(self.width)]

    def _atomic(
        self, pointer: str, dtype: torch.dtype, text: str, vector_index: bool, value: str, vector: bool
    ) -> None:
        function, source = c.atomic_add_helper(dtype, self.target.has_int64_atomics)
        if dtype == torch.bfloat16:
            self.prelude.use("bf16", torch.float32, 1)
        self.atomics[function] = source
        if not vector:
            self.write(f"{function}({pointer} + ({text}), {value});")
            return
        self.counter += 1
        name, place = f"w{self.counter}", f"a{self.counter}"
        self.write(f"const {c.type_name(compute_dtype(dtype), self.width)} {name} = {value};")
        for lane, address in enumerate(self._lane_addresses(place, text, vector_index)):
            element = c.lane(name, lane)
            if dtype == torch.bool:
                element = f"({element} & 1)"
            self.write(f"{function}({pointer} + {address}, {element});")

    def _from_tile(self, value: Value) -> str:
        """This row's vector of a tile."""
        (array, rows), row = self.tiles[value.name], f"{self.x.outer} - {self.x.outer}_from"
        lanes = ", ".join(f"{array}[{k * rows} + {row}]" for k in range(self.width))
        return f"({c.type_name(value.dtype, self.width)})({lanes})"

    def body(self, statements: list[Value | Store]) -> None:
        for statement in statements:
            if isinstance(statement, Store):
                self.store(statement)
            elif statement.op != "reduce" and statement.name not in self.hoisted:
                self.value(statement)


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
