# SPDX-License-Identifier: Apache-2.0
"""Small models, forward and backward, eager and compiled: what all kernels for another device make of them together."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.models import Llama, LlamaConfig, ResNet

pytestmark = pytest.mark.skipif(
    "OUTBOARD_TEST_TARGET" not in os.environ, reason="demo and benchmark run models on the device as it is"
)


class Language(nn.Module):
    """The loss of a Llama that is as small as can be."""

    def __init__(self) -> None:
        super().__init__()
        sizes = LlamaConfig(vocabulary=331, positions=64, width=96, layers=2, heads=4, key_value_heads=2, hidden=160)
        self.llama = Llama(sizes)

    def forward(self, tokens: Tensor) -> Tensor:
        logits, _ = self.llama(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Vision(nn.Module):
    """The loss of a residual network of one block a stage."""

    def __init__(self) -> None:
        super().__init__()
        self.network = ResNet((1, 1, 1, 1), bottleneck=False, classes=10)

    def forward(self, images: Tensor) -> Tensor:
        return functional.cross_entropy(self.network(images), torch.arange(len(images), device=images.device))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "Llama": (Language, lambda: torch.randint(0, 331, (3, 41))),
    "ResNet": (Vision, lambda: torch.randn(4, 3, 48, 40)),
}


def _step(model: nn.Module, x: Tensor, compiled: bool) -> list[Tensor]:
    """The loss and all gradients."""
    loss = torch.compile(model)(x) if compiled else model(x)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients(name: str, compiled: bool, device: str) -> None:
    torch._dynamo.reset()
    make, data = MODELS[name]
    model, x = make(), data()
    exact = copy.deepcopy(model).double()
    expected = _step(exact, x.double() if x.is_floating_point() else x, False)
    found = _step(model.to(device), x.to(device), compiled)
    assert len(found) == len(expected) == 1 + len(list(model.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours.cpu().double(), theirs, rtol=1e-3, atol=1e-3 * scale)
