# SPDX-License-Identifier: Apache-2.0
"""The simulator's modelled time: ``torch.<device>.sim``."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

import torch

from outboard import drivers

if TYPE_CHECKING:
    from outboard.simulation import Chip, Timeline

__all__ = ["forget", "report"]


def report(device: int | None = None) -> Timeline:
    """What a simulated device did since the last :func:`forget`, in the time of the chip in ``OUTBOARD_SIM_CHIP``.

    Steps are those of its executables, copies and fills; memory is what the caching allocator took. The host takes no
    time but what it waits for. ``print`` it, or ``save`` it as a page.

    Args:
        device: its index; the current one's if None.

    Raises:
        RuntimeError: without a chip, or for a device that is not the simulator's.
    """
    from outboard.simulation.log import read

    chip = _chip()
    place = _place(chip, torch.accelerator.current_device_index() if device is None else device)
    torch.accelerator.synchronize(device)
    timeline = ctypes.CDLL(drivers.sim()).outboard_sim_timeline
    timeline.restype = ctypes.c_char_p
    return read(timeline().decode(), place, chip)


def forget() -> None:
    """What was done before is no part of reports any more. Raises RuntimeError without a chip."""
    _chip()
    for index in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(index)
    ctypes.CDLL(drivers.sim()).outboard_sim_forget()


def _chip() -> Chip:
    path = os.environ.get("OUTBOARD_SIM_CHIP")
    if not path:
        raise RuntimeError("time is modelled where OUTBOARD_DRIVER=sim, and OUTBOARD_SIM_CHIP names a file with a chip")
    from outboard.simulation import Chip

    return Chip.load(path)


def _place(chip: Chip, index: int) -> int:
    """The number that the simulator has for a device, all of whose devices have the chip's name."""
    name_of = torch.get_device_module().get_device_name
    if name_of(index) != chip.name:
        raise RuntimeError(f"device {index}, {name_of(index)}, is not the simulator's: its time is not modelled")
    return sum(name_of(other) == chip.name for other in range(index))
