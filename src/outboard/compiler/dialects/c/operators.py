# SPDX-License-Identifier: Apache-2.0
"""The text of an operator on values."""

from __future__ import annotations

import torch

from ..base import Unsupported
from .arithmetic import arithmetic, least_or_greatest, shift
from .exponential import AVX512_LANES
from .prelude import Prelude, choose, select_by, to_bool
from .types import type_name


def convert(text: str, source: torch.dtype, target: torch.dtype, width: int) -> str:
    """A value of one compute dtype as another (C's conversions, as ATen does them)."""
    if source == target:
        return text
    name = type_name(target, width)
    if target == torch.bool:
        zero = f"({type_name(source, width)})(0)"
        return to_bool(source, width, f"({text} != {zero})")
    if source == torch.bool:
        if width == 1:
            return f"(({name})({text}))"
        return f"convert_{name}(({text}) & 1)"
    if source.is_floating_point and not target.is_floating_point:
        # Conversions of negative numbers to unsigned types, and to small types, go through a wide signed integer.
        if target.itemsize < 4 or not target.is_signed:
            wide = type_name(torch.int64, width)
            inner = f"convert_{wide}_rtz({text})" if width > 1 else f"(({wide})({text}))"
            return f"convert_{name}({inner})" if width > 1 else f"(({name}){inner})"
        return f"convert_{name}_rtz({text})" if width > 1 else f"(({name})({text}))"
    return f"convert_{name}({text})" if width > 1 else f"(({name})({text}))"


def broadcast(text: str, dtype: torch.dtype, width: int) -> str:
    """One lane's value in all lanes."""
    if width == 1:
        return text
    if dtype == torch.bool:
        return f"(-({type_name(dtype, width)})({text}))"
    return f"(({type_name(dtype, width)})({text}))"


#: Operators that are a builtin function of the same meaning on floats.
_FLOAT_BUILTINS: dict[str, str] = {
    "exp2": "exp2", "expm1": "expm1", "sqrt": "sqrt", "cosh": "cosh",
    "sinh": "sinh", "acos": "acos", "acosh": "acosh", "asin": "asin", "asinh": "asinh", "atan": "atan",
    "atanh": "atanh", "erfc": "erfc", "log10": "log10", "log2": "log2",
    "log": "log", "round": "rint", "floor": "floor", "trunc": "trunc", "ceil": "ceil",
    "atan2": "atan2", "copysign": "copysign", "hypot": "hypot", "fma": "fma",
}  # fmt: skip
_FLOAT_HELPERS = {
    "erf", "erfcx", "erfinv", "exp", "lgamma", "log1p", "digamma", "nextafter", "normal_cdf", "sin", "cos", "tan",
    "tanh", "fmod",
}  # fmt: skip
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">="}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
_BITWISE = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "and_": "&", "or_": "|", "xor": "^"}
_LOGICAL = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
#: Operators that keep an integer as it is.
_INTEGER_IDENTITIES = {"round", "floor", "trunc", "ceil"}
SUPPORTED = frozenset(
    {
        *_FLOAT_BUILTINS, *_FLOAT_HELPERS, *_COMPARISONS, *_ARITHMETIC, *_BITWISE, *_LOGICAL, "logical_not",
        "bitwise_not", "neg", "abs", "sign", "signbit", "isnan", "isinf", "relu", "sigmoid", "rsqrt", "reciprocal",
        "square", "minimum", "maximum", "where", "pow", "truediv", "div_rn", "floordiv", "truncdiv", "mod",
        "remainder", "bitwise_left_shift", "bitwise_right_shift", "lshift", "rshift", "to_dtype",
        "to_dtype_bitcast", "rand", "randn", "randint64", "ldexp", "identity", "mul_rn",
    }
)  # fmt: skip


def operator(
    prelude: Prelude, name: str, args: list[str], dtypes: list[torch.dtype], dtype: torch.dtype, width: int
) -> str:
    """The text of an operator on operands already of the right compute dtype and width. Raises Unsupported."""
    a = args[0]
    source = dtypes[0]
    if name in _COMPARISONS:
        return _compare(_COMPARISONS[name], args, source, width)
    if name in _LOGICAL:
        return f"(({args[0]}) {_LOGICAL[name]} ({args[1]}))"
    if name == "logical_not":
        return f"(!({a}))" if width == 1 else f"(~({a}))"
    if name in _ARITHMETIC:
        return arithmetic(_ARITHMETIC[name], args, dtype, width)
    if name == "mul_rn":
        return arithmetic("*", args, dtype, width)
    if name in _BITWISE:
        return f"({args[0]} {_BITWISE[name]} {args[1]})"
    if name == "where":
        return select_by(dtype, width, args[0], args[1], args[2])
    if name in ("minimum", "maximum"):
        return least_or_greatest(prelude, name, args, dtype, width)
    if dtype.is_floating_point or name in ("isnan", "isinf", "signbit"):
        return _float_operator(prelude, name, args, source, dtype, width)
    return _integer_operator(prelude, name, args, dtype, width)


def pays_together(name: str, dtype: torch.dtype, width: int) -> bool:
    """Whether an operator of one operand is better computed for ``TOGETHER`` vectors at once."""
    return name == "exp" and dtype == torch.float32 and width == AVX512_LANES


def operator_together(prelude: Prelude, name: str, dtype: torch.dtype, width: int) -> str:
    """The function that replaces ``TOGETHER`` vectors by what an operator for which that pays makes of them."""
    return prelude.use(f"{name}_together", dtype, width)


def _compare(symbol: str, args: list[str], dtype: torch.dtype, width: int) -> str:
    left, right = args
    if dtype == torch.bool and width > 1:
        # True is -1 here, so that the order is the other way round.
        left, right = right, left
    return to_bool(dtype, width, f"({left} {symbol} {right})")


def _float_operator(
    prelude: Prelude, name: str, args: list[str], source: torch.dtype, dtype: torch.dtype, width: int
) -> str:
    a = args[0]
    t = type_name(source if name in ("isnan", "isinf", "signbit") else dtype, width)
    one, zero = f"(({t})(1))", f"(({t})(0))"
    if name in _FLOAT_BUILTINS:
        return f"{_FLOAT_BUILTINS[name]}({', '.join(args)})"
    if name in _FLOAT_HELPERS:
        return f"{prelude.use(name, dtype, width)}({', '.join(args)})"
    if name == "isnan":
        if not source.is_floating_point:
            return "0" if width == 1 else f"((int{width})(0))"
        return to_bool(source, width, f"({a} != {a})")
    if name == "isinf":
        if not source.is_floating_point:
            return "0" if width == 1 else f"((int{width})(0))"
        return to_bool(source, width, f"(fabs({a}) == ({t})(INFINITY))")
    if name == "signbit":
        if not source.is_floating_point:
            return to_bool(source, width, f"({a} < {zero})")
        bits = type_name(torch.int64 if source == torch.float64 else torch.int32, width)
        return to_bool(source, width, f"(as_{bits}({a}) < ({bits})(0))")
    if name in ("truediv", "div_rn"):
        return f"({a} / {args[1]})"
    if name == "pow":
        return f"{prelude.use('pow', dtype, width)}({a}, {args[1]})"
    if name == "remainder":
        return f"{prelude.use('remainder', dtype, width)}({a}, {args[1]})"
    if name == "mod":
        return f"{prelude.use('fmod', dtype, width)}({a}, {args[1]})"
    if name == "floordiv":
        return f"{prelude.use('floordiv', dtype, width)}({a}, {args[1]})"
    if name == "rsqrt":
        return f"{prelude.use('rsqrt', dtype, width)}({a})"
    if name == "truncdiv":
        return f"trunc({a} / {args[1]})"
    if name == "ldexp":
        return f"ldexp({a}, convert_{type_name(torch.int32, width)}_sat({args[1]}))"
    simple = {
        "neg": f"(-{a})",
        "abs": f"fabs({a})",
        "reciprocal": f"({one} / {a})",
        "square": f"({a} * {a})",
        "identity": a,
    }
    if name in simple:
        return simple[name]
    if name == "sigmoid":
        return f"({one} / ({one} + {prelude.use('exp', dtype, width)}(-{a})))"
    if name == "sign":
        return f"{prelude.use('sign', dtype, width)}({a})"
    if name == "relu":  # -0 and NaN stay what they are
        # Compilers make a vector that once was of halves one again, and take the wrong one of two zeros.
        limit = f"{a} <= ({t})(-0x1p-149f)" if dtype == torch.float32 and width > 1 else f"{a} < {zero}"
        return choose(dtype, width, limit, zero, a)
    raise Unsupported(name)


def _integer_operator(prelude: Prelude, name: str, args: list[str], dtype: torch.dtype, width: int) -> str:
    a = args[0]
    if name in ("identity", *_INTEGER_IDENTITIES):
        return a
    if dtype == torch.bool:
        return _bool_operator(name, args, width)
    t = type_name(dtype, width)
    if name == "bitwise_not":
        return f"(({t})(~{a}))" if width == 1 else f"(~{a})"
    if name == "neg":
        return arithmetic("-", [f"(({t})(0))", a], dtype, width)
    if name == "abs":
        return f"(({t})abs({a}))" if width == 1 else f"as_{t}(abs({a}))"
    if name == "square":
        return arithmetic("*", [a, a], dtype, width)
    if name in ("floordiv", "truncdiv", "remainder"):
        return f"{prelude.use(name, dtype, width)}({a}, {args[1]})"
    if name in ("mod", "fmod"):
        return f"{prelude.use('truncmod', dtype, width)}({a}, {args[1]})"
    if name == "pow":
        return f"{prelude.use('ipow', dtype, width)}({a}, {args[1]})"
    if name == "sign":
        return f"{prelude.use('sign', dtype, width)}({a})"
    if name == "relu":
        return f"max({a}, ({t})(0))"
    if name in ("bitwise_left_shift", "lshift", "bitwise_right_shift", "rshift"):
        return shift(name, args, dtype, width)
    raise Unsupported(f"{name} on {dtype}")


def _bool_operator(name: str, args: list[str], width: int) -> str:
    if name in ("bitwise_not", "neg"):
        return f"(!({args[0]}))" if width == 1 else f"(~({args[0]}))"
    if name in ("abs", "sign", "relu", "square"):
        return args[0]
    raise Unsupported(f"{name} on bool")


def bitcast(text: str, target: torch.dtype, width: int) -> str:
    """The bits of a value of one dtype as another of the same size; neither is narrower in memory."""
    return f"as_{type_name(target, width)}({text})"
