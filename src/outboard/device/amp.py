# SPDX-License-Identifier: Apache-2.0
"""Automatic mixed precision: which dtypes the device's autocast accepts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outboard.device.devices import name

_supported: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)


def set_supported_dtypes(dtypes: Sequence[torch.dtype]) -> None:
    """Sets the dtypes that autocast accepts; the first is its default."""
    global _supported
    _supported = tuple(dtypes)
    torch.set_autocast_dtype(name(), _supported[0])


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast accepts on the device."""
    return list(_supported)


def is_autocast_available() -> bool:
    """Whether ``torch.autocast`` knows the device."""
    return torch.amp.is_autocast_available(name())


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether autocast accepts bfloat16.

    Args:
        including_emulation: accepted for compatibility; arithmetic in bfloat16 is done in float32.
    """
    return torch.bfloat16 in _supported and including_emulation
