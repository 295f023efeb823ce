# SPDX-License-Identifier: Apache-2.0
"""Numbers that are written into tensors: ATen refuses those that the dtype does not hold, where PyTorch's
decompositions let them wrap."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._prims_common import is_integer_dtype

from outboard import torch_release

from ..overrides import HALVES

aten = torch.ops.aten
#: What ATen calls dtypes.
_NAMES = {
    torch.uint8: "uint8_t", torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int", torch.int64: "int64_t",
    torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16", torch.float32: "float", torch.float64: "double",
}  # fmt: skip
#: What its messages call them.
_TITLES = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip
#: Whether ATen takes a float whose fraction alone is beyond the greatest integer.
_TAKES_FRACTIONS = torch_release.number(torch.__version__) >= (2, 14)
#: Whether ATen takes any limit that limits nothing.
_TAKES_LIMITS = torch_release.number(torch.__version__) >= (2, 15)


def _message(dtype: torch.dtype) -> str:
    return f"value cannot be converted to type {_NAMES.get(dtype, str(dtype))} without overflow"


def title_of(dtype: torch.dtype) -> str:
    """The name of a dtype in ATen's messages."""
    return _TITLES.get(dtype, str(dtype))


def check_index(operator: str, index: Tensor) -> None:
    """Raises what ATen says of the dtype of an operator's indices, at which PyTorch's decompositions do not look."""
    words, error, narrow = {
        "index_add": ("index_add_(): Expected dtype int32/int64 for index but got: {}", RuntimeError, True),
        "index_copy": ("index_copy_(): Expected a long tensor for index, but got {}", RuntimeError, False),
        "index_fill": ("index_fill_(): Expected dtype int64 for index.", IndexError, False),
        "index_select": ("index_select(): Expected dtype int32 or int64 for index", RuntimeError, True),
    }[operator]
    if index.dtype != torch.int64 and not (narrow and index.dtype == torch.int32):
        raise error(words.format(title_of(index.dtype)))


def check_floats(operator: str, x: Tensor, error: Exception | None = None) -> None:
    """Raises for integers, of which the CPU has no such kernel, the given error or NotImplementedError: PyTorch's
    compiler computes with them, and cuts what comes out."""
    if not x.is_floating_point() and not x.is_complex():
        raise error or NotImplementedError(f"{operator} is not implemented for integers")


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def check_number(value: Any, dtype: torch.dtype) -> None:
    """Raises RuntimeError if elements of ``dtype`` cannot be made of a number, as ATen's ``c10::overflows`` says. An
    integer that a graph takes gets a guard."""
    is_integer = _is_integer(value)
    if not (is_integer or isinstance(value, float)) or dtype == torch.bool or dtype.is_complex:
        return
    if dtype.is_floating_point:
        holds_all = is_integer and torch.finfo(dtype).max > 2**64
        fits = holds_all or not is_integer and not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    else:
        low, high = _range(dtype, is_integer)
        fits = low <= value < high + 1 if _TAKES_FRACTIONS else low <= value <= (high if is_integer else float(high))
    if not fits:
        raise RuntimeError(_message(dtype))


def limit(value: Any, dtype: torch.dtype, name: str) -> Any:
    """A limit of ``clamp``, its ``min`` or ``max``, as a number of ``dtype``. Raises RuntimeError if there is none."""
    if not (_TAKES_LIMITS and is_integer_dtype(dtype) and _is_integer(value)):
        check_number(value, dtype)
        return value
    info = torch.iinfo(dtype)
    if info.min <= value <= info.max:
        return value
    if (value < info.min) != (name == "min"):
        raise RuntimeError(f"Clamp {name} value {value} is outside the representable range of {title_of(dtype)}")
    return info.min if name == "min" else info.max


def check_numbers(values: Tensor, dtype: torch.dtype) -> None:
    """Reports RuntimeError, in stream order, if elements of ``dtype`` cannot be made of ``values``."""
    condition = _holds(values, dtype)
    if condition is not None:
        aten._assert_async.msg(condition.all(), _message(dtype))


def _holds(values: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Which of ``values`` elements of ``dtype`` can be made of; None if they can of all that their dtype has."""
    source = values.dtype
    if source in (dtype, torch.bool) or torch.bool == dtype or source.is_complex or dtype.is_complex:
        return None
    if source.is_floating_point:
        values = values.float() if source in HALVES else values
        if dtype.is_floating_point:
            high = torch.finfo(dtype).max
            return None if torch.finfo(source).max <= high else ~(values.abs() > high) | values.isinf()
        low, high = _range(dtype, False)
        # Floats that do not hold the greatest integer have no fractions at its size. ATen rounds that of 64 bits.
        is_exact = not _TAKES_FRACTIONS and (high < 2 / torch.finfo(values.dtype).eps or dtype == torch.int64)
        return (values >= float(low)) & (values <= float(high) if is_exact else values < float(high + 1))
    low, high = _range(dtype, True)
    info = torch.iinfo(source)
    return None if low <= info.min and info.max <= high else (values >= low) & (values <= high)


def _range(dtype: torch.dtype, of_integers: bool) -> tuple[int, int]:
    """The least and the greatest integer that elements of ``dtype`` can be made of: negative integers wrap where the
    dtype has no sign."""
    if dtype.is_floating_point:
        high = int(torch.finfo(dtype).max)
        return -high, high
    info = torch.iinfo(dtype)
    return -info.max if of_integers and info.min == 0 else info.min, info.max


def _masked_fill(x: Tensor, mask: Tensor, value: Tensor) -> Any:
    check_numbers(value.to(x.device), x.dtype)
    return NotImplemented


def _scatter_value(x: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    """PyTorch's lowering has no word for a number that it does not know."""
    check_number(value, x.dtype)
    if not isinstance(value, (torch.SymInt, torch.SymFloat)):
        return NotImplemented
    return aten.scatter(x, dim, index, aten.full([], value, dtype=x.dtype, device=x.device).expand(index.shape))


def _scatter_value_in_place(x: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    check_number(value, x.dtype)
    return NotImplemented


def _scatter_value_reduce(x: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str) -> Tensor:
    """PyTorch's lowering makes a tensor like ``x`` of a value that it knows, though there may be more indices, and
    passes one that it does not know on as if it were a tensor."""
    check_number(value, x.dtype)
    source = aten.full([], value, dtype=x.dtype, device=x.device).expand(index.shape)
    result: Tensor = aten.scatter_reduce(x, dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])
    return result


def _index_put(overload: Any) -> Callable[..., Any]:
    """One number that a mask places is a fill, as in ATen, and does not change the dtype; all else is of one dtype."""

    def decompose(x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
        given = [index for index in indices if index is not None]
        is_fill = len(given) == 1 and given[0].dtype == torch.bool and not accumulate and values.numel() == 1
        if x.dtype == values.dtype:
            return NotImplemented
        if not is_fill:
            raise RuntimeError(
                "Index put requires the source and destination dtypes match, got "
                f"{title_of(x.dtype)} for the destination and {title_of(values.dtype)} for the source."
            )
        check_numbers(values.to(x.device), x.dtype)
        return overload(x, indices, values.to(x.dtype))

    return decompose


def _index_fill(overload: Any) -> Callable[..., Tensor]:
    """PyTorch's is by way of ``index_copy``; here negative indices do count from the end."""
    whole = decomposition_table[overload]

    def decompose(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
        check_index("index_fill", index)
        size = x.shape[dim] if x.dim() else 1
        if isinstance(value, Tensor):
            check_numbers(value, x.dtype)
            value = value.to(x.dtype)
        result: Tensor = whole(x, dim, torch.where(index < 0, index + size, index), value)
        return result

    return decompose


#: Those that write in place, but are not lowered so.
COMPOSED = frozenset({aten.scatter_.value_reduce})
#: Overload -> its decomposition, which may return NotImplemented.
CORRECTIONS: dict[Any, Callable[..., Any]] = {
    aten.masked_fill.Tensor: _masked_fill,
    aten.scatter.value: _scatter_value,
    aten.scatter_.value: _scatter_value_in_place,
    aten.scatter.value_reduce: _scatter_value_reduce,
    **{overload: _index_put(overload) for overload in (aten.index_put.default, aten.index_put_.default)},
    **{
        overload: _index_fill(overload)
        for overload in (
            aten.index_fill.int_Scalar,
            aten.index_fill.int_Tensor,
            aten.index_fill_.int_Scalar,
            aten.index_fill_.int_Tensor,
        )
    },
}
