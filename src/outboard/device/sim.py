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
        device: its index among the simulator's devices; the current device's index if None.

    Raises:
        RuntimeError: without a chip.
    """
    from outboard.simulation.log import read

    chip = _chip()
    torch.accelerator.synchronize()
    index = torch.accelerator.current_device_index() if device is None else device
    timeline = ctypes.CDLL(drivers.sim()).outboard_sim_timeline
    timeline.restype = ctypes.c_char_p
    return read(timeline().decode(), index, chip)


def forget() -> None:
    """What was done before is no part of reports any more. Raises RuntimeError without a chip."""
    _chip()
    torch.accelerator.synchronize()
    ctypes.CDLL(drivers.sim()).outboard_sim_forget()


def _chip() -> Chip:
    path = os.environ.get("OUTBOARD_SIM_CHIP")
    if not path:
        raise RuntimeError("time is modelled where OUTBOARD_DRIVER=sim, and OUTBOARD_SIM_CHIP names a file with a chip")
    from outboard.simulation import Chip

    return Chip.load(path)
