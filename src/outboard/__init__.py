# SPDX-License-Identifier: Apache-2.0
"""Outboard plugs any accelerator into PyTorch from outside PyTorch's tree.

Nothing needs to be imported: PyTorch loads this package through the ``torch.backends`` entry point. The device's name
comes from the profile that ``OUTBOARD_PROFILE`` selects (see :mod:`outboard.profiles`).
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"


def _autoload() -> None:
    """What PyTorch calls at the end of ``import torch``. Never raises: a problem here must not cost the user torch."""
    from outboard import activation

    activation.activate()


# With TORCH_DEVICE_BACKEND_AUTOLOAD=0, importing outboard is how the device is asked for.
_autoload()
