# SPDX-License-Identifier: Apache-2.0
"""Where the parts for C++ are."""

from __future__ import annotations

from pathlib import Path

import outboard


def cmake_prefix() -> str:
    """The directory for ``CMAKE_PREFIX_PATH`` with which ``find_package(outboard)`` finds the runner of exported
    models: library, header, and the program ``bin/outboard-run``."""
    return str(Path(outboard.__file__).parent)


def get_include() -> str:
    """The directory of ``outboard/driver.h``, ``outboard/extension.h`` and ``outboard/runner.h``, for compilers."""
    return str(Path(outboard.__file__).parent / "include")
