# SPDX-License-Identifier: Apache-2.0
"""Outboard plugs any accelerator into PyTorch from outside PyTorch's tree.

Nothing needs to be imported: PyTorch loads this package through the ``torch.backends`` entry point. The device's name
comes from the profile that ``OUTBOARD_PROFILE`` selects (see :mod:`outboard.profiles`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outboard.optimization import optimize

__all__ = ["__version__", "optimize"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``outboard.optimize``, on demand: PyTorch imports this package at the end of its own import."""
    if name != "optimize":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from outboard.optimization import optimize

    return optimize


def _autoload() -> None:
    """What PyTorch calls at the end of ``import torch``. Never raises: a problem here must not cost the user torch."""
    from outboard import activation

    activation.activate()


# With TORCH_DEVICE_BACKEND_AUTOLOAD=0, importing outboard is how the device is asked for.
_autoload()
