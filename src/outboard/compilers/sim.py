# SPDX-License-Identifier: Apache-2.0
"""The compiler of the simulator's graph tier: an example from which others start.

An executable is text. Each line is an operation, the dtype and the sizes of its result, and what it reads: ``%3`` is
the result of line 3, other words are integers, and numbers begin with ``#``. ``csrc/drivers/sim/graph.cpp`` runs it.
Sizes and integers that are known only when it runs are results of lines, too: ``$3``; ``?`` is a size of an input. So a
compiler is a table of rules, each of which writes the lines of one operator. Lines ``step`` at the end say what
hardware would make of them, as :mod:`outboard.simulation` counts: the dtype, operations, bytes read and written, and
operators of each step; sizes, of which these numbers are made, may be ``$3``.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import sympy
import torch
from torch.utils import _pytree as pytree

from outboard.compiler.plans.dtypes import dtype_number
from outboard.compiler.target import Target
from outboard.simulation.chip import Chip
from outboard.simulation.recording import record
from outboard.simulation.steps import Step, fuse

from . import Executable, Layout, Operand, Unsupported, sim_tiles
from .symbolic import expression

aten, prims = torch.ops.aten, torch.ops.prims

DTYPES = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    }
)  # fmt: skip


#: A size: a number, or, where it is known only when the executable runs, an expression of PyTorch's symbols.
Size: TypeAlias = int | sympy.Expr

#: What computes a number from others, by the name of the expression.
_ARITHMETIC = {
    "Add": "add", "Mul": "multiply", "FloorDiv": "floor_divide", "CleanDiv": "floor_divide", "Max": "maximum",
    "Min": "minimum", "IntTrueDiv": "divide", "FloatTrueDiv": "divide", "ToFloat": "cast", "Pow": "power",
}  # fmt: skip


def _size(given: Any) -> Size:
    size = expression(given)
    return size if isinstance(size, sympy.Expr) and not size.is_Integer else int(size)


_OF_FLOATS = {
    "cos", "divide", "erf", "exp", "expm1", "log", "log1p", "rsqrt", "sigmoid", "sin", "sqrt", "tanh",
}  # fmt: skip


class Program:
    """The lines of an executable, and the values that they make, by number."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.shapes: list[tuple[Size, ...]] = []
        self.dtypes: list[torch.dtype] = []
        self._known: dict[sympy.Expr, int] = {}  # the places of values that are such numbers

    def add_steps(self, steps: Sequence[Step]) -> None:
        """Adds what hardware would do, after all other lines."""
        numbers = [" ".join(map(self._word, (step.flops, step.read, step.written))) for step in steps]
        for step, words in zip(steps, numbers, strict=True):
            self.lines.append(f"step {str(step.dtype).removeprefix('torch.')} {words} {step.name}")

    def emit(self, operation: str, dtype: torch.dtype, sizes: Sequence[Any], *reads: Any) -> int:
        """Adds a line; returns the number of its value. Reads are values' names ("%3"), integers (symbolic ones, too)
        and floats. Raises Unsupported for a size that no input tells."""
        shape = tuple(map(_size, sizes))
        words = ["x".join(map(self._word, shape)) or "-", *map(self._word, reads)]
        self.lines.append(" ".join([operation, str(dtype_number(dtype)), *words]))
        self.shapes.append(shape)
        self.dtypes.append(dtype)
        return len(self.lines) - 1

    def _word(self, read: Any) -> str:
        if isinstance(read, (torch.SymInt, sympy.Expr)):
            read = _size(read)
        if isinstance(read, sympy.Expr):
            return f"${self.number(read)}"
        return f"#{read.hex()}" if isinstance(read, float) else str(read)

    # ---- numbers that are known when the executable runs ----

    def input(self, dtype: torch.dtype, sizes: Sequence[Any]) -> int:
        """Adds the next input, which tells the sizes that it has."""
        shape = tuple(map(_size, sizes))
        words = "x".join("?" if isinstance(size, sympy.Expr) else str(size) for size in shape) or "-"
        self.lines.append(f"input {dtype_number(dtype)} {words}")
        self.shapes.append(shape)
        self.dtypes.append(dtype)
        made = len(self.lines) - 1
        for dim, size in enumerate(shape):
            if isinstance(size, sympy.Expr) and size not in self._known:
                self._known[size] = self.emit("size", torch.int64, (), f"%{made}", dim)
        return made

    def tell(self, number: Any, value: int) -> None:
        """Says which value is a number, if that is symbolic."""
        if isinstance(number, sympy.Expr):
            self._known.setdefault(number, value)

    def number(self, number: sympy.Expr) -> int:
        """The value that is a symbolic number. Raises Unsupported if no input tells it."""
        if number not in self._known:
            self._known[number] = self._computed(number)
        return self._known[number]

    def _computed(self, number: sympy.Expr) -> int:
        dtype = torch.int64 if number.is_integer else torch.float64
        if number.is_Number:
            return self.full(int(number) if number.is_Integer else float(number), (), dtype)
        operation = _ARITHMETIC.get(type(number).__name__)
        if operation is None:
            raise Unsupported(f"the number {number}, which no input tells")
        first, *others = (self.cast(self.number(part), dtype) for part in number.args)
        return functools.reduce(lambda a, b: self.emit(operation, dtype, (), f"%{a}", f"%{b}"), others, first)

    def code(self) -> bytes:
        """The executable, under its first line: the version, and a checksum (FNV-1a) of the rest."""
        text = "".join(f"{line}\n" for line in self.lines).encode()
        checksum = 0xCBF29CE484222325
        for byte in text:
            checksum = (checksum ^ byte) * 0x100000001B3 % 2**64
        return f"outboard-sim 1 {checksum:016x}\n".encode() + text

    # ---- what rules are written in ----

    def full(self, number: float | sympy.Expr, sizes: Sequence[Any], dtype: torch.dtype) -> int:
        """A tensor of one number. Raises Unsupported for an integer of more than 64 bits."""
        if isinstance(number, sympy.Expr):
            return self.broadcast(self.cast(self.number(number), dtype), sizes)
        if dtype.is_floating_point or not isinstance(number, int):
            return self.emit("full", dtype, sizes, float(number))
        if not -(2**63) <= number < 2**63:
            raise Unsupported(f"the integer {number}")
        return self.emit("full", dtype, sizes, int(number))

    def cast(self, value: int, dtype: torch.dtype) -> int:
        """A value in another dtype."""
        if self.dtypes[value] == dtype:
            return value
        cuts = not dtype.is_floating_point and dtype is not torch.bool and self.dtypes[value].is_floating_point
        return self.emit("to_integer" if cuts else "cast", dtype, self.shapes[value], f"%{value}")

    def reshape(self, value: int, sizes: Sequence[Any]) -> int:
        """The elements in other sizes, in order."""
        if self.shapes[value] == tuple(map(_size, sizes)):
            return value
        return self.emit("reshape", self.dtypes[value], sizes, f"%{value}")

    def broadcast(self, value: int, sizes: Sequence[Any]) -> int:
        """A value in the sizes that others have."""
        if self.shapes[value] == tuple(map(_size, sizes)):
            return value
        return self.emit("broadcast", self.dtypes[value], sizes, f"%{value}")

    def pointwise(self, operation: str, dtype: torch.dtype, *values: int) -> int:
        """An operation on each element of values that are broadcast. Raises Unsupported for what PyTorch has of floats
        alone, in a dtype of integers: eager refuses it."""
        integral = not dtype.is_floating_point and dtype is not torch.bool
        if integral and (operation in _OF_FLOATS or any(self.dtypes[value].is_floating_point for value in values)):
            raise Unsupported(f"{operation} in {dtype}")
        sizes = _broadcast([self.shapes[value] for value in values])
        return self.emit(operation, dtype, sizes, *(f"%{self.broadcast(value, sizes)}" for value in values))

    def permute(self, value: int, dims: Sequence[int]) -> int:
        """Dimensions in another order."""
        sizes = [self.shapes[value][dim] for dim in dims]
        return self.emit("permute", self.dtypes[value], sizes, f"%{value}", *dims)

    def reduce(self, operation: str, value: int, dims: Sequence[int], keep: bool, dtype: torch.dtype) -> int:
        """Folds dimensions (all of them if none is named)."""
        shape, folded = self.shapes[value], self.folded(value, dims)
        kept = [1 if d in folded else size for d, size in enumerate(shape)]
        made = self.emit(operation, dtype, kept, f"%{value}", *folded)
        return made if keep else self.reshape(made, [size for d, size in enumerate(shape) if d not in folded])

    def folded(self, value: int, dims: Sequence[int]) -> list[int]:
        """The dimensions that ``reduce`` folds."""
        rank = len(self.shapes[value])
        return sorted({dim % rank for dim in dims}) if dims else [*range(rank)]

    def count(self, value: int, dims: Sequence[int], dtype: torch.dtype) -> int:
        """How many elements ``reduce`` folds to one, as a value."""
        return self.full(math.prod(self.shapes[value][dim] for dim in self.folded(value, dims)), (), dtype)

    def slice(self, value: int, dim: int, start: Any, count: Any, step: int = 1) -> int:
        """``count`` rows along a dimension."""
        sizes = [*self.shapes[value]]
        sizes[dim] = _size(count)
        return self.emit("slice", self.dtypes[value], sizes, f"%{value}", dim, start, step)

    def matmul(self, a: int, b: int, dtype: torch.dtype) -> int:
        """A product of two matrices, or of two batches of them."""
        sizes = (*self.shapes[a][:-1], self.shapes[b][-1])
        a, b = (self.reshape(each, (1, *self.shapes[each])[-3:]) for each in (a, b))
        made = self.emit("matmul", dtype, (*self.shapes[a][:-1], sizes[-1]), f"%{a}", f"%{b}")
        return self.reshape(made, sizes)


def _broadcast(shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    """The sizes to which these are broadcast. Raises Unsupported for symbolic ones that are not known to be equal."""
    made: list[Size] = []
    for place in range(-max(map(len, shapes)), 0):
        sizes = {shape[place] for shape in shapes if len(shape) >= -place} - {1}
        if len(sizes) > 1:
            raise Unsupported(f"sizes that may differ: {', '.join(map(str, sizes))}")
        made.append(next(iter(sizes), 1))
    return tuple(made)


#: Types of arguments that an executable has as constants.
_INTEGERS = frozenset({"int", "Optional[int]", "List[int]", "Optional[List[int]]"})


class BoundNode:
    """A node whose operands have values: what a rule gets."""

    def __init__(self, program: Program, node: torch.fx.Node, values: dict[torch.fx.Node, Any], static: bool) -> None:
        assert isinstance(node.target, torch._ops.OpOverload)
        self.program = program
        self.name: str = node.target._schema.name
        self.args: dict[str, Any] = {}
        self.given = node.args
        schema = node.target._schema.arguments
        for position, argument in enumerate(schema):
            given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            missing = position >= len(node.args) and argument.name not in node.kwargs
            if str(argument.real_type) in _INTEGERS and any(map(_is_node, pytree.tree_leaves(given))):
                if static:
                    raise Unsupported(f"{argument.name} is known only when it is called")
                given = pytree.tree_map(_integer_of, given)
            self.args[argument.name] = argument.default_value if missing else self._value(given, values)
        self.names = [argument.name for argument in schema]
        self.result = node.meta["val"]
        self._results: Any = None  # those of the node, if rules see others
        if self.args.get("dim", self.args.get("dims")) not in (None, []):
            self._give_a_dimension()

    def _give_a_dimension(self) -> None:
        """Has tensors without dimensions be of one element along one, as operators take them that are told which."""

        def lifted(item: Any) -> Any:
            if isinstance(item, Value):
                return Value(self.program.reshape(item.number, self.program.shapes[item.number] or (1,)))
            if isinstance(item, torch.Tensor) and item.dim() == 0:
                return torch.empty(1, dtype=item.dtype, device="meta")
            return item

        self._results = self.result
        self.args, self.result = pytree.tree_map(lifted, self.args), pytree.tree_map(lifted, self.result)

    def made(self, values: Any) -> Any:
        """What a rule made, in the sizes of the node's results."""
        if self._results is None:
            return values
        if isinstance(values, list):
            pairs = zip(values, self._results, strict=True)
            return [self.program.reshape(value, result.shape) for value, result in pairs]
        return self.program.reshape(values, self._results.shape)

    def _value(self, given: Any, values: dict[torch.fx.Node, Any]) -> Any:
        def with_values(item: Any) -> Any:
            return Value(values[item]) if isinstance(item, torch.fx.Node) else expression(item)

        return pytree.tree_map(with_values, given)

    def __getitem__(self, key: str | int) -> Any:
        return self.args[self.names[key] if isinstance(key, int) else key]

    def value(self, key: str | int, dtype: torch.dtype | None = None) -> int:
        """An argument as a value: a tensor, or a number that becomes one of ``dtype``."""
        given = self[key]
        if isinstance(given, Value):
            return given.number if dtype is None else self.program.cast(given.number, dtype)
        number = given if isinstance(given, (int, sympy.Expr)) else float(given)
        return self.program.full(number, (), dtype or torch.float64)

    @property
    def dtype(self) -> torch.dtype:
        """The result's dtype."""
        return self.result.dtype  # type: ignore[no-any-return]

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The result's sizes."""
        return tuple(map(_size, self.result.shape))


def _is_node(item: Any) -> bool:
    return isinstance(item, torch.fx.Node)


def _integer_of(item: Any) -> Any:
    return item.meta["val"] if isinstance(item, torch.fx.Node) else item


class Value:
    """A value among a call's arguments."""

    def __init__(self, number: int) -> None:
        self.number = number


_HALVES = (torch.float16, torch.bfloat16)
Rule = Callable[[BoundNode], Any]
RULES: dict[Any, Rule] = {}


def rule(*overloads: Any) -> Callable[[Rule], Rule]:
    """Says which operators a function writes the lines of: overloads, or names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(overloads, function))
        return function

    return register


def rule_of(target: Any) -> Rule | None:
    """The rule for an overload; None if there is none."""
    return RULES.get(target) or RULES.get(target._schema.name)


# ---- element by element ----


def _unary(operation: str) -> Rule:
    return lambda call: call.program.pointwise(operation, call.dtype, call.value(0, call.dtype))


def _binary(operation: str) -> Rule:
    return lambda call: call.program.pointwise(
        operation, call.dtype, call.value(0, call.dtype), call.value(1, call.dtype)
    )


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What the CPU computes with numbers of a dtype in."""
    return torch.float32 if dtype in _HALVES else dtype


def _product(operation: str) -> Rule:
    """A factor or divisor that is one number, and the second operand, is not rounded to a half dtype, as on the CPU."""

    def multiply(call: BoundNode) -> int:
        wide = _wide(call.dtype) if _is_number(call.given[1]) else call.dtype
        product = call.program.pointwise(operation, wide, call.value(0, call.dtype), call.value(1, wide))
        return call.program.cast(product, call.dtype)

    return multiply


def _is_number(given: Any) -> bool:
    value = _operand(given)
    return not isinstance(value, torch.Tensor) or value.dim() == 0


def _comparison(operation: str) -> Rule:
    def compare(call: BoundNode) -> int:
        dtype = _common(call)
        return call.program.pointwise(operation, torch.bool, call.value(0, dtype), call.value(1, dtype))

    return compare


def _common(call: BoundNode) -> torch.dtype:
    """The dtype in which two operands are compared: PyTorch rounds numbers to that of a tensor."""
    return torch.result_type(*(_operand(each) for each in call.given[:2]))


def _operand(given: Any) -> Any:
    """A tensor or a number, of which only the kind counts."""
    value = given.meta["val"] if isinstance(given, torch.fx.Node) else given
    if isinstance(value, (torch.Tensor, bool)):
        return value
    return 1 if isinstance(value, (int, torch.SymInt)) else 1.0


_UNARY = {
    "abs": aten.abs, "ceil": aten.ceil, "cos": aten.cos, "erf": aten.erf, "exp": aten.exp, "expm1": aten.expm1,
    "floor": aten.floor, "log": aten.log, "log1p": aten.log1p, "negate": aten.neg, "round": aten.round,
    "rsqrt": aten.rsqrt, "sigmoid": aten.sigmoid, "sign": aten.sign, "sin": aten.sin, "sqrt": aten.sqrt,
    "tanh": aten.tanh, "trunc": aten.trunc,
}  # fmt: skip
RULES |= {packet.default: _unary(operation) for operation, packet in _UNARY.items()}
_BINARY = {
    "maximum": [aten.maximum.default], "minimum": [aten.minimum.default],
    "power": [aten.pow.Tensor_Tensor, aten.pow.Scalar],
}  # fmt: skip
RULES |= {overload: _binary(operation) for operation, overloads in _BINARY.items() for overload in overloads}
_PRODUCTS = {"multiply": aten.mul, "divide": aten.div}
for _operation, _packet in _PRODUCTS.items():
    RULES |= {_packet.Tensor: _product(_operation), _packet.Scalar: _product(_operation)}
_COMPARISONS = {
    "equal": aten.eq, "not_equal": aten.ne, "less": aten.lt, "less_equal": aten.le,
    "greater": aten.gt, "greater_equal": aten.ge,
}  # fmt: skip
for _operation, _packet in _COMPARISONS.items():
    RULES |= {_packet.Tensor: _comparison(_operation), _packet.Scalar: _comparison(_operation)}
RULES |= {aten.logical_and.default: _comparison("and"), aten.logical_or.default: _comparison("or")}
_BITS = {"bits_and": aten.bitwise_and, "bits_or": aten.bitwise_or, "bits_xor": aten.bitwise_xor}
for _operation, _packet in _BITS.items():
    RULES |= {_packet.Tensor: _binary(_operation), _packet.Scalar: _binary(_operation)}


@rule(aten.pow.Tensor_Scalar)
def _power(call: BoundNode) -> int:
    """By one half a root, as on the CPU (not of float16): of -0.0 and -inf it is another number than C's ``pow``."""
    program, dtype = call.program, call.dtype
    base, exponent = call.value(0, dtype), call.value(1, dtype)
    made = program.pointwise("power", dtype, base, exponent)
    if not dtype.is_floating_point or dtype == torch.float16:
        return made
    for number, root in ((0.5, "sqrt"), (-0.5, "rsqrt")):
        is_half = program.pointwise("equal", torch.bool, exponent, program.full(number, (), dtype))
        made = program.pointwise("where", dtype, is_half, program.pointwise(root, dtype, base), made)
    return made


@rule(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _sum(call: BoundNode) -> int:
    program, adds = call.program, call.name == "aten::add"
    one, other = call.value(0, call.dtype), call.value(1, call.dtype)
    if not isinstance(call["alpha"], Value) and call["alpha"] == 1:
        return program.pointwise("add" if adds else "subtract", call.dtype, one, other)
    wide = _wide(call.dtype)
    factor = program.cast(call.value("alpha", call.dtype), wide)
    factor = factor if adds else program.pointwise("negate", wide, factor)
    return program.cast(program.pointwise("multiply_add", wide, one, other, factor), call.dtype)


@rule(aten.addcmul.default, aten.addcdiv.default)
def _sum_of_product(call: BoundNode) -> int:
    wide = torch.float64 if call.dtype.is_floating_point else call.dtype
    operation = "multiply" if call.name == "aten::addcmul" else "divide"
    scaled = call.program.pointwise("multiply", wide, call.value("tensor1"), call.value("value", wide))
    term = call.program.pointwise(operation, wide, scaled, call.value("tensor2"))
    return call.program.pointwise("add", call.dtype, call.value(0), term)


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _divide(call: BoundNode) -> int:
    """In the dtype that the CPU divides in: halves by a number in float32, others with each step rounded to halves."""
    rounding = call["rounding_mode"]
    cuts = rounding == "trunc" and call.dtype.is_floating_point
    wide = _wide(call.dtype) if _is_number(call.given[1]) else call.dtype
    operation = "divide" if rounding is None or cuts else f"{rounding}_divide"
    quotient = call.program.pointwise(operation, wide, call.value(0, call.dtype), call.value(1, wide))
    return call.program.cast(call.program.pointwise("trunc", wide, quotient) if cuts else quotient, call.dtype)


@rule(aten.round.decimals)
def _round_decimals(call: BoundNode) -> int:
    """By a power of ten, in float32 for halves."""
    program, decimals = call.program, call["decimals"]
    wide = _wide(call.dtype)
    before, after = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    power = program.full(10.0 ** abs(decimals), (), wide)
    whole = program.pointwise("round", wide, program.pointwise(before, wide, call.value(0, wide), power))
    return program.cast(program.pointwise(after, wide, whole, power), call.dtype)


@rule(aten.logical_not.default, aten.bitwise_not.default)
def _not(call: BoundNode) -> int:
    if call.name == "aten::bitwise_not" and call.dtype is not torch.bool:
        raise Unsupported("bits of integers")
    return call.program.pointwise("not", torch.bool, call.value(0))


@rule(aten.relu.default)
def _relu(call: BoundNode) -> int:
    return call.program.pointwise("maximum", call.dtype, call.value(0), call.program.full(0, (), call.dtype))


@rule(aten.threshold_backward.default)
def _threshold_backward(call: BoundNode) -> int:
    passes = call.program.pointwise("greater", torch.bool, call.value(1), call.value(2, torch.float64))
    return call.program.pointwise("where", call.dtype, passes, call.value(0), call.program.full(0, (), call.dtype))


@rule(aten.copy.default)
def _copy_into(call: BoundNode) -> int:
    return call.program.broadcast(call.value("src", call.dtype), call.sizes)


@rule(aten.flip.default)
@rule("prims::rev")
def _flip(call: BoundNode) -> int:
    made = call.value(0)
    for dim in call["dims"]:
        size = call.sizes[dim]
        places = call.program.emit("iota", torch.int64, [size], size - 1, -1)
        made = call.program.emit("take", call.dtype, call.sizes, f"%{made}", f"%{places}", dim)
    return made


@rule(aten.reciprocal.default)
def _reciprocal(call: BoundNode) -> int:
    return call.program.pointwise("divide", call.dtype, call.program.full(1, (), call.dtype), call.value(0, call.dtype))


@rule(aten.silu.default)
def _silu(call: BoundNode) -> int:
    gate = call.program.pointwise("sigmoid", torch.float64, call.value(0))
    return call.program.pointwise("multiply", call.dtype, call.value(0), gate)


@rule(aten.gelu.default)
def _gelu(call: BoundNode) -> int:
    if call["approximate"] != "none":
        raise Unsupported("gelu by tanh")
    program, x = call.program, call.value(0, torch.float64)
    scaled = program.pointwise("multiply", torch.float64, x, program.full(math.sqrt(0.5), (), torch.float64))
    error = program.pointwise("erf", torch.float64, scaled)
    one, half = (program.full(number, (), torch.float64) for number in (1, 0.5))
    weight = program.pointwise("multiply", torch.float64, program.pointwise("add", torch.float64, error, one), half)
    return program.pointwise("multiply", call.dtype, x, weight)


@rule(aten.where.self)
def _where(call: BoundNode) -> int:
    return call.program.pointwise(
        "where", call.dtype, call.value(0), call.value(1, call.dtype), call.value(2, call.dtype)
    )


@rule(aten.clamp.default, aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_max.default)
def _clamp(call: BoundNode) -> int:
    value = call.value(0, call.dtype)
    for bound, operation in (("min", "maximum"), ("max", "minimum")):
        if call.args.get(bound) is not None:
            value = call.program.pointwise(operation, call.dtype, value, call.value(bound, call.dtype))
    return value


@rule(
    prims.convert_element_type.default,
    aten._to_copy.default,
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
)
def _copy(call: BoundNode) -> int:
    return call.program.cast(call.value(0), call.dtype)


@rule(aten.full.default, aten.full_like.default, aten.scalar_tensor.default)
def _full(call: BoundNode) -> int:
    number = call["s" if call.name == "aten::scalar_tensor" else "fill_value"]
    if isinstance(number, Value):
        return call.program.broadcast(call.program.cast(number.number, call.dtype), call.sizes)
    return call.program.full(number, call.sizes, call.dtype)


@rule(prims.iota.default)
def _iota(call: BoundNode) -> int:
    return call.program.emit("iota", call.dtype, call.sizes, call["start"], call["step"])


@rule(aten.arange.start_step)
def _arange(call: BoundNode) -> int:
    if not all(isinstance(call[key], int) for key in ("start", "step")):
        raise Unsupported("arange of numbers with fractions")
    return call.program.emit("iota", call.dtype, call.sizes, call["start"], call["step"])


# ---- shapes ----


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default)
@rule(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def _reshape(call: BoundNode) -> int:
    return call.program.reshape(call.value(0), call.sizes)


@rule(aten.expand.default)
def _expand(call: BoundNode) -> int:
    return call.program.broadcast(call.value(0), call.sizes)


@rule(aten.permute.default)
def _permute(call: BoundNode) -> int:
    return call.program.permute(call.value(0), [dim % len(call.sizes) for dim in call["dims"]])


@rule(aten.t.default)
def _t(call: BoundNode) -> int:
    return call.program.permute(call.value(0), [*reversed(range(len(call.sizes)))])


@rule(aten.transpose.int)
def _transpose(call: BoundNode) -> int:
    dims = [*range(len(call.sizes))]
    a, b = call["dim0"], call["dim1"]
    dims[a], dims[b] = dims[b], dims[a]
    return call.program.permute(call.value(0), dims)


@rule(aten.slice.Tensor)
def _slice(call: BoundNode) -> int:
    value = call.value(0)
    dim = call["dim"] % len(call.sizes)
    return call.program.slice(
        value, dim, _start(call["start"], call.program.shapes[value][dim]), call.sizes[dim], call["step"]
    )


def _start(start: Size | None, size: Size) -> Size:
    """Where a slice begins, as Python counts."""
    start = start or 0
    if start == 0 or start == size:
        return start
    if start < 0:
        return _size(sympy.Max(start + size, 0))
    return _size(sympy.Min(start, size))


def _row(index: Size, size: Size) -> Size:
    """Which row an index means, as Python counts."""
    return index + size if index < 0 else index


@rule(aten.select.int)
def _select(call: BoundNode) -> int:
    value = call.value(0)
    dim = call["dim"] % len(call.program.shapes[value])
    row = _row(call["index"], call.program.shapes[value][dim])
    return call.program.reshape(call.program.slice(value, dim, row, 1), call.sizes)


@rule(aten.split_with_sizes.default, aten.split.Tensor)
def _split(call: BoundNode) -> list[int]:
    value, dim, parts = call.value(0), call["dim"], []
    begin: Size = 0
    for part in call.result:
        count = _size(part.shape[dim])
        parts.append(call.program.slice(value, dim % part.dim(), begin, count))
        begin += count
    return parts


@rule(aten.cat.default)
def _cat(call: BoundNode) -> int:
    parts = [call.program.cast(each.number, call.dtype) for each in call["tensors"]]
    return call.program.emit(
        "concatenate", call.dtype, call.sizes, *(f"%{part}" for part in parts), call["dim"] % len(call.sizes)
    )


@rule(aten.constant_pad_nd.default)
def _pad(call: BoundNode) -> int:
    program, value = call.program, call.value(0)
    behind = [*zip(call["pad"][::2], call["pad"][1::2], strict=True)]
    for dim, (before, after) in zip(reversed(range(len(call.sizes))), behind, strict=False):
        size = program.shapes[value][dim]
        first = max(-before, 0)
        value = program.slice(value, dim, first, size - first - max(-after, 0))
        sizes = [*program.shapes[value]]
        sizes[dim] += max(before, 0) + max(after, 0)
        around = program.full(float(call["value"]), sizes, call.dtype)
        value = program.emit("update", call.dtype, sizes, f"%{around}", f"%{value}", dim, max(before, 0), 1)
    return value


@rule(aten.slice_scatter.default)
def _slice_scatter(call: BoundNode) -> int:
    dim = call["dim"] % len(call.sizes)
    place = (dim, _start(call["start"], call.sizes[dim]), call["step"])
    return call.program.emit(
        "update", call.dtype, call.sizes, f"%{call.value(0)}", f"%{call.value(1, call.dtype)}", *place
    )


@rule(aten.select_scatter.default)
def _select_scatter(call: BoundNode) -> int:
    dim = call["dim"] % len(call.sizes)
    sizes = [1 if d == dim else size for d, size in enumerate(call.sizes)]
    row = call.program.reshape(call.value(1, call.dtype), sizes)
    place = (dim, _row(call["index"], call.sizes[dim]), 1)
    return call.program.emit("update", call.dtype, call.sizes, f"%{call.value(0)}", f"%{row}", *place)


# ---- many elements to one ----


@rule(aten.sum.default, aten.sum.dim_IntList)
def _sum_of(call: BoundNode) -> int:
    value = call.value(0, call.dtype)
    return call.program.reduce("sum", value, call.args.get("dim") or [], call.args.get("keepdim", False), call.dtype)


@rule(aten.mean.default, aten.mean.dim)
def _mean(call: BoundNode) -> int:
    value, dims, dtype = call.value(0), call.args.get("dim") or [], torch.float64
    total = call.program.reduce("sum", value, dims, call.args.get("keepdim", False), dtype)
    return call.program.pointwise("divide", call.dtype, total, call.program.count(value, dims, dtype))


@rule(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
def _extreme(call: BoundNode) -> int:
    operation = "largest" if call.name in ("aten::amax", "aten::max") else "smallest"
    return call.program.reduce(
        operation, call.value(0), call.args.get("dim") or [], call.args.get("keepdim", False), call.dtype
    )


@rule(aten.any.default, aten.any.dim, aten.any.dims)
def _any(call: BoundNode) -> int:
    dims = call.args.get("dim")
    named = [] if dims is None else [dims] if isinstance(dims, int) else dims
    value = call.value(0)
    true = call.program.pointwise("not_equal", torch.bool, value, call.program.full(0, (), call.program.dtypes[value]))
    return call.program.reduce("largest", true, named, call.args.get("keepdim", False), torch.bool)


def _descending(program: Program, value: int) -> int:
    """Elements whose order is the other way round. All bits of an integer are turned: the least has no negative."""
    dtype = program.dtypes[value]
    if dtype.is_floating_point:
        return program.pointwise("negate", dtype, value)
    return program.pointwise("bits_xor", dtype, value, program.full(-1, (), dtype))


@rule(aten.argmax.default, aten.argmin.default)
def _argmax(call: BoundNode) -> int:
    value = call.value(0)
    if call.name == "aten::argmin":
        value = _descending(call.program, value)
    if call["dim"] is None:
        value = call.program.reshape(value, [math.prod(call.program.shapes[value])])
    shape = call.program.shapes[value]
    dim = (call["dim"] or 0) % len(shape)
    sizes = [size for d, size in enumerate(shape) if d != dim]
    return call.program.reshape(call.program.emit("argmax", torch.int64, sizes, f"%{value}", dim), call.sizes)


@rule(aten.sort.default, aten.sort.stable)
def _sort(call: BoundNode) -> list[int]:
    program, x, dim = call.program, call.value(0), call["dim"] % len(call.result[0].shape)
    shape = program.shapes[x]
    places = program.emit("sort", torch.int64, shape, f"%{x}", dim, int(call["descending"]))
    return [program.emit("gather", program.dtypes[x], shape, f"%{x}", f"%{places}", dim), places]


@rule(aten.cumsum.default)
def _cumsum(call: BoundNode) -> int:
    return call.program.emit(
        "cumulate", call.dtype, call.sizes, f"%{call.value(0, call.dtype)}", call["dim"] % len(call.sizes)
    )


@rule(aten.var.correction)
def _var(call: BoundNode) -> int:
    variance: int = _moments(call)[0]
    return variance


@rule(aten.var_mean.correction)
def _moments(call: BoundNode) -> list[int]:
    """Variance and mean."""
    program, x, dtype = call.program, call.value(0, torch.float64), torch.float64
    dims = call["dim"] or []
    result = call.result if isinstance(call.result, torch.Tensor) else call.result[0]
    count = program.count(x, dims, dtype)
    mean = program.pointwise("divide", dtype, program.reduce("sum", x, dims, True, dtype), count)
    apart = program.pointwise("subtract", dtype, x, mean)
    total = program.reduce("sum", program.pointwise("multiply", dtype, apart, apart), dims, True, dtype)
    correction = program.full(1, (), dtype) if call["correction"] is None else call.value("correction", dtype)
    freedom = program.pointwise("subtract", dtype, count, correction)
    freedom = program.pointwise("maximum", dtype, freedom, program.full(0, (), dtype))
    variance = program.pointwise("divide", dtype, total, freedom)
    return [program.cast(program.reshape(each, result.shape), result.dtype) for each in (variance, mean)]


@rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(call: BoundNode) -> int:
    program, x, dtype, dim = call.program, call.value(0, torch.float64), torch.float64, [call["dim"]]
    apart = program.pointwise("subtract", dtype, x, program.reduce("largest", x, dim, True, dtype))
    powers = program.pointwise("exp", dtype, apart)
    total = program.reduce("sum", powers, dim, True, dtype)
    if call.name == "aten::_softmax":
        return program.pointwise("divide", call.dtype, powers, total)
    return program.pointwise("subtract", call.dtype, apart, program.pointwise("log", dtype, total))


# ---- products ----


@rule(aten.mm.default, aten.bmm.default)
def _matmul(call: BoundNode) -> int:
    return call.program.matmul(call.value(0), call.value(1), call.dtype)


@rule(aten.addmm.default, aten.baddbmm.default)
def _addmm(call: BoundNode) -> int:
    program, dtype = call.program, call.dtype
    wide = torch.float64 if dtype.is_floating_point else dtype
    product, given = program.matmul(call.value(1), call.value(2), wide), call.value(0)
    if call["alpha"] != 1:
        product = program.pointwise("multiply", wide, product, call.value("alpha", wide))
    if call["beta"] == 0:
        return program.cast(product, dtype)
    if call["beta"] != 1:
        given = program.pointwise("multiply", wide, given, call.value("beta", wide))
    return program.pointwise("add", dtype, product, given)


def _window(call: BoundNode) -> tuple[int, ...]:
    """Strides, padding and dilation in two dimensions, and groups."""
    if call["transposed"]:
        raise Unsupported("transposed convolutions")
    if len(call["stride"]) != 2 or len(call["padding"]) != 2:
        raise Unsupported("convolutions in other than two dimensions")
    return (*call["stride"], *call["padding"], *call["dilation"], call["groups"])


@rule(aten.convolution.default)
def _convolution(call: BoundNode) -> int:
    program, dtype = call.program, call.dtype
    wide = torch.float64 if dtype.is_floating_point and call["bias"] is not None else dtype
    made = program.emit("convolve", wide, call.sizes, f"%{call.value(0)}", f"%{call.value(1)}", *_window(call))
    if call["bias"] is None:
        return made
    return program.pointwise("add", dtype, made, program.reshape(call.value("bias"), (call.sizes[1], 1, 1)))


@rule(aten.convolution_backward.default)
def _convolution_backward(call: BoundNode) -> list[int | None]:
    program, grad, window = call.program, call.value(0), _window(call)
    made: list[int | None] = [None, None, None]
    for place, operation, other in ((0, "convolve_input", 2), (1, "convolve_weight", 1)):
        if call["output_mask"][place]:
            result = call.result[place]
            made[place] = program.emit(
                operation, result.dtype, result.shape, f"%{grad}", f"%{call.value(other)}", *window
            )
    if call["output_mask"][2]:
        made[2] = program.reduce("sum", grad, [0, 2, 3], False, call.result[2].dtype)
    return made


# ---- windows ----


def _in_planes(program: Program, value: int) -> int:
    """A value of images, one row of pixels for each plane."""
    *planes, height, width = program.shapes[value]
    return program.reshape(value, (math.prod(planes), height * width))


@rule(aten.max_pool2d_with_indices.default)
def _max_pool(call: BoundNode) -> list[int]:
    program, x, sizes = call.program, call.value(0), call.result[0].shape
    stride = call["stride"] or call["kernel_size"]
    window = [(pair[0], pair[-1]) for pair in (call["kernel_size"], stride, call["padding"], call["dilation"])]
    places = program.emit("largest_in_window", torch.int64, sizes, f"%{x}", *itertools.chain(*window))
    pixels, rows = _in_planes(program, x), _in_planes(program, places)
    values = program.emit("gather", call.result[0].dtype, program.shapes[rows], f"%{pixels}", f"%{rows}", 1)
    return [program.reshape(values, sizes), places]


@rule(aten.max_pool2d_with_indices_backward.default)
def _max_pool_backward(call: BoundNode) -> int:
    program, grad, places = call.program, call.value("grad_output"), call.value("indices")
    zeros = _in_planes(program, program.full(0, call.sizes, call.dtype))
    reads = [f"%{each}" for each in (zeros, _in_planes(program, places), _in_planes(program, grad))]
    return program.reshape(program.emit("scatter_add", call.dtype, program.shapes[zeros], *reads, 1), call.sizes)


# ---- indices ----


@rule(aten.embedding.default)
def _embedding(call: BoundNode) -> int:
    return call.program.emit("take", call.dtype, call.sizes, f"%{call.value(0)}", f"%{call.value(1)}", 0)


@rule(aten.embedding_dense_backward.default)
def _embedding_backward(call: BoundNode) -> int:
    program, grad, index = call.program, call.value(0), call.value(1)
    zeros = program.full(0, call.sizes, call.dtype)
    if call["scale_grad_by_freq"]:
        raise Unsupported("gradients scaled by frequency")
    if call["padding_idx"] >= 0:
        skips = program.pointwise("equal", torch.bool, index, program.full(call["padding_idx"], (), torch.int64))
        skips = program.reshape(skips, (*program.shapes[index], 1))
        grad = program.pointwise("where", call.dtype, skips, program.full(0, (), call.dtype), grad)
    return program.emit("put_add", call.dtype, call.sizes, f"%{zeros}", f"%{index}", f"%{grad}", 0)


@rule(aten.index_select.default)
def _index_select(call: BoundNode) -> int:
    dim = call["dim"] % len(call.sizes)
    return call.program.emit("take", call.dtype, call.sizes, f"%{call.value(0)}", f"%{call.value(2)}", dim)


@rule(aten.index.Tensor)
def _index(call: BoundNode) -> int:
    program, x = call.program, call.value(0)
    used = [(dim, index.number) for dim, index in enumerate(call["indices"]) if index is not None]
    if len(used) != 1 or program.dtypes[used[0][1]] not in (torch.int64, torch.int32):
        raise Unsupported("more than one index, or a mask")
    ((dim, given),) = used
    index, size = program.cast(given, torch.int64), program.full(program.shapes[x][dim], (), torch.int64)
    is_from_end = program.pointwise("less", torch.bool, index, program.full(0, (), torch.int64))
    from_end = program.pointwise("add", torch.int64, index, size)
    index = program.pointwise("where", torch.int64, is_from_end, from_end, index)
    return program.emit("take", call.dtype, call.sizes, f"%{x}", f"%{index}", dim)


@rule(aten.gather.default)
def _gather(call: BoundNode) -> int:
    dim = call["dim"] % len(call.sizes)
    return call.program.emit("gather", call.dtype, call.sizes, f"%{call.value(0)}", f"%{call.value(2)}", dim)


@rule(aten.scatter_add.default, aten.scatter.src, aten.scatter.value)
def _scatter(call: BoundNode) -> int:
    program, index = call.program, call.value("index")
    source = call.value("src" if "src" in call.names else "value", call.dtype)
    if "src" in call.names:  # of which the index may be the first part
        for dim, size in enumerate(program.shapes[index]):
            if program.shapes[source][dim] != size:
                source = program.slice(source, dim, 0, size)
    reads = [f"%{each}" for each in (call.value("self"), index, program.broadcast(source, program.shapes[index]))]
    operation = call.name.removeprefix("aten::")
    return program.emit(operation, call.dtype, call.sizes, *reads, call["dim"] % len(call.sizes))


# ---- random numbers: PyTorch's compiler says how they come of seeds ----


@rule("prims::inductor_lookup_seed")
def _seed(call: BoundNode) -> int:
    return call.program.reshape(call.program.slice(call.value(0), 0, call["index"], 1), ())


@rule("prims::inductor_random")
def _random(call: BoundNode) -> int:
    operation = {"rand": "uniform", "randn": "normal"}[call["mode"]]
    return call.program.emit(operation, call.dtype, call.sizes, f"%{call.value('seed')}")


@rule("prims::inductor_randint")
def _random_integers(call: BoundNode) -> int:
    low, high = call["low"], call["high"]
    if high - low > 2**53:
        raise Unsupported("random integers of more bits than a double has")
    return call.program.emit("random_integer", call.dtype, call.sizes, f"%{call.value('seed')}", low, high - low)


# ---- the compiler ----


def _stand_in(program: Program, node: torch.fx.Node) -> Any:
    """A value, or several, in the place of a node's."""
    value = node.meta["val"]
    if isinstance(value, (list, tuple)):
        return [program.input(each.dtype, each.shape) for each in value]
    if isinstance(value, torch.Tensor):
        return program.input(value.dtype, value.shape)
    return program.input(torch.float64 if isinstance(value, (float, torch.SymFloat)) else torch.int64, ())


def _symbols(values: Sequence[Any]) -> set[sympy.Basic]:
    """The symbols in sizes of tensors, and in numbers."""
    sizes = [size for each in values if isinstance(each, torch.Tensor) for size in each.shape]
    numbers = map(expression, [*values, *sizes])
    return set().union(*(number.free_symbols for number in numbers if isinstance(number, sympy.Expr)))


def _written(write: Rule, call: BoundNode) -> Any:
    """What a rule makes of a call. Raises Unsupported."""
    try:
        return call.made(write(call))
    except TypeError as error:  # sympy's
        if "Relational" not in str(error):
            raise
        raise Unsupported("what it does depends on sizes that are known only when it is called") from error


def _steps(graph: torch.fx.Graph) -> Sequence[Step]:
    """A graph as steps of hardware, which fuses: run on what its values are, tensors without data."""
    values = pytree.tree_leaves([node.meta.get("val") for node in graph.nodes])
    mode = next((value.fake_mode for value in values if hasattr(value, "fake_mode")), None)
    if mode is None:
        return ()
    inputs = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
    with mode:
        recorded = record(torch.fx.Interpreter(torch.nn.Module(), graph=graph).run, inputs)
    return fuse(recorded, lambda name, dtype: True)


def _spoilt(program: Program, value: int, fault: str) -> int:
    """A value that is wrong everywhere, or never there."""
    dtype, shape = program.dtypes[value], program.shapes[value]
    if fault == "hang":
        return program.emit("hang", dtype, shape, f"%{value}")
    if dtype is torch.bool:
        return program.emit("not", dtype, shape, f"%{value}")
    return program.pointwise("add", dtype, value, program.full(1, (), dtype))


def _relayout(program: Program, value: int, name: str) -> Executable:
    """The executable of what makes a value of the first line's: hardware would read and write both once."""
    dtype, sizes = program.dtypes[value], program.shapes[value]
    program.emit("result", dtype, sizes, f"%{value}")
    read, written = (math.prod(program.shapes[each]) * dtype.itemsize for each in (0, value))
    program.add_steps([Step((name,), "compute", dtype, 0, read, written, frozenset(), 0, 0)])
    return Executable(program.code())


class SimCompiler:
    """Writes executables for the simulated device, which has the operators of the chip in ``OUTBOARD_SIM_CHIP``."""

    name = "outboard-sim"
    version = "1"
    whole = frozenset(
        {
            "aten::_log_softmax", "aten::_softmax", "aten::addmm", "aten::baddbmm", "aten::embedding_dense_backward",
            "aten::gelu", "aten::round", "aten::silu", "aten::threshold_backward",
        }
    )  # fmt: skip

    def __init__(self) -> None:
        buckets = tuple(int(size) for size in filter(None, os.environ.get("OUTBOARD_SIM_BUCKETS", "").split(",")))
        chip = os.environ.get("OUTBOARD_SIM_CHIP")
        tile = int(os.environ.get("OUTBOARD_SIM_TILE", "0"))
        made = Chip("all operators", {"float32": 1.0}, 1.0, buckets=buckets, tile=tile)
        self._chip = Chip.load(chip) if chip else made

    def bucket(self, size: int) -> int | None:
        """The least bucket of the chip's, or in ``OUTBOARD_SIM_BUCKETS``, that is not below ``size``."""
        return self._chip.bucket(size)

    def supports(self, node: torch.fx.Node, target: Target) -> Literal[True] | str:
        """Whether there is a rule for the operator, and the device has the dtypes."""
        write = rule_of(node.target)
        if write is None:
            return "no rule for this operator"
        values = [*(each.meta.get("val") for each in node.all_input_nodes), node.meta["val"]]
        dtypes = [value.dtype for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)]
        if not self._chip.has(node.target._schema.name, dtypes[0]):  # type: ignore[union-attr]
            return f"no such operator on {self._chip.name}, or not for {dtypes[0]}"
        for dtype in dtypes:
            if dtype not in DTYPES:
                return f"no {dtype}"
        program = Program()
        inputs = {each: _stand_in(program, each) for each in node.all_input_nodes}
        for symbol in _symbols(pytree.tree_leaves([values, node.args, node.kwargs])):
            program.tell(symbol, program.input(torch.int64 if symbol.is_integer else torch.float64, ()))
        try:  # rules know what they cannot write
            _written(write, BoundNode(program, node, inputs, target.static_sizes))
        except Unsupported as reason:
            return str(reason)
        return True

    def _with_fault(self, program: Program, operator: str, made: Any) -> Any:
        """What a rule made, with the fault that the chip's file asks for. Raises RuntimeError for an error."""
        fault = self._chip.faults.get(operator)
        if fault is None:
            return made
        if fault == "error":
            raise RuntimeError(f"{self._chip.name} fails at {operator}, as its file says")
        if isinstance(made, list):
            return [None if each is None else _spoilt(program, each, fault) for each in made]
        return _spoilt(program, made, fault)

    def compile(self, graph: torch.fx.Graph, operands: Sequence[Operand], target: Target) -> Executable:
        """Writes the lines of each operator in turn."""
        program = Program()
        values: dict[torch.fx.Node, Any] = {}
        given = iter(operands)
        for node in graph.nodes:
            if node.op == "placeholder":
                operand = next(given)
                if operand.layout is None:
                    values[node] = program.input(operand.dtype, operand.sizes)
                else:
                    values[node] = sim_tiles.read(program, operand, operand.layout)
                program.tell(expression(node.meta["val"]), values[node])
            elif node.op == "output":
                for result, operand in zip(node.args[0], given, strict=True):
                    value = values[result]
                    if operand.layout is not None:
                        value = sim_tiles.written(program, value, operand, operand.layout)
                    program.emit("result", program.dtypes[value], program.shapes[value], f"%{value}")
            elif node.target is operator.getitem:
                values[node] = values[node.args[0]][node.args[1]]
            else:
                write = rule_of(node.target)
                assert write is not None  # or `supports` would have said so
                made = _written(write, BoundNode(program, node, values, target.static_sizes))
                values[node] = self._with_fault(program, node.target._schema.name, made)
        program.add_steps(_steps(graph))
        return Executable(program.code())

    def layouts(self, graph: torch.fx.Graph, operands: Sequence[Operand], target: Target) -> list[Layout | None]:
        """Tiles for all that can be in tiles, where the chip has any: then only what reads a part of a tensor, or is no
        executable, finds rows."""
        side = self._chip.tile
        return [sim_tiles.layout_of(operand, side) if side else None for operand in operands]

    def relayout(self, layout: Layout, target: Target) -> tuple[Executable, Executable]:
        """Copies of a matrix, in rows and in tiles. Raises ValueError for a layout that is not the chip's."""
        matrix = Operand(layout.dtype, layout.sizes, (layout.sizes[-1], 1))
        if not self._chip.tile or layout != sim_tiles.layout_of(matrix, self._chip.tile):
            raise ValueError(f"the chip has no {layout}")
        to, back = Program(), Program()
        tiles = sim_tiles.to_tiles(to, to.input(layout.dtype, layout.sizes), layout)
        rows = sim_tiles.from_tiles(back, back.input(layout.arranged_dtype, layout.arranged_sizes), layout)
        return _relayout(to, tiles, f"to {layout.name}"), _relayout(back, rows, f"from {layout.name}")
