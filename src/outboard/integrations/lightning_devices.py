# SPDX-License-Identifier: Apache-2.0
"""Lightning (2.x): ``Trainer`` and ``Fabric`` take the device for ``accelerator="auto"``, ``"gpu"`` and by its name.

Both have a connector, which chooses accelerator, strategy and precision by names that it knows.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import patching

#: What Trainer's module and Fabric's call their connector, and the accelerators by name.
_NAMES = (("_AcceleratorConnector", "AcceleratorRegistry"), ("_Connector", "ACCELERATOR_REGISTRY"))


def install(module: Any, name: str) -> None:
    """Has the connector in a module, which has been imported, choose the device called ``name``."""
    names = next((each for each in _NAMES if all(hasattr(module, attribute) for attribute in each)), None)
    if names is None:
        return patching.missing(module.__name__.partition(".")[0], "connector of accelerators")
    connector, registry = (getattr(module, attribute) for attribute in names)
    accelerator = _accelerator(module.Accelerator, name)
    registry.register(name, accelerator, description=accelerator.__name__)
    for attribute in ("_choose_auto_accelerator", "_choose_gpu_accelerator_backend"):
        setattr(connector, attribute, staticmethod(_choosing(getattr(connector, attribute), name)))
    patching.add_to_list(connector._choose_strategy, "mps", name)
    patching.add_to_list(connector._check_and_init_precision, "mps", name)
    return None


def install_strategy(module: Any, name: str) -> None:
    """Has ``DDPStrategy`` in a module, which has been imported, give DDP no numbers of devices: those are CUDA's to
    Lightning, which would make a stream of CUDA's. It moves batches by itself."""
    for method in ("determine_ddp_device_ids", "_determine_ddp_device_ids"):
        if (original := getattr(module.DDPStrategy, method, None)) is not None:
            setattr(module.DDPStrategy, method, _numbering(original, name))
            return
    patching.missing(module.__name__.partition(".")[0], "DDPStrategy.determine_ddp_device_ids")


def _numbering(original: Any, name: str) -> Any:
    @functools.wraps(original)
    def determine_ddp_device_ids(self: Any) -> list[int] | None:
        numbers: list[int] | None = None if self.root_device.type == name else original(self)
        return numbers

    return determine_ddp_device_ids


def _choosing(original: Any, name: str) -> Any:
    """The choice of an accelerator, where Lightning knows none but CPUs."""

    def choose() -> str:
        known = torch.cuda.is_available() or torch.backends.mps.is_available()
        found = original() if known or not torch.accelerator.is_available() else name
        return str(found)

    return choose


def _indices(devices: Any, count: int, shared: bool) -> list[int]:
    """What ``devices=`` means: a number of devices, -1 for all, or their indices, as a list or as text. Where devices
    can be ``shared``, there may be more processes than devices.

    Raises:
        ValueError: for devices that there are not.
    """
    if isinstance(devices, str):
        devices = [int(part) for part in devices.split(",") if part.strip()] if "," in devices else int(devices)
    if isinstance(devices, int):
        numbers = range(count if devices == -1 else devices)
        chosen = [index % count for index in numbers] if shared and count else list(numbers)
    else:
        chosen = list(devices)
    if not chosen or any(not 0 <= index < count for index in chosen):
        raise ValueError(f"devices={devices!r}: there are {count}, numbered from 0")
    return chosen


def _can_be_shared(module: Any) -> bool:
    """Whether the devices are the machine's processor, of which several processes can each take all."""
    return all(module.get_device_properties(index).type == "cpu" for index in range(module.device_count()))


def _accelerator(base: Any, name: str) -> Any:
    """Lightning's description of the device."""
    module: Any = torch.get_device_module(name)

    class DeviceAccelerator(base):  # type: ignore[misc]
        """The accelerator that PyTorch knows by the device's name."""

        def setup_device(self, device: torch.device) -> None:
            module.set_device(device)

        def teardown(self) -> None:
            module.empty_cache()

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            statistics: dict[str, Any] = module.memory_stats(device)
            return statistics

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            return _indices(devices, module.device_count(), _can_be_shared(module))

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device(name, index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return int(module.device_count())

        @staticmethod
        def is_available() -> bool:
            return bool(module.is_available())

        @staticmethod
        def name() -> str:
            return name

    return DeviceAccelerator
