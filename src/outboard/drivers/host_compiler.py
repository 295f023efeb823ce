# SPDX-License-Identifier: Apache-2.0
"""Tells the host driver where the compiler is that was installed with pip.

The package ``ziglang`` contains Zig, and that contains Clang and LLD. The driver itself only looks on ``PATH``.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

#: Where the driver looks before it looks on PATH.
VARIABLE = "OUTBOARD_HOST_COMPILER"


def expose() -> None:
    """Names the compiler of the package ``ziglang``, if that is installed and the user has named none."""
    if os.environ.get(VARIABLE):
        return
    compiler = installed()
    if compiler is not None:
        os.environ[VARIABLE] = str(compiler)


def installed() -> Path | None:
    """The path of Zig in the package ``ziglang``, or None. The package is not imported."""
    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        compiler = Path(folder) / "zig"
        if os.access(compiler, os.X_OK):
            return compiler
    return None
