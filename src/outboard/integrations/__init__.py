# SPDX-License-Identifier: Apache-2.0
"""What libraries keep in a hard-coded list of devices: one small adapter each, applied when, and only when, a program
imports the library. ``OUTBOARD_INTEGRATIONS=0`` leaves them alone."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable


def install(name: str) -> None:
    """Has the adapters for the device called ``name`` applied."""
    if os.environ.get("OUTBOARD_INTEGRATIONS") == "0":
        return
    from outboard.compiler import hook

    from . import (
        accelerate_devices,
        lightning_devices,
        safetensors_files,
        sentence_transformers_devices,
        transformers_devices,
    )

    adapters: dict[str, Callable[[str], None]] = {
        "safetensors": safetensors_files.install,
        "accelerate": accelerate_devices.install,
        "sentence_transformers.util.environment": sentence_transformers_devices.install,
        "transformers.utils.import_utils": transformers_devices.install_precision,
        "transformers.training_args": transformers_devices.install_training,
        "transformers.trainer": transformers_devices.install_checkpoints,
        "transformers.pipelines.base": transformers_devices.install_pipelines,
    }
    adapters |= {each: functools.partial(lightning_devices.install, each) for each in lightning_devices.CONNECTORS}
    for module, adapt in adapters.items():
        hook.call_after(module, functools.partial(adapt, name))
