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
    """Whether the dimensions provably lie in memory without gaps, in order, if they are not empty."""
    import sympy

    step: Any = sympy.Integer(1)
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and _differ(stride, step):
            return False
        step = step * size
    return True


def _differ(stride: Any, step: Any) -> bool:
    import sympy

    difference = sympy.expand(_step_of(stride) - step)
    return bool(difference != 0 and sympy.simplify(difference) != 0)


def _step_of(stride: Any) -> Any:
    """A stride without PyTorch's care for empty dimensions, over which it steps as over such of one."""
    import sympy

    def is_careful(part: Any) -> bool:
        return part.func.__name__ == "Max" and len(part.args) == 2 and 1 in part.args

    return sympy.sympify(stride).replace(is_careful, lambda part: next(each for each in part.args if each != 1))
