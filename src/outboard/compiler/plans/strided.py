# SPDX-License-Identifier: Apache-2.0
"""What sizes and strides say of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def span(sizes: Sequence[Any], strides: Sequence[Any]) -> int:
    """Elements from the first to the last of a strided tensor; 0 for an empty one."""
    if 0 in sizes:
        return 0
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in zip(sizes, strides, strict=True))
