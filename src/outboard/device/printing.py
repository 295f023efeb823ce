# SPDX-License-Identifier: Apache-2.0
"""Printing tensors: on the CPU, as formatting would otherwise compile a dozen small operators for the device."""

from __future__ import annotations

import torch
import torch._tensor_str

from outboard.device.devices import name


def print_on_cpu() -> None:
    """Makes ``repr`` of the device's tensors format a copy of their values on the CPU."""
    format_values = torch._tensor_str._tensor_str

    def _tensor_str(self: torch.Tensor, indent: int) -> str:
        values = self.detach().cpu() if self.device.type == name() else self
        text: str = format_values(values, indent)  # type: ignore[no-untyped-call]
        return text

    torch._tensor_str._tensor_str = _tensor_str
