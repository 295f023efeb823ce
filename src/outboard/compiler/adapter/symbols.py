# SPDX-License-Identifier: Apache-2.0
"""Numbers that a trace does not know: PyTorch's symbols as sympy's, and what they were when it was traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def expression(number: Any) -> Any:
    """A number as plans have it: the sympy expression of a symbolic one, any other as it is."""
    return number.node.expr if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)) else number


def hints(sizes: Sequence[Any]) -> list[int]:
    """Sizes or strides as they were when they were traced."""
    return [size.node.hint if isinstance(size, torch.SymInt) else int(size) for size in sizes]
