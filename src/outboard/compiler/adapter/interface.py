# SPDX-License-Identifier: Apache-2.0
"""What Dynamo and Inductor ask a device: its count, streams, properties."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from outboard.on_open import call_when_opened

from ..target import target_of


def device_name() -> str:
    """The device type's name in this process."""
    return torch._C._get_privateuse1_backend_name()


def _device_index(device: Any) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index if device is not None else None
    return index if index is not None else int(torch.accelerator.current_device_index())


class OutboardInterface(DeviceInterface):
    """What Dynamo and Inductor ask a device."""

    class device:  # noqa: N801
        """Switches the current device."""

        def __new__(cls, device: Any) -> Any:
            return torch.accelerator.device_index(_device_index(device))

    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """What a compile worker process may ask; it does not open devices."""

        @staticmethod
        def set_device(device: int) -> None:
            torch.accelerator.set_device_index(device)

        @staticmethod
        def current_device() -> int:
            return int(torch.accelerator.current_device_index())

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return OutboardInterface.get_device_properties(device)

    @staticmethod
    def current_device() -> int:
        return int(torch.accelerator.current_device_index())

    @staticmethod
    def set_device(device: Any) -> None:
        torch.accelerator.set_device_index(_device_index(device))

    @staticmethod
    def exchange_device(device: int) -> int:
        previous = int(torch.accelerator.current_device_index())
        torch.accelerator.set_device_index(device)
        return previous

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        return OutboardInterface.exchange_device(device) if device >= 0 else -1

    @staticmethod
    def device_count() -> int:
        return int(torch.accelerator.device_count())

    @staticmethod
    def is_available() -> bool:
        return bool(torch.accelerator.is_available())

    @staticmethod
    def current_stream(device: Any = None) -> Any:
        return torch.accelerator.current_stream(_device_index(device))

    @staticmethod
    def set_stream(stream: Any) -> None:
        torch.accelerator.set_stream(stream)

    @staticmethod
    def get_raw_stream(device_index: int) -> int:
        return 0

    @staticmethod
    def synchronize(device: Any = None) -> None:
        torch.accelerator.synchronize(_device_index(device))

    @staticmethod
    def get_device_properties(device: Any = None) -> Any:
        target = target_of(_device_index(device))
        return SimpleNamespace(
            multi_processor_count=target.compute_units,
            max_threads_per_block=target.max_work_group_size,
            warp_size=max(target.sub_group_size, 1),
            major=0,
        )

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return target_of(_device_index(device)).plan_key

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def is_dtype_supported(dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        return int(torch.accelerator.memory_allocated(_device_index(device)))

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        return False

    @staticmethod
    def raise_if_triton_unavailable(device: Any = None) -> None:
        """Nothing: kernels here need no Triton."""


def register_interface() -> None:
    """Makes the device known to Dynamo under its name in this process."""
    name = device_name()
    register_interface_for_device(name, OutboardInterface)
    call_when_opened(lambda count: _register_devices(name, count))


def _register_devices(name: str, count: int) -> None:
    for index in range(count):
        register_interface_for_device(f"{name}:{index}", OutboardInterface)
