# SPDX-License-Identifier: Apache-2.0
"""Finds driver libraries: Outboard's own, and those that other packages offer.

A package offers a driver through the entry-point group ``outboard.drivers``: the entry point's name is the driver's,
and what it loads is a function without arguments that returns the path of a shared library (see
``include/outboard/driver.h``). Nothing here loads a library or imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from outboard.drivers import cuda_compiler, host_compiler, onednn, opencl_runtime

__all__ = ["available", "cuda", "host", "opencl", "prepare", "processor", "select", "sim", "strict"]

#: Drivers that are only used when OUTBOARD_DRIVER names them: they make devices out of nothing, or, as ``host``, of
#: what another driver may have made one already (but see ``processor``).
_ON_REQUEST = frozenset({"host", "sim", "strict"})


def _library(name: str) -> str:
    return str(Path(__file__).parent / f"liboutboard_{name}.so")


def cuda() -> str:
    """Path of the CUDA driver: GPUs of NVIDIA, with NVRTC as their compiler."""
    return _library("cuda")


def opencl() -> str:
    """Path of the OpenCL driver."""
    return _library("opencl")


def host() -> str:
    """Path of the host driver: the processor as a device, with Clang as its compiler."""
    return _library("host")


def sim() -> str:
    """Path of the simulator driver, a device in host memory for tests."""
    return _library("sim")


def strict() -> str:
    """Path of the strict driver, which makes a slow, discrete device of another driver's, for tests."""
    return _library("strict")


def available() -> tuple[dict[str, Callable[[], str]], list[str]]:
    """Every driver known, as functions that return its library's path, by name; and what went wrong on the way.

    Of a GPU that two of them drive, the first one's device is used."""
    found: dict[str, Callable[[], str]] = {"cuda": cuda, "opencl": opencl, "host": host, "sim": sim, "strict": strict}
    problems = []
    for entry in entry_points(group="outboard.drivers"):
        if entry.name in found:
            continue
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # noqa: BLE001 - a broken third-party package costs its driver, not the others
            problems.append(f"driver {entry.name} ({entry.value}): {type(error).__name__}: {error}")
    return found, problems


def select(choice: str | None, preferred: str | None = None) -> tuple[list[str], list[str]]:
    """The libraries to load, in order, and problems found on the way.

    Args:
        choice: value of ``OUTBOARD_DRIVER``: names of drivers or paths of libraries, separated by commas. None or empty
            means every driver but those for tests.
        preferred: the driver whose devices come first if ``choice`` leaves it open.
    """
    found, problems = available()
    if not choice:
        names = [name for name in found if name not in _ON_REQUEST]
        names.sort(key=lambda name: name != preferred)
        return [found[name]() for name in names], problems
    libraries = []
    for name in filter(None, (part.strip() for part in choice.split(","))):
        if name in found:
            libraries.append(found[name]())
        elif os.path.exists(name):
            libraries.append(name)
        else:
            problems.append(
                f"OUTBOARD_DRIVER names {name!r}, which is neither a driver ({', '.join(found)}) nor a file."
            )
    return libraries, problems


def processor() -> tuple[list[str], list[str]]:
    """For where OUTBOARD_DRIVER names no driver and there is no device but the processor: the libraries that make a
    device of it, and those whose devices of it are not needed then."""
    return [host()], [opencl()]


def prepare(cache_directory: Path | None) -> list[str]:
    """Makes vendor libraries that come as Python packages visible to the drivers; returns what is in the way."""
    cuda_compiler.expose()
    host_compiler.expose()
    onednn.expose()
    return opencl_runtime.expose(cache_directory)
