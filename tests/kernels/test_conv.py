# SPDX-License-Identifier: Apache-2.0
"""Convolutions and their gradients (by kernels of our own unless OUTBOARD_LIBRARY=driver)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .conftest import Agree

# function, input, weight, arguments
CASES: list[tuple[Any, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    (F.conv2d, (2, 3, 9, 11), (5, 3, 3, 3), {"padding": 1}),
    (F.conv2d, (2, 4, 9, 11), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}),
    (F.conv2d, (2, 6, 9, 8), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    (F.conv2d, (2, 6, 9, 8), (12, 1, 3, 3), {"stride": 2, "groups": 6}),
    (F.conv2d, (2, 70, 12, 12), (66, 70, 1, 1), {}),
    (F.conv1d, (3, 4, 15), (7, 4, 3), {"stride": 2, "padding": 2, "dilation": 2}),
    (F.conv3d, (2, 3, 5, 6, 7), (4, 3, 2, 3, 1), {"stride": (1, 2, 1), "padding": (1, 1, 0)}),
    (F.conv_transpose1d, (3, 4, 15), (4, 7, 3), {"stride": 2, "padding": 2, "dilation": 2}),
    (F.conv_transpose2d, (2, 4, 9, 11), (4, 3, 3, 2), {"stride": (2, 3), "output_padding": 1, "groups": 2}),
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("function", "source", "weight", "options"), CASES)
def test_forward_and_gradients(
    agree: Agree, function: Any, source: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any], bias: bool
) -> None:
    groups = options.get("groups", 1)
    channels = weight[1] * groups if "transpose" in function.__name__ else weight[0]

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        result = function(*leaves, **options)
        (result * result).sum().backward()
        return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    tensors = [torch.randn(source), torch.randn(weight)] + ([torch.randn(channels)] if bias else [])
    agree(run, *tensors, rtol=1e-3, atol=5e-3)


def test_channels_last(agree: Agree) -> None:
    source = torch.randn(2, 8, 9, 10).to(memory_format=torch.channels_last)
    weight = torch.randn(16, 8, 3, 3).to(memory_format=torch.channels_last)
    agree(F.conv2d, source, weight, padding=1, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(agree: Agree, dtype: torch.dtype) -> None:
    tolerance = {torch.float64: 1e-9, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
    source, weight = torch.randn(2, 3, 9, 9).to(dtype), torch.randn(4, 3, 3, 3).to(dtype)
    agree(F.conv2d, source, weight, rtol=tolerance, atol=tolerance)


GRADIENTS = {
    "as it comes": lambda g: g,
    "channels last": lambda g: g.to(memory_format=torch.channels_last),
    "with gaps": lambda g: torch.stack([g, g], -1)[..., 0],
    "rows apart": lambda g: F.pad(g, (0, 3))[..., :-3],
    "expanded": lambda g: g[:, :, :1, :1].expand_as(g),
    "transposed": lambda g: g.mT.contiguous().mT,
}


@pytest.mark.parametrize("layout", GRADIENTS)
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (7, 16), (40, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_gradient_of_the_bias_sums_any_layout(
    layout: str, size: tuple[int, int], dtype: torch.dtype, device: str, device_module: ModuleType
) -> None:
    """Large terms that cancel, beside small ones: sums are as exact as the dtype of the result where the device adds in
    doubles, and elsewhere off by no more than terms are rounded."""
    torch.manual_seed(0)
    weight, bias = torch.randn(6, 3, 1, 1, dtype=dtype), torch.zeros(6, dtype=dtype)
    image, gradient = torch.randn(4, 3, *size, dtype=dtype), torch.randn(4, 6, *size)
    gradient[0] += 1e4
    gradient[1] -= 1e4
    gradient = gradient.to(dtype)
    exact = gradient.double() if layout != "expanded" else GRADIENTS[layout](gradient).double()
    on_device = bias.to(device).requires_grad_()
    result = F.conv2d(image.to(device), weight.to(device), on_device)
    result.backward(GRADIENTS[layout](gradient.to(device)))
    assert on_device.grad is not None
    expected = exact.sum((0, 2, 3)).to(dtype)
    properties = device_module.get_device_properties(0)
    adds_in_doubles = properties.type == "cpu" and properties.has_fp64
    slack = 0 if adds_in_doubles or dtype == torch.float64 else exact.abs().sum((0, 2, 3)).max().item() * 2**-23
    torch.testing.assert_close(on_device.grad.cpu(), expected, rtol=torch.finfo(dtype).eps, atol=1e-9 + slack)
