# SPDX-License-Identifier: Apache-2.0
"""The names of SOL: after ``import sol.pytorch``, in any order with ``import torch``, ``ve`` is a device.

``sol.optimize`` is ``outboard.optimize`` and ``sol.deploy`` is ``outboard.export``. ``sol.pytorch`` has the same names.
"""

# ruff: noqa: E402 - the profile has to be chosen before Outboard is imported
import os
import sys
from typing import TYPE_CHECKING, Any

if "outboard" not in sys.modules:  # else it is decided already
    os.environ["OUTBOARD_PROFILE"] = os.environ.get("OUTBOARD_PROFILE") or "ve"

import outboard
from outboard import __version__, optimize, profiles

profiles.require("ve", package="sol", distribution="outboard-ve")

if TYPE_CHECKING:
    from outboard import export as deploy

__all__ = ["__version__", "deploy", "optimize"]


def __getattr__(name: str) -> Any:
    if name == "deploy":  # when it is first used: it imports torch.export
        return outboard.export
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
