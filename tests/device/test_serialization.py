# SPDX-License-Identifier: Apache-2.0
"""torch.save and torch.load, pickle, deepcopy."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch


def saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool], ids=str)
def test_save_and_load(device: str, weights_only: bool, dtype: torch.dtype) -> None:
    x = torch.arange(6).reshape(2, 3).to(dtype).to(device)
    assert torch.load(saved(x), weights_only=weights_only).device == x.device
    loaded = torch.load(saved(x), weights_only=weights_only)
    assert torch.equal(loaded.cpu(), x.cpu())
    assert torch.load(saved(x), map_location="cpu", weights_only=weights_only).device.type == "cpu"
    assert torch.load(saved(x.cpu()), map_location=device, weights_only=weights_only).device == x.device
    moved = torch.load(saved(x.cpu()), map_location={"cpu": f"{device}:0"}, weights_only=weights_only)
    assert moved.device == x.device
    assert torch.load(saved(x), map_location=lambda storage, _: storage, weights_only=weights_only).device.type == "cpu"


def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.load(saved(torch.ones(2)), map_location=f"{device}:99")


def test_shared_storage_stays_shared(device: str) -> None:
    x = torch.arange(6.0).to(device)
    a, b = torch.load(saved([x, x[2:].view(2, 2)]))
    a.zero_()
    assert b.cpu().sum() == 0 and b.storage_offset() == 2


def test_modules_and_optimizers(device: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(device)
    state = torch.load(saved(model.state_dict()), weights_only=True)
    assert all(value.device.type == device for value in state.values())
    model.load_state_dict(state)
    other = torch.load(saved(model), weights_only=False)
    assert torch.equal(other[0].weight.cpu(), model[0].weight.cpu())
    on_cpu = torch.nn.Linear(3, 4)
    on_cpu.load_state_dict(model[0].state_dict())
    assert torch.equal(on_cpu.weight, model[0].weight.cpu())


def test_pickle(device: str) -> None:
    x = torch.arange(4.0).to(device)[1:]
    y = pickle.loads(pickle.dumps(x))
    assert y.device == x.device and torch.equal(y.cpu(), x.cpu())


def test_deepcopy(device: str) -> None:
    x = torch.arange(4.0).to(device).requires_grad_()
    y = copy.deepcopy(x)
    assert y.requires_grad and y.device == x.device and y.data_ptr() != x.data_ptr()
    with torch.no_grad():
        y.zero_()
    assert x.tolist() == [0, 1, 2, 3]
    model = torch.nn.Linear(2, 2).to(device)
    assert torch.equal(copy.deepcopy(model).weight.cpu(), model.weight.cpu())


def test_moving_modules(device: str) -> None:
    model = torch.nn.Linear(2, 3)
    before = model.weight.detach().clone()
    assert model.to(device).weight.device.type == device
    assert model.double().weight.dtype == torch.float64
    assert torch.equal(model.cpu().float().weight, before)
    parallel = getattr(torch.nn.Sequential(model), device)()
    assert getattr(parallel[0].bias, f"is_{device}")
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    assert getattr(packed.to(device), f"is_{device}")


def test_safetensors(device: str, tmp_path: Path) -> None:
    files = pytest.importorskip("safetensors.torch", reason="the extra `demo` installs it")
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.empty(0)}
    file = tmp_path / "x.safetensors"
    files.save_file({name: tensor.to(device) for name, tensor in tensors.items()}, file)
    for where in (device, f"{device}:0", torch.device(device), "cpu"):
        loaded = files.load_file(file, device=where)
        assert {tensor.device.type for tensor in loaded.values()} == {torch.device(where).type}
        assert all(torch.equal(loaded[name].cpu(), tensor) for name, tensor in tensors.items())
    with pytest.raises(RuntimeError):
        files.load_file(file, device=f"{device}:99")
    from safetensors import safe_open

    with safe_open(file, framework="pt", device=device) as opened:
        assert opened.get_slice("a")[1:].device.type == device
    model = torch.nn.Linear(3, 2).to(device)
    files.save_model(model, str(file))
    assert files.load_model(model, file, device=device) == (set(), [])
