# SPDX-License-Identifier: Apache-2.0
"""Pooling, interpolation and padding, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .conftest import Agree

CASES: list[tuple[Any, tuple[int, ...], dict[str, Any]]] = [
    (F.avg_pool2d, (2, 3, 20, 19), {"kernel_size": 7, "stride": 3, "padding": 2}),
    (F.avg_pool2d, (3, 12, 9), {"kernel_size": (3, 2), "padding": 1, "ceil_mode": True, "count_include_pad": False}),
    (F.avg_pool3d, (2, 3, 6, 7, 8), {"kernel_size": 2, "divisor_override": 3}),
    (F.max_pool2d, (2, 3, 20, 19), {"kernel_size": 7, "stride": 2, "padding": 3}),
    (F.max_pool3d, (2, 3, 6, 7, 8), {"kernel_size": (2, 3, 2), "dilation": (1, 2, 1)}),
    (F.adaptive_avg_pool2d, (2, 3, 9, 11), {"output_size": (4, 5)}),
    (F.adaptive_avg_pool3d, (2, 3, 5, 6, 7), {"output_size": (2, 3, 4)}),
    (F.adaptive_max_pool2d, (2, 3, 9, 11), {"output_size": (4, 5)}),
    (F.adaptive_max_pool3d, (2, 3, 5, 6, 7), {"output_size": (2, 3, 4)}),
    (F.pad, (2, 3, 9), {"pad": (2, 4), "mode": "replicate"}),
    (F.pad, (2, 3, 9, 7), {"pad": (2, 4, 1, 3), "mode": "replicate"}),
    (F.interpolate, (2, 3, 9), {"size": 13, "mode": "linear"}),
    (F.interpolate, (2, 3, 7, 8), {"size": (5, 13), "mode": "bilinear", "align_corners": True}),
    (F.interpolate, (2, 3, 7, 8), {"scale_factor": (1.5, 0.7), "mode": "bilinear"}),
    (F.interpolate, (2, 3, 7, 8), {"size": (5, 13), "mode": "bicubic"}),
    (F.interpolate, (2, 3, 4, 7, 8), {"size": (3, 9, 6), "mode": "trilinear"}),
    (F.interpolate, (2, 3, 7, 8), {"size": (5, 13), "mode": "nearest"}),
]


@pytest.mark.parametrize(("function", "shape", "options"), CASES)
def test_forward_and_gradient(agree: Agree, function: Any, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    def run(source: torch.Tensor) -> list[torch.Tensor]:
        leaf = source.clone().requires_grad_()
        result = function(leaf, **options)
        (result * result).sum().backward()
        assert leaf.grad is not None
        return [result.detach(), leaf.grad]

    agree(run, torch.randn(shape), rtol=1e-4, atol=1e-4)


def test_maximum_of_nan_is_nan(agree: Agree) -> None:
    source = torch.randn(2, 3, 5, 9, 11)
    source[0, 0, 2, 4, 4] = float("nan")
    agree(F.adaptive_max_pool3d, source, (2, 4, 5), return_indices=True)
