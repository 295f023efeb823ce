# SPDX-License-Identifier: Apache-2.0
"""transformers (5.x): ``Trainer`` and ``pipeline()`` take the device by themselves, also with ``bf16=True``."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch

from . import patching, random_states


def install_precision(module: Any, name: str) -> None:
    """Called when ``transformers.utils.import_utils`` has been imported."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def is_torch_bf16_gpu_available() -> bool:
            return bool(original()) or bool(torch.get_device_module(name).is_bf16_supported())

        return is_torch_bf16_gpu_available

    patching.replace("transformers", "transformers.utils.import_utils.is_torch_bf16_gpu_available", make)


def install_training(module: Any, name: str) -> None:
    """Called when ``transformers.training_args`` has been imported."""
    owner = module.TrainingArguments
    original = vars(owner).get("_setup_devices")
    if not isinstance(original, functools.cached_property):
        return patching.missing("transformers", "TrainingArguments._setup_devices")
    setup = original.func

    def _setup_devices(self: Any) -> torch.device:
        found: torch.device = setup(self)
        if found.type != "cpu" or self.use_cpu or os.environ.get("ACCELERATE_USE_CPU", "0").lower() in ("1", "true"):
            return found
        state = self.distributed_state
        if state is None or state.device.type != name:
            return found
        self._n_gpu = 1
        return torch.device(name, state.local_process_index % torch.accelerator.device_count())

    made = functools.cached_property(_setup_devices)
    made.__set_name__(owner, "_setup_devices")
    owner._setup_devices = made
    return None


def install_checkpoints(module: Any, name: str) -> None:
    """Called when ``transformers.trainer`` has been imported."""
    owner = module.Trainer
    for method, then in (("_save_rng_state", random_states.save), ("_load_rng_state", random_states.load)):
        original = getattr(owner, method, None)
        if original is None:
            return patching.missing("transformers", f"Trainer.{method}")
        setattr(owner, method, _with_generators(original, name, then))
    return None


def _with_generators(original: Any, name: str, then: Callable[[str, str, int], None]) -> Any:
    """After a checkpoint's generators are written or read, the device's are, too."""

    @functools.wraps(original)
    def call(self: Any, folder: str | None) -> None:
        original(self, folder)
        if folder is not None:
            then(folder, name, self.args.process_index)

    return call


def install_pipelines(module: Any, name: str) -> None:
    """Called when ``transformers.pipelines.base`` has been imported."""
    owner = module.Pipeline
    original = owner.__init__
    signature = inspect.signature(original)
    if "device" not in signature.parameters:
        return patching.missing("transformers", "Pipeline(device=)")

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.arguments["device"] = _placed(given.arguments, name)
        original(*given.args, **given.kwargs)

    owner.__init__ = __init__
    return None


def _placed(arguments: dict[str, Any], name: str) -> Any:
    """The device of a pipeline: a number, or none where the model is not spread over several, means the device."""
    device = arguments.get("device")
    is_spread = getattr(arguments["model"], "hf_device_map", None) is not None
    if is_spread or (device is not None and (not isinstance(device, int) or device < 0)):
        return device
    return torch.device(name, device or 0) if torch.accelerator.is_available() else device
