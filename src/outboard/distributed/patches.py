# SPDX-License-Identifier: Apache-2.0
"""Where torch.distributed asks which backend there is, and knows the answer for its own backends only."""

from __future__ import annotations

import datetime
import functools
import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from outboard import _C, patches

#: Hooks of DDP that PyTorch has for NCCL and XCCL.
_HOOKS_BY_BACKEND = ("bf16_compress_hook", "bf16_compress_wrapper_hook")


def install(device: str, backend: str) -> None:
    """Applies what is here for the device called ``device`` and its backend, once in a process."""
    monitored, shared = partial(_monitored_barrier, device, backend), partial(_shared_barrier, device)
    patches.apply(
        "groups of no particular backend have the device's",
        {f"{patches.C10D}._new_process_group_helper": partial(_by_default, device, backend)},
    )
    patches.apply(
        "groups have monitored_barrier",
        {f"{patches.C10D}.monitored_barrier": monitored, "torch.distributed.monitored_barrier": monitored},
    )
    patches.apply(
        "barriers take any number of a device",
        {f"{patches.C10D}.barrier": shared, "torch.distributed.barrier": shared},
    )
    patches.apply("DDP takes hooks of halves", {f"{patches.DDP}._check_comm_hook": partial(_admitting_hooks, device)})
    patches.apply("DDP takes any number of a device", {f"{patches.DDP}.__init__": partial(_sharing_in_ddp, device)})
    patches.apply(
        "meshes share devices among ranks",
        {"torch.distributed.device_mesh:DeviceMesh._setup_world_group_and_device": partial(_sharing, device)},
    )


def _by_default(device: str, backend: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a group of no particular backend ours, and makes ours the default of a group that has it.

    PyTorch finds it by the device, but takes gloo for the default of such a group, which the group does not have; where
    there are several backends, it looks for ours by a name in capitals. Its name and hooks cannot be asked for then.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def with_default(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        accelerator = torch.accelerator.current_accelerator()
        if call.arguments["backend"] == c10d.Backend.UNDEFINED and accelerator and accelerator.type == device:
            call.arguments["backend"] = c10d.Backend(backend)
        group, store = original(*call.args, **call.kwargs)
        if isinstance(group, c10d.ProcessGroup) and f"{device}:{backend}" in str(call.arguments["backend"]):
            group._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
        return group, store

    return with_default


def _monitored_barrier(device: str, backend: str, original: Callable[..., None]) -> Callable[..., None]:
    """Gives groups of our backend ``monitored_barrier``, which PyTorch has for groups of gloo's."""

    @functools.wraps(original)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        group = c10d._get_default_group() if group is None else group
        if c10d._rank_not_in_group(group) or backend not in c10d.get_backend(group):
            return original(group, timeout, wait_all_ranks)
        if isinstance(timeout, float):  # seconds, which PyTorch takes here and nowhere else
            timeout = datetime.timedelta(seconds=timeout)
        timeout = timeout or c10d._get_default_timeout(c10d.Backend(backend))
        c10d._check_valid_timeout(timeout)
        group._get_backend(torch.device(device)).monitored_barrier(timeout, wait_all_ranks)
        return None

    return monitored_barrier


def _admitting_hooks(device: str, original: Callable[..., None]) -> Callable[..., None]:
    """Lets DDP on the device take hooks that it otherwise refuses because of their name."""

    @functools.wraps(original)
    def check(self: DistributedDataParallel, hook: Any) -> None:
        if self.device_type == device and getattr(hook, "__name__", "") in _HOOKS_BY_BACKEND:
            hook = functools.wraps(hook)(lambda state, bucket: None)
            hook.__name__ = "hook"
        original(self, hook)

    return check


def _sharing(device: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Has a mesh of devices give each rank of this machine the next device, beginning again after the last one.

    PyTorch takes the device of the number ``LOCAL_RANK``, which is an error where ranks share a device, as they do on a
    CPU, or where each sees its own only. Like PyTorch, who has used a device already keeps it.
    """

    @functools.wraps(original)
    def set_up(self: DeviceMesh) -> Any:
        chosen = self._device_type != device or _C.devices_opened() or "LOCAL_RANK" not in os.environ
        if not chosen and (count := _C.device_count()) > 0:
            _C.set_device(int(os.environ["LOCAL_RANK"]) % count)
        return original(self)

    return set_up


def _shared_barrier(device: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Has ``barrier(device_ids=[LOCAL_RANK])`` wait with the current device, where there is none of this number."""

    @functools.wraps(original)
    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None) -> Any:
        accelerator = torch.accelerator.current_accelerator()
        if device_ids and accelerator and accelerator.type == device and device_ids[0] >= _C.device_count():
            device_ids = [torch.accelerator.current_device_index()]
        return original(group, async_op, device_ids, timeout)

    return barrier


def _sharing_in_ddp(device: str, original: Callable[..., None]) -> Callable[..., None]:
    """Has DDP take a module on the device where it is, if ``device_ids`` is a number of no device: programs give it
    ``LOCAL_RANK``, also where ranks share a device."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(self, *args, **kwargs).arguments
        numbers = [arguments.get("output_device"), *(arguments.get("device_ids") or [])]
        if any(isinstance(number, int) and number >= _C.device_count() for number in numbers):
            used = {parameter.device for parameter in arguments["module"].parameters()}
            if len(used) == 1 and (place := used.pop()).type == device:
                arguments["device_ids"] = [place]
                arguments["output_device"] = place
        arguments.pop("self")
        original(self, **arguments)

    return __init__
