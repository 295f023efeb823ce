# SPDX-License-Identifier: Apache-2.0
"""Ray Train (2.x): a worker that was given none of the accelerators that Ray counts takes the device, and its process
group; it would take the CPU.

Ray has a manager for each kind of devices that it knows, and chooses the process group by what it has counted.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import distributed

from . import patching


def install_manager(module: Any, name: str) -> None:
    """Called when ``ray.air._internal.device_manager`` has been imported."""
    if not hasattr(module, "DEFAULT_TORCH_DEVICE_MANAGER_CLS"):
        return patching.missing("ray", "DEFAULT_TORCH_DEVICE_MANAGER_CLS")
    host = module.DEFAULT_TORCH_DEVICE_MANAGER_CLS
    manager = _manager(module.TorchDeviceManager, name)
    module.DEFAULT_TORCH_DEVICE_MANAGER_CLS = lambda: manager() if torch.accelerator.is_available() else host()

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def get_torch_device_manager_by_device_type(device_type: str) -> Any:
            return manager() if device_type == name else original(device_type)

        return get_torch_device_manager_by_device_type

    patching.replace("ray", f"{module.__name__}.get_torch_device_manager_by_device_type", make)
    return None


def install_group(module: Any, name: str) -> None:
    """Called when ``ray.train.torch.config`` has been imported."""
    ours = distributed.Backend.default_device_backend_map.get(name) if distributed.is_available() else None

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def _setup_torch_process_group(backend: str, *args: Any, **kwargs: Any) -> None:
            if backend == "gloo" and ours is not None and torch.accelerator.is_available():
                backend = f"cpu:gloo,{name}:{ours}"
            original(backend, *args, **kwargs)

        return _setup_torch_process_group

    patching.replace("ray", f"{module.__name__}._setup_torch_process_group", make)


def _manager(base: Any, name: str) -> Any:
    """Ray's description of the device."""
    module: Any = torch.get_device_module(name)

    class DeviceManager(base):  # type: ignore[misc]
        """The accelerator that PyTorch knows by the device's name."""

        def is_available(self) -> bool:
            return bool(module.is_available())

        def get_devices(self) -> list[torch.device]:
            """The next device for each worker of this machine, beginning again after the last one."""
            return [torch.device(name, int(os.environ.get("LOCAL_RANK", 0)) % module.device_count())]

        def set_device(self, device: Any) -> None:
            module.set_device(device)

        def supports_stream(self) -> bool:
            return True

        def create_stream(self, device: torch.device) -> Any:
            return module.Stream(device)

        def get_stream_context(self, stream: Any) -> Any:
            return module.stream(stream)

        def get_current_stream(self) -> Any:
            return module.current_stream()

    return DeviceManager
