# SPDX-License-Identifier: Apache-2.0
"""Functions of ``torch.npu`` that ``torch.cuda`` does not have, or has with other names of arguments.

Names and signatures are those that Ascend's extension publishes.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch

from outboard.device import devices, streams
from outboard.device.devices import DeviceLike
from outboard.profiles.notices import say_once

__all__ = [
    "SyncLaunchStream",
    "can_device_access_peer",
    "get_autocast_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "host_empty_cache",
    "is_autocast_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_deterministic_level",
    "utils",
]


def can_device_access_peer(device_id: DeviceLike, peer_device_id: DeviceLike) -> bool:
    """Whether kernels on one device may address another's memory."""
    return devices.can_device_access_peer(device_id, peer_device_id)


def get_device_name(device_name: DeviceLike = None) -> str:
    """The hardware's name, as its driver gives it."""
    return devices.get_device_name(device_name)


def get_device_properties(device_name: DeviceLike = None) -> devices.DeviceProperties:
    """What a device is and can do."""
    return devices.get_device_properties(device_name)


def get_device_capability(device: DeviceLike = None) -> tuple[int, int] | None:
    """The pair that ``TORCH_NPU_DEVICE_CAPABILITY=8.0`` gives, for programs that ask for a GPU's; None without it."""
    major, dot, minor = os.environ.get("TORCH_NPU_DEVICE_CAPABILITY", "").partition(".")
    if dot and major.isdecimal() and minor.isdecimal():
        return int(major), int(minor)
    say_once(
        "get_device_capability() is None: a device has no such number; TORCH_NPU_DEVICE_CAPABILITY=8.0 gives it one"
    )
    return None


def host_empty_cache() -> None:
    """Gives cached pinned memory of the host back."""
    torch.accelerator.memory.empty_host_cache()


def is_autocast_enabled() -> bool:
    """Whether autocast is on for the device in this thread."""
    return torch.is_autocast_enabled("npu")


def set_autocast_enabled(enable: bool) -> None:
    """Turns autocast of the device on or off in this thread."""
    torch.set_autocast_enabled("npu", enable)


def get_autocast_dtype() -> torch.dtype:
    """The dtype that autocast computes in on the device."""
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    """Sets the dtype that autocast computes in on the device."""
    torch.set_autocast_dtype("npu", dtype)


def set_deterministic_level(level: int) -> None:
    """``torch.use_deterministic_algorithms``: on for a level of 1 or more."""
    torch.use_deterministic_algorithms(level >= 1)


class SyncLaunchStream(streams.Stream):
    """An ordinary stream. Launches on it are queued; ``OUTBOARD_LAUNCH_BLOCKING=1`` waits for each."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> torch.Stream:  # type: ignore[misc]
        say_once("SyncLaunchStream queues its launches as any stream does; OUTBOARD_LAUNCH_BLOCKING=1 waits for each")
        return streams.Stream(device, priority, **kwargs)


def _is_support_inf_nan() -> bool:
    """Whether arithmetic has infinities: always, as on the CPU."""
    return True


def _npu_check_overflow(grad: torch.Tensor | float) -> bool:
    """Whether a gradient (a number or a tensor) is infinite or not a number anywhere."""
    return not bool(torch.isfinite(torch.as_tensor(grad)).all())


#: ``torch.npu.utils``
utils = SimpleNamespace(is_support_inf_nan=_is_support_inf_nan, npu_check_overflow=_npu_check_overflow)
