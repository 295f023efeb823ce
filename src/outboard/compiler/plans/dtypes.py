# SPDX-License-Identifier: Apache-2.0
"""The numbers of dtypes in plans and model files: those of ``c10::ScalarType``."""

from __future__ import annotations

import torch

_NUMBERS: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
    torch.float8_e5m2fnuz: 25,
    torch.float8_e4m3fnuz: 26,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
    torch.float8_e8m0fnu: 44,
}
_DTYPES = {number: dtype for dtype, number in _NUMBERS.items()}


def dtype_number(dtype: torch.dtype) -> int:
    """The ``c10::ScalarType`` number of a dtype. Raises NotImplementedError for one that plans do not know, such as
    those of quantized tensors."""
    if dtype not in _NUMBERS:
        raise NotImplementedError(f"no plan has tensors of {dtype}")
    return _NUMBERS[dtype]


def dtype_of(number: int) -> torch.dtype:
    """The dtype with a ``c10::ScalarType`` number. Raises KeyError for an unknown one."""
    return _DTYPES[number]
