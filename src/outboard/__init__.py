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
    from outboard.exporting.installed import cmake_prefix
    from outboard.exporting.loader import load
    from outboard.optimization import optimize

__all__ = ["__version__", "cmake_prefix", "export", "graphed", "graphed_refusals", "load", "optimize"]

_ON_DEMAND = {
    "cmake_prefix": "exporting.installed",
    "export": "exporting.exporter",
    "graphed": "capture.calls",
    "graphed_refusals": "capture.calls",
    "load": "exporting.loader",
    "optimize": "optimization",
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
