# SPDX-License-Identifier: Apache-2.0
"""What libraries keep in a hard-coded list of devices: one small adapter each, applied when, and only when, a program
imports the library. ``OUTBOARD_INTEGRATIONS=0`` leaves them alone."""

from __future__ import annotations

import os


def install(name: str) -> None:
    """Has the adapters for the device called ``name`` applied."""
    if os.environ.get("OUTBOARD_INTEGRATIONS") == "0":
        return
    from outboard.compiler import hook

    from . import safetensors_files

    hook.call_after("safetensors", lambda: safetensors_files.install(name))
