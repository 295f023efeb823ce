# SPDX-License-Identifier: Apache-2.0
"""Tells the CUDA driver where libraries of NVIDIA's are that were installed with pip: NVRTC, cuBLASLt and cuDNN.

The packages ``nvidia-cuda-nvrtc`` and ``nvidia-cublas`` (CUDA 13), or those whose names end with ``-cu12``, and
``nvidia-cudnn-cu13`` or ``-cu12`` put them below ``site-packages/nvidia``. The driver itself only looks where the
dynamic linker does.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

#: Where the driver looks for NVRTC before it asks the dynamic linker.
VARIABLE = "OUTBOARD_CUDA_NVRTC"
#: By variable: places below the package, newest first.
_PLACES = {
    VARIABLE: ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"),
    "OUTBOARD_CUDA_CUBLASLT": ("cu13/lib/libcublasLt.so.13", "cublas/lib/libcublasLt.so.12"),
    "OUTBOARD_CUDA_CUDNN": ("cudnn/lib/libcudnn.so.9",),
}


def expose() -> None:
    """Names the libraries of packages that are installed, where the user has named none."""
    for variable in _PLACES:
        library = None if os.environ.get(variable) else installed(variable)
        if library is not None:
            os.environ[variable] = str(library)


def installed(variable: str = VARIABLE) -> Path | None:
    """The path of the library that a variable is for, in a package, or None. The package is not imported."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    found = (Path(folder) / place for place in _PLACES[variable] for folder in folders)
    return next((library for library in found if library.is_file()), None)
