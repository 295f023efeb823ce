# SPDX-License-Identifier: Apache-2.0
"""accelerate finds the device by itself."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

accelerate = pytest.importorskip("accelerate", reason="the extra `test` installs it")


def _reset() -> None:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    _reset()


def _train(steps: int, **options: object) -> tuple[list[float], nn.Module, torch.device]:
    accelerator = accelerate.Accelerator(**options)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.linspace(-1, 1, 64 * 8).reshape(64, 8), batch_size=64)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for batch in itertools.islice(itertools.cycle(loader), steps):
        assert batch.device.type == accelerator.device.type
        with accelerator.autocast():
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss).item())
    return losses, model, accelerator.device


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_training(device: str, precision: str) -> None:
    losses, model, used = _train(8, mixed_precision=precision)
    assert used.type == device
    assert {parameter.device.type for parameter in model.parameters()} == {device}
    _reset()
    expected, _, host = _train(8, cpu=True)
    assert host.type == "cpu"
    tolerance = 1e-5 if precision == "no" else 0.05
    same = slice(1) if precision == "fp16" else slice(None)  # the first scale of a loss may be too large for a step
    torch.testing.assert_close(torch.tensor(losses[same]), torch.tensor(expected[same]), rtol=tolerance, atol=tolerance)
    assert losses[-1] < losses[0]


def test_losses_of_halves_are_scaled(device: str) -> None:
    scaler = accelerate.Accelerator(mixed_precision="fp16").scaler
    assert scaler.is_enabled() and scaler.scale(torch.ones(1, device=device)).item() == 2.0**16


def test_device_maps(device: str) -> None:
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_max_memory

    memory = get_max_memory()
    assert memory[0] > 2**20
    assert get_max_memory({"cpu": "1GiB", 0: "2MiB"}) == {0: 2 << 20, "cpu": 1 << 30}
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    expected = model(torch.ones(2, 4)).detach()
    placed = dispatch_model(model, infer_auto_device_map(model))
    assert {parameter.device.type for parameter in placed.parameters()} == {device}
    torch.testing.assert_close(placed(torch.ones(2, 4, device=device)).cpu(), expected)


def test_layers_on_two_devices(device: str) -> None:
    """What does not fit waits on the CPU, and comes when it is needed."""
    from accelerate import dispatch_model

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    expected = model(torch.ones(2, 4)).detach()
    placed = dispatch_model(model, {"0": 0, "1": "cpu"}, main_device=0)
    torch.testing.assert_close(placed(torch.ones(2, 4, device=device)).cpu(), expected)


def test_checkpoints(device: str, tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator()
    model = accelerator.prepare(nn.Linear(3, 3))
    before = model.weight.detach().clone()
    accelerator.save_state(str(tmp_path))
    drawn = torch.rand(8, device=device)
    with torch.no_grad():
        model.weight.zero_()
    accelerator.load_state(str(tmp_path))
    assert torch.equal(torch.rand(8, device=device), drawn)
    assert torch.equal(model.weight, before) and model.weight.device.type == device
