# SPDX-License-Identifier: Apache-2.0
"""What libraries keep in a hard-coded list of devices: one small adapter each, applied when, and only when, a program
imports the library. ``OUTBOARD_INTEGRATIONS=0`` leaves them alone."""

from __future__ import annotations

import functools
import importlib
import os
import sys

#: The module that is waited for -> the adapter's module here, and its function.
_ADAPTERS = {
    "safetensors": ("safetensors_files", "install"),
    "accelerate": ("accelerate_devices", "install"),
    "accelerate.commands.launch": ("accelerate_processes", "install_launcher"),
    "sentence_transformers.util.environment": ("sentence_transformers_devices", "install"),
    "transformers.utils.import_utils": ("transformers_devices", "install_precision"),
    "transformers.training_args": ("transformers_devices", "install_training"),
    "transformers.trainer": ("transformers_devices", "install_checkpoints"),
    "transformers.pipelines.base": ("transformers_devices", "install_pipelines"),
    "ultralytics.utils.torch_utils": ("ultralytics_devices", "install_selection"),
    "ultralytics.engine.trainer": ("ultralytics_devices", "install_scaler"),
    "bitsandbytes.nn.modules": ("bitsandbytes_refusal", "install"),
    "triton.runtime.jit": ("triton_refusal", "install"),
    "ray.air._internal.device_manager": ("ray_devices", "install_manager"),
    "ray.train.torch.config": ("ray_devices", "install_group"),
    "torchvision": ("torchvision_operators", "install"),
    "lightning.pytorch.trainer.connectors.accelerator_connector": ("lightning_devices", "install"),
    "pytorch_lightning.trainer.connectors.accelerator_connector": ("lightning_devices", "install"),
    "lightning.pytorch.strategies.ddp": ("lightning_devices", "install_strategy"),
    "pytorch_lightning.strategies.ddp": ("lightning_devices", "install_strategy"),
    "lightning.fabric.strategies.ddp": ("lightning_devices", "install_strategy"),
    "lightning_fabric.strategies.ddp": ("lightning_devices", "install_strategy"),
    "lightning.fabric.connector": ("lightning_devices", "install"),
    "lightning_fabric.connector": ("lightning_devices", "install"),
}


def install(name: str) -> None:
    """Has the adapters for the device called ``name`` applied."""
    if os.environ.get("OUTBOARD_INTEGRATIONS") == "0":
        return
    from outboard.compiler import on_import

    for module in _ADAPTERS:
        on_import.call_after(module, functools.partial(_adapt, module, name))


def _adapt(module: str, name: str) -> None:
    """Imports the adapter of a library's module, which has been imported, and applies it."""
    file, function = _ADAPTERS[module]
    adapter = importlib.import_module(f"{__name__}.{file}")
    getattr(adapter, function)(sys.modules[module], name)
