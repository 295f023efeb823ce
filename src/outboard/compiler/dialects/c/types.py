# SPDX-License-Identifier: Apache-2.0
"""The types of the C family: of values that are computed, of elements in memory; literals."""

from __future__ import annotations

import math

import torch

from ..base import Unsupported

#: Vectors that a function for several at once takes.
TOGETHER = 4
_TYPES: dict[torch.dtype, str] = {
    torch.bool: "int",
    torch.int8: "char",
    torch.int16: "short",
    torch.int32: "int",
    torch.int64: "long",
    torch.uint8: "uchar",
    torch.uint16: "ushort",
    torch.uint32: "uint",
    torch.uint64: "ulong",
    torch.float32: "float",
    torch.float64: "double",
}
_MEMORY_TYPES: dict[torch.dtype, str] = {
    **_TYPES,
    torch.bool: "uchar",
    torch.float16: "ob_half",
    torch.bfloat16: "ushort",
    torch.float8_e4m3fn: "uchar",
    torch.float8_e5m2: "uchar",
}
UNSIGNED = {"char": "uchar", "short": "ushort", "int": "uint", "long": "ulong"}
MASK_TYPES = {1: "char", 2: "short", 4: "int", 8: "long"}
LIMITS = {
    torch.int8: ("CHAR_MIN", "CHAR_MAX"),
    torch.int16: ("SHRT_MIN", "SHRT_MAX"),
    torch.int32: ("INT_MIN", "INT_MAX"),
    torch.int64: ("LONG_MIN", "LONG_MAX"),
    torch.uint8: ("0", "UCHAR_MAX"),
    torch.uint16: ("0", "USHRT_MAX"),
    torch.uint32: ("0u", "UINT_MAX"),
    torch.uint64: ("0ul", "ULONG_MAX"),
    torch.bool: ("0", "1"),
}
HEX = "0123456789abcdef"


def type_name(dtype: torch.dtype, width: int = 1) -> str:
    """The type in which values of ``dtype`` are computed. Raises Unsupported."""
    name = _TYPES.get(dtype)
    if name is None:
        raise Unsupported(f"no arithmetic in {dtype}")
    return name if width == 1 else f"{name}{width}"


def memory_type(dtype: torch.dtype) -> str:
    """The type of an element of ``dtype`` in memory. Raises Unsupported."""
    name = _MEMORY_TYPES.get(dtype)
    if name is None:
        raise Unsupported(f"no memory access to {dtype}")
    return name


def is_in_memory(dtype: torch.dtype) -> bool:
    """Whether kernels read and write elements of ``dtype``."""
    return dtype in _MEMORY_TYPES


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """A constant of a compute dtype, in one lane."""
    if dtype == torch.bool:
        return str(int(bool(value)))
    if dtype.is_floating_point:
        return _float_literal(float(value), dtype)
    number = int(value) if math.isfinite(float(value)) else 0
    bits = dtype.itemsize * 8
    number &= (1 << bits) - 1
    if dtype.is_signed:
        if number == 1 << (bits - 1):
            return f"({LIMITS[dtype][0]})"
        if number >> (bits - 1):
            number -= 1 << bits
        return f"{number}L" if bits == 64 else str(number)
    return f"{number}ul" if bits == 64 else f"{number}u"


def _float_literal(value: float, dtype: torch.dtype) -> str:
    suffix = "" if dtype == torch.float64 else "f"
    if math.isnan(value):
        return f"(({type_name(dtype)})NAN)"
    if dtype == torch.float32 and math.isfinite(value):
        value = float(torch.tensor(value, dtype=torch.float64).to(torch.float32).item())
    if math.isinf(value):
        return f"(({type_name(dtype)}){'-' if value < 0 else ''}INFINITY)"
    text = repr(value)
    if "e" not in text and "." not in text:
        text += ".0"
    return text + suffix


def unsigned_dtype(dtype: torch.dtype) -> torch.dtype:
    return {
        torch.int8: torch.uint8, torch.int16: torch.uint16, torch.int32: torch.uint32, torch.int64: torch.uint64
    }.get(dtype, dtype)  # fmt: skip


def bits_dtype(dtype: torch.dtype) -> torch.dtype:
    """The unsigned integer as wide as a dtype of four or eight bytes."""
    return torch.uint64 if dtype.itemsize == 8 else torch.uint32
