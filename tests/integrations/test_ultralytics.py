# SPDX-License-Identifier: Apache-2.0
"""Ultralytics' YOLO on the device: prediction, training, validation, from a configuration without weights."""

from __future__ import annotations

import copy
import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.skipif(os.environ.get("OUTBOARD_TEST_ECOSYSTEM") != "1", reason="make test-ecosystem")

CONFIGURATION = "yolo11n.yaml"


@pytest.fixture(scope="module")
def ultralytics(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library, with its settings in a folder of the test's, and without looking for the network."""
    os.environ["YOLO_CONFIG_DIR"] = str(tmp_path_factory.mktemp("settings"))
    os.environ["YOLO_OFFLINE"] = "1"
    library = pytest.importorskip("ultralytics")
    library.settings.update({"sync": False})
    return library


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A data set of four pictures with a bright box each; returns its description."""
    cv2 = importlib.import_module("cv2")
    draw = numpy.random.default_rng(0)
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
    for number in range(4):
        picture = draw.integers(0, 60, (64, 64, 3), dtype=numpy.uint8)
        x, y = draw.integers(4, 30, 2)
        picture[y : y + 28, x : x + 28] = 220
        cv2.imwrite(str(tmp_path / "images" / f"{number}.png"), picture)
        label = f"0 {(x + 14) / 64} {(y + 14) / 64} {28 / 64} {28 / 64}\n"
        (tmp_path / "labels" / f"{number}.txt").write_text(label)
    description = tmp_path / "data.yaml"
    description.write_text(f"path: {tmp_path}\ntrain: images\nval: images\nnames: {{0: box}}\n")
    return description


def test_selection(ultralytics: Any, device: str) -> None:
    select = importlib.import_module("ultralytics.utils.torch_utils").select_device
    assert select(device) == select(f"{device}:0") == select(torch.device(device, 0)) == torch.device(device, 0)
    assert select("") == select(None) == torch.device(device, 0)
    assert select("cpu") == torch.device("cpu")
    for wrong in (f"{device}:99", f"{device}:0,1", "cuda:0"):
        with pytest.raises(ValueError):
            select(wrong)


def test_network(ultralytics: Any, device: str, device_module: ModuleType) -> None:
    """The network itself, forward in both modes and backward, with no operator elsewhere."""
    before = device_module.fallbacks()
    model = ultralytics.YOLO(CONFIGURATION).model
    other = copy.deepcopy(model).to(device)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        expected, found = model.eval()(images)[0], other.eval()(images.to(device))[0]
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)
    for each in (model, other):
        for parameter in each.parameters():
            parameter.requires_grad_(True)
    for one, two in zip(_levels(other, images.to(device)), _levels(model, images), strict=True):
        torch.testing.assert_close(one.detach().cpu(), two.detach(), rtol=1e-3, atol=1e-3)
    for each, where in ((model, "cpu"), (other, device)):
        sum(level.square().mean() for level in _levels(each, images.to(where))).backward()
    for (name, one), two in zip(other.named_parameters(), model.parameters(), strict=True):
        if two.grad is not None:
            largest = float(two.grad.abs().max())
            torch.testing.assert_close(one.grad.cpu(), two.grad, rtol=2e-2, atol=2e-2 * largest + 1e-6, msg=name)
    assert device_module.fallbacks() == before


def _levels(model: torch.nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(model.train()(images)) if leaf.is_floating_point()]


def test_prediction(ultralytics: Any, device: str) -> None:
    torch.manual_seed(0)
    here = ultralytics.YOLO(CONFIGURATION)
    there = copy.deepcopy(here)
    picture = numpy.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=numpy.uint8)
    # Weights are random, so nothing is sure: what is compared is the most likely of what is nothing.
    options = {"imgsz": 96, "conf": 1e-6, "max_det": 20, "verbose": False}
    expected = there.predict(picture, device="cpu", **options)[0].boxes
    found = here.predict(picture, device=device, **options)[0].boxes
    assert found.data.device.type == device and len(found) == len(expected) > 0
    torch.testing.assert_close(found.conf.cpu(), expected.conf, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("precise", [True, False])
def test_training(ultralytics: Any, device: str, pictures: Path, tmp_path: Path, precise: bool) -> None:
    """An epoch and validation, in float32 and with mixed precision."""
    checks = importlib.import_module("ultralytics.engine.trainer")
    # The check of mixed precision would fetch weights.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "check_amp", lambda model: True)
        model = ultralytics.YOLO(CONFIGURATION)
        seen: dict[str, Any] = {}

        def note(trainer: Any) -> None:
            first = next(trainer.model.parameters())
            seen.update(device=first.device, loss=trainer.loss.detach(), scales=trainer.scaler.is_enabled())

        model.add_callback("on_train_batch_end", note)
        model.train(
            data=str(pictures), epochs=1, imgsz=64, batch=2, device=device, workers=0, amp=not precise, optimizer="SGD",
            lr0=0.001, warmup_epochs=0, plots=False, verbose=False, project=str(tmp_path), name="run",
        )  # fmt: skip
    assert seen["device"].type == device and seen["scales"] is not precise
    assert bool(torch.isfinite(seen["loss"]).all())
    assert (tmp_path / "run" / "weights" / "last.pt").exists()
