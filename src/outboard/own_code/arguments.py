# SPDX-License-Identifier: Apache-2.0
"""Arguments of code in C: which type each value of Python's has there."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from outboard.device.devices import name

_LONG = range(-(2**63), 2**64)


def number_of(value: Any, place: int) -> Any:
    """A number as one of ctypes: those as they are; of numpy, their bytes' own type; an ``int`` as a ``long`` of 64
    bits, a ``bool`` as an ``int`` of 32, a ``float`` as a ``float`` of 32.

    Raises:
        TypeError: for anything else.
        OverflowError: for an ``int`` of more than 64 bits.
    """
    if isinstance(value, ctypes._SimpleCData):
        return value
    if hasattr(value, "tobytes") and getattr(value, "ndim", None) == 0:  # a scalar of numpy's
        return _from_numpy(value, place)
    if isinstance(value, bool):
        return ctypes.c_int32(value)
    if isinstance(value, int):
        if value not in _LONG:
            raise OverflowError(f"argument {place} is {value}, which has more than 64 bits")
        return ctypes.c_int64(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    raise TypeError(
        f"argument {place} is a {type(value).__name__}: give tensors, None for a null pointer, an int (a long of 64 "
        "bits in C), a float (32 bits), a bool (an int), or a number of ctypes or numpy for another type"
    )


def _from_numpy(value: Any, place: int) -> Any:
    import numpy

    try:
        kind = numpy.ctypeslib.as_ctypes_type(value.dtype)
    except NotImplementedError:
        raise TypeError(f"argument {place} is a {value.dtype} of numpy's, which C has no type for") from None
    return kind.from_buffer_copy(value.tobytes())


def flat(values: Any) -> list[Any]:
    """Arguments with those of lists one by one."""
    found = []
    for value in values if isinstance(values, (list, tuple)) else [values]:
        found.extend(flat(value) if isinstance(value, (list, tuple)) else [value])
    return found


def device_index(values: list[Any]) -> int:
    """The index of the first tensor's device; -1, the current device, without tensors. Raises RuntimeError if that is
    no device of ours."""
    tensor = next((value for value in values if isinstance(value, torch.Tensor)), None)
    if tensor is None:
        return -1
    if tensor.device.type != name():
        raise RuntimeError(f"a tensor is on {tensor.device}: move it to {name()} first, with .to({name()!r})")
    return int(tensor.device.index)
