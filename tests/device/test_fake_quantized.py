# SPDX-License-Identifier: Apache-2.0
"""Numbers as if they had been quantized, against the CPU; and what of quantized tensors the device refuses."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

VALUES = torch.tensor([[-40.0, -0.26, 0.05, 0.15], [0.25, 0.35, float("nan"), 1e4], [12.7, 12.75, 60.0, 3.0]])


def floats(*numbers: float) -> Callable[[Tensor], Tensor]:
    return lambda like: torch.tensor(numbers, device=like.device)


def integers(*numbers: int) -> Callable[[Tensor], Tensor]:
    return lambda like: torch.tensor(numbers, device=like.device, dtype=torch.int32)


#: Name -> numbers as if quantized.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "per tensor": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255),
    "by tensors": lambda x: torch.fake_quantize_per_tensor_affine(x, floats(0.1)(x), integers(3)(x), -128, 127),
    "per channel": lambda x: torch.fake_quantize_per_channel_affine(
        x, floats(0.1, 0.2, 0.3)(x), integers(0, 1, 2)(x), 0, 0, 255
    ),
    "per channel, float zeros": lambda x: torch.fake_quantize_per_channel_affine(
        x, floats(0.1, 0.2, 0.3)(x), floats(0.5, 1.25, 2)(x), 0, 0, 255
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(device_module: ModuleType, name: str, dtype: torch.dtype) -> None:
    def run(device: str) -> tuple[Tensor, Tensor]:
        x = VALUES.to(device, dtype, copy=True).requires_grad_()
        out = FUNCTIONS[name](x)
        out.nan_to_num(0.0, 0.0, 0.0).sum().backward()
        return out.detach().cpu(), x.grad.cpu()

    expected = run("cpu")
    device_module.reset_fallbacks()
    torch.testing.assert_close(run("ocl"), expected, equal_nan=True)
    assert device_module.fallbacks() == {}


def test_quantized_tensors_are_refused() -> None:
    x = torch.ones(3, device="ocl")
    with pytest.raises(NotImplementedError):
        torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
    with pytest.raises(NotImplementedError):
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8).to("ocl")


def test_parameters_are_chosen_from_values_of_the_device() -> None:
    arguments = 4, 200, 0.16, 8
    expected = torch.choose_qparams_optimized(torch.arange(4.0), *arguments)
    assert torch.choose_qparams_optimized(torch.arange(4.0, device="ocl"), *arguments) == expected


@pytest.mark.parametrize("empty", [True, False], ids=["first call", "with statistics"])
def test_statistics_of_channels_are_made_by_the_first_call(empty: bool) -> None:
    """Training with quantization in mind: the observer's buffers have no elements until it has seen something."""

    def run(device: str) -> list[Tensor]:
        fake = torch.ao.quantization.default_fused_per_channel_wt_fake_quant().to(device)
        x = torch.linspace(-3, 2, 15, device=device).view(3, 5)
        if not empty:
            fake(x * 2)
        x.requires_grad_()
        out = fake(x)
        out.sum().backward()
        buffers = fake.state_dict()
        assert fake.activation_post_process.min_val.shape == (3,)
        return [value.cpu() for value in (out.detach(), x.grad, *(buffers[name] for name in sorted(buffers)))]

    torch.testing.assert_close(run("ocl"), run("cpu"))
