# SPDX-License-Identifier: Apache-2.0
"""Triton has no compiler for the device: launches of its kernels say so, and what to do instead."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from outboard.integrations import triton_refusal


def launch_on(device: str, *args: Any, **kwargs: Any) -> Any:
    """What a launch comes to when the adapter is applied to Triton's class, which only its name stands for here."""

    class JITFunction:
        def run(self, *args: Any, **kwargs: Any) -> str:
            return "launched"

    triton_refusal.install(types.SimpleNamespace(JITFunction=JITFunction), device)
    return JITFunction().run(*args, **kwargs)


def test_refusal(device: str) -> None:
    x = torch.ones(3, device=device)
    for args, kwargs in (((x, 3), {}), ((3,), {"out": x})):
        with pytest.raises(NotImplementedError, match=f"no compiler for devices called '{device}'.*outboard.kernel"):
            launch_on(device, *args, **kwargs)


def test_others_are_let_through(device: str) -> None:
    assert launch_on(device, torch.ones(3), 3) == "launched"


def test_the_real_one_refuses(device: str) -> None:
    """Triton is a part of PyTorch's builds for GPUs alone."""
    triton: Any = pytest.importorskip("triton")

    def kernel(x):  # type: ignore[no-untyped-def] # Triton reads its text only when it compiles it
        pass

    x = torch.ones(3, device=device)
    with pytest.raises(NotImplementedError, match="Triton has no compiler"):
        triton.jit(kernel)[(1,)](x)
