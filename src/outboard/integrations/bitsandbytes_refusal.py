# SPDX-License-Identifier: Apache-2.0
"""bitsandbytes (0.50): its quantized layers are kernels of its own, for a few kinds of devices. On others they fail
while weights are moved, with words of PyTorch's about types of tensors; here they say what to do instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import patching


def install(module: Any, name: str) -> None:
    """Has the weights of quantized layers refuse to be quantized on the device called ``name``."""
    for kind in ("Int8Params", "Params4bit"):
        weights: Any = getattr(module, kind, None)
        if not hasattr(weights, "_quantize"):
            patching.missing("bitsandbytes", f"{kind}._quantize")
            continue
        weights._quantize = _refusing(weights._quantize, name)


def _refusing(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def _quantize(self: Any, device: Any) -> Any:
        if torch.device(device).type == name:
            raise NotImplementedError(
                f"bitsandbytes has no kernels for devices called {name!r}. torchao quantizes models there: "
                "torchao.quantization.quantize_(model, torchao.quantization.Int8WeightOnlyConfig())"
            )
        return original(self, device)

    return _quantize
