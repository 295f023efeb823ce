# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs need no more device memory than eager calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor, nn

from examples.measure import peak_of


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [module for _ in range(6) for module in (nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256))]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("rows", [64, 2048])
def test_no_more_than_eager(device: str, training: bool, rows: int) -> None:
    torch._dynamo.reset()
    model = network().to(device).train(training)
    x = torch.randn(rows, 256, device=device)

    def call(forward: Callable[[Tensor], Tensor]) -> None:
        model.zero_grad()
        with torch.set_grad_enabled(training):
            loss = F.mse_loss(forward(x), x)
        if training:
            loss.backward()

    eager = peak_of(lambda: call(model))
    compiled = peak_of(lambda: call(torch.compile(model)))
    assert compiled <= 1.02 * eager


def test_gradients_take_the_place_of_activations(device: str) -> None:
    """Each layer has as much to save as it has weights, so that holding on to the former doubles the peak."""
    torch._dynamo.reset()
    layers = [module for _ in range(12) for module in (nn.Linear(256, 256), nn.Tanh())]
    model = nn.Sequential(*layers).to(device)
    x = torch.randn(256, 256, device=device)

    def call(forward: Callable[[Tensor], Tensor]) -> None:
        model.zero_grad()
        forward(x).sum().backward()

    assert peak_of(lambda: call(torch.compile(model))) <= 1.1 * peak_of(lambda: call(model))


@torch._functorch.config.patch(donated_buffer=False)  # else PyTorch refuses a second backward pass
def test_what_autograd_keeps_stays(device: str) -> None:
    model = network().to(device)
    compiled = torch.compile(model)
    x = torch.randn(32, 256, device=device)
    loss = compiled(x).square().sum()
    loss.backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in model.parameters()]
    noise = [torch.randn(32, 256, device=device) for _ in range(20)]
    loss.backward()
    for parameter, gradient in zip(model.parameters(), first, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * gradient)
    assert len(noise) == 20
