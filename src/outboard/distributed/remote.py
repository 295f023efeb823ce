# SPDX-License-Identifier: Apache-2.0
"""``torch.distributed.rpc`` for tensors of the device: they are sent through the host's memory, and arrive on the
receiver's device of the same number, beginning again after the last one.

PyTorch's transport names the devices of what it sends "cpu" and "cuda" and no other (its ``tensorpipe_utils.cpp``), so
tensors of ours cannot be its own. A device map that says what happens anyway, to the same number, is taken.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from outboard import _C, patches
from outboard.compiler.on_import import call_after


def install(device: str) -> None:
    """Has the host send tensors of the device called ``device``, once a program imports ``torch.distributed.rpc``."""
    for name, change in (("internal", _send_by_host), ("options", _know_maps), ("api", _call_by_pickle)):
        module = f"torch.distributed.rpc.{name}"
        call_after(module, functools.partial(change, module, device))


def arrive(tensor: torch.Tensor, device: str, index: int) -> torch.Tensor:
    """What a tensor that has been sent becomes where it is received."""
    return tensor.to(torch.device(device, index % _C.device_count()))


class Pickled:
    """An operator of PyTorch's as a function of Python's: arguments of such are pickled, those of operators are not."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _send_by_host(name: str, device: str) -> None:
    def by_host(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _tensor_reducer(self: Any, tensor: torch.Tensor) -> Any:
            if tensor.device.type != device:
                return original(self, tensor)
            return arrive, (tensor.cpu(), device, tensor.device.index)

        return _tensor_reducer

    if patches.apply("rpc sends tensors of the device", {f"{name}:_InternalRPCPickler._tensor_reducer": by_host}):
        pickler: Any = vars(sys.modules[name])["_internal_rpc_pickler"]
        pickler._dispatch_table[torch.Tensor] = pickler._tensor_reducer


def _know_maps(name: str, device: str) -> None:
    patches.apply("rpc knows maps of the device", {f"{name}._to_device_map": functools.partial(_knowing, device)})


def _knowing(device: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves out of a map what happens by itself, and refuses what cannot be done before anything is sent."""

    @functools.wraps(original)
    def _to_device_map(device_map: dict[Any, Any]) -> Any:
        others = {}
        for source, target in device_map.items():
            here, there = torch.device(source), torch.device(target)
            if device not in (here.type, there.type):
                others[source] = target
            elif here != there:
                raise NotImplementedError(
                    f"a device map from {here} to {there} is not possible: tensors of {device} are sent through the "
                    "host, and arrive on the device of the same number"
                )
        return original(others)

    return _to_device_map


def _call_by_pickle(name: str, device: str) -> None:
    module, package = vars(sys.modules[name]), vars(sys.modules[name.rpartition(".")[0]])
    callers = ("_invoke_rpc", "remote")
    before = {caller: module.get(caller) for caller in callers}
    made = {f"{name}.{caller}": functools.partial(_pickling, device) for caller in callers}
    if not patches.apply("rpc calls operators with tensors of the device", made):
        return
    for caller in callers:
        # The package has taken it from the module already, if it was imported before us.
        if caller in package and package[caller] is before[caller]:
            package[caller] = module[caller]


def _pickling(device: str, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def invoke(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        given = [*(arguments.get("args") or ()), *(arguments.get("kwargs") or {}).values()]
        on_device = any(isinstance(value, torch.Tensor) and value.device.type == device for value in given)
        find: Any = torch.jit._builtins._find_builtin
        if on_device and find(arguments["func"]) is not None:
            arguments["func"] = Pickled(arguments["func"])
        return original(**arguments)

    return invoke
