# SPDX-License-Identifier: Apache-2.0
"""The names of SOL: after ``import sol.pytorch``, in any order with ``import torch``, ``ve`` is a device."""

# ruff: noqa: E402 - the profile has to be chosen before Outboard is imported
import os
import sys

if "outboard" not in sys.modules:  # else it is decided already
    os.environ["OUTBOARD_PROFILE"] = os.environ.get("OUTBOARD_PROFILE") or "ve"

from outboard import __version__, profiles

profiles.require("ve", package="sol", distribution="outboard-ve")

__all__ = ["__version__"]
