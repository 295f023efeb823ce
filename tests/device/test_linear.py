# SPDX-License-Identifier: Apache-2.0
"""Operators of linear layers that PyTorch calls on some devices only."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7), (2, 3, 4, 7), (0, 7)])
@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, True, True]])
def test_linear_backward(device: str, device_module: ModuleType, shape: tuple[int, ...], mask: list[bool]) -> None:
    x = torch.randn(shape, requires_grad=True)
    weight, bias = torch.randn(3, 7, requires_grad=True), torch.randn(3, requires_grad=True)
    out = torch.nn.functional.linear(x, weight, bias)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, (x, weight, bias), grad)
    device_module.reset_fallbacks()
    arguments = [tensor.detach().to(device) for tensor in (x, grad, weight)]
    results = torch.ops.aten.linear_backward(*arguments, mask)
    assert device_module.fallbacks() == {}
    for result, right, wanted in zip(results, expected, mask, strict=True):
        assert (result is not None) == wanted
        if wanted:
            torch.testing.assert_close(result.cpu(), right)
