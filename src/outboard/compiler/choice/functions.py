# SPDX-License-Identifier: Apache-2.0
"""Functions of the driver's own library, a vendor's: which calls they can carry out, and how a plan calls them.

A driver is asked for a function by the name of an operator and by operands like those of a call: their kinds, dtypes
and ranks, and how the elements of each tensor follow one another (``library_find`` in driver.h). A plan that calls one
is for operands of which the same is true.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeGuard

import sympy

from ..plans.builder import CallValue, PlanBuilder, TensorArg
from ..plans.dtypes import dtype_number

if TYPE_CHECKING:
    from ..kernels.call import ExternCall
    from ..target import Target

#: What a plan's step has in front of the operator's name.
PREFIX = "driver::"

#: A tensor: dtype, sizes, strides, whether it is a result.
Described = tuple[int, tuple[int, ...], tuple[int, ...], bool]


def offers(builder: PlanBuilder, call: ExternCall) -> bool:
    """Whether the driver's library has a function for a call."""
    operands = _operands(builder, call)
    return operands is not None and _finds(builder.target, _operator(call), operands)


def has(target: Target, operator: str, operands: tuple[Any, ...]) -> bool:
    """Whether it has one for operands that are described as ``_C.library_has`` takes them."""
    laid_out = all(_is_laid_out(each[1], each[2]) for each in operands if isinstance(each, tuple))
    return laid_out and _finds(target, operator, operands)


def append(builder: PlanBuilder, call: ExternCall) -> None:
    """Appends the call to a plan, which is then for operands of the same layouts, and for the same numbers."""
    arguments, results = _values(call)
    for number in arguments:
        if _is_run_time_number(number):
            builder.guard(sympy.Eq(number, builder.number(number)))
    for tensor in (*(value for value in arguments if isinstance(value, TensorArg)), *results):
        _assume_layout(builder, tensor)
    builder.call(PREFIX + _operator(call), arguments, {}, results)


def _operator(call: ExternCall) -> str:
    return call.name.partition(".")[0]


def _values(call: ExternCall) -> tuple[list[CallValue], list[TensorArg]]:
    """The arguments of the operator's schema in order, defaults filled in, and the results."""
    results = call.outputs()
    written = {id(result) for result in results}
    values = [value for name, value in call.bind().items() if id(value) not in written]
    return values, results


def _operands(builder: PlanBuilder, call: ExternCall) -> tuple[Any, ...] | None:
    """What the driver is asked about; None for a call that no library function is for."""
    arguments, results = _values(call)
    if not results or any(result is argument for result in results for argument in call.args):
        return None
    described = [_describe(builder, value, False) for value in arguments]
    described += [_describe(builder, result, True) for result in results]
    return None if any(item is _UNKNOWN for item in described) else tuple(described)


_UNKNOWN: Any = object()


def _describe(builder: PlanBuilder, value: CallValue, result: bool) -> Any:
    """A value as the driver is to know it: None, a number, a tuple of integers, or a tensor (``Described``)."""
    if isinstance(value, TensorArg):
        sizes, strides = ([builder.hint(each) for each in every] for every in (value.sizes, value.strides))
        if any(each is None for each in (*sizes, *strides)) or not _is_laid_out(sizes, strides):
            return _UNKNOWN
        return (dtype_number(value.dtype), tuple(sizes), tuple(strides), result)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, sympy.Integer):
        return int(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, sympy.Integer)) for item in value):
        return tuple(int(item) for item in value)
    number = builder.number(value) if _is_run_time_number(value) else None
    return _UNKNOWN if number is None else number


def _is_run_time_number(value: object) -> TypeGuard[sympy.Expr]:
    """Whether a value is a number that only a call knows."""
    return isinstance(value, sympy.Expr) and not value.is_number


def _order(strides: Any) -> list[int]:
    """Dimensions from the outermost to the innermost."""
    return sorted(range(len(strides)), key=lambda dim: -strides[dim])


def _is_laid_out(sizes: Any, strides: Any) -> bool:
    """Whether no size is 0, no stride negative, and no two elements share memory."""
    if any(size < 1 for size in sizes) or any(stride < 0 for stride in strides):
        return False
    order = _order(strides)
    inner = zip(order, order[1:], strict=False)
    last = not order or strides[order[-1]] >= 1
    return last and all(strides[outer] >= sizes[dim] * strides[dim] for outer, dim in inner)


def _assume_layout(builder: PlanBuilder, tensor: TensorArg) -> None:
    """Restricts a plan to tensors whose elements follow one another as this one's do."""
    hints = [builder.hint(stride) for stride in tensor.strides]
    order = _order(hints)
    for size in tensor.sizes:
        builder.assume(sympy.Ge(sympy.sympify(size), 1))
    for outer, dim in zip(order, order[1:], strict=False):
        reach = sympy.sympify(tensor.sizes[dim]) * tensor.strides[dim]
        builder.assume(sympy.Ge(sympy.sympify(tensor.strides[outer]), reach))
    for dim in order[-1:]:
        stride = sympy.sympify(tensor.strides[dim])
        builder.assume(sympy.Eq(stride, 1) if hints[dim] == 1 else sympy.Ge(stride, 1))


@functools.lru_cache(maxsize=4096)
def _finds(target: Target, operator: str, operands: tuple[Any, ...]) -> bool:
    from outboard import _C

    from ..target import index_of

    return _C.library_has(index_of(target), operator, list(operands))
