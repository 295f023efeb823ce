# SPDX-License-Identifier: Apache-2.0
"""Triton (3.9): it compiles kernels for a few makes of GPUs. What it says elsewhere is about its own drivers; for
tensors of the device it says here what to do instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import patching


def install(module: Any, name: str) -> None:
    """Has launches of Triton's kernels with tensors on the device called ``name`` refuse."""
    kernel: Any = getattr(module, "JITFunction", None)
    if not hasattr(kernel, "run"):
        patching.missing("triton", "JITFunction.run")
        return
    kernel.run = _refusing(kernel.run, name)


def _refusing(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if any(isinstance(value, torch.Tensor) and value.device.type == name for value in given):
            raise NotImplementedError(
                f"Triton has no compiler for devices called {name!r}: write the operator in PyTorch, which "
                "torch.compile fuses, or bring the kernel in the device's own language (outboard.kernel, "
                "outboard.RawKernel)."
            )
        return original(self, *args, **kwargs)

    return run
