# SPDX-License-Identifier: Apache-2.0
"""Which PyTorch the extension was built for, so that another is told from it before symbols are missing."""

from __future__ import annotations

from pathlib import Path


def built_for() -> str | None:
    """The version of PyTorch that the extension was built with, such as "2.13.0"; None if it was not built."""
    file = Path(__file__).parent / "torch-release.txt"
    return file.read_text().strip() if file.exists() else None


def mismatch(running: str) -> str | None:
    """What is wrong, and what to do, if ``running``, PyTorch's version, is of another minor release than the one that
    the extension was built for, whose C++ interface it needs; else None."""
    built = built_for()
    if built is None or release(built) == release(running):
        return None
    wanted = release(built)
    return (
        f"This Outboard was built for PyTorch {wanted}, and this is PyTorch {running}: there is no device. Install "
        f'that PyTorch (`pip install "torch=={wanted}.*"`) or an Outboard that was built for yours (from its sources: '
        "`pip install --no-build-isolation --force-reinstall --no-deps .`)."
    )


def release(version: str) -> str:
    """The minor release of a version: "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def number(version: str) -> tuple[int, ...]:
    """The minor release of a version as numbers, to compare: (2, 13) of "2.13.0+cpu"."""
    return tuple(int(part) for part in release(version).split("."))
