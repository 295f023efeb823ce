# SPDX-License-Identifier: Apache-2.0
"""Tensors in the queues and arguments of ``torch.multiprocessing``: another process gets a copy, through the host."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch.multiprocessing import reductions

from outboard import _C

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def install(name: str) -> None:
    """Has tensors and storages of the device called ``name`` sent; all others are PyTorch's to send."""
    ForkingPickler.register(torch.Tensor, _for_device(name, _reduce_tensor, reductions.reduce_tensor))
    ForkingPickler.register(torch.nn.Parameter, _for_device(name, _reduce_tensor, reductions.reduce_tensor))
    ForkingPickler.register(torch.UntypedStorage, _for_device(name, _reduce_storage, reductions.reduce_storage))


def _for_device(name: str, ours: Callable[[Any], Reduced], others: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def reduce(value: Any) -> Any:
        if value.device.type != name:
            return others(value)
        # Whoever puts something into a queue has a thread pickle it: only the receiver can be told.
        return (_refuse, (_refusal(),)) if _C.forked() else ours(value)

    return reduce


def _refusal() -> str:
    try:
        _C.require_device()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("a device may be used in a forked process")


def _refuse(text: str) -> NoReturn:
    raise RuntimeError(text)


def _reduce_tensor(tensor: torch.Tensor) -> Reduced:
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support "
            "crossing process boundaries. If you just want to transfer the data, call detach() on the tensor before "
            "serializing (e.g., putting it on the queue)."
        )
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return _rebuild_tensor, (tensor.detach().cpu(), str(tensor.device), tensor.requires_grad, is_parameter)


def _rebuild_tensor(on_host: torch.Tensor, device: str, requires_grad: bool, is_parameter: bool) -> torch.Tensor:
    tensor = on_host.to(device)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def _reduce_storage(storage: torch.UntypedStorage) -> Reduced:
    on_host: torch.UntypedStorage = storage.cpu()  # type: ignore[no-untyped-call]
    return _rebuild_storage, (on_host, str(storage.device))


def _rebuild_storage(on_host: torch.UntypedStorage, device: str) -> torch.UntypedStorage:
    storage: torch.UntypedStorage = on_host.to(device=torch.device(device))
    return storage
