# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer and Fabric take the device by themselves, by its name, and for ``accelerator="gpu"``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

lightning = pytest.importorskip("lightning", reason="the extra `test` installs it")


class Model(lightning.LightningModule):  # type: ignore[name-defined, misc]
    """Learns the sum of eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        assert batch.device == self.device
        loss = (self.model(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def _loader() -> Any:
    return torch.utils.data.DataLoader(torch.linspace(-1, 1, 64 * 8).reshape(64, 8), batch_size=64)


def _fit(folder: Path, **options: Any) -> tuple[Model, Any]:
    trainer = lightning.Trainer(
        max_epochs=4, logger=False, enable_progress_bar=False, default_root_dir=folder, enable_model_summary=False,
        **options,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, _loader())
    return model, trainer


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_trainer(device: str, tmp_path: Path, precision: str) -> None:
    model, trainer = _fit(tmp_path / "ours", precision=precision)
    assert trainer.strategy.root_device.type == device
    expected, _ = _fit(tmp_path / "cpu", accelerator="cpu")
    tolerance = 1e-5 if precision == "32-true" else 0.05
    same = slice(1) if precision == "16-mixed" else slice(None)  # the first scale may be too large for a step
    torch.testing.assert_close(
        torch.tensor(model.losses[same]), torch.tensor(expected.losses[same]), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("accelerator", ["auto", "gpu", None])
def test_ways_to_ask(device: str, tmp_path: Path, accelerator: str | None) -> None:
    _, trainer = _fit(tmp_path, accelerator=accelerator or device, devices=1)
    assert trainer.strategy.root_device == torch.device(device, 0)


def test_devices_that_there_are_not(device: str) -> None:
    with pytest.raises(ValueError, match="numbered from 0"):
        lightning.Trainer(accelerator=device, devices=[99])


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_fabric(device: str, precision: str) -> None:
    fabric = lightning.Fabric(precision=precision)
    fabric.launch()
    assert fabric.device.type == device
    model = nn.Linear(8, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in fabric.setup_dataloaders(_loader()):
        loss = model(batch).square().mean()
        fabric.backward(loss)
        optimizer.step()
    assert loss.device.type == device
