# SPDX-License-Identifier: Apache-2.0
"""Finds an OpenCL implementation, or installs one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

DEBIAN_PACKAGES = ["pocl-opencl-icd", "ocl-icd-libopencl1"]
PIP_PACKAGES = ["intel-opencl-rt", "intel-cmplr-lib-rt"]

#: Prints the number of devices of all platforms. Run in a process of its own: a broken ICD may crash.
PROBE = """
import ctypes, sys
cl = ctypes.CDLL(sys.argv[1])
count = ctypes.c_uint32()
cl.clGetPlatformIDs(0, None, ctypes.byref(count))
platforms = (ctypes.c_void_p * count.value)()
cl.clGetPlatformIDs(count.value, platforms, None)
devices = 0
for platform in platforms:
    found = ctypes.c_uint32()
    if cl.clGetDeviceIDs(ctypes.c_void_p(platform), ctypes.c_uint64(0xFFFFFFFF), 0, None, ctypes.byref(found)) == 0:
        devices += found.value
print(devices)
"""


def devices(python: Path, library: str = "libOpenCL.so.1") -> int:
    """Number of OpenCL devices that the ICD loader ``library`` finds; 0 if it cannot be loaded."""
    command = [str(python), "-c", PROBE, library]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return int(result.stdout) if result.returncode == 0 else 0


def pip_runtime(python: Path) -> Path | None:
    """The ICD loader that Intel's pip package puts into the environment of ``python``, if it is there."""
    loader = python.parent.parent / "lib" / "libOpenCL.so.1"
    vendors = python.parent.parent / "etc" / "OpenCL" / "vendors"
    return loader if loader.exists() and any(vendors.glob("*.icd")) else None


def install_debian(packages: list[str]) -> bool:
    """Installs Debian packages if apt is there and we are root or may become it unasked. True on success."""
    if shutil.which("apt-get") is None:
        return False
    prefix: list[str] = []
    if os.geteuid() != 0:
        if shutil.which("sudo") is None or subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode != 0:
            return False
        prefix = ["sudo", "-n"]
    install = [*prefix, "apt-get", "install", "-y", "--no-install-recommends", *packages]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(install, capture_output=True, env=environment).returncode == 0:
        return True
    subprocess.run([*prefix, "apt-get", "update"], capture_output=True, env=environment)
    return subprocess.run(install, capture_output=True, env=environment).returncode == 0


def ensure(python: Path, say: Callable[[str], None]) -> None:
    """Makes sure that some OpenCL device can be found. Says what it did; never raises: without a device the
    package still builds and imports, and ``outboard doctor`` explains what is missing."""
    if devices(python) > 0 or pip_runtime(python) is not None:
        return
    say(f"no OpenCL device found; installing {' '.join(DEBIAN_PACKAGES)}")
    if install_debian(DEBIAN_PACKAGES) and devices(python) > 0:
        return
    say(f"that did not work here; installing {' '.join(PIP_PACKAGES)} with pip")
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", *PIP_PACKAGES]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        say("no OpenCL runtime could be installed; run `outboard doctor` for advice")
