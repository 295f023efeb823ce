# SPDX-License-Identifier: Apache-2.0
"""sentence-transformers (5.x, 6.x): models are loaded on the device."""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import patching


def install(module: Any, name: str) -> None:
    """Called when ``sentence_transformers.util.environment`` has been imported."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def get_device_name() -> str:
            found = str(original())
            return name if found == "cpu" and torch.accelerator.is_available() else found

        return get_device_name

    patching.replace("sentence_transformers", "sentence_transformers.util.environment.get_device_name", make)
