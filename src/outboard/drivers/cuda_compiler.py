# SPDX-License-Identifier: Apache-2.0
"""Tells the CUDA driver where NVRTC is that was installed with pip.

The package ``nvidia-cuda-nvrtc`` (CUDA 13), or ``nvidia-cuda-nvrtc-cu12``, puts it below ``site-packages/nvidia``. The
driver itself only looks where the dynamic linker does.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

#: Where the driver looks before it asks the dynamic linker.
VARIABLE = "OUTBOARD_CUDA_NVRTC"
#: Below the package, newest first.
_PLACES = ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12")


def expose() -> None:
    """Names NVRTC of a package, if one is installed and the user has named none."""
    if os.environ.get(VARIABLE):
        return
    library = installed()
    if library is not None:
        os.environ[VARIABLE] = str(library)


def installed() -> Path | None:
    """The path of NVRTC in a package, or None. The package is not imported."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    found = (Path(folder) / place for place in _PLACES for folder in folders)
    return next((library for library in found if library.is_file()), None)
