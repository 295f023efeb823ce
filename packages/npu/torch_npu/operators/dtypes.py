# SPDX-License-Identifier: Apache-2.0
"""Dtypes as operators' arguments have them: a ``torch.dtype``, or its number in PyTorch's list of scalar types."""

from __future__ import annotations

import torch

#: ``torch.dtype`` by the number that a schema's ``int`` makes of it.
_BY_NUMBER = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    8: torch.complex32,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    12: torch.int8,  # qint8: what is quantised here has the dtype of its numbers
    13: torch.uint8,  # quint8
    14: torch.int32,  # qint32
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    25: torch.float8_e5m2fnuz,
    26: torch.float8_e4m3fnuz,
}
_PLAIN = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


def dtype_of(value: torch.dtype | int | None, default: torch.dtype) -> torch.dtype:
    """The dtype that an argument names; ``default`` for None.

    Raises:
        NotImplementedError: for four-bit and Ascend's own formats, which tensors here do not have.
    """
    if value is None:
        return default
    found = _PLAIN.get(value, value) if isinstance(value, torch.dtype) else _BY_NUMBER.get(value)
    if found is None or found == torch.quint4x2:
        raise NotImplementedError(
            f"the format {value!r} is not there: tensors have PyTorch's dtypes of 8 bits and more"
        )
    return found
