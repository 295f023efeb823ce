# SPDX-License-Identifier: Apache-2.0
"""Switches of Ascend's compiler and hardware. None of them has a counterpart here, and each says so.

Those that only tune are accepted with one warning; those whose result a program would use raise NotImplementedError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

import torch

from outboard.device import devices, memory
from outboard.device.devices import DeviceLike
from outboard.profiles.notices import say_once

__all__ = [
    "CubeMathType",
    "ExternalEvent",
    "ExternalStream",
    "NpuGraphOpHandler",
    "NPUPluggableAllocator",
    "are_compatible_impl_enabled",
    "change_current_allocator",
    "check_uce_in_memory",
    "clear_npu_overflow_flag",
    "config",
    "conv",
    "current_blas_handle",
    "disable_deterministic_with_backward",
    "empty_virt_addr_cache",
    "enable_deterministic_with_backward",
    "finalize_dump",
    "get_device_limit",
    "get_mm_bmm_format_nd",
    "get_npu_overflow_flag",
    "get_stream_limit",
    "get_task_queue_enable",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "init_dump",
    "is_jit_compile_false",
    "matmul",
    "npurt",
    "obfuscation_calculate",
    "obfuscation_finalize",
    "obfuscation_initialize",
    "register_npu_graph_handler",
    "reset_stream_limit",
    "restart_device",
    "set_aoe",
    "set_compile_mode",
    "set_device_limit",
    "set_dump",
    "set_mm_bmm_format_nd",
    "set_op_timeout_ms",
    "set_option",
    "set_stream_limit",
    "set_task_queue_enable",
    "stop_device",
    "stress_detect",
    "super_kernel_scope_begin",
    "super_kernel_scope_end",
    "use_compatible_impl",
]

_jit_compile = True
_task_queue = 1
_compatible = False


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


def set_task_queue_enable(mode: int) -> None:
    """Kept for :func:`get_task_queue_enable`: work is always queued; ``OUTBOARD_LAUNCH_BLOCKING=1`` waits for each
    launch.

    Raises:
        ValueError: for anything but 0, 1 and 2.
    """
    global _task_queue
    if mode not in (0, 1, 2):
        raise ValueError(f"the mode of the task queue is 0, 1 or 2, not {mode!r}")
    _task_queue = mode
    _without_effect("set_task_queue_enable", "work is queued; OUTBOARD_LAUNCH_BLOCKING=1 waits for each launch")


def get_task_queue_enable() -> int:
    """What :func:`set_task_queue_enable` was told last; 1 before that."""
    return _task_queue


def use_compatible_impl(is_enable: bool) -> None:
    """Kept for :func:`are_compatible_impl_enabled`: operators compute what they compute on the CPU."""
    global _compatible
    _compatible = bool(is_enable)
    _without_effect("use_compatible_impl", "operators compute what they compute on the CPU")


def are_compatible_impl_enabled() -> bool:
    """What :func:`use_compatible_impl` was told last."""
    return _compatible


def empty_virt_addr_cache() -> None:
    """Gives unused memory back to the driver, as ``empty_cache``: addresses are not kept without memory."""
    memory.empty_cache()


def set_op_timeout_ms(timeout: int) -> None:
    """No effect: ``OUTBOARD_WATCHDOG`` names work that does not end."""
    _without_effect("set_op_timeout_ms", "OUTBOARD_WATCHDOG names work that does not end")


def get_device_limit(device: DeviceLike) -> dict[str, int]:
    """How many units a device computes with: all of them, of either kind."""
    units = devices.get_device_properties(device).compute_units
    return {"cube_core_num": units, "vector_core_num": units}


def set_device_limit(device: DeviceLike, cube_num: int = -1, vector_num: int = -1) -> None:
    """No effect: the driver shares its units out."""
    _without_effect("set_device_limit", "the driver shares its units out")


def get_stream_limit(stream: torch.Stream) -> dict[str, int]:
    """How many units a stream's work may take: all of the device's."""
    return get_device_limit(stream.device)


def set_stream_limit(stream: torch.Stream, cube_num: int = -1, vector_num: int = -1) -> None:
    """No effect: the driver shares its units out."""
    _without_effect("set_stream_limit", "the driver shares its units out")


def reset_stream_limit(stream: torch.Stream) -> None:
    """Nothing to do: a stream has no limit."""


def super_kernel_scope_begin(scope_name: str | None = None) -> None:
    """No effect: ``torch.compile`` decides which operators become one kernel."""
    _without_effect("super_kernel_scope_begin", "torch.compile decides which operators become one kernel")


def super_kernel_scope_end(scope_name: str | None = None) -> None:
    """Nothing to do: no scope is open."""


class CubeMathType(IntEnum):
    """In which precision Ascend's NPUs multiply; none but the dtype's own has an effect."""

    KEEP_DTYPE = 0
    ALLOW_FP32_DOWN_PRECISION = 1
    USE_FP16 = 2
    USE_HF32 = 3
    FORCE_GRP_ACC_FOR_FP32 = 4
    USE_FP32_ADD = 4  # noqa: PIE796 - the newer name of the same


class NpuGraphOpHandler:
    """A base class of programs' own. Its hooks are never called: what is captured here needs no help to be replayed."""


Handler = TypeVar("Handler", bound=type)


def register_npu_graph_handler(op_names: str | Sequence[str]) -> Callable[[Handler], Handler]:
    """A decorator of classes without effect: any operator can be captured as it is, or is refused by name."""
    _without_effect("register_npu_graph_handler", "operators are captured as they are")
    return lambda handler: handler


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
current_blas_handle = _refused("current_blas_handle", "there is no library of Ascend's behind the device")

_TASKS = "a graph that was captured reads what changes from tensors: copy_ to them before replay()"
_OBFUSCATION = "it is a service of Ascend's systems"
_FOREIGN = "drivers do not take streams and events of other libraries; outboard.borrow() gives them the device's stream"

graph_task_group_begin = _refused("graph_task_group_begin", _TASKS)
graph_task_group_end = _refused("graph_task_group_end", _TASKS)
graph_task_update_begin = _refused("graph_task_update_begin", _TASKS)
graph_task_update_end = _refused("graph_task_update_end", _TASKS)
obfuscation_calculate = _refused("obfuscation_calculate", _OBFUSCATION)
obfuscation_finalize = _refused("obfuscation_finalize", _OBFUSCATION)
obfuscation_initialize = _refused("obfuscation_initialize", _OBFUSCATION)
ExternalEvent = _refused("ExternalEvent", _FOREIGN)
ExternalStream = _refused("ExternalStream", _FOREIGN)
npurt = _refused("npurt", "there is no runtime library of Ascend's behind the device")
