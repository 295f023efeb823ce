# SPDX-License-Identifier: Apache-2.0
"""timm's architectures, as small as they get, and its optimizers and averages: the CPU's numbers, and no operator
elsewhere."""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.skipif(os.environ.get("OUTBOARD_TEST_ECOSYSTEM") != "1", reason="make test-ecosystem")


@pytest.fixture(scope="module")
def timm() -> Any:
    return pytest.importorskip("timm")


@pytest.fixture(autouse=True)
def nothing_elsewhere(device_module: ModuleType) -> Iterator[None]:
    before = device_module.fallbacks()
    yield
    assert device_module.fallbacks() == before


#: Architecture -> what makes it small.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "resnet10t": {},
    "resnext26ts": {},
    "seresnext26ts": {},
    "regnetx_002": {},
    "regnety_002": {},
    "densenet121": {"growth_rate": 4, "block_config": (2, 2, 2, 2)},
    "efficientnet_lite0": {},
    "efficientnet_b0": {},
    "mobilenetv3_small_050": {},
    "mobilenetv4_conv_small_035": {},
    "ghostnet_050": {},
    "convnext_atto": {},
    "convnextv2_atto": {},
    "repvgg_a0": {},
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "deit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "swin_tiny_patch4_window7_224": {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)},
    "swinv2_cr_tiny_ns_224": {"img_size": 64, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)},
    "mixer_s32_224": {"img_size": 64},
    "poolformerv2_s12": {},
    "coatnet_pico_rw_224": {"img_size": 64},
    "levit_128s": {"img_size": 64},
    "edgenext_xx_small": {},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture(timm: Any, device: str, name: str) -> None:
    """Forward and backward of two images."""
    model = timm.create_model(name, pretrained=False, num_classes=5, **ARCHITECTURES[name]).eval()
    other = copy.deepcopy(model).to(device)
    images = torch.randn(2, 3, *[ARCHITECTURES[name].get("img_size", 64)] * 2)
    expected, found = model(images), other(images.to(device))
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-4 * scale)
    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    (found * weight.to(device)).sum().backward()
    for (key, one), two in zip(other.named_parameters(), model.parameters(), strict=True):
        if two.grad is not None:
            assert one.grad is not None, key
            largest = float(two.grad.abs().max())
            torch.testing.assert_close(one.grad.cpu(), two.grad, rtol=1e-2, atol=5e-3 * largest + 1e-7, msg=key)


OPTIMIZERS = (
    "sgd", "adamw", "adamp", "sgdp", "lamb", "lars", "lion", "adafactor", "adabelief", "radam", "nadamw", "adan",
    "madgrad", "novograd", "adopt", "rmsproptf", "muon", "laprop", "mars",
)  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(timm: Any, device: str, name: str) -> None:
    """Five steps, with decay of weights."""
    optim = importlib.import_module("timm.optim")
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    other = copy.deepcopy(model).to(device)
    inputs = torch.randn(32, 8)
    for each, where in ((model, "cpu"), (other, device)):
        optimizer = optim.create_optimizer_v2(each, opt=name, lr=0.01, weight_decay=0.05)
        for _ in range(5):
            optimizer.zero_grad()
            each(inputs.to(where)).square().mean().backward()
            optimizer.step()
    for one, two in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.detach().cpu(), two.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["ModelEmaV2", "ModelEmaV3"])
def test_average_of_weights(timm: Any, device: str, kind: str) -> None:
    make = getattr(importlib.import_module("timm.utils"), kind)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    other = copy.deepcopy(model).to(device)
    averages = [make(each, decay=0.9) for each in (model, other)]
    for _ in range(3):
        for each, average in zip((model, other), averages, strict=True):
            with torch.no_grad():
                for parameter in each.parameters():
                    parameter.add_(1)
            average.update(each)
    expected = averages[0].module.state_dict()
    for key, value in averages[1].module.state_dict().items():
        assert value.device.type == device
        torch.testing.assert_close(value.cpu(), expected[key], rtol=1e-5, atol=1e-6)


def test_losses_and_mixup(timm: Any, device: str) -> None:
    losses = importlib.import_module("timm.loss")
    scores, labels = torch.randn(8, 5, requires_grad=True), torch.randint(5, (8,))
    soft = torch.randn(8, 5).softmax(1)
    for loss, target in (
        (losses.LabelSmoothingCrossEntropy(0.1), labels),
        (losses.SoftTargetCrossEntropy(), soft),
        (losses.BinaryCrossEntropy(0.1), labels),
        (losses.AsymmetricLossMultiLabel(), (soft > 0.3).float()),
    ):
        here = scores.detach().to(device).requires_grad_()
        expected, found = loss(scores, target), loss(here, target.to(device))
        torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
        gradients = torch.autograd.grad(expected, scores)[0], torch.autograd.grad(found, here)[0]
        torch.testing.assert_close(gradients[1].cpu(), gradients[0], rtol=1e-4, atol=1e-6)
    mixup = importlib.import_module("timm.data").Mixup(mixup_alpha=0.3, cutmix_alpha=1.0, num_classes=5)
    images, targets = mixup(torch.rand(8, 3, 16, 16, device=device), labels.to(device))
    assert images.device.type == targets.device.type == device
    torch.testing.assert_close(targets.sum(1).cpu(), torch.ones(8), rtol=1e-5, atol=1e-5)
