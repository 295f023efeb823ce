# SPDX-License-Identifier: Apache-2.0
"""What this process can tell about its installation. Functions return facts and never print."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from outboard import activation, drivers, profiles, settings

#: Environment variables that change what Outboard does (README.md lists their meaning).
VARIABLE_PREFIXES = ("OUTBOARD_", "OCL_ICD_", "POCL_", "CUDA_VISIBLE_DEVICES", "TORCH_DEVICE_BACKEND_AUTOLOAD")
_SYSTEM_VENDORS = "/etc/OpenCL/vendors"


@dataclasses.dataclass(frozen=True)
class DeviceReport:
    """One device: ``<name>:<index>`` and its properties as a plain dict."""

    device: str
    properties: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Cache:
    """The cache directory: None if nothing is cached, files in it and their size in bytes."""

    directory: Path | None
    files: int
    size: int


def device_name() -> str:
    """The device's name in this process, as its profile gives it."""
    return torch._C._get_privateuse1_backend_name()


def profile() -> profiles.Choice | None:
    """The profile in force and why, or None if Outboard could not be loaded."""
    return profiles.in_force()


def device_reports() -> list[DeviceReport]:
    """All devices; empty if Outboard could not be loaded."""
    module = getattr(torch, device_name(), None)
    if module is None:
        return []
    count = module.device_count()
    return [
        DeviceReport(f"{device_name()}:{index}", dataclasses.asdict(module.get_device_properties(index)))
        for index in range(count)
    ]


def versions() -> dict[str, str]:
    """Versions of what matters, in order."""
    return {
        "outboard": _version("outboard"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        import outboard

        return f"{outboard.__version__} (not installed, run from {Path(outboard.__file__).parent})"


def autoloads() -> bool:
    """Whether PyTorch finds Outboard by itself: the entry point is there and not switched off."""
    offered = {entry.value for entry in importlib.metadata.entry_points(group="torch.backends")}
    switched_on = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"
    return switched_on and "outboard:_autoload" in offered


def environment() -> dict[str, str]:
    """The environment variables that are set and matter here."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLE_PREFIXES)}


def problems() -> list[str]:
    """What Outboard, its drivers and devices reported while loading."""
    return activation.problems()


def passed_over() -> list[str]:
    """Drivers and devices that are not used since others are there, and why, one line each."""
    core = sys.modules.get("outboard._C")
    return [] if core is None else list(core.passed_over())


def cache() -> Cache:
    """Location and contents of the cache."""
    directory = settings.cache_directory()
    if directory is None:
        return Cache(None, 0, 0)
    sizes = [file.stat().st_size for file in directory.rglob("*") if file.is_file()]
    return Cache(directory, len(sizes), sum(sizes))


def icd_files() -> dict[str, str]:
    """OpenCL vendors that the ICD loader will see: file -> the library it names, or why it cannot be read."""
    found = {name: "named by OCL_ICD_FILENAMES" for name in filter(None, _variable("OCL_ICD_FILENAMES").split(":"))}
    vendors = Path(_variable("OCL_ICD_VENDORS") or _SYSTEM_VENDORS)
    files = sorted(vendors.glob("*.icd")) if vendors.is_dir() else [vendors] if vendors.is_file() else []
    for file in files:
        try:
            found[str(file)] = file.read_text().strip()
        except OSError as error:
            found[str(file)] = f"unreadable: {error.strerror}"
    return found


def _variable(name: str) -> str:
    return os.environ.get(name, "")


def opencl_loader() -> str | None:
    """The OpenCL ICD loader mapped into this process, by path, or None."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    for line in maps.read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libOpenCL.so" in path:
            return path
    return None


def cuda_compiler() -> str | None:
    """NVRTC, as the CUDA driver was told to use it, by the user or because it is installed as a package, by path.

    None if the driver has to ask the dynamic linker.
    """
    return os.environ.get(drivers.cuda_compiler.VARIABLE)


def host_compiler() -> str | None:
    """The compiler that the host driver was told to use, by the user or because it is installed as a package, by path.

    None if the driver has to look on ``PATH``.
    """
    return os.environ.get(drivers.host_compiler.VARIABLE)


def smoke_test(device: str) -> str | None:
    """Adds two vectors on the device and compares with the CPU. None if right, else what went wrong."""
    left, right = torch.arange(1024.0), torch.linspace(-1.0, 1.0, 1024)
    module = getattr(torch, device_name())
    before = sum(module.fallbacks().values())
    try:
        result = (left.to(device) + right.to(device)).cpu()
    except Exception as error:  # noqa: BLE001 - whatever it is, the user wants to read it here
        return f"{type(error).__name__}: {error}"
    if not torch.equal(result, left + right):
        return f"wrong result: largest error {(result - (left + right)).abs().max().item():g}"
    if sum(module.fallbacks().values()) != before:
        return f"right result, but it was computed on the CPU: {_why_on_cpu(device)}"
    return None


def _why_on_cpu(device: str) -> str:
    from outboard.compiler import dialects, statistics
    from outboard.compiler.target import target_of

    target = target_of(torch.device(device).index or 0)
    if target.compiler:
        return "; ".join(statistics.reasons().get("aten::add", ["its compiler of graphs was not asked"]))
    if not target.dialect:
        return "the device runs no programs"
    if not target.has_dialect:
        known = ", ".join(dialects.names())
        return (
            f"nothing that is installed writes programs in the device's dialect, {target.dialect!r} (but in: {known}). "
            "Install the package that brings it (see docs/dialects.md)"
        )
    return "the device's compiler refused the operation"


def format_bytes(count: float) -> str:
    """A size in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def features_off() -> list[str]:
    """What does not work because this PyTorch is another than Outboard was written for."""
    from outboard import patches

    off = patches.refused.items()
    return [f"this PyTorch is another than Outboard knows: not so that {what} ({why})" for what, why in off]
