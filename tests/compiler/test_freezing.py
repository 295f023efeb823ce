# SPDX-License-Identifier: Apache-2.0
"""``torch._inductor.config.freezing`` on our device; without it, weights may change from call to call."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from outboard.compiler import plan as p
from outboard.compiler.adapter import graphs


@pytest.fixture
def model() -> nn.Module:
    """Convolutions with batch normalisation, statistics that are not the initial ones, and a linear layer."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 24, 1),
        nn.BatchNorm2d(24),
        nn.Flatten(),
        nn.Linear(24 * 49, 10),
    ).eval()
    for buffer in layers.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return layers


@torch.no_grad()
def test_frozen_weights_are_folded(model: nn.Module, device: str) -> None:
    """Scales of the statistics are part of the weights: what is left is the padding of the input and one launch for
    each layer with weights."""
    torch._dynamo.reset()
    x = torch.randn(2, 3, 7, 7)
    ours = copy.deepcopy(model).to(device)
    with torch._inductor.config.patch(freezing=True, force_disable_caches=True), graphs.capturing() as capture:
        found = torch.compile(ours)(x.to(device))
    torch.testing.assert_close(found.cpu(), model(x), rtol=1e-4, atol=1e-4)
    plan = capture.plan
    assert plan is not None
    launches = [plan.kernels[step.kernel][1] for step in plan.steps if isinstance(step, p.Launch)]
    assert launches == ["arrange_planes", "multiply", "multiply", "multiply"]
    assert any(constant.shape == (24, 3, 3, 3) for constant in capture.constants)


@torch.no_grad()
def test_a_frozen_module_read_from_the_cache(model: nn.Module, device: str) -> None:
    """A second compilation finds what the first one left, and the constants are those of the model at hand."""
    x = torch.randn(2, 3, 7, 7)
    for scale in (1.0, 2.0):
        torch._dynamo.reset()
        model[0].weight.mul_(scale)
        ours = copy.deepcopy(model).to(device)
        with torch._inductor.config.patch(freezing=True):
            found = torch.compile(ours)(x.to(device))
        torch.testing.assert_close(found.cpu(), model(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_weights_and_statistics_may_change_between_calls(model: nn.Module, device: str) -> None:
    """Without freezing: in place, by replacing data, and by loading a state."""
    torch._dynamo.reset()
    x = torch.randn(2, 3, 7, 7)
    ours = copy.deepcopy(model).to(device)
    compiled = torch.compile(ours)
    compiled(x.to(device))
    for change in range(3):
        for module in (model, ours):
            if change == 0:
                module[0].weight.mul_(2)
                module[1].running_var.add_(0.5)
            elif change == 1:
                module[6].weight.data = module[6].weight.data * -1
            else:
                module.load_state_dict({name: value * 0.9 for name, value in module.state_dict().items()})
        torch.testing.assert_close(compiled(x.to(device)).cpu(), model(x), rtol=1e-4, atol=1e-4)
