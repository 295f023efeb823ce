# SPDX-License-Identifier: Apache-2.0
"""The names of ``torch-rbln``: after ``import torch_rbln``, in any order with ``import torch``, ``rbln`` is a device.

``torch_rbln.device`` is ``torch.rbln``, as are the other modules of torch-rbln, whose names all are there, too.
"""

# ruff: noqa: E402 - the profile has to be chosen before Outboard is imported
import os
import sys

if "outboard" not in sys.modules:  # else it is decided already
    os.environ["OUTBOARD_PROFILE"] = os.environ.get("OUTBOARD_PROFILE") or "rbln"

from outboard import __version__

__all__ = ["__version__", "device", "memory", "profiler", "programs", "random"]

# What diagnoses a broken installation must not break with it.
if os.environ.get("TORCH_RBLN_DIAGNOSE") != "1" and "torch_rbln.diagnose" not in sys.orig_argv:
    from outboard import profiles

    profiles.require("rbln", package="torch_rbln", distribution="outboard-rbln")

    from outboard import device

    memory = profiler = programs = random = device
    for module in ("device", "device.device", "device.streams", "memory", "profiler", "programs", "random"):
        sys.modules[f"{__name__}.{module}"] = device
