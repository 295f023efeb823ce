# SPDX-License-Identifier: Apache-2.0
"""Prints a :class:`~outboard.compiler.loops.nest.LoopKernel` as OpenCL C, by a schedule that says how.

``statements`` and what it stands on are the same for all devices. The outer loops are not: ``vector``, with ``rows``,
is for CPUs, ``simt`` for devices of many short work-items. Nothing here decides: what a device likes is known where
schedules are made.
"""

from __future__ import annotations

from .. import progress
from ..loops.nest import LoopKernel
from ..loops.schedule import Schedule, SimtSchedule, VectorSchedule
from ..loops.scheduling import schedule_for
from ..target import Target
from .emitted import EmittedKernel, program
from .simt import SimtPrinter
from .vector import VectorPrinter

__all__ = ["EmittedKernel", "emit", "print_kernel", "program"]


def emit(kernel: LoopKernel, target: Target, entry: str = "kernel0") -> EmittedKernel:
    """Schedules and prints a kernel for a device. Raises ``Unsupported`` for what the dialect cannot express."""
    schedule = schedule_for(kernel, target)
    progress.show_schedule(schedule)
    return print_kernel(kernel, schedule, target, entry)


def print_kernel(kernel: LoopKernel, schedule: Schedule, target: Target, entry: str = "kernel0") -> EmittedKernel:
    """The text of a kernel and its launch. Of the device, only matters what its language can express: doubles, atomics.
    Raises ``Unsupported`` for what that is not."""
    if isinstance(schedule, VectorSchedule):
        return VectorPrinter(kernel, schedule, target, entry).emit()
    assert isinstance(schedule, SimtSchedule)
    return SimtPrinter(kernel, schedule, target, entry).emit()
