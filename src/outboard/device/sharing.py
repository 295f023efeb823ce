# SPDX-License-Identifier: Apache-2.0
"""Tensors in the queues and arguments of ``torch.multiprocessing``, and ``share_memory_``.

Where the device takes memory of the host, processes share tensors as PyTorch's CPU tensors do: the device's storage is
put on a CPU storage in shared memory, and PyTorch sends that one. On other devices another process gets a copy, through
the host, and ``share_memory_`` raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch.multiprocessing import reductions

from outboard import _C, patches
from outboard.device.devices import get_device_properties

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]

#: The storages of the device that are on shared memory, by their CPU storage: the same memory arrives as one storage.
_shared = reductions.SharedCache()


def install(name: str) -> None:
    """Has tensors and parameters of the device called ``name`` sent and shared; all others are PyTorch's to send and to
    share."""
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _for_device(name))
    _install_share_memory(name)


def _for_device(name: str) -> Callable[[torch.Tensor], Any]:
    def reduce(tensor: torch.Tensor) -> Any:
        if tensor.device.type != name:
            return reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        # A queue pickles in a thread of its own: only the receiver can be told.
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
    storage = tensor.untyped_storage()
    if storage.nbytes() and get_device_properties(tensor.device).takes_host_memory:
        return _reduce_shared(tensor, storage.share_memory_())
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    on_host = tensor.detach().cpu()
    _keep_for_new_process(on_host)
    return _rebuild_tensor, (on_host, str(tensor.device), tensor.requires_grad, is_parameter)


def _keep_for_new_process(on_host: torch.Tensor | torch.UntypedStorage | None) -> None:
    """Keeps what is an argument of a process that is being started. The new process gets the descriptor of its shared
    memory only after all arguments are pickled, and without a copy nobody else would hold it open until then."""
    starting: Any = get_spawning_popen()
    if starting is not None:
        vars(starting).setdefault("_outboard_kept", []).append(on_host)


def _rebuild_tensor(on_host: torch.Tensor, device: str, requires_grad: bool, is_parameter: bool) -> torch.Tensor:
    tensor = on_host.to(device)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def _reduce_shared(tensor: torch.Tensor, storage: torch.UntypedStorage) -> Reduced:
    on_host = _C.host_memory_of(storage)
    _keep_for_new_process(on_host)
    _C.synchronize(tensor.device.index)  # what the other process reads was written
    metadata = (tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.requires_grad)
    return _rebuild_shared, (type(tensor), on_host, tensor.device.index, tensor.dtype, metadata)


def _rebuild_shared(
    kind: type, on_host: torch.UntypedStorage, index: int, dtype: torch.dtype, metadata: tuple[Any, ...]
) -> torch.Tensor:
    untyped = _storage_on(on_host, index)
    storage = torch.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
    tensor: torch.Tensor = reductions.rebuild_tensor(kind, storage, metadata)  # type: ignore[no-untyped-call]
    return tensor


def _storage_on(on_host: torch.UntypedStorage, index: int) -> torch.UntypedStorage:
    """The storage of a device on a CPU storage's memory: the one that there is, or a new one."""
    known = _shared.get((on_host._cdata, index))  # type: ignore[no-untyped-call]
    found = None if known is None else torch.UntypedStorage._new_with_weak_ptr(known.cdata)
    return found if found is not None else _remember(_C.storage_on_host_memory(on_host, index), on_host)


def _remember(storage: torch.UntypedStorage, on_host: torch.UntypedStorage) -> torch.UntypedStorage:
    _shared[on_host._cdata, storage.device.index] = reductions.StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    return storage


def _install_share_memory(name: str) -> None:
    """Has ``share_memory_`` and ``is_shared`` know the device called ``name``, which PyTorch takes for one that needs
    neither, as CUDA: where memory cannot be shared, each process would get, and train, a copy."""
    patches.apply(
        "memory of the device is not shared silently",
        {
            "torch.storage:UntypedStorage.share_memory_": functools.partial(_sharing, name),
            "torch.storage:UntypedStorage.is_shared": functools.partial(_telling, name),
        },
    )


def _telling(name: str, original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def is_shared(self: torch.UntypedStorage) -> bool:
        return _C.host_memory_of(self) is not None if self.device.type == name else original(self)

    return is_shared


def _sharing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @torch.storage._share_memory_lock_protected  # type: ignore[untyped-decorator]
    def share(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        return storage if storage.is_shared() else _share(storage)

    @functools.wraps(original)
    def share_memory_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
        if self.device.type != name:
            shared: torch.UntypedStorage = original(self, *args, **kwargs)
            return shared
        if get_device_properties(self.device).takes_host_memory:
            return share(self) if self.nbytes() else self
        raise RuntimeError(
            f"memory of {name!r} is not shared between processes: each would have a copy. Share the module or tensor "
            "on the CPU, as by model.cpu().share_memory(), and have each process move its values to the device and "
            "its results back; or train with torch.distributed"
        )

    return share_memory_


def _share(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Moves a storage of the device to shared memory of the host."""
    on_host = torch.UntypedStorage._new_shared(storage.nbytes())  # type: ignore[no-untyped-call]
    on_host.copy_(storage, non_blocking=False)
    _C.put_on_host_memory(storage, on_host)
    return _remember(storage, on_host)
