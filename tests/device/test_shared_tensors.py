# SPDX-License-Identifier: Apache-2.0
"""``torch.multiprocessing``: memory that processes share where the device takes the host's, and copies elsewhere."""

from __future__ import annotations

import gc
import multiprocessing.synchronize
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from outboard.device import sharing
from tests.conftest import RunPython


@pytest.fixture
def shares(device_module: ModuleType) -> bool:
    """Whether the device's driver takes memory of the host, as it has to for sharing."""
    takes: bool = device_module.get_device_properties().takes_host_memory
    return takes


@pytest.fixture
def _shares(shares: bool) -> None:
    if not shares:
        pytest.skip("the driver does not take memory of the host")


def _sent(value: Any) -> Any:
    """What arrives of a tensor that is sent to this process."""
    rebuild, arguments = sharing._reduce_tensor(value)
    return rebuild(*arguments)


def _mapped() -> int:
    """Pieces of shared memory that this process has."""
    return Path("/proc/self/maps").read_text().count("/torch_")


def test_what_is_sent_is_shared_or_a_copy(device: str, shares: bool) -> None:
    x = torch.arange(3.0, device=device)
    for sent in (x, torch.nn.Parameter(x), x[1:], torch.empty(0, device=device)):
        arrived = _sent(sent)
        assert type(arrived) is type(sent) and arrived.requires_grad == sent.requires_grad
        assert arrived.device == x.device and torch.equal(arrived.detach().cpu(), sent.detach().cpu())
        assert (arrived.data_ptr() == sent.data_ptr()) == (shares or not sent.numel())
    assert x.is_shared() == shares


@pytest.mark.usefixtures("_shares")
def test_shared_memory_is_the_storages(device: str, device_module: ModuleType) -> None:
    """Views go on seeing it, work of all streams can use it, it is nobody's to move or resize, and goes with its last
    owner, also while work is queued."""
    gc.collect()
    allocated, mapped = device_module.memory_allocated(), _mapped()
    x = torch.arange(300_000.0, device=device)
    view, storage = x[1:], x.untyped_storage()
    assert not x.is_shared()
    assert x.share_memory_() is x and x.is_shared() and view.is_shared() and storage.share_memory_() is storage
    assert device_module.memory_allocated() == allocated and _mapped() == mapped + 1
    x += 1
    side = torch.Stream(device)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        doubled = view * 2
    side.synchronize()
    assert view[:2].tolist() == [2, 3] and doubled[-1].item() == 600_000
    assert view.zero_().count_nonzero().item() == 0
    with pytest.raises(RuntimeError, match="not resizable"):
        storage.resize_(8)
    y = x
    for _ in range(50):
        y = y + x
    del x, view, storage, doubled
    assert y[0].item() == 51
    del y
    gc.collect()
    assert device_module.memory_allocated() == allocated and _mapped() == mapped


@pytest.mark.usefixtures("_shares")
def test_what_shares_memory_does_so_when_it_arrives(device: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to(device)
    model[1].weight = model[0].weight
    model.share_memory()
    assert model[0].weight.is_shared() and model[0].bias.is_shared()
    first, second = _sent(model[0].weight.detach()), _sent(model[1].weight)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def _add(weight: torch.Tensor, lock: multiprocessing.synchronize.Lock, times: int) -> None:
    for _ in range(times):
        with lock, torch.no_grad():
            weight.add_(1)
            torch.accelerator.synchronize()


def _add_there(model: torch.nn.Module, lock: Any, sent: Any, received: Any) -> None:
    """What the other process does; it waits until it is told that its result has arrived."""
    _add(model.weight, lock, 50)
    tensor = received.get(timeout=100)
    sent.put((str(model.weight.device), model.weight.is_shared(), tensor, tensor * 2))
    received.get(timeout=100)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_two_processes_train_one_model(device: str, shares: bool, method: str) -> None:
    """Each adds to its parameter, under a lock; without shared memory one of them does to its copy."""
    context = torch.multiprocessing.get_context(method)
    there, back, lock = context.Queue(), context.Queue(), context.Lock()
    model = torch.nn.Linear(3, 2, bias=False).to(device)
    torch.nn.init.zeros_(model.weight)
    process = context.Process(target=_add_there, args=(model, lock, back, there))
    process.start()
    _add(model.weight, lock, 50)
    sent = torch.arange(5.0, device=device)
    there.put(sent)
    where, is_shared, same, doubled = back.get(timeout=100)
    there.put(None)
    process.join(timeout=100)
    assert (where, is_shared, process.exitcode) == (f"{device}:0", shares, 0)
    assert (same.data_ptr() == sent.data_ptr()) == shares
    assert doubled.device.type == device and doubled.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert model.weight.unique().tolist() == [100.0 if shares else 50.0]


def test_memory_that_cannot_be_shared_is_refused(run_python: RunPython) -> None:
    """PyTorch would do nothing, and processes train copies. On the CPU it is shared as ever."""
    run_python(
        """
import torch
name = torch._C._get_privateuse1_backend_name()
model = torch.nn.Linear(2, 2)
model.share_memory()
assert model.weight.is_shared()
model.to(name)
for share in (model.share_memory, model.weight.share_memory_, model.weight.untyped_storage().share_memory_):
    try: share()
    except RuntimeError as error: assert "on the CPU, as by model.cpu" in str(error), error
    else: raise SystemExit("was not refused")
assert not model.weight.is_shared()
""",
        OUTBOARD_DRIVER="strict",
    )
