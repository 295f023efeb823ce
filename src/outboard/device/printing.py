# SPDX-License-Identifier: Apache-2.0
"""Printing tensors: on the CPU, as formatting would otherwise compile a dozen small operators for the device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from outboard import patches
from outboard.device.devices import name


def print_on_cpu() -> None:
    """Makes ``repr`` of the device's tensors format a copy of their values on the CPU."""
    patches.apply("tensors are printed without compiling anything", {"torch._tensor_str._tensor_str": _on_cpu})


def _on_cpu(format_values: Callable[[torch.Tensor, int], str]) -> Callable[[torch.Tensor, int], str]:
    def _tensor_str(self: torch.Tensor, indent: int) -> str:
        return format_values(self.detach().cpu() if self.device.type == name() else self, indent)

    return _tensor_str
