# SPDX-License-Identifier: Apache-2.0
"""Automatic mixed precision: which dtypes the device's autocast accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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


class autocast(torch.amp.autocast):  # noqa: N801 - PyTorch's name
    """``torch.autocast`` of the device, with the arguments of ``torch.cuda.amp.autocast``.

    Args:
        dtype: the dtype to compute in (default: the first that the device supports).
    """

    def __init__(self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool = True) -> None:
        super().__init__(name(), dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` of the device, with the arguments of ``torch.cuda.amp.GradScaler``."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(name(), init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def custom_fwd(fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None) -> Any:
    """``torch.amp.custom_fwd`` of the device: a decorator for ``forward`` of an autograd function."""
    return torch.amp.custom_fwd(fwd, device_type=name(), cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any]) -> Any:
    """``torch.amp.custom_bwd`` of the device: a decorator for ``backward`` of an autograd function."""
    return torch.amp.custom_bwd(bwd, device_type=name())
