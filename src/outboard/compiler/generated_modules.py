# SPDX-License-Identifier: Apache-2.0
"""What modules written by ``torch.compile`` import: small, and free of the compiler."""

from __future__ import annotations

import base64
import threading
import zlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from outboard._C import Plan

_lock = threading.Lock()


def load(text: str, device_index: int) -> Plan:
    """The plan that ``adapter.graphs.compiled.pack`` made text of, ready to run on a device. Its
    programs are built meanwhile: the first run waits for them, and raises RuntimeError if the device's compiler refuses
    one."""
    from outboard import _C

    from . import progress

    progress.programs()
    return _C.Plan(zlib.decompress(base64.b85decode(text)), device_index)


def check(
    value: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, operator: str
) -> None:
    """Raises AssertionError (TypeError for no tensor) if an operator gave what the graph was not planned for."""
    torch._C._dynamo.guards.assert_size_stride(value, sizes, strides, operator)
    if value.dtype != dtype:
        raise AssertionError(f"{operator} gave {value.dtype}, but in graphs it is {dtype}, as its fake kernel says")


def view_of(base: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> torch.Tensor:
    """A view of a tensor in a graph. Writes count for both: what a backward pass is to read may be such a view."""
    from outboard import _C

    guards: Any = torch._C._dynamo.guards
    view: torch.Tensor = guards._reinterpret_tensor(base, sizes, strides, offset)
    _C.share_versions(view, base)
    return view


def arranged(value: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """What a program's implementation of an operator of PyTorch's gave, laid out as PyTorch's would be: in single calls
    it may lie in any way. What has other sizes is left to :func:`check`."""
    if not isinstance(value, torch.Tensor) or value.size() != torch.Size(sizes) or value.stride() == strides:
        return value
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device).copy_(value)


class Packed:
    """Constants of a frozen graph in the layout that its products read, made by a plan when they are first needed.

    ``constants`` are the names of the plan's inputs in the namespace of the module that was written for the graph. It
    does without those named in ``forgotten`` from then on: their memory is free if nobody else has them."""

    def __init__(self, text: str, device_index: int, constants: list[str], forgotten: list[str]) -> None:
        self._plan = load(text, device_index)
        self._device = device_index
        self._constants = constants
        self._forgotten = forgotten
        self._tensors: list[torch.Tensor] | None = None

    def tensors(self, namespace: dict[str, Any]) -> list[torch.Tensor]:
        """The packed tensors."""
        if self._tensors is None:
            with _lock:
                if self._tensors is None:
                    self._tensors = self._pack([namespace[name] for name in self._constants])
                    for name in self._forgotten:
                        del namespace[name]
        return self._tensors

    def _pack(self, constants: list[torch.Tensor | int | float | None]) -> list[torch.Tensor]:
        """Waits for the device, because later calls may come on other streams, and works aside, because the current
        stream may be recorded for replays."""
        device = torch.device(torch._C._get_privateuse1_backend_name(), self._device)
        torch.accelerator.synchronize(device)
        aside = torch.Stream(device)
        with aside:
            made = self._plan.run(constants)
        aside.synchronize()
        return made
