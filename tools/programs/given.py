# SPDX-License-Identifier: Apache-2.0
"""What programs begin with: numbers that are the same on every device, and what a call is refused with."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tools.programs.observe import refusal_text


def randn(device: str, *size: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    """Normal numbers of the CPU's generator, moved."""
    return torch.randn(size, dtype=dtype).to(device).requires_grad_(grad)


def randint(device: str, high: int, *size: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Integers of the CPU's generator below ``high``, moved."""
    return torch.randint(high, size, dtype=dtype).to(device)


def count(device: str, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The numbers from 0 on in a tensor of a size."""
    return torch.arange(torch.Size(size).numel()).to(dtype).reshape(size).clone().to(device)


def refused(call: Callable[[], Any]) -> str:
    """The exception of a call as text, or that there is none."""
    try:
        call()
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
    except Exception as error:  # noqa: BLE001 - shown
        return refusal_text(error)
    return "not refused"


def graph_of(tensor: Tensor) -> list[str]:
    """The names of the nodes that autograd goes through, breadth first."""
    names, nodes = [], [tensor.grad_fn]
    while nodes and len(names) < 100:
        node = nodes.pop(0)
        names.append(re.sub(r"0x\w+", "", node.name()))
        nodes += [following for following, _ in node.next_functions if following is not None]
    return names
