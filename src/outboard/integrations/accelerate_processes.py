# SPDX-License-Identifier: Apache-2.0
"""accelerate (1.x) in several processes: one on each device, or several on one, in the device's process group.

It names the kind of its processes by the kinds of devices that it knows. Ours are "multi GPU" to it, which is its word
for processes that all have a device of PyTorch's accelerator.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import torch
from torch import distributed

from . import patching


def install(name: str) -> None:
    """Has processes that a launcher has started use the device called ``name`` and its process group."""
    backend = distributed.Backend.default_device_backend_map.get(name) if distributed.is_available() else None
    if backend is None:
        return
    state: Any = sys.modules["accelerate.state"].PartialState
    # Tensors of the CPU are exchanged as well: of parameters that are offloaded, and of whole checkpoints.
    state._prepare_backend = _preparing(state._prepare_backend, name, f"cpu:gloo,{name}:{backend}")
    state.set_device = _setting_device(state.set_device, name)
    patching.replace("accelerate", "accelerate.utils.launch.prepare_simple_launcher_cmd_env", _launching_as_command)


def install_launcher(module: Any, name: str) -> None:
    """Called when ``accelerate.commands.launch`` has been imported."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def _validate_launch_command(args: Any) -> Any:
            args, *rest = original(args)
            if _is_for_other_devices(args) or not torch.accelerator.is_available():
                return args, *rest
            # It has counted the devices of the kinds that it knows.
            args.num_processes = args.num_processes or torch.accelerator.device_count()
            args.multi_gpu = args.multi_gpu or args.num_processes > 1 or (args.num_machines or 1) > 1
            return args, *rest

        return _validate_launch_command

    patching.replace("accelerate", "accelerate.commands.launch._validate_launch_command", make)


def _launching_as_command(original: Any) -> Any:
    """Has ``python -m accelerate.commands.launch``, which is nobody's import and so never changed above, start what
    ``accelerate launch`` starts, where it is about to start a single process itself."""

    @functools.wraps(original)
    def prepare_simple_launcher_cmd_env(args: Any) -> Any:
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        is_program = spec is not None and spec.name == "accelerate.commands.launch"
        if not is_program or _is_for_other_devices(args) or not torch.accelerator.is_available():
            return original(args)
        return [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", *sys.argv[1:]], dict(os.environ)

    return prepare_simple_launcher_cmd_env


def _is_for_other_devices(args: Any) -> bool:
    """Whether a command line asks for the CPU, or has a launcher of its own."""
    own_launchers = (args.tpu, args.use_deepspeed, args.use_fsdp, args.use_megatron_lm)
    return torch.cuda.is_available() or args.cpu or args.use_cpu or any(own_launchers)


def _preparing(original: Any, name: str, backend: str) -> Any:
    @functools.wraps(original)
    def _prepare_backend(self: Any, cpu: bool = False, sagemaker_dp: bool = False, asked: str | None = None) -> Any:
        found, kind = original(self, cpu, sagemaker_dp, asked)
        launched = int(os.environ.get("LOCAL_RANK", -1)) != -1
        if kind.name != "NO" or cpu or not launched or not torch.accelerator.is_available():
            return found, kind
        return asked or backend, type(kind).MULTI_GPU

    return _prepare_backend


def _setting_device(original: Any, name: str) -> Any:
    @functools.wraps(original)
    def set_device(self: Any) -> None:
        if self.device is not None or self.distributed_type.name != "MULTI_GPU" or torch.cuda.is_available():
            original(self)
            return
        self.device = torch.device(name, self.local_process_index % torch.accelerator.device_count())
        torch.accelerator.set_device_index(self.device.index)

    return set_device
