# SPDX-License-Identifier: Apache-2.0
"""Outboard plugs any accelerator into PyTorch from outside PyTorch's tree.

Nothing needs to be imported: PyTorch loads this package through the ``torch.backends`` entry point. The device's name
comes from the profile that ``OUTBOARD_PROFILE`` selects (see :mod:`outboard.profiles`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from outboard.version import __version__

if TYPE_CHECKING:
    from outboard.capture.calls import graphed, graphed_refusals
    from outboard.exporting.exporter import export
    from outboard.exporting.installed import cmake_prefix, get_include
    from outboard.exporting.loader import load
    from outboard.optimization import optimize
    from outboard.own_code.borrowing import borrow
    from outboard.own_code.kernels import RawKernel
    from outboard.own_code.layouts import layout_of, relayout
    from outboard.own_code.operators import kernel, library
    from outboard.simulation import Chip, Simulation, simulate

__all__ = [
    "Chip",
    "RawKernel",
    "Simulation",
    "__version__",
    "borrow",
    "cmake_prefix",
    "export",
    "get_include",
    "graphed",
    "graphed_refusals",
    "kernel",
    "layout_of",
    "library",
    "load",
    "optimize",
    "relayout",
    "simulate",
]

_ON_DEMAND = {
    "Chip": "simulation",
    "RawKernel": "own_code.kernels",
    "Simulation": "simulation",
    "borrow": "own_code.borrowing",
    "cmake_prefix": "exporting.installed",
    "export": "exporting.exporter",
    "get_include": "exporting.installed",
    "graphed": "capture.calls",
    "graphed_refusals": "capture.calls",
    "kernel": "own_code.operators",
    "layout_of": "own_code.layouts",
    "library": "own_code.operators",
    "load": "exporting.loader",
    "optimize": "optimization",
    "relayout": "own_code.layouts",
    "simulate": "simulation",
}


def __getattr__(name: str) -> Any:
    """Functions that are imported when they are first used: PyTorch imports this package at the end of its import."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"outboard.{_ON_DEMAND[name]}"), name)


def _autoload() -> None:
    """What PyTorch calls at the end of ``import torch``. Never raises: a problem here must not cost the user torch."""
    from outboard import activation

    activation.activate()


# With TORCH_DEVICE_BACKEND_AUTOLOAD=0, importing outboard is how the device is asked for.
_autoload()
