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
    # A stride beyond the result: some of its phases have no places.
    (F.conv_transpose2d, (5, 2, 1, 1), (2, 3, 5, 5), {"stride": (1, 4), "padding": 2, "dilation": (3, 1), "groups": 2}),
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


# One input channel a group: function, input, output channels a group, kernel, options.
DEPTHWISE: list[tuple[Any, tuple[int, ...], int, tuple[int, ...], dict[str, Any]]] = [
    (F.conv2d, (3, 21, 14, 14), 1, (3, 3), {"padding": 1}),
    (F.conv2d, (2, 18, 41, 35), 1, (7, 5), {"padding": (3, 2)}),
    (F.conv2d, (2, 5, 17, 40), 3, (3, 4), {"stride": (2, 3), "padding": (1, 2), "dilation": (2, 1)}),
    (F.conv2d, (1, 33, 9, 7), 1, (9, 9), {"padding": 6}),
    (F.conv2d, (2, 6, 9, 9), 2, (2, 1), {"stride": 3, "padding": (2, 0)}),
    (F.conv1d, (2, 17, 50), 1, (3,), {"padding": 2, "dilation": 2}),
    (F.conv3d, (2, 4, 5, 8, 9), 2, (2, 3, 2), {"stride": (1, 2, 3), "padding": (1, 1, 0), "dilation": (2, 1, 1)}),
    (F.conv_transpose2d, (2, 18, 9, 11), 1, (3, 4), {"stride": (2, 1), "padding": 1, "output_padding": (1, 0)}),
]


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize(("function", "size", "multiple", "kernel", "options"), DEPTHWISE)
def test_depthwise(
    agree: Agree,
    function: Any,
    size: tuple[int, ...],
    multiple: int,
    kernel: tuple[int, ...],
    options: dict[str, Any],
    last: bool,
) -> None:
    layouts = {2: torch.channels_last, 3: torch.channels_last_3d}
    layout = layouts.get(len(kernel), torch.contiguous_format) if last else torch.contiguous_format

    def run(source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
        leaves = [source.clone().requires_grad_(), weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        result = function(*leaves, groups=size[1], **options)
        ramp = torch.linspace(-1, 1, result.numel(), device=result.device).reshape(result.shape)
        result.backward(ramp.to(memory_format=layout))
        return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    channels = size[1] * multiple
    weight = torch.randn(size[1], multiple, *kernel) if "transpose" in function.__name__ else None
    weight = torch.randn(channels, 1, *kernel) if weight is None else weight
    source = torch.randn(size).to(memory_format=layout)
    agree(run, source, weight, torch.randn(channels), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_depthwise_dtypes(agree: Agree, dtype: torch.dtype, last: bool) -> None:
    layout = torch.channels_last if last else torch.contiguous_format
    source, weight = torch.randn(2, 19, 12, 13, dtype=torch.float64), torch.randn(19, 1, 3, 3, dtype=torch.float64)

    def run(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        x, w = (t.to(dtype).requires_grad_() for t in (x, w))
        result = F.conv2d(x.to(memory_format=layout), w, padding=1, groups=19)
        return [t.double() for t in (result.detach(), *torch.autograd.grad(result.sum(), (x, w)))]

    tolerance = {torch.float64: 1e-10, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
    agree(run, source, weight, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
def test_depthwise_meets_what_is_not_finite_only_where_its_window_is(agree: Agree, last: bool) -> None:
    """Rows are laid side by side: an infinite end of one must not reach the gradients of what begins another."""
    layout = torch.channels_last if last else torch.contiguous_format
    source = torch.randn(2, 18, 11, 11)
    source[:, :, :, 0] = torch.inf
    source[:, 1, :, 10] = torch.nan
    gradient = torch.randn(2, 18, 11, 9)
    gradient[..., 0] = 0  # an infinite factor and zero: NaN at the tap in the middle of the kernel's first column
    arguments = (None, [1, 1], [1, 0], [1, 1], False, [0, 0], 18, [False, True, False])

    def run(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = torch.ops.aten.convolution_backward(grad, x, w, *arguments)[1]
        return weight.isfinite()

    tensors = [t.to(memory_format=layout) for t in (gradient, source)]
    agree(run, *tensors, torch.randn(18, 1, 3, 3))


@pytest.mark.parametrize("size", [(2, 20, 9, 7), (1, 24, 1, 1)], ids=str)
def test_what_follows_a_depthwise_convolution_is_its_store(device: str, size: tuple[int, ...]) -> None:
    def block(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, None, 1, 1, groups=size[1]) * scale[:, None, None] + other)

    tensors = [torch.randn(size), torch.randn(size[1], 1, 3, 3), torch.randn(size[1]), torch.randn(size)]
    result = torch.compile(block)(*(t.to(device) for t in tensors))
    torch.testing.assert_close(result.cpu(), block(*tensors), rtol=1e-5, atol=1e-5)


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
