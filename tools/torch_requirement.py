# SPDX-License-Identifier: Apache-2.0
"""The releases of PyTorch that these sources are for, and the one release that what is built from them needs.

pyproject.toml names this file as the source of the package's requirements (``tool.dynamic-metadata``): whoever builds,
``make wheel``, ``make setup`` or ``pip install .``, the result asks for the minor release that it was built with, whose
C++ interface it needs. Only the standard library is used.
"""

from __future__ import annotations

import importlib.metadata
import os
import sysconfig
from collections.abc import Mapping
from typing import Any

#: Minor releases, the oldest first, each with its newest version. ``build-system.requires`` of pyproject.toml and
#: docs/releases.md say the same.
VERSIONS = {"2.13": "2.13.0", "2.14": "2.14.1", "2.15": "2.15.0"}
RELEASES = tuple(VERSIONS)
#: What ``make`` installs unless it is told otherwise.
DEFAULT = "2.13.0"
#: For pip: compiles several files of the extension together.
UNITY = "--config-settings=cmake.define.OUTBOARD_UNITY=ON"


def release(version: str) -> str:
    """The minor release of a version: "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def unsupported(version: str) -> str | None:
    """What to do if these sources are for other releases than that of ``version``, or other Pythons than this one; else
    None. Who sets ``OUTBOARD_ANY_TORCH=1`` builds all the same: what of PyTorch is not as ``src/outboard/patches.py``
    knows it is left as it is, and ``outboard doctor`` names what is off for that."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "Outboard needs a Python with its global lock, which this free-threaded build does without: `python3.14`"
    if release(version) in RELEASES or os.environ.get("OUTBOARD_ANY_TORCH") == "1":
        return None
    return (
        f"Outboard's sources are for PyTorch {', '.join(RELEASES[:-1])} and {RELEASES[-1]}, not for {version}: "
        f'`pip install "torch=={RELEASES[-1]}.*"`, or try it with OUTBOARD_ANY_TORCH=1'
    )


def build_folder(version: str) -> str:
    """The option of pip that gives builds with PyTorch ``version`` a folder of their own: objects of one release are of
    no use to another."""
    return f"--config-settings=build-dir=build/{{wheel_tag}}-torch{release(version)}"


def joined_files() -> list[str]:
    """The options of pip for a build from nothing: several files of the extension are compiled together, but where a
    launcher such as ccache keeps what it has compiled, file by file."""
    return [] if "CMAKE_CXX_COMPILER_LAUNCHER" in os.environ else [UNITY]


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, list[str]]:
    """For the build backend: what the package requires, where this PyTorch built it. Raises RuntimeError under one that
    the sources are not for."""
    version = importlib.metadata.version("torch")
    if (problem := unsupported(version)) is not None:
        raise RuntimeError(problem)
    return {"dependencies": [f"torch=={release(version)}.*", "numpy"]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """For the build backend: wheels from the same sources may require different things."""
    return {"dependencies": True}


if __name__ == "__main__":
    print(*VERSIONS.values())  # for the Makefile
