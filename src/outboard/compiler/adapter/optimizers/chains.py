# SPDX-License-Identifier: Apache-2.0
"""Chains of ``_foreach_*`` operators: what one does to one element of its lists, as one pointwise graph.

``csrc/torch/eager/foreach.cpp`` writes them down while an optimizer updates its parameters, as text such as
"wwrv|lerp 0 2 #0 >0|sqrt 1 >3": two tensors are written, one is read, one only the chain knows; then operators, each
with the tensors and numbers that it takes and the tensor that its result replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def _tensor(value: Any, like: Tensor) -> Tensor:
    """A number as a tensor. (Operators that have formulas of their own for some numbers would ask for its value.)"""
    return value if isinstance(value, Tensor) else torch.full((), value, dtype=like.dtype, device=like.device)


def _power(base: Any, exponent: Any) -> Tensor:
    like = base if isinstance(base, Tensor) else exponent
    return torch.pow(_tensor(base, like), _tensor(exponent, like))


#: Name -> the operator on tensors and, where ``_foreach_*`` takes them, numbers. What is not here is the function of
#: that name in ``torch``, which takes tensors only.
_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "add": lambda x, y, factor=1: torch.add(x, y, alpha=factor),
    "sub": lambda x, y, factor=1: torch.sub(x, y, alpha=factor),
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "addcmul": lambda x, y, z, factor=None: x + (y * z if factor is None else y * factor * z),
    "addcdiv": lambda x, y, z, factor=None: x + (y / z if factor is None else y * factor / z),
    "clamp_max": lambda x, y: torch.minimum(x, _tensor(y, x)),
    "clamp_min": lambda x, y: torch.maximum(x, _tensor(y, x)),
    "maximum": lambda x, y: torch.maximum(x, _tensor(y, x)),
    "minimum": lambda x, y: torch.minimum(x, _tensor(y, x)),
    "pow": _power,
    "lerp": lambda x, y, weight: torch.lerp(x, y, weight) if isinstance(weight, Tensor) else x + (y - x) * weight,
    "lerp_far": lambda x, y, weight: y - (y - x) * (1 - weight),
    "copy": lambda x, y: y.expand_as(x),
    "zero": torch.zeros_like,
}


def wide(x: Tensor) -> Tensor:
    """In the precision of computing: halves are computed in float32."""
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def chain_(program: str, written: Sequence[Tensor], read: Sequence[Tensor], numbers: Sequence[float]) -> None:
    """Runs a program on one element of each list. Sums and products are as PyTorch's CPU orders them."""
    roles, *steps = program.split("|")
    targets, sources = iter(written), iter(read)
    values: list[Any] = [None if role == "v" else wide(next(targets if role == "w" else sources)) for role in roles]

    def operand(text: str) -> Any:
        return numbers[int(text[1:])] if text.startswith("#") else values[int(text)]

    for step in steps:
        name, *operands, target = step.split()
        function = _OPERATORS.get(name) or getattr(torch, name)
        values[int(target[1:])] = function(*map(operand, operands))
    results = [value for role, value in zip(roles, values, strict=True) if role == "w"]
    for tensor, value in zip(written, results, strict=True):
        tensor.copy_(value)


#: For chains that the compiler refuses: they run on the CPU, as other operators do.
_LIBRARY = torch.library.Library("outboard", "IMPL")
_LIBRARY.impl("chain_", chain_, "CPU")
