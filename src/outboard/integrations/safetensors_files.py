# SPDX-License-Identifier: Apache-2.0
"""safetensors (0.8): files are opened for the device by its name.

Its ``safe_open`` refuses names that it does not list, but takes numbers, which are those of the accelerator's devices.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch


def install(package: Any, name: str) -> None:
    """Has ``safetensors`` and its modules that are there take the device called ``name``."""
    original = package.safe_open

    @functools.wraps(original, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        return original(filename, framework, _numbered(device, name), **options)

    for module in (package, sys.modules.get("safetensors.torch")):
        if module is not None and getattr(module, "safe_open", None) is original:
            vars(module)["safe_open"] = safe_open


def _numbered(device: Any, name: str) -> Any:
    """The number of a device called ``name``; any other device as it is."""
    if str(device).partition(":")[0] != name:
        return device
    index = torch.device(device).index
    return torch.accelerator.current_device_index() if index is None else index
