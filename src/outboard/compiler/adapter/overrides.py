# SPDX-License-Identifier: Apache-2.0
"""The handler of Inductor's ``ops`` vocabulary: each call becomes a :class:`~outboard.compiler.loops.nest.Value`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable, OpDecompositions
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.utils import sympy_index_symbol
from torch._inductor.virtualized import OpsValue, V

from ..dialects import c
from ..loops.nest import (
    COMPUTE_DTYPES,
    GATHER_ERROR,
    INDEX_ERROR,
    Value,
    bits_dtype,
    compute_dtype,
    index_message,
)
from ..operators import facts
from ..printing.statements import promote

#: Operators whose result is a bool.
_PREDICATES = frozenset(
    {
        "eq", "ne", "lt", "gt", "le", "ge", "isnan", "isinf", "signbit", "logical_and", "logical_or", "logical_xor",
        "logical_not",
    }
)  # fmt: skip
#: Operators that turn integers into floats.
_FLOATING = frozenset(
    {
        "exp", "exp2", "expm1", "sqrt", "cos", "sin", "cosh", "sinh", "acos", "acosh", "asin", "asinh", "atan",
        "atanh", "erf", "erfc", "erfcx", "erfinv", "log10", "log2", "log1p", "tan", "tanh", "log", "atan2", "copysign",
        "hypot", "lgamma", "digamma", "nextafter", "truediv", "div_rn", "rsqrt", "sigmoid", "reciprocal", "ldexp",
        "fma",
    }
)  # fmt: skip
#: Dtypes whose values are computed with as floats.
HALVES = (torch.float16, torch.bfloat16)
#: Dtypes that exist for their rounding: a conversion to one of them rounds wherever it is.
EIGHTHS = (torch.float8_e4m3fn, torch.float8_e5m2)
#: Operators that integers by which nothing can be divided make fail.
_DIVISIONS = frozenset({"remainder", "mod", "fmod", "floordiv", "truncdiv"})


class Variable(CSEVariable):
    """A CSE variable that stands for a Value."""

    def __init__(self, value: Value, bounds: Any) -> None:
        super().__init__(value.name, bounds, value.dtype, ())
        self.value = value


class LoopOps(DefaultHandler):
    """Records operators into the kernel being generated (``V.kernel``)."""

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name not in c.SUPPORTED:
            decomposition = getattr(OpDecompositions, name, None)
            if decomposition is None or name in ("fma",):
                raise NotImplementedError(f"ops.{name}")
            return unwrap(decomposition(*args, **kwargs))
        values = tuple(as_value(argument) for argument in args)
        dtype = result_dtype(name, values)
        if name in _DIVISIONS and not dtype.is_floating_point:
            _check_divisor(values[1])
        return V.kernel.record(Value("", name, dtype, values))

    @staticmethod
    def constant(value: bool | int | float, dtype: torch.dtype) -> Variable:
        """A constant."""
        return constant(value, dtype)

    @staticmethod
    def index_expr(expr: sympy.Expr, dtype: torch.dtype) -> Variable:
        """An index, size or scalar argument as a number, rounded to ``dtype``."""
        number = V.kernel.record(Value("", "index_expr", compute_dtype(dtype), index=V.kernel.resolve(expr)))
        return _rounded(number, dtype)

    value_expr = index_expr

    @staticmethod
    def to_dtype(
        x: Any, dtype: torch.dtype, src_dtype: torch.dtype | None = None, use_compute_types: bool = True
    ) -> Variable:
        """A conversion. Between narrow floats and float nothing happens, as they are computed in float, unless a narrow
        one is asked for by name (``use_compute_types`` false): then it is rounded, as what comes from other dtypes
        is."""
        value = as_value(x)
        target = compute_dtype(dtype)
        if value.dtype != target:
            return _rounded(V.kernel.record(Value("", "to_dtype", target, (value,))), dtype)
        number = V.kernel.variable(value)
        return number if use_compute_types and dtype not in EIGHTHS else _rounded(number, dtype)

    @staticmethod
    def to_dtype_bitcast(x: Any, dtype: torch.dtype, src_dtype: torch.dtype) -> Variable:
        """The bits of a value read as another dtype."""
        value = as_value(x)
        for each in (dtype, src_dtype):
            if each == torch.bool or each.is_complex or (each not in COMPUTE_DTYPES and compute_dtype(each) != each):
                raise NotImplementedError(f"the bits of {src_dtype} as {dtype}")
        bits, target = bits_dtype(src_dtype), bits_dtype(dtype)
        if src_dtype in COMPUTE_DTYPES:
            value = V.kernel.record(Value("", "bits_of_narrow", bits, (value,), src_dtype=src_dtype)).value
        result = V.kernel.record(Value("", "to_dtype_bitcast", target, (value,), src_dtype=bits))
        if dtype not in COMPUTE_DTYPES:
            return result
        return V.kernel.record(Value("", "narrow_of_bits", compute_dtype(dtype), (result.value,), src_dtype=dtype))

    @staticmethod
    def identity(x: Any) -> Variable:
        """The value itself."""
        return V.kernel.variable(as_value(x))

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Variable:
        """A choice."""
        values = tuple(as_value(v) for v in (condition, yes, no))
        return V.kernel.record(Value("", "where", promote(values[1:]), values))

    @staticmethod
    def mul(a: Any, b: Any) -> Variable:
        """A product; of bools, their conjunction."""
        return _arithmetic("mul", "logical_and", a, b)

    @staticmethod
    def add(a: Any, b: Any) -> Variable:
        """A sum; of bools, their disjunction."""
        return _arithmetic("add", "logical_or", a, b)

    @staticmethod
    def sub(a: Any, b: Any) -> Variable:
        """A difference; of bools, whether they differ."""
        return _arithmetic("sub", "logical_xor", a, b)

    @staticmethod
    def int_truediv(a: Any, b: Any) -> Variable:
        """A true quotient of integers."""
        values = (as_value(a), as_value(b))
        return V.kernel.record(Value("", "truediv", torch.float64, values))

    @staticmethod
    def floor_to_int(a: Any, dtype: torch.dtype) -> Any:
        """Rounded down to an integer type."""
        return unwrap(OpDecompositions.floor_to_int(a, dtype))

    @staticmethod
    def fma(a: Any, b: Any, c: Any) -> Variable:
        """``a * b + c`` with one rounding for floats."""
        values = tuple(as_value(v) for v in (a, b, c))
        dtype = promote(values)
        if dtype.is_floating_point:
            return V.kernel.record(Value("", "fma", dtype, values))
        return LoopOps.add(LoopOps.mul(a, b), c)

    @staticmethod
    def load_seed(name: str, offset: Any) -> Variable:
        """The seed number ``offset`` of a buffer of seeds."""
        number = offset.value.constant if isinstance(offset, Variable) else offset
        return V.kernel.load(name, sympy.Integer(int(number)))

    @staticmethod
    def rand(seed: Any, offset: Any) -> Variable:
        """Uniform floats in [0, 1) from a seed and a counter."""
        return V.kernel.record(Value("", "rand", torch.float32, (as_value(seed), as_value(offset))))

    @staticmethod
    def randn(seed: Any, offset: Any) -> Variable:
        """Standard normal floats from a seed and a counter."""
        return V.kernel.record(Value("", "randn", torch.float32, (as_value(seed), as_value(offset))))

    @staticmethod
    def randint64(seed: Any, offset: Any, low: Any, high: Any) -> Variable:
        """Integers in [low, high) from a seed and a counter."""
        values = tuple(as_value(v) for v in (seed, offset, low, high))
        return V.kernel.record(Value("", "randint64", torch.int64, values))

    @staticmethod
    def masked(mask: Any, body: Callable[[], Any], other: Any) -> Variable:
        """``body`` where the mask holds, ``other`` elsewhere; loads inside touch no memory where it does not."""
        kernel = V.kernel
        with kernel.masked(as_value(mask)) as combined:
            result = as_value(body())
        otherwise = as_value(constant(other, result.dtype) if isinstance(other, (bool, int, float)) else other)
        return kernel.record(Value("", "where", result.dtype, (combined, result, otherwise)))

    @staticmethod
    def indirect_indexing(var: Any, size: sympy.Expr, check: bool = True, wrap_neg: bool = True) -> sympy.Symbol:
        """A symbol for a loaded index; those out of range are reported, and replaced by one in range."""
        value = as_value(var)
        if check:
            expr = V.kernel.resolve(sympy.sympify(size))
            value = V.kernel.record(
                Value(
                    "",
                    "checked_index",
                    value.dtype,
                    (value,),
                    size=expr,
                    mask=V.kernel.mask,
                    message=index_message.get(_index_error()),
                )
            ).value
        symbol = sympy_index_symbol(value.name)
        V.kernel.indirect[symbol] = value
        return symbol


def _index_error() -> str:
    """How wrong indices of a graph's kernel are reported: as the operators that the program called do on the CPU; of
    several, as most operators do."""
    node = getattr(V.kernel.current_node, "node", None)
    places = [origin for origin in getattr(node, "origins", ()) if _takes_indices(origin.target)]
    called = [origin.meta.get("original_aten") or origin.target for origin in places]
    gathers = called and all(facts.of(overload._schema.name).gathers for overload in called)
    return GATHER_ERROR if gathers else INDEX_ERROR


def _takes_indices(target: Any) -> bool:
    """Whether a node's operator takes places of elements from tensors."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    row = facts.of(target._schema.name)
    return row.gathers or row.cpu_indices or target is torch.ops.aten.embedding.default


def _check_divisor(divisor: Value) -> None:
    """Has the kernel report a divisor that is 0, unless it is known not to be: PyTorch's CPU raises for integers."""
    known = divisor.op == "constant" and divisor.constant != 0
    if known or (divisor.op == "index_expr" and divisor.index.is_nonzero):
        return
    zero = constant(0, divisor.dtype).value
    is_valid = V.kernel.record(Value("", "ne", torch.bool, (divisor, zero)))
    V.kernel.device_assert_async(is_valid, "ZeroDivisionError")


def _arithmetic(name: str, bool_name: str, a: Any, b: Any) -> Variable:
    values = (as_value(a), as_value(b))
    dtype = promote(values)
    if dtype == torch.bool:
        name = bool_name
    return V.kernel.record(Value("", name, dtype, values))


def _rounded(number: Variable, dtype: torch.dtype) -> Variable:
    """A value computed in float as ``dtype`` holds it."""
    if dtype not in COMPUTE_DTYPES:
        return number
    return V.kernel.record(Value("", "narrowed", number.value.dtype, (number.value,), src_dtype=dtype))


def constant(value: bool | int | float, dtype: torch.dtype) -> Variable:
    """A constant, rounded to ``dtype``, in the dtype that this is computed in."""
    if isinstance(value, sympy.Basic):
        value = float(value) if not value.is_Integer else int(value)
    if dtype in COMPUTE_DTYPES:
        value = torch.tensor(value, dtype=torch.float64).to(dtype).item()
    return V.kernel.record(Value("", "constant", compute_dtype(dtype), constant=value))


def as_value(argument: Any) -> Value:
    """The Value behind an operand. Raises NotImplementedError for what no kernel can hold."""
    argument = unwrap(argument)
    if isinstance(argument, Variable):
        return argument.value
    if isinstance(argument, bool):
        return constant(argument, torch.bool).value
    if isinstance(argument, int):
        return constant(argument, torch.int64).value
    if isinstance(argument, float):
        return constant(argument, torch.float32).value
    if isinstance(argument, sympy.Basic):
        return LoopOps.index_expr(argument, torch.int64).value
    raise NotImplementedError(f"operand {argument!r}")


def unwrap(argument: Any) -> Any:
    """The variable inside Inductor's operator-overloading wrapper."""
    return argument.value if isinstance(argument, OpsValue) else argument


def result_dtype(name: str, values: tuple[Value, ...]) -> torch.dtype:
    """The compute dtype in which an operator yields its result."""
    if name in _PREDICATES:
        return torch.bool
    if name in ("bitwise_left_shift", "bitwise_right_shift", "lshift", "rshift"):
        return values[0].dtype
    dtype = promote(values)
    if name in _FLOATING and not dtype.is_floating_point:
        return torch.float32
    return dtype
