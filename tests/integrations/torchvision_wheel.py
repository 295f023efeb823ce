# SPDX-License-Identifier: Apache-2.0
"""Lets the torchvision that PyPI has, which is built for CUDA, load beside a PyTorch that is not: only its functions
for CPUs are wanted. Nothing is done where a torchvision for this PyTorch is installed."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch


def _extension() -> Path | None:
    """torchvision's library of operators."""
    found = importlib.util.find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "_C.so"


def _load_cuda_runtime() -> None:
    """CUDA's runtime, of NVIDIA's package; it loads without a GPU."""
    found = importlib.util.find_spec("nvidia")
    places = list(found.submodule_search_locations or []) if found else []
    for library in (path for place in places for path in Path(place).glob("cu*/lib/libcudart.so.*")):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _load_stub(folder: Path, name: str, symbols: list[str]) -> None:
    """Makes and loads a library ``name`` with symbols of which nobody will make use."""
    source = "".join(f'char stub{i}[64] __asm__("{symbol}");\n' for i, symbol in enumerate(symbols))
    path = folder / str(len(symbols)) / name
    path.parent.mkdir(exist_ok=True)
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), f"-Wl,-soname,{name}"]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


@functools.cache
def prepare() -> None:
    """Has ``import torchvision`` succeed in this process, if it is installed; call it before.

    Raises:
        OSError: what the loader says if torchvision's library is of another PyTorch.
    """
    extension = _extension()
    if extension is None or "torchvision" in sys.modules or torch.version.cuda is not None:
        return
    if b"libtorch_cuda.so" not in extension.read_bytes():
        return
    _load_cuda_runtime()
    with tempfile.TemporaryDirectory() as folder:
        _load_stub(Path(folder), "libtorch_cuda.so", [])
        _load_stub(Path(folder), "libc10_cuda.so", _insisted_on(extension))


def _insisted_on(extension: Path) -> list[str]:
    """The names of PyTorch's part for CUDA that the library refers to: the loader wants all of them."""
    return sorted({name.decode() for name in re.findall(rb"_ZNK?(?:3c10|2at)4cuda\w+", extension.read_bytes())})
