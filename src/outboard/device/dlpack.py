# SPDX-License-Identifier: Apache-2.0
"""DLPack: what must not leave.

A tensor's ``data_ptr`` is a reserved address that only Outboard can resolve. PyTorch would export it as if another
library could use it, so exporting raises until there is a protocol for it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import dlpack

from outboard.device.devices import name


def _check(tensor: torch.Tensor) -> None:
    if tensor.device.type == name():
        raise BufferError(
            f"A {name()} tensor cannot be exported through DLPack: its address means nothing outside PyTorch. "
            "Copy it to the CPU first (tensor.cpu())."
        )


def forbid_export() -> None:
    """Makes DLPack exports of the device's tensors raise BufferError."""
    method = torch.Tensor.__dlpack__
    function = torch._C._to_dlpack

    @functools.wraps(method)
    def __dlpack__(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - the protocol's name
        _check(self)
        return method(self, *args, **kwargs)

    @functools.wraps(function)
    def to_dlpack(tensor: torch.Tensor) -> Any:
        _check(tensor)
        return function(tensor)

    for owner, attribute, checked in (
        (torch.Tensor, "__dlpack__", __dlpack__),
        (dlpack, "to_dlpack", to_dlpack),
        (torch, "to_dlpack", to_dlpack),
    ):
        setattr(owner, attribute, checked)
