# SPDX-License-Identifier: Apache-2.0
"""What ``torch.npu`` is where the device has another name: a module that says that there is no NPU.

Libraries ask it once ``torch_npu`` is there, as on a machine with the real extension and without its hardware.
"""

from __future__ import annotations

from typing import NoReturn

from outboard import profiles


def is_available() -> bool:
    """False."""
    return False


def device_count() -> int:
    """0."""
    return 0


def __getattr__(name: str) -> NoReturn:
    try:
        profiles.require("npu", package="torch_npu", distribution="outboard-npu")
    except ImportError as error:
        raise AttributeError(f"torch.npu.{name}: {error}") from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
