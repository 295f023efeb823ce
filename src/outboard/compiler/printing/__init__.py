# SPDX-License-Identifier: Apache-2.0
"""Prints a :class:`~outboard.compiler.loops.LoopKernel` as OpenCL C, with the grid to launch it on.

``statements`` and what it stands on are the same for all devices. The outer loops are not: ``vector``, with ``rows``,
is for CPUs, ``simt`` for devices of many short work-items.
"""

from __future__ import annotations

from ..loops import LoopKernel, keep_terms
from ..target import Target
from .emitted import EmittedKernel, program
from .simt import SimtPrinter
from .vector import VectorPrinter

__all__ = ["EmittedKernel", "emit", "program"]


def emit(kernel: LoopKernel, target: Target, entry: str = "kernel0") -> EmittedKernel:
    """Prints a kernel for a device. Raises ``Unsupported`` for what the dialect cannot express."""
    if not target.tuning.vectors:
        return SimtPrinter(kernel, target, entry).emit()
    keep_terms(kernel)
    return VectorPrinter(kernel, target, entry).emit()
