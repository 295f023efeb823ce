# SPDX-License-Identifier: Apache-2.0
"""Tensors in the queues and arguments of ``torch.multiprocessing``: another process gets a copy, through the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch.multiprocessing import reductions

from outboard import _C, patches

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def install(name: str) -> None:
    """Has tensors and parameters of the device called ``name`` sent, and not shared; all others are PyTorch's to send
    and to share."""
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _for_device(name))
    _refuse_shared_memory(name)


def _for_device(name: str) -> Callable[[torch.Tensor], Any]:
    def reduce(tensor: torch.Tensor) -> Any:
        if tensor.device.type != name:
            return reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        # Whoever puts something into a queue has a thread pickle it: only the receiver can be told.
        return (_refuse, (_refusal(),)) if _C.forked() else _reduce_tensor(tensor)

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
    on_host = tensor.detach().cpu()
    _keep_for_new_process(on_host)
    return _rebuild_tensor, (on_host, str(tensor.device), tensor.requires_grad, is_parameter)


def _keep_for_new_process(on_host: torch.Tensor) -> None:
    """Keeps what is an argument of a process that is being started. The new process gets the descriptor of its shared
    memory only after all arguments are pickled, and without a copy nobody else would hold it open until then."""
    starting: Any = get_spawning_popen()
    if starting is not None:
        vars(starting).setdefault("_outboard_kept", []).append(on_host)


def _rebuild_tensor(on_host: torch.Tensor, device: str, requires_grad: bool, is_parameter: bool) -> torch.Tensor:
    tensor = on_host.to(device)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def _refuse_shared_memory(name: str) -> None:
    """Has ``share_memory_`` of tensors and modules on the device called ``name`` raise. PyTorch does nothing there, for
    other devices than the CPU: on CUDA processes get the same memory, here each would get, and train, a copy."""
    place = "torch.storage:UntypedStorage.share_memory_"
    patches.apply("memory of the device is not shared silently", {place: functools.partial(_refusing, name)})


def _refusing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def share_memory_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
        if self.device.type != name:
            shared: torch.UntypedStorage = original(self, *args, **kwargs)
            return shared
        raise RuntimeError(
            f"memory of {name!r} is not shared between processes: each would have a copy. Share the module or tensor "
            "on the CPU, as by model.cpu().share_memory(), and have each process move its values to the device and "
            "its results back; or train with torch.distributed"
        )

    return share_memory_
