# SPDX-License-Identifier: Apache-2.0
"""Smaller libraries, which need no adapter: what they compute on the device is what they compute on the CPU, forward
and backward, with no operator elsewhere."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(os.environ.get("OUTBOARD_TEST_ECOSYSTEM") != "1", reason="make test-ecosystem")


@pytest.fixture(autouse=True)
def nothing_elsewhere(device_module: ModuleType) -> Iterator[None]:
    before = device_module.fallbacks()
    yield
    assert device_module.fallbacks() == before


def _compare(call: Callable[[Tensor], Tensor], inputs: Tensor, device: str, tolerance: float = 1e-4) -> None:
    """Result and gradient of a function of one tensor."""
    here, there = inputs.to(device).requires_grad_(), inputs.clone().requires_grad_()
    found, expected = call(here), call(there)
    assert found.device.type == device
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance)
    weight = torch.randn_like(expected)
    gradients = (
        torch.autograd.grad((found * weight.to(device)).sum(), here)[0].cpu(),
        torch.autograd.grad((expected * weight).sum(), there)[0],
    )
    largest = max(1.0, float(gradients[1].abs().max()))
    torch.testing.assert_close(*gradients, rtol=10 * tolerance, atol=10 * tolerance * largest)


_PERSPECTIVE = torch.tensor([[1.0, 0.1, 2.0], [0.05, 0.9, 1.0], [1e-3, 2e-3, 1.0]]).repeat(2, 1, 1)

KORNIA: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "gaussian_blur": lambda k, x: k.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5)),
    "sobel": lambda k, x: k.filters.sobel(x),
    "laplacian": lambda k, x: k.filters.laplacian(x, 3),
    "unsharp_mask": lambda k, x: k.filters.unsharp_mask(x, (3, 3), (1.0, 1.0)),
    "rgb_to_hsv": lambda k, x: k.color.rgb_to_hsv(x),
    "rgb_to_lab": lambda k, x: k.color.rgb_to_lab(x),
    "rotate": lambda k, x: k.geometry.rotate(x, torch.tensor([20.0, -35.0], device=x.device)),
    "resize": lambda k, x: k.geometry.resize(x, (13, 17), antialias=True),
    "warp_perspective": lambda k, x: k.geometry.warp_perspective(x, _PERSPECTIVE.to(x.device), (20, 20)),
    "dilation": lambda k, x: k.morphology.dilation(x, torch.ones(3, 3, device=x.device)),
    "harris": lambda k, x: k.feature.harris_response(x),
    "ssim": lambda k, x: k.metrics.ssim(x, x.flip(-1), 5),
}


@pytest.mark.parametrize("name", KORNIA)
def test_kornia(device: str, name: str) -> None:
    library = pytest.importorskip("kornia")
    _compare(lambda x: KORNIA[name](library, x), torch.rand(2, 3, 24, 24), device)


@pytest.mark.parametrize("decoder", ["Unet", "FPN", "DeepLabV3Plus", "PSPNet", "Segformer"])
def test_segmentation_models(device: str, decoder: str) -> None:
    """A decoder over a small encoder, with a loss of the library's."""
    library = pytest.importorskip("segmentation_models_pytorch")
    model = getattr(library, decoder)("resnet18", encoder_weights=None, classes=3).eval()
    other = copy.deepcopy(model).to(device)
    images, labels = torch.randn(2, 3, 64, 64), torch.randint(3, (2, 64, 64))
    loss = library.losses.DiceLoss("multiclass")
    expected, found = model(images), other(images.to(device))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)
    one, two = loss(found, labels.to(device)), loss(expected, labels)
    torch.testing.assert_close(one.cpu(), two, rtol=1e-4, atol=1e-5)
    one.backward()
    two.backward()
    _compare_gradients(other, model)


def _compare_gradients(other: nn.Module, model: nn.Module) -> None:
    for (name, one), two in zip(other.named_parameters(), model.parameters(), strict=True):
        if two.grad is not None:
            assert one.grad is not None, name
            largest = float(two.grad.abs().max())
            torch.testing.assert_close(one.grad.cpu(), two.grad, rtol=1e-2, atol=5e-3 * largest + 1e-7, msg=name)


def test_open_clip(device: str) -> None:
    """A small CLIP: images and texts, its loss, gradients."""
    library = pytest.importorskip("open_clip")
    model = library.CLIP(
        embed_dim=16,
        vision_cfg={"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
        text_cfg={"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 2},
    )
    other = copy.deepcopy(model).to(device)
    images, texts = torch.randn(4, 3, 32, 32), torch.randint(1, 50, (4, 8))
    loss = library.ClipLoss()
    losses = []
    for each, where in ((other, device), (model, "cpu")):
        image, text, scale = each(images.to(where), texts.to(where))
        losses.append(loss(image, text, scale))
        losses[-1].backward()
    torch.testing.assert_close(losses[0].cpu(), losses[1], rtol=1e-4, atol=1e-5)
    _compare_gradients(other, model)


def test_einops(device: str) -> None:
    library = pytest.importorskip("einops")

    def program(x: Tensor) -> Tensor:
        patches = library.rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=4, q=6)
        means = library.reduce(patches, "b n c -> b 1 c", "mean")
        packed, shapes = library.pack([patches, means], "b * c")
        first, second = library.unpack(packed, shapes, "b * c")
        result: Tensor = library.einsum(first, library.repeat(second, "b 1 c -> b n c", n=3), "b n c, b m c -> b n m")
        return result

    _compare(program, torch.randn(2, 3, 24, 24), device)


def test_torch_ema(device: str) -> None:
    library = pytest.importorskip("torch_ema")
    model = nn.Linear(4, 4)
    other = copy.deepcopy(model).to(device)
    averages = [library.ExponentialMovingAverage(each.parameters(), decay=0.8) for each in (model, other)]
    for _ in range(4):
        for each, average in zip((model, other), averages, strict=True):
            with torch.no_grad():
                for parameter in each.parameters():
                    parameter.mul_(1.5)
            average.update()
    inputs = torch.randn(3, 4)
    with averages[0].average_parameters(), averages[1].average_parameters():
        torch.testing.assert_close(other(inputs.to(device)).cpu(), model(inputs), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(other(inputs.to(device)).cpu(), model(inputs), rtol=1e-5, atol=1e-6)
