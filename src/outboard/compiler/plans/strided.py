# SPDX-License-Identifier: Apache-2.0
"""What sizes and strides say of memory.

A process that loads a model needs ``span`` and no expressions, so sympy is imported where there are some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def span(sizes: Sequence[Any], strides: Sequence[Any]) -> int:
    """Elements from the first to the last of a strided tensor; 0 for an empty one."""
    if 0 in sizes:
        return 0
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in zip(sizes, strides, strict=True))


def product(sizes: Sequence[Any]) -> Any:
    """The product of sizes, 1 for none, as an expression."""
    import sympy

    total: Any = sympy.Integer(1)
    for size in sizes:
        total = total * size
    return total


def is_dense(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether the dimensions provably lie in memory without gaps, in order."""
    import sympy

    step: Any = sympy.Integer(1)
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and _differ(stride, step):
            return False
        step = step * size
    return True


def _differ(stride: Any, step: Any) -> bool:
    import sympy

    difference = sympy.expand(stride - step)
    return bool(difference != 0 and sympy.simplify(difference) != 0)
