# SPDX-License-Identifier: Apache-2.0
"""Antialiased interpolation, forward and backward, as on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

CALLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 17, 23), {"size": (5, 9)}),
    ((1, 2, 5, 6), {"size": (11, 7)}),
    ((1, 1, 40, 50), {"size": (44, 50)}),
    ((1, 2, 5, 6), {"scale_factor": 0.4}),
    ((1, 2, 4, 8), {"scale_factor": (1.7, 0.3)}),
    ((2, 3, 33, 40), {"size": (5, 9), "align_corners": True}),
    ((2, 3, 33, 40), {"size": (1, 1)}),
    ((1, 1, 100, 90), {"size": (2, 2), "align_corners": True}),
]


@pytest.fixture(autouse=True)
def _no_fallbacks(device_module: ModuleType) -> Iterator[None]:
    device_module.set_fallback_policy("error")
    yield
    device_module.set_fallback_policy("allow")


def resampled(x: Tensor, mode: str, options: dict[str, Any]) -> list[Tensor]:
    """The image and the gradient."""
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    result = F.interpolate(leaf, mode=mode, antialias=True, **options)
    factors = torch.linspace(0, 1, result.numel(), dtype=torch.float32).reshape(result.shape).to(x.device, x.dtype)
    (result * factors).sum().backward()
    assert leaf.grad is not None
    return [result.detach(), leaf.grad]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("call", range(len(CALLS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_images(device: str, mode: str, call: int, dtype: torch.dtype) -> None:
    shape, options = CALLS[call]
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(shape, dtype=dtype).contiguous(memory_format=layout)
        expected, found = resampled(x, mode, options), resampled(x.to(device), mode, options)
        for here, there in zip(found, expected, strict=True):
            torch.testing.assert_close(here.cpu(), there, check_stride=True)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves(device: str, mode: str, dtype: torch.dtype) -> None:
    """Rounded from what the CPU makes of float32: it has no kernel for them."""
    x = torch.randn(2, 3, 17, 23).to(dtype)
    expected, found = resampled(x.float(), mode, {"size": (5, 9)}), resampled(x.to(device), mode, {"size": (5, 9)})
    tolerance = {torch.float16: 3e-3, torch.bfloat16: 3e-2}[dtype]
    for here, there in zip(found, expected, strict=True):
        assert here.dtype == dtype
        torch.testing.assert_close(here.cpu().float(), there, rtol=0, atol=tolerance)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_aligned_corners_take_no_factors(device: str, mode: str) -> None:
    """They may contradict the sizes, which decide."""
    name, x, gradient = f"_upsample_{mode}2d_aa", torch.randn(1, 2, 10, 20), torch.randn(1, 2, 3, 3)
    forward, backward = (getattr(torch.ops.aten, f"{name}{way}").default for way in ("", "_backward"))
    found = forward(x.to(device), [3, 3], True, 1.7, 0.9).cpu()
    torch.testing.assert_close(found, forward(x, [3, 3], True, 1.7, 0.9))
    found = backward(gradient.to(device), [3, 3], x.shape, True, 1.7, 0.9).cpu()
    torch.testing.assert_close(found, backward(gradient, [3, 3], x.shape, True, 1.7, 0.9))
