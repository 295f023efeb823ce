# SPDX-License-Identifier: Apache-2.0
"""torchvision's operators, detectors and transforms on the device: the CPU's numbers, and no operator elsewhere."""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

pytestmark = pytest.mark.skipif(os.environ.get("OUTBOARD_TEST_ECOSYSTEM") != "1", reason="make test-ecosystem")

HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def vision() -> Any:
    return pytest.importorskip("torchvision")


@pytest.fixture(autouse=True)
def nothing_elsewhere(device_module: ModuleType) -> Iterator[None]:
    before = device_module.fallbacks()
    yield
    assert device_module.fallbacks() == before


def _moved(value: Any, device: str, dtype: torch.dtype | None = None) -> Any:
    def move(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.detach().to(device, dtype if x.is_floating_point() else None).requires_grad_(x.requires_grad)

    return tree_map(move, value)


def _compare(
    call: Callable[..., Any],
    arguments: tuple[Any, ...],
    device: str,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
) -> None:
    """Results and gradients of a call in a dtype, against those of the CPU in float64 of the same numbers."""
    here = _moved(arguments, device, dtype)
    there = _moved(_moved(here, "cpu"), "cpu", torch.float64)
    found, expected = call(*here), call(*there)
    for one, two in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert one.device.type == device
        torch.testing.assert_close(one.detach().cpu().to(two.dtype), two.detach(), rtol=tolerance, atol=tolerance)
    inputs = [x for x in tree_leaves(here) if isinstance(x, Tensor) and x.requires_grad]
    if not inputs:
        return
    weight = torch.randn_like(expected.detach())
    (found * weight.to(found)).sum().backward()
    (expected * weight).sum().backward()
    others = [x for x in tree_leaves(there) if isinstance(x, Tensor) and x.requires_grad]
    for one, two in zip(inputs, others, strict=True):
        scale = max(1.0, float(two.grad.abs().max())) if two.grad.numel() else 1.0
        torch.testing.assert_close(
            one.grad.cpu().to(two.grad.dtype), two.grad, rtol=tolerance, atol=4 * tolerance * scale
        )


def _boxes(count: int, images: int = 2, size: float = 40.0) -> Tensor:
    """Boxes (image, x, y, x, y), some outside of their image and some very small, none on a boundary between bins."""
    corners = torch.rand(count, 2) * size * 1.2 - 0.1 * size
    extent = torch.rand(count, 2) * size * 0.6 + 0.013
    return torch.cat([torch.randint(images, (count, 1)).float(), corners, corners + extent], 1)


def _scored(count: int) -> tuple[Tensor, Tensor]:
    corners = torch.rand(count, 2) * 50
    return torch.cat([corners, corners + torch.rand(count, 2) * 30 + 1], 1), torch.rand(count)


@pytest.mark.parametrize("count", [1, 5, 64, 65, 700])
@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.7])
def test_suppression(vision: Any, device: str, count: int, threshold: float) -> None:
    boxes, scores = _scored(count)
    expected = vision.ops.nms(boxes, scores, threshold)
    found = vision.ops.nms(boxes.to(device), scores.to(device), threshold)
    assert found.device.type == device and found.dtype == torch.int64
    assert found.tolist() == expected.tolist()


def test_suppression_of_equals(vision: Any, device: str) -> None:
    """Equal scores in the order of the boxes; overlaps of just the threshold stay; boxes without an area."""
    boxes = torch.tensor([[0, 0, 2, 2], [0, 0, 2, 1], [0, 0, 2, 2], [0, 0, 0, 0], [0, 0, 0, 0], [5, 5, 9, 9]]).float()
    boxes = boxes.repeat(30, 1) + torch.arange(30).repeat_interleave(6)[:, None] // 2
    for scores in (torch.ones(180), torch.arange(180) % 7 / 7):
        for threshold in (0.5, 0.0, 1.0):
            expected = vision.ops.nms(boxes, scores, threshold)
            assert vision.ops.nms(boxes.to(device), scores.to(device), threshold).tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
def test_suppression_in_other_dtypes(vision: Any, device: str, dtype: torch.dtype) -> None:
    boxes, scores = (x.to(dtype) for x in _scored(100))
    order = scores.sort(stable=True, descending=True).indices
    kept = vision.ops.nms(boxes[order].double(), -torch.arange(100.0).double(), 0.5)
    assert vision.ops.nms(boxes.to(device), scores.to(device), 0.5).tolist() == order[kept].tolist()


def test_suppression_by_class(vision: Any, device: str) -> None:
    boxes, scores = _scored(300)
    classes = torch.randint(5, (300,))
    expected = vision.ops.batched_nms(boxes, scores, classes, 0.4)
    assert (
        vision.ops.batched_nms(boxes.to(device), scores.to(device), classes.to(device), 0.4).tolist()
        == expected.tolist()
    )


def test_suppression_of_nothing_and_of_nonsense(vision: Any, device: str) -> None:
    nothing = vision.ops.nms(torch.zeros(0, 4, device=device), torch.zeros(0, device=device), 0.5)
    assert nothing.shape == (0,) and nothing.dtype == torch.int64
    boxes, scores = (x.to(device) for x in _scored(4))
    for wrong in ((boxes[0], scores), (boxes[:, :3], scores), (boxes, scores[:2]), (boxes, scores.half())):
        with pytest.raises(RuntimeError):
            vision.ops.nms(*wrong, 0.5)


POOLS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "roi_align": lambda ops, x, boxes: ops.roi_align(x, boxes, (3, 2), 0.5, 2),
    "roi_align, aligned": lambda ops, x, boxes: ops.roi_align(x, boxes, 3, 0.5, 3, aligned=True),
    "roi_align, adaptive": lambda ops, x, boxes: ops.roi_align(x, boxes, (2, 3), 0.5, -1),
    "roi_align, adaptive, aligned": lambda ops, x, boxes: ops.roi_align(x, boxes, 2, 0.5, -1, aligned=True),
    "roi_pool": lambda ops, x, boxes: ops.roi_pool(x, boxes, (3, 2), 0.5),
    "ps_roi_align": lambda ops, x, boxes: ops.ps_roi_align(x, boxes, (3, 2), 0.5, 2),
    "ps_roi_align, adaptive": lambda ops, x, boxes: ops.ps_roi_align(x, boxes, (3, 2), 0.5, -1),
    "ps_roi_pool": lambda ops, x, boxes: ops.ps_roi_pool(x, boxes, (3, 2), 0.5),
}


@pytest.mark.parametrize("pool", POOLS)
def test_pooling_of_boxes(vision: Any, device: str, pool: str) -> None:
    x = torch.randn(2, 12, 20, 17, requires_grad=True)
    _compare(lambda *args: POOLS[pool](vision.ops, *args), (x, _boxes(9)), device)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("dtype", HALVES)
def test_pooling_of_boxes_in_halves(vision: Any, device: str, pool: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 12, 20, 17, requires_grad=True)
    _compare(lambda *args: POOLS[pool](vision.ops, *args), (x, _boxes(9)), device, dtype, 1e-2)


@pytest.mark.parametrize("pool", ["roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"])
def test_pooling_of_no_boxes(vision: Any, device: str, pool: str) -> None:
    x = torch.randn(2, 12, 20, 17, requires_grad=True)
    _compare(lambda *args: POOLS[pool](vision.ops, *args), (x, _boxes(0)), device)


@pytest.mark.parametrize("pool", ["roi_align", "roi_pool"])
def test_pooling_of_other_layouts(vision: Any, device: str, pool: str) -> None:
    x = torch.randn(2, 12, 20, 17).to(memory_format=torch.channels_last).requires_grad_()
    _compare(lambda x, b: POOLS[pool](vision.ops, x[:, 1:], b[::2]), (x, _boxes(9)), device)


def test_pooling_of_boxes_of_no_image(vision: Any, device: str, device_module: ModuleType) -> None:
    boxes = _boxes(3)
    boxes[1, 0] = 2
    with pytest.raises(RuntimeError, match="image"):
        vision.ops.roi_align(torch.randn(2, 4, 8, 8, device=device), boxes.to(device), 2)
        device_module.synchronize()


def _deformed(ops: Any, x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    result: Tensor = ops.deform_conv2d(
        x, offset, weight, bias, stride=(2, 1), padding=(1, 2), dilation=(1, 2), mask=mask
    )
    return result


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize(
    ("groups", "offset_groups", "masked"), [(1, 1, True), (2, 3, True), (3, 2, False), (1, 6, False)]
)
def test_deformable_convolution(
    vision: Any, device: str, groups: int, offset_groups: int, masked: bool, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(2, 6, 9, 10), torch.randn(12, 6 // groups, 3, 2)
    out = torch.nn.functional.conv2d(x, weight, None, (2, 1), (1, 2), (1, 2), groups).shape[2:]
    # Pixels' own places are where gradients jump: halves round to them.
    steps = torch.randint(-24, 24, (2, offset_groups * 12, *out)) / 8 + 1 / 16
    mask = torch.rand(2, offset_groups * 6, *out) if masked else None
    bias = torch.randn(12) if masked else None
    arguments = tree_map(lambda t: t if t is None else t.requires_grad_(), (x, weight, steps, mask, bias))
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2 if dtype == torch.float16 else 1e-1
    _compare(lambda *args: _deformed(vision.ops, *args), arguments, device, dtype, tolerance)


def test_operators_under_autocast(vision: Any, device: str) -> None:
    x, boxes = torch.randn(2, 12, 20, 17, device=device), _boxes(5).to(device)
    weight = torch.randn(3, 12, 1, 1, device=device)
    with torch.autocast(device, torch.bfloat16):
        narrow = torch.nn.functional.conv2d(x, weight)
        assert narrow.dtype == torch.bfloat16
        pooled = vision.ops.roi_align(narrow, boxes, 2)
    assert pooled.dtype == torch.bfloat16
    expected = vision.ops.roi_align(narrow.float(), boxes, 2).bfloat16()
    torch.testing.assert_close(pooled, expected, rtol=0, atol=0)


def test_operators_in_compiled_graphs(vision: Any, device: str) -> None:
    x, boxes = torch.randn(2, 12, 20, 17), _boxes(5)

    def program(x: Tensor, boxes: Tensor) -> Tensor:
        return vision.ops.roi_align(x.relu(), boxes, 3, 0.5, 2).sigmoid()

    compiled = torch.compile(program, fullgraph=True)(x.to(device), boxes.to(device))
    torch.testing.assert_close(compiled.cpu(), program(x, boxes), rtol=1e-5, atol=1e-5)


def _detection(vision: Any, kind: str) -> nn.Module:
    """A small detector with random weights, in eval mode."""
    models = vision.models
    sizes = {"weights": None, "weights_backbone": None, "num_classes": 3, "min_size": 64, "max_size": 96}
    if kind == "retinanet":
        made = models.detection.retinanet_resnet50_fpn(trainable_backbone_layers=5, **sizes)
    elif kind == "fasterrcnn":
        made = models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(trainable_backbone_layers=6, **sizes)
    else:
        made = models.detection.maskrcnn_resnet50_fpn(
            trainable_backbone_layers=5, box_batch_size_per_image=16, rpn_batch_size_per_image=32, **sizes
        )
    result: nn.Module = made.eval()
    return result


def _scene(masks: bool) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Two images with one and two boxes."""
    images = [torch.rand(3, 64, 80), torch.rand(3, 72, 64)]
    boxes = [torch.tensor([[8.0, 8, 50, 40]]), torch.tensor([[5.0, 10, 30, 60], [20, 4, 60, 40]])]
    targets = [{"boxes": each, "labels": torch.arange(1, len(each) + 1)} for each in boxes]
    if masks:
        for image, target in zip(images, targets, strict=True):
            target["masks"] = (torch.rand(len(target["boxes"]), *image.shape[1:]) > 0.5).to(torch.uint8)
    return images, targets


class _FirstChosen:
    """The choice of samples of torchvision's detectors, which is random, made the same everywhere."""

    def __init__(self, count: int, fraction: float) -> None:
        self.count, self.positive = count, int(count * fraction)

    def __call__(self, labels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        chosen = []
        for each in labels:
            positive, negative = torch.where(each >= 1)[0], torch.where(each == 0)[0]
            positive = positive[: self.positive]
            negative = negative[: self.count - len(positive)]
            marks = (torch.zeros_like(each, dtype=torch.uint8), torch.zeros_like(each, dtype=torch.uint8))
            marks[0][positive], marks[1][negative] = 1, 1
            chosen.append(marks)
        return [a for a, _ in chosen], [b for _, b in chosen]


@pytest.mark.parametrize("kind", ["fasterrcnn", "maskrcnn", "retinanet"])
def test_detection(vision: Any, device: str, kind: str) -> None:
    """Losses and their gradients in training, and what is detected."""
    model = _detection(vision, kind)
    for part in ("rpn", "roi_heads"):
        if hasattr(model, part):
            getattr(model, part).fg_bg_sampler = _FirstChosen(16, 0.5)
    other = copy.deepcopy(model).to(device)
    images, targets = _scene(kind == "maskrcnn")
    for each in (model, other):
        each.train()
        # Statistics of two small images amplify rounding; detectors are trained with frozen ones anyhow.
        for module in each.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    expected = model(images, targets)
    found = other(_moved(images, device), _moved(targets, device))
    assert found.keys() == expected.keys()
    for name, loss in expected.items():
        torch.testing.assert_close(found[name].cpu(), loss, rtol=1e-3, atol=1e-4)
    sum(expected.values()).backward()
    sum(found.values()).backward()
    for (name, one), two in zip(other.named_parameters(), model.parameters(), strict=True):
        if two.grad is not None:
            scale = float(two.grad.abs().max())
            torch.testing.assert_close(one.grad.cpu(), two.grad, rtol=1e-2, atol=1e-2 * scale + 1e-6, msg=name)
    with torch.no_grad():
        expected, found = model.eval()(images), other.eval()(_moved(images, device))
    for one, two in zip(found, expected, strict=True):
        assert {key: value.shape for key, value in one.items()} == {key: value.shape for key, value in two.items()}
        torch.testing.assert_close(one["scores"].cpu(), two["scores"], rtol=1e-3, atol=1e-4)


def test_transforms(vision: Any, device: str) -> None:
    """Transforms (v2) of images on the device; those without random numbers give what the CPU gives."""
    v2 = importlib.import_module("torchvision.transforms.v2")
    pipeline = v2.Compose(
        [
            v2.Resize((40, 30), antialias=True),
            v2.CenterCrop(24),
            v2.RandomHorizontalFlip(1.0),
            v2.Pad(2, fill=3),
            v2.ColorJitter((0.7, 0.7), (1.2, 1.2), (0.8, 0.8)),
            v2.Grayscale(3),
            v2.GaussianBlur(3, (1.0, 1.0)),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]),
        ]
    )
    images = torch.randint(0, 256, (2, 3, 50, 61), dtype=torch.uint8)
    found, expected = pipeline(images.to(device)), pipeline(images)
    assert found.device.type == device
    # A step of uint8, of which rounding may be one, is 1 / 255 / 0.2.
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=2.1e-2)
    floats = v2.functional.resize(images.float(), [20, 33], antialias=True)
    torch.testing.assert_close(
        v2.functional.resize(images.float().to(device), [20, 33], antialias=True).cpu(), floats, rtol=1e-5, atol=1e-3
    )


def test_transforms_of_boxes_and_masks(vision: Any, device: str) -> None:
    v2, tensors = (importlib.import_module(f"torchvision.{each}") for each in ("transforms.v2", "tv_tensors"))
    image = tensors.Image(torch.randint(0, 256, (3, 32, 48), dtype=torch.uint8))
    boxes = tensors.BoundingBoxes([[4, 4, 20, 16], [10, 2, 40, 30]], format="XYXY", canvas_size=(32, 48))
    mask = tensors.Mask(torch.randint(0, 2, (1, 32, 48), dtype=torch.uint8))
    pipeline = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Resize((64, 64), antialias=True), v2.ClampBoundingBoxes()])
    expected = pipeline(image, boxes, mask)
    found = pipeline(*(each.to(device) for each in (image, boxes, mask)))
    for one, two, tolerance in zip(found, expected, (1, 0, 0), strict=True):
        assert type(one) is type(two) and one.device.type == device
        torch.testing.assert_close(one.cpu().as_subclass(Tensor), two.as_subclass(Tensor), rtol=0, atol=tolerance)
