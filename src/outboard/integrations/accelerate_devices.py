# SPDX-License-Identifier: Apache-2.0
"""accelerate (1.x): the device is the one that it finds by itself, with mixed precision, for device maps, and
in checkpoints.

It asks for each kind of device that it knows, and takes the CPU if there is none of them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import accelerate_processes, patching, random_states


def install(package: Any, name: str) -> None:
    """Has ``accelerate``, which has been imported, take the device called ``name`` for the CPU unless told to."""
    _choose_device(name)
    accelerator: Any = sys.modules["accelerate.accelerator"]
    patching.add_to_list(accelerator.Accelerator.__init__, "musa", name)
    accelerate_processes.install(name)
    patching.replace("accelerate", "accelerate.utils.modeling.get_grad_scaler", _scaling(name))
    patching.replace("accelerate", "accelerate.utils.modeling.get_max_memory", _counting_memory(name))
    patching.replace("accelerate", "accelerate.utils.memory.clear_device_cache", _emptying)
    for function, then in (
        ("save_accelerator_state", random_states.save),
        ("load_accelerator_state", random_states.load),
    ):
        patching.replace("accelerate", f"accelerate.checkpointing.{function}", _with_generators(name, then))


def _choose_device(name: str) -> None:
    state: Any = sys.modules["accelerate.state"].PartialState
    original = state.default_device

    def default_device(self: Any) -> torch.device:
        """The device of PyTorch's accelerator where accelerate knows none."""
        found: torch.device = original.fget(self)
        return torch.device(name) if found.type == "cpu" and torch.accelerator.is_available() else found

    state.default_device = property(default_device)


def _scaling(name: str) -> Any:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def get_grad_scaler(distributed_type: Any = None, **kwargs: Any) -> Any:
            if torch.cuda.is_available():
                return original(distributed_type, **kwargs)
            if getattr(distributed_type, "name", "") != "FSDP":
                return torch.amp.GradScaler(name, **kwargs)
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

            return ShardedGradScaler(device=name, **kwargs)

        return get_grad_scaler

    return make


def _counting_memory(name: str) -> Any:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def get_max_memory(max_memory: Any = None) -> Any:
            module: Any = torch.get_device_module(name)
            if max_memory is not None:
                return _known_devices(max_memory, module.device_count()) | original(
                    {key: size for key, size in max_memory.items() if not _is_of(key, module.device_count())}
                )
            found = original()
            devices = {i: module.mem_get_info(i)[0] for i in range(module.device_count())}
            # A device that computes in the machine's memory would have it counted twice.
            shares = any(module.get_device_properties(i).type == "cpu" for i in devices)
            return devices | {key: size for key, size in found.items() if key != "cpu" or not shares}

        return get_max_memory

    return make


def _is_of(key: Any, count: int) -> bool:
    """Whether this is the number of one of ``count`` devices."""
    return isinstance(key, int) and 0 <= key < count


def _known_devices(memory: dict[Any, Any], count: int) -> dict[int, int]:
    """What is given for devices, in bytes, in their order."""
    size_of: Any = sys.modules["accelerate.utils.modeling"].convert_file_size_to_int
    keys = sorted(key for key in memory if _is_of(key, count))
    return {key: size_of(memory[key]) if isinstance(memory[key], str) else memory[key] for key in keys}


def _emptying(original: Any) -> Any:
    @functools.wraps(original)
    def clear_device_cache(garbage_collection: bool = False) -> None:
        original(garbage_collection)
        torch.accelerator.empty_cache()

    return clear_device_cache


def _with_generators(name: str, then: Callable[[str, str, int], None]) -> Any:
    """After a checkpoint is written or read, the device's generators are, too."""

    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(folder: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(folder, *args, **kwargs)
            then(folder, name, signature.bind(folder, *args, **kwargs).arguments["process_index"])
            return result

        return call

    return make
