# SPDX-License-Identifier: Apache-2.0
"""The states of the device's generators, in a file of their own beside a library's checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def save(folder: str | os.PathLike[str], name: str, process: int) -> None:
    """Writes the states of all devices, of one process."""
    module: Any = torch.get_device_module(name)
    torch.save(module.get_rng_state_all(), _file(folder, name, process))


def load(folder: str | os.PathLike[str], name: str, process: int) -> None:
    """Reads them back, of as many devices as there are now; a checkpoint without them changes nothing."""
    module: Any = torch.get_device_module(name)
    file = _file(folder, name, process)
    if not file.is_file():
        return
    states = torch.load(file, weights_only=True)
    for index, state in enumerate(states[: module.device_count()]):
        module.set_rng_state(state, index)


def _file(folder: str | os.PathLike[str], name: str, process: int) -> Path:
    return Path(folder) / f"rng_state_{name}_{process}.pth"
