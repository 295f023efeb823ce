# SPDX-License-Identifier: Apache-2.0
"""DLPack: sharing a tensor's memory with NumPy, JAX and other libraries.

A tensor's ``data_ptr`` is a reserved address that only Outboard can resolve. On a device whose memory the host can
address, what is exported is the memory itself, as memory of the CPU, and it stays where it is until the consumer lets
go. On other devices there is nothing that another library could use, so exporting raises BufferError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
from torch.utils import dlpack

from outboard import _C, patches
from outboard.device.devices import get_device_properties, name


def _require_export(tensor: torch.Tensor) -> None:
    if not get_device_properties(tensor.device).host_accessible:
        raise BufferError(
            f"A tensor on {tensor.device} cannot be exported through DLPack: other libraries cannot address this "
            "device's memory. Copy it to the CPU first (tensor.cpu())."
        )


def _refuse_special(tensor: torch.Tensor) -> None:
    """Raises BufferError for a tensor that is more, or less, than its memory."""
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    if tensor.is_neg():
        raise BufferError("Can't export tensors with the negative bit set, use tensor.resolve_neg()")
    if tensor.layout != torch.strided:
        raise BufferError("Can't export tensors with layout other than torch.strided")


def _shared(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of a tensor of the device, with all work of the current stream done."""
    _require_export(tensor)
    _refuse_special(tensor)
    return _C.host_view(tensor)


def install() -> None:
    """Makes PyTorch's DLPack functions share the memory of the device's tensors."""
    patches.apply(
        "tensors are exchanged by DLPack",
        {
            "torch:Tensor.__dlpack__": _exporting,
            "torch:Tensor.__dlpack_device__": _describing,
            "torch.utils.dlpack.to_dlpack": _converting,
            "torch.to_dlpack": _converting,
            "torch.utils.dlpack.from_dlpack": _taking,
            "torch.from_dlpack": _taking,
        },
    )


def _exporting(export: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(export)
    def __dlpack__(self: torch.Tensor, *, stream: Any = -1, **kwargs: Any) -> Any:  # noqa: N807 - the protocol's name
        if self.device.type != name():
            return export(self, stream=stream, **kwargs)
        return export(_shared(self), **kwargs)  # a consumer of CPU memory has no stream to wait for

    return __dlpack__


def _describing(describe: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(describe)
    def __dlpack_device__(self: torch.Tensor) -> tuple[IntEnum, int]:  # noqa: N807 - the protocol's name
        if self.device.type != name():
            known: tuple[IntEnum, int] = describe(self)
            return known
        _require_export(self)
        return dlpack.DLDeviceType.kDLCPU, 0

    return __dlpack_device__


def _converting(convert: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(convert)
    def to_dlpack(tensor: torch.Tensor) -> Any:
        # Unlike a tensor's own method, this function has never refused one that requires a gradient.
        return convert(_shared(tensor.detach()) if tensor.device.type == name() else tensor)

    return to_dlpack


def _taking(take: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(take)
    def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> torch.Tensor:
        ours = isinstance(ext_tensor, torch.Tensor) and ext_tensor.device.type == name()
        if not ours or (device is not None and torch.device(device).type != name()):
            taken: torch.Tensor = take(ext_tensor, device=device, copy=copy)
            return taken
        _refuse_special(ext_tensor)
        moved: torch.Tensor = (
            ext_tensor if device is None else ext_tensor.to(device)
        )  # within PyTorch nothing has to be exported
        return moved.clone() if copy else moved.view(moved.shape)

    return from_dlpack
