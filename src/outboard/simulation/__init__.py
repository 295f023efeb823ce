# SPDX-License-Identifier: Apache-2.0
"""How long programs take on hardware that is not there: operators are counted, time is modelled.

A function is called with tensors that have no data (:mod:`outboard.simulation.recording`). Its operators become the
steps that are left after fusion (:mod:`outboard.simulation.steps`), and a :class:`Chip` says how long each takes
(:mod:`outboard.simulation.timeline`).
"""

from outboard.simulation.chip import Chip
from outboard.simulation.timeline import Simulation, Timeline, simulate

__all__ = ["Chip", "Simulation", "Timeline", "simulate"]
