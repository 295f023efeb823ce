# SPDX-License-Identifier: Apache-2.0
"""Makes an OpenCL runtime that was installed with pip visible to the OpenCL driver.

Intel's CPU runtime comes as the packages ``intel-opencl-rt`` and ``intel-cmplr-lib-rt``. They put their libraries
into the environment's ``lib`` directory, where neither the dynamic linker nor an ICD loader looks. Where the system
has no ICD of its own, we load what they need and tell the loader about theirs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

from outboard import trusted

#: Where ICD loaders look for vendors.
_SYSTEM_VENDORS = (
    Path("/etc/OpenCL/vendors"),
    Path("/usr/share/OpenCL/vendors"),
    Path("/usr/local/etc/OpenCL/vendors"),
)
_ICD = "libintelocl.so"
_LOADER = "libOpenCL.so.1"
#: What the runtime and the loader of the pip packages link against, dependencies first.
_PRELOAD = ("libintlc.so.5", "libirng.so", "libimf.so", "libsvml.so", "libtbb.so.12")


def expose(cache_directory: Path | None) -> list[str]:
    """Prepares the process for a pip-installed runtime, if it is the only one; returns what is in the way.

    Args:
        cache_directory: where to keep the ICD file that names the runtime; without one, loaders that accept library
            names (``OCL_ICD_FILENAMES``) still find it.
    """
    if "OCL_ICD_VENDORS" in os.environ or "OCL_ICD_FILENAMES" in os.environ or _system_has_icd():
        return []
    directory = _pip_library_directory()
    if directory is None:
        return []
    missing = _load([directory / library for library in _PRELOAD])
    os.environ["OCL_ICD_FILENAMES"] = str(directory / _ICD)
    problems = []
    if cache_directory is not None:
        with contextlib.suppress(OSError):
            os.environ["OCL_ICD_VENDORS"] = str(_write_icd(cache_directory, directory / _ICD))
    if _load([Path(_LOADER)]):
        missing += _load([directory / _LOADER])
    if missing:
        problems.append(
            f"Intel's OpenCL runtime is in {directory}, but could not be loaded whole: {'; '.join(missing)}. "
            "`pip install intel-opencl-rt intel-cmplr-lib-rt` installs all of it."
        )
    return problems


def _system_has_icd() -> bool:
    return any(directory.is_dir() and any(directory.glob("*.icd")) for directory in _SYSTEM_VENDORS)


def _pip_library_directory() -> Path | None:
    """The ``lib`` directory of the environment that holds the runtime, or None."""
    candidates = [Path(sys.prefix) / "lib", Path(__file__).parents[3].parent]
    return next((directory for directory in candidates if (directory / _ICD).exists()), None)


def _load(libraries: list[Path]) -> list[str]:
    """Loads libraries for the whole process, so that later ones find them by name; returns what failed."""
    failed = []
    for library in libraries:
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            failed.append(str(error))
    return failed


def _write_icd(cache_directory: Path, library: Path) -> Path:
    """A vendors directory with one ICD file that names ``library``. Raises OSError."""
    vendors = cache_directory / "vendors"
    icd = vendors / "intel-cpu.icd"
    content = f"{library}\n".encode()
    try:
        known = trusted.read(icd)
    except FileNotFoundError:
        known = b""
    if known != content:
        trusted.write(icd, content)
    return vendors
