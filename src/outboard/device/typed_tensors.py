# SPDX-License-Identifier: Apache-2.0
"""``torch.<device>.FloatTensor`` and its siblings: constructors of one dtype, which ``isinstance`` knows."""

from __future__ import annotations

from typing import Any

import torch

from outboard.device.devices import name

_DTYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}

#: Names of the classes that :func:`typed_tensor` knows.
NAMES = tuple(_DTYPES)

_made: dict[str, type] = {}


class _TypedTensor(type):
    """Instances are the device's tensors of one dtype: they are plain ``torch.Tensor`` objects, as on CUDA."""

    dtype: torch.dtype

    def __call__(cls, *arguments: Any) -> torch.Tensor:
        """A tensor of these sizes, not initialised, or with the values of one sequence, array or tensor."""
        if not arguments:
            return torch.empty(0, dtype=cls.dtype, device=name())
        if all(isinstance(argument, int) for argument in arguments) or isinstance(arguments[0], torch.Size):
            return torch.empty(*arguments, dtype=cls.dtype, device=name())
        (values,) = arguments
        return torch.as_tensor(values, dtype=cls.dtype, device=name())

    def __repr__(cls) -> str:
        return f"<class '{cls.__name__}'>"

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.dtype == cls.dtype and instance.device.type == name()


def typed_tensor(kind: str) -> type:
    """The class ``torch.<device>.{kind}``, with ``kind`` from :data:`NAMES`. ``Tensor.type`` accepts it.

    Its name is the one that ``Tensor.type()`` prints: PyTorch recognises types by that.
    """
    if kind not in _made:
        _made[kind] = _TypedTensor(f"torch.{name()}.{kind}", (), {"dtype": _DTYPES[kind]})
    return _made[kind]
