# SPDX-License-Identifier: Apache-2.0
"""Numbers that are known only when an executable runs: PyTorch's symbolic ones, and their expressions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_KINDS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def expression(number: Any) -> Any:
    """The sympy expression of a symbolic number; any other value as it is."""
    return number.node.expr if isinstance(number, _KINDS) else number


def symbolic(values: Iterable[Any]) -> list[torch.SymInt | torch.SymFloat]:
    """The symbolic integers and floats among values."""
    return [value for value in values if isinstance(value, (torch.SymInt, torch.SymFloat))]


def symbols_of(value: Any, strides: bool = True) -> list[torch.SymInt | torch.SymFloat]:
    """The symbolic integers and floats in a value: in lists and the like, and the sizes and strides of tensors."""
    leaves = pytree.tree_leaves(value)
    tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
    numbers = [number for each in tensors for number in (*each.shape, *(each.stride() if strides else ()))]
    return symbolic((*leaves, *numbers))
