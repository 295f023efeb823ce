# SPDX-License-Identifier: Apache-2.0
"""Makes a :class:`~outboard.compiler.plans.plan.Plan` step by step; sizes are sympy expressions over run-time symbols.

A kernel author needs four methods::

    kernel = builder.kernel(source, "entry_point")              # OpenCL C text, deduplicated
    scratch = builder.allocate(4 * m * n)                       # -> buffer number; freed with builder.free(scratch)
    builder.launch(kernel, (m, n, 1), [                         # global size in work-items
        builder.pointer(a), builder.pointer(scratch), builder.int64(m), builder.int64(n)])
    common.float_value(builder, alpha)                          # argument from a float or a float symbol
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import sympy
import torch
from torch.utils._sympy.functions import Max

from .. import dialects
from ..target import Target
from ..units import COMPUTE_UNITS
from . import plan as p
from .dtypes import dtype_number, dtype_of
from .strided import is_dense, product

Size: TypeAlias = int | sympy.Expr


def _known(size: Size) -> int | None:
    """The value of a size that is known when a plan is made."""
    return int(size) if isinstance(size, int) or size.is_Integer else None


class NotExpressible(Exception):
    """A sympy expression that the Plan's integer expressions cannot hold."""


_LAYOUT_NUMBERS = {torch.strided: 0, torch.sparse_coo: 1}
_MEMORY_FORMAT_NUMBERS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


@dataclasses.dataclass(frozen=True)
class TensorArg:
    """A strided view of a plan's buffer; sizes, strides and offset (all in elements) are ints or sympy."""

    buffer: int
    dtype: torch.dtype
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def numel(self) -> Size:
        """Number of elements, an expression."""
        return product(self.sizes)

    def is_contiguous(self) -> bool:
        """Whether the strides are provably those of a dense row-major tensor."""
        return is_dense(self.sizes, self.strides)


#: What an argument of a library call can be. A float symbol is a sympy.Symbol that is a float input of the plan.
CallValue: TypeAlias = (
    TensorArg
    | bool
    | int
    | float
    | str
    | sympy.Basic
    | torch.dtype
    | torch.device
    | torch.layout
    | torch.memory_format
    | Sequence["CallValue"]
    | None
)


class PlanBuilder:
    """Collects the pieces of one plan for ``target``.

    Buffers are numbered: the inputs first, in order, then those made by :meth:`allocate`.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.inputs: list[p.InputKind] = []
        self.symbols: list[p.Symbol] = []
        self.guards: list[p.Expr] = []
        self.steps: list[p.Step] = []
        self.outputs: list[p.Output] = []
        #: Constant matrices (k, n) that an input holds once more, packed for products (``kernels.packing``).
        self.packed: dict[TensorArg, int] = {}
        #: The value of an expression for the sizes at hand, or None; what ``assume`` does with a condition that holds
        #: for them, and that the plan may be restricted to.
        self.hint: Callable[[Size], int | None] = _known
        self.assume: Callable[[sympy.Basic], None] = lambda condition: None
        #: The value of a run-time integer for the call at hand, to which a guard may then restrict the plan; None where
        #: that cannot be.
        self.number: Callable[[sympy.Expr], int | None] = lambda value: None
        self._programs: dict[tuple[str, str], int] = {}
        self._kernels: dict[tuple[int, str], int] = {}
        self._assertions: dict[p.Assertion, None] = {}
        self._layouts: dict[p.LayoutSpec, int] = {}
        self._symbol_numbers: dict[sympy.Symbol, int] = {}
        self._float_symbols: set[sympy.Symbol] = set()
        self._buffer_count = 0

    # ---- inputs and symbols ----

    def add_input(self, kind: p.InputKind) -> int:
        """Adds the next input; returns its number, which is also its buffer's. All inputs precede all buffers."""
        if self._buffer_count != len(self.inputs):
            raise ValueError("inputs must be added before buffers are allocated")
        self.inputs.append(kind)
        self._buffer_count += 1
        return len(self.inputs) - 1

    def define_symbol(
        self, symbol: sympy.Symbol, source: p.SymbolSource, input: int = 0, dim: int = 0, derived: Size | None = None
    ) -> int:
        """Binds a sympy symbol to where its run-time value comes from; returns the symbol's number.

        A symbol bound twice keeps its first meaning."""
        if symbol in self._symbol_numbers:
            return self._symbol_numbers[symbol]
        code = self.expr(derived) if derived is not None else []
        self.symbols.append(p.Symbol(source, input, dim, code))
        self._symbol_numbers[symbol] = len(self.symbols) - 1
        if source == p.SymbolSource.FLOAT:
            self._float_symbols.add(symbol)
        return len(self.symbols) - 1

    def is_float_symbol(self, value: object) -> bool:
        """Whether ``value`` is a symbol bound to a float input."""
        return isinstance(value, sympy.Symbol) and value in self._float_symbols

    def symbol_number(self, symbol: sympy.Symbol) -> int:
        """The number of a bound symbol. Raises NotExpressible for an unknown one."""
        if symbol == COMPUTE_UNITS:
            return self.define_symbol(symbol, p.SymbolSource.COMPUTE_UNITS)
        number = self._symbol_numbers.get(symbol)
        if number is None:
            raise NotExpressible(f"symbol {symbol} has no source")
        return number

    def expr(self, value: Size | bool | sympy.Basic) -> p.Expr:
        """An int or integer-valued sympy expression as postfix code. Raises NotExpressible."""
        code: p.Expr = []
        self._emit(sympy.sympify(value), code)
        return code

    def guard(self, condition: sympy.Basic) -> None:
        """Adds a condition under which alone the plan applies. Raises NotExpressible."""
        code = self.expr(condition)
        if code not in self.guards:
            self.guards.append(code)

    # ---- buffers ----

    def allocate(self, nbytes: Size) -> int:
        """Makes a buffer of ``nbytes`` bytes; returns its number."""
        buffer = self._buffer_count
        self._buffer_count += 1
        self.steps.append(p.Allocate(buffer, self.expr(nbytes)))
        return buffer

    def allocate_like(self, sizes: Sequence[Size], strides: Sequence[Size], dtype: torch.dtype) -> TensorArg:
        """Makes a buffer that holds a tensor of this geometry; returns the view."""
        span: Size = sympy.Integer(1)
        for size, stride in zip(sizes, strides, strict=True):
            span = span + (size - 1) * stride
        for size in sizes:
            if size == 0:
                span = sympy.Integer(0)
        if not all(sympy.sympify(size).is_positive for size in sizes):
            span = Max(span, sympy.Integer(0))  # type: ignore[no-untyped-call]  # a size may be 0 in some calls
        buffer = self.allocate(span * dtype.itemsize)
        return TensorArg(buffer, dtype, tuple(sizes), tuple(strides), 0)

    def free(self, buffer: int) -> None:
        """Gives an intermediate buffer back; it may be reused by later allocations. Inputs are left alone."""
        if buffer >= len(self.inputs):
            self.steps.append(p.Free(buffer))

    # ---- kernels ----

    @property
    def dialect(self) -> dialects.Dialect:
        """The language of the device's programs. Raises Unsupported if nobody knows it."""
        return dialects.find(self.target.dialect)

    def kernel(self, source: str, entry: str, options: str = "") -> int:
        """Registers a kernel of a program, to which the words of the device's dialect are added; the same source and
        options are built once. Returns its number. Raises Unsupported if the program needs double precision or
        64-bit atomics and the device has none, or if nobody knows its dialect."""
        if not self.target.has_fp64 and dialects.uses_doubles(source):
            raise dialects.Unsupported("the device has no double precision")
        if not self.target.has_int64_atomics and dialects.uses_long_atomics(source):
            raise dialects.Unsupported("the device has no atomic operations on 64 bits")
        text = self.dialect.program(source)
        program = self._programs.setdefault((text, options), len(self._programs))
        return self._kernels.setdefault((program, entry), len(self._kernels))

    def pointer(self, tensor: TensorArg | int, offset_bytes: Size | None = None) -> p.Argument:
        """A pointer argument: a tensor's element 0 (its offset applied), or a buffer's first byte.

        A tensor without elements may begin behind its memory, where pointers may not lead: it is its buffer's.
        """
        if isinstance(tensor, int):
            return p.Argument(p.ArgumentKind.POINTER, buffer=tensor, expr=self.expr(offset_bytes or 0))
        offset = tensor.offset * tensor.itemsize if offset_bytes is None else offset_bytes
        if any(size == 0 for size in tensor.sizes):
            offset = 0
        return p.Argument(p.ArgumentKind.POINTER, buffer=tensor.buffer, expr=self.expr(offset))

    def int64(self, value: Size) -> p.Argument:
        """A ``long`` argument."""
        return p.Argument(p.ArgumentKind.INT64, expr=self.expr(value))

    def int32(self, value: Size) -> p.Argument:
        """An ``int`` argument; the value is narrowed."""
        return p.Argument(p.ArgumentKind.INT32, expr=self.expr(value))

    def float_symbol(self, symbol: sympy.Symbol, double: bool = False) -> p.Argument:
        """A ``float`` (or ``double``) argument holding a float input of the plan."""
        kind = p.ArgumentKind.FLOAT64 if double else p.ArgumentKind.FLOAT32
        return p.Argument(kind, symbol=self.symbol_number(symbol))

    def assertions(self, assertions: Iterable[p.Assertion]) -> p.Argument:
        """A ``OB_GLOBAL int*`` argument that the kernel sets to the code of one of ``assertions`` that fails."""
        self._assertions.update(dict.fromkeys(assertions))
        return p.Argument(p.ArgumentKind.ASSERTIONS)

    def launch(
        self,
        kernel: int,
        global_size: Sequence[Size],
        arguments: Sequence[p.Argument],
        local_size: tuple[int, int, int] = (1, 1, 1),
    ) -> None:
        """Launches a kernel; ``global_size`` (1 to 3 dimensions) counts work-items and must be a multiple of
        ``local_size``. Fix the local size per kernel: some runtimes compile again for each."""
        sizes = [self.expr(size) for size in global_size] + [p.const(1)] * (3 - len(global_size))
        self.steps.append(p.Launch(kernel, (sizes[0], sizes[1], sizes[2]), local_size, list(arguments)))

    # ---- other steps ----

    def call(
        self,
        name: str,
        args: Sequence[CallValue],
        kwargs: dict[str, CallValue] | None = None,
        results: Sequence[TensorArg] = (),
        fallback: bool = False,
    ) -> None:
        """Calls a library function by name. Raises NotExpressible for an argument no plan can hold."""
        names = [""] * len(args)
        values = [self.call_argument(value) for value in args]
        for key, value in (kwargs or {}).items():
            names.append(key)
            values.append(self.call_argument(value))
        self.steps.append(p.Call(name, values, names, [self.view(result) for result in results], fallback))

    def execute(self, name: str, code: bytes, args: Sequence[CallValue], results: Sequence[TensorArg]) -> None:
        """Runs an executable of the device's graph compiler. Raises NotExpressible for an argument no plan can hold."""
        values = [self.call_argument(value) for value in args]
        self.steps.append(p.Execute(name, code, values, [self.view(result) for result in results]))

    def to_layout(self, tensor: TensorArg, layout: p.LayoutSpec) -> TensorArg:
        """Makes a buffer that holds a tensor in a layout, into which no other step is to write; returns what it holds.
        The tensor is dense, of the layout's dtype, number of elements and order of dimensions in memory."""
        buffer = self._buffer_count
        self._buffer_count += 1
        offset = self.expr(tensor.offset * tensor.itemsize)
        self.steps.append(p.ToLayout(tensor.buffer, offset, buffer, self._layout(layout)))
        return _contiguous(buffer, layout)

    def allocate_in(self, layout: p.LayoutSpec) -> TensorArg:
        """Makes a buffer for a tensor in a layout; returns what it is to hold."""
        arranged = _contiguous(0, layout)
        return dataclasses.replace(arranged, buffer=self.allocate(arranged.numel() * arranged.itemsize))

    def from_layout(self, arranged: TensorArg, tensor: TensorArg, layout: p.LayoutSpec) -> None:
        """Has a tensor be what ``arranged`` holds in a layout, into which no other step is to write from now on."""
        offset = self.expr(tensor.offset * tensor.itemsize)
        self.steps.append(p.FromLayout(arranged.buffer, tensor.buffer, offset, self._layout(layout)))

    def _layout(self, layout: p.LayoutSpec) -> int:
        return self._layouts.setdefault(layout, len(self._layouts))

    def seeds(self, buffer: int, nbytes: Size) -> None:
        """Fills a buffer with random int64 seeds."""
        self.steps.append(p.Seeds(buffer, self.expr(nbytes)))

    def copy(self, source: int, target: int, nbytes: Size, source_offset: Size = 0, target_offset: Size = 0) -> None:
        """Copies contiguous bytes between buffers."""
        self.steps.append(p.Copy(source, self.expr(source_offset), target, self.expr(target_offset), self.expr(nbytes)))

    def fill(self, target: int, nbytes: Size, pattern: bytes, offset: Size = 0) -> None:
        """Fills bytes of a buffer with a pattern of 1, 2, 4, 8 or 16 bytes."""
        self.steps.append(p.Fill(target, self.expr(offset), self.expr(nbytes), pattern))

    def view(self, tensor: TensorArg) -> p.ViewSpec:
        """The tensor as the plan writes it."""
        return p.ViewSpec(
            tensor.buffer,
            dtype_number(tensor.dtype),
            [self.expr(size) for size in tensor.sizes],
            [self.expr(stride) for stride in tensor.strides],
            self.expr(tensor.offset),
        )

    def call_argument(self, value: CallValue) -> p.CallArgument:
        """A value as an argument of a library call. Raises NotExpressible."""
        kind = p.CallArgumentKind
        if value is None:
            return p.CallArgument(kind.NONE)
        if isinstance(value, TensorArg):
            return p.CallArgument(kind.TENSOR, tensor=self.view(value))
        if isinstance(value, bool):
            return p.CallArgument(kind.BOOL, value=int(value))
        if isinstance(value, int):
            return p.CallArgument(kind.INT, expr=p.const(value))
        if isinstance(value, float):
            return p.CallArgument(kind.FLOAT, number=value)
        if isinstance(value, str):
            return p.CallArgument(kind.STRING, text=value)
        if isinstance(value, sympy.Basic):
            return self._sympy_argument(value)
        if isinstance(value, torch.dtype):
            return p.CallArgument(kind.DTYPE, value=dtype_number(value))
        if isinstance(value, torch.device):
            return p.CallArgument(kind.DEVICE)
        if isinstance(value, torch.layout):
            return p.CallArgument(kind.LAYOUT, value=_LAYOUT_NUMBERS[value])
        if isinstance(value, torch.memory_format):
            return p.CallArgument(kind.MEMORY_FORMAT, value=_MEMORY_FORMAT_NUMBERS[value])
        if isinstance(value, (list, tuple)):
            return p.CallArgument(kind.LIST, items=[self.call_argument(item) for item in value])
        raise NotExpressible(f"an argument of type {type(value).__name__}")

    # ---- result ----

    def output_tensor(self, tensor: TensorArg) -> None:
        """Adds a result: a view of any buffer, an input's included."""
        self.outputs.append(p.Output(p.OutputKind.TENSOR, view=self.view(tensor)))

    def output_input(self, number: int) -> None:
        """Adds a result: input ``number`` itself."""
        self.outputs.append(p.Output(p.OutputKind.INPUT, input=number))

    def output_int(self, value: Size) -> None:
        """Adds an integer result."""
        self.outputs.append(p.Output(p.OutputKind.INT, expr=self.expr(value)))

    def output_none(self) -> None:
        """Adds the result None."""
        self.outputs.append(p.Output(p.OutputKind.NONE))

    def finish(self) -> p.Plan:
        """The plan."""
        return p.Plan(
            inputs=self.inputs,
            symbols=self.symbols,
            guards=self.guards,
            buffer_count=self._buffer_count,
            programs=list(self._programs),
            kernels=list(self._kernels),
            assertions=list(self._assertions),
            layouts=list(self._layouts),
            steps=self.steps,
            outputs=self.outputs,
        )

    # ---- expressions ----

    def _sympy_argument(self, value: sympy.Basic) -> p.CallArgument:
        kind = p.CallArgumentKind
        if self.is_float_symbol(value):
            return p.CallArgument(kind.FLOAT_SYMBOL, value=self.symbol_number(value))
        if isinstance(value, sympy.Float):
            return p.CallArgument(kind.FLOAT, number=float(value))
        if value in (sympy.true, sympy.false):
            return p.CallArgument(kind.BOOL, value=int(value == sympy.true))
        return p.CallArgument(kind.INT, expr=self.expr(value))

    def _emit(self, value: sympy.Basic, code: p.Expr) -> None:
        if value in (sympy.true, sympy.false):
            code.append((p.Op.CONST, int(value == sympy.true)))
            return
        if value.is_Integer or (isinstance(value, sympy.Float) and float(value).is_integer()):
            number = int(value)
            if not -(2**63) <= number < 2**63:
                raise NotExpressible(f"{number} does not fit in 64 bits")
            code.append((p.Op.CONST, number))
            return
        if isinstance(value, sympy.Symbol):
            if value in self._float_symbols:
                raise NotExpressible(f"{value} is a float")
            code.append((p.Op.SYMBOL, self.symbol_number(value)))
            return
        emit = _EMITTERS.get(type(value).__name__)
        if emit is None:
            raise NotExpressible(f"{type(value).__name__} in {value}")
        emit(self, value, code)

    def _emit_operands(self, op: p.Op, operands: Iterable[sympy.Basic], code: p.Expr) -> None:
        """Left fold of a binary operator."""
        for position, operand in enumerate(operands):
            self._emit(operand, code)
            if position:
                code.append((op, 0))

    def _emit_mul(self, value: sympy.Basic, code: p.Expr) -> None:
        numerator, denominator = value.as_numer_denom()
        if denominator == 1:
            self._emit_operands(p.Op.MUL, value.args, code)
            return
        # A rational product that sympy proved integral: the division is exact.
        self._emit(numerator, code)
        self._emit(denominator, code)
        code.append((p.Op.FLOOR_DIV, 0))

    def _emit_pow(self, value: sympy.Basic, code: p.Expr) -> None:
        base, exponent = value.args
        if exponent.is_negative is not False and not exponent.is_nonnegative:
            raise NotExpressible(f"{value} may not be an integer")
        self._emit_operands(p.Op.POW, (base, exponent), code)

    def _emit_modular(self, value: sympy.Basic, code: p.Expr) -> None:
        base, divisor, modulus = value.args
        self._emit_operands(p.Op.FLOOR_DIV, (base, divisor), code)
        self._emit(modulus, code)
        code.append((p.Op.MOD, 0))

    def _emit_floor(self, value: sympy.Basic, code: p.Expr) -> None:
        self._emit_quotient(p.Op.FLOOR_DIV, value.args[0], code)

    def _emit_ceiling(self, value: sympy.Basic, code: p.Expr) -> None:
        self._emit_quotient(p.Op.CEIL_DIV, value.args[0], code)

    def _emit_quotient(self, op: p.Op, value: sympy.Basic, code: p.Expr) -> None:
        if type(value).__name__ == "IntTrueDiv":
            numerator, denominator = value.args
        else:
            numerator, denominator = sympy.together(value).as_numer_denom()
        self._emit_operands(op, (numerator, denominator), code)

    def _emit_identity(self, value: sympy.Basic, code: p.Expr) -> None:
        self._emit(value.args[0], code)

    def _emit_abs(self, value: sympy.Basic, code: p.Expr) -> None:
        self._emit_operands(p.Op.MAX, (value.args[0], -value.args[0]), code)

    def _emit_not(self, value: sympy.Basic, code: p.Expr) -> None:
        self._emit(value.args[0], code)
        code.append((p.Op.NOT, 0))

    def _emit_greater(self, value: sympy.Basic, code: p.Expr) -> None:
        strict = type(value).__name__ in ("StrictGreaterThan",)
        self._emit_operands(p.Op.LT if strict else p.Op.LE, (value.args[1], value.args[0]), code)

    def _emit_where(self, value: sympy.Basic, code: p.Expr) -> None:
        for operand in value.args:
            self._emit(operand, code)
        code.append((p.Op.SELECT, 0))

    def _emit_piecewise(self, value: sympy.Basic, code: p.Expr) -> None:
        *branches, (last, _condition) = value.args
        for branch, condition in branches:
            self._emit(condition, code)
            self._emit(branch, code)
        self._emit(last, code)
        code.extend([(p.Op.SELECT, 0)] * len(branches))


def _contiguous(buffer: int, layout: p.LayoutSpec) -> TensorArg:
    sizes = layout.arranged_sizes
    strides = tuple(product(sizes[dim + 1 :]) for dim in range(len(sizes)))
    return TensorArg(buffer, dtype_of(layout.arranged_dtype), sizes, strides)


_Emitter = Callable[[PlanBuilder, sympy.Basic, p.Expr], None]


def _fold(op: p.Op) -> _Emitter:
    return lambda builder, value, code: builder._emit_operands(op, value.args, code)


#: By class name, so that this module needs none of PyTorch's private sympy functions.
_EMITTERS: dict[str, _Emitter] = {
    "Add": _fold(p.Op.ADD),
    "Mul": PlanBuilder._emit_mul,
    "Pow": PlanBuilder._emit_pow,
    "PowByNatural": PlanBuilder._emit_pow,
    "FloorDiv": _fold(p.Op.FLOOR_DIV),
    "CleanDiv": _fold(p.Op.FLOOR_DIV),
    "CeilDiv": _fold(p.Op.CEIL_DIV),
    "CeilToInt": PlanBuilder._emit_ceiling,
    "FloorToInt": PlanBuilder._emit_floor,
    "TruncToInt": PlanBuilder._emit_floor,
    "floor": PlanBuilder._emit_floor,
    "ceiling": PlanBuilder._emit_ceiling,
    "Mod": _fold(p.Op.MOD),
    "PythonMod": _fold(p.Op.MOD),
    "ModularIndexing": PlanBuilder._emit_modular,
    "Min": _fold(p.Op.MIN),
    "Max": _fold(p.Op.MAX),
    "Equality": _fold(p.Op.EQ),
    "Unequality": _fold(p.Op.NE),
    "StrictLessThan": _fold(p.Op.LT),
    "LessThan": _fold(p.Op.LE),
    "StrictGreaterThan": PlanBuilder._emit_greater,
    "GreaterThan": PlanBuilder._emit_greater,
    "And": _fold(p.Op.AND),
    "Or": _fold(p.Op.OR),
    "Not": PlanBuilder._emit_not,
    "Where": PlanBuilder._emit_where,
    "Piecewise": PlanBuilder._emit_piecewise,
    "ExprCondPair": PlanBuilder._emit_identity,
    "Abs": PlanBuilder._emit_abs,
    "Identity": PlanBuilder._emit_identity,
    "LShift": _fold(p.Op.SHIFT_LEFT),
    "RShift": _fold(p.Op.SHIFT_RIGHT),
    "BitwiseFn_bitwise_and": _fold(p.Op.BIT_AND),
}
