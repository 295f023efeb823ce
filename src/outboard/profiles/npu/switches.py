# SPDX-License-Identifier: Apache-2.0
"""Switches of Ascend's compiler and hardware. None of them has a counterpart here, and each says so.

Those that only tune are accepted with one warning; those whose result a program would use raise NotImplementedError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from outboard.profiles.notices import say_once

__all__ = [
    "NPUPluggableAllocator",
    "change_current_allocator",
    "check_uce_in_memory",
    "clear_npu_overflow_flag",
    "config",
    "conv",
    "current_blas_handle",
    "disable_deterministic_with_backward",
    "enable_deterministic_with_backward",
    "finalize_dump",
    "get_mm_bmm_format_nd",
    "get_npu_overflow_flag",
    "init_dump",
    "is_jit_compile_false",
    "matmul",
    "restart_device",
    "set_aoe",
    "set_compile_mode",
    "set_dump",
    "set_mm_bmm_format_nd",
    "set_option",
    "stop_device",
    "stress_detect",
    "utilization",
]

_jit_compile = True


def _without_effect(name: str, reason: str) -> None:
    say_once(f"torch.npu.{name} has no effect with Outboard: {reason}", stacklevel=4)


def set_option(option: Mapping[str, Any]) -> None:
    """Accepts options of Ascend's compiler, which have no effect.

    Raises:
        TypeError: if ``option`` is not a dictionary.
    """
    if not isinstance(option, Mapping):
        raise TypeError("npu option must be a dict.")
    for name in option:
        _without_effect(f"set_option({name!r})", "it is an option of Ascend's compiler")


def set_compile_mode(jit_compile: bool = False) -> None:
    """Kept for :func:`is_jit_compile_false`: operators are compiled on first use, whatever it says."""
    global _jit_compile
    _jit_compile = bool(jit_compile)
    _without_effect("set_compile_mode", "an operator is compiled on its first use, and kept")


def is_jit_compile_false() -> bool:
    """Whether :func:`set_compile_mode` was last called with False."""
    return not _jit_compile


def set_aoe(dump_path: str | os.PathLike[str]) -> None:
    """No effect: there is no tuning by search."""
    _without_effect("set_aoe", "kernels are not tuned by search")


def set_mm_bmm_format_nd(is_nd: bool = True) -> None:
    """No effect: tensors of the device lie in memory as they do on the CPU."""
    if not is_nd:
        _without_effect("set_mm_bmm_format_nd(False)", "tensors lie in memory as they do on the CPU")


def get_mm_bmm_format_nd() -> bool:
    """True: tensors of the device lie in memory as they do on the CPU."""
    return True


def init_dump() -> None:
    """No effect: operators' data are not dumped."""
    _without_effect("init_dump", "operators' data are not dumped; torch.profiler shows what runs")


def set_dump(cfg_file: str | os.PathLike[str]) -> None:
    """No effect: operators' data are not dumped."""
    _without_effect("set_dump", "operators' data are not dumped; torch.profiler shows what runs")


def finalize_dump() -> None:
    """No effect: operators' data are not dumped."""


def get_npu_overflow_flag() -> bool:
    """False: there is no such flag. An overflow is an infinity in the result, as on the CPU."""
    _without_effect("get_npu_overflow_flag", "an overflow is an infinity in the result, as on the CPU")
    return False


def clear_npu_overflow_flag() -> None:
    """Nothing: there is no such flag."""


def enable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; no effect on what follows."""
    _without_effect("enable_deterministic_with_backward", "use torch.use_deterministic_algorithms")
    return tensor


def disable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; no effect on what follows."""
    return tensor


class _Settings:
    """Attributes that can be set and have one value.

    Args:
        name: what it is called below ``torch.npu``.
        values: the value of each attribute, whatever is assigned.
        reason: why assigning another has no effect.
    """

    def __init__(self, name: str, values: Mapping[str, Any], reason: str) -> None:
        object.__setattr__(self, "_about", (name, dict(values), reason))

    def __getattr__(self, attribute: str) -> Any:
        name, values, _ = object.__getattribute__(self, "_about")
        if attribute not in values:
            raise AttributeError(f"torch.npu.{name} has no attribute {attribute!r}")
        return values[attribute]

    def __setattr__(self, attribute: str, value: Any) -> None:
        name, _, reason = object.__getattribute__(self, "_about")
        if value != getattr(self, attribute):
            _without_effect(f"{name}.{attribute}", reason)


config = _Settings("config", {"allow_internal_format": False}, "tensors lie in memory as they do on the CPU")
matmul = _Settings("matmul", {"allow_hf32": False}, "float32 is computed in float32")
conv = _Settings("conv", {"allow_hf32": False}, "float32 is computed in float32")


def _refused(name: str, reason: str) -> Callable[..., NoReturn]:
    def function(*arguments: Any, **keywords: Any) -> NoReturn:
        raise NotImplementedError(f"torch.npu.{name} is not there with Outboard: {reason}")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Raises NotImplementedError: {reason}."
    return function


_ALLOCATORS = "device memory comes from Outboard's allocator and the device's driver"
_HARDWARE = "drivers offer no such service"

NPUPluggableAllocator = _refused("NPUPluggableAllocator", _ALLOCATORS)
change_current_allocator = _refused("change_current_allocator", _ALLOCATORS)
check_uce_in_memory = _refused("check_uce_in_memory", _HARDWARE)
restart_device = _refused("restart_device", _HARDWARE)
stop_device = _refused("stop_device", _HARDWARE)
stress_detect = _refused("stress_detect", _HARDWARE)
utilization = _refused("utilization", "drivers do not measure it; torch.profiler shows what runs")
current_blas_handle = _refused("current_blas_handle", "there is no library of Ascend's behind the device")
