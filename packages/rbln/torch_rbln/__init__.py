# SPDX-License-Identifier: Apache-2.0
"""The names of ``torch-rbln``: after ``import torch_rbln``, in any order with ``import torch``, ``rbln`` is a device.

``torch_rbln.device`` is ``torch.rbln``, and ``torch_rbln.memory`` is ``torch.rbln.memory``.
"""

# ruff: noqa: E402 - the profile has to be chosen before Outboard is imported
import os
import sys

if "outboard" not in sys.modules:  # else it is decided already
    os.environ["OUTBOARD_PROFILE"] = os.environ.get("OUTBOARD_PROFILE") or "rbln"

from outboard import __version__, profiles

profiles.require("rbln", package="torch_rbln", distribution="outboard-rbln")

from outboard import device
from outboard.device import memory

__all__ = ["__version__", "device", "memory"]

sys.modules[f"{__name__}.device"] = device
sys.modules[f"{__name__}.memory"] = memory
