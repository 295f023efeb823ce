# SPDX-License-Identifier: Apache-2.0
"""The schedule of a nest for a device."""

from __future__ import annotations

from ..target import Target
from .nest import LoopKernel
from .schedule import Schedule
from .simt import schedule_simt
from .vector import schedule_vector


def schedule_for(kernel: LoopKernel, target: Target) -> Schedule:
    """How a nest that passes have been over goes through a device. Raises Unsupported for a nest of too many ranges."""
    if target.tuning.vectors:
        return schedule_vector(kernel, target.tuning)
    return schedule_simt(kernel, target.limits)
