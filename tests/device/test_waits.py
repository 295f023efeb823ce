# SPDX-License-Identifier: Apache-2.0
"""`set_sync_debug_mode` finds the operations that wait for the device: those that PyTorch's tests name for CUDA."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F


@pytest.fixture(autouse=True)
def _as_before(device_module: ModuleType) -> Iterator[None]:
    yield
    device_module.set_sync_debug_mode("default")


class _Values:
    """What the operations work on."""

    def __init__(self, device: str) -> None:
        self.x = torch.rand(4, device=device)
        self.y = torch.rand(4, device=device)
        self.indices = torch.tensor([0, 2, 3], device=device)
        self.host_indices = self.indices.cpu()
        self.mask = torch.tensor([True, False, True, True], device=device)
        self.repeats = torch.full((1,), 2, device=device)
        self.pinned = torch.ones(4).pin_memory()
        self.pageable = torch.ones(4)


def _assign(target: torch.Tensor, index: torch.Tensor, value: torch.Tensor | float) -> None:
    target[index] = value


_QUEUED: dict[str, Callable[[_Values], object]] = {
    "arithmetic": lambda v: F.softmax(v.x + 1, 0) @ v.y,
    "fill": lambda v: torch.full((2,), 3.0, device=v.x.device),
    "assign a number through a mask": lambda v: _assign(v.x, v.mask, 1.0),
    "assign through indices": lambda v: _assign(v.x, v.indices, v.y[:3]),
    "read through indices": lambda v: v.x[v.indices],
    "one_hot with its size": lambda v: F.one_hot(v.indices, num_classes=4),
    "repeat_interleave with its size": lambda v: torch.repeat_interleave(v.x, 2, output_size=8),
    "any": lambda v: torch.any(v.y),
    "upload from pinned memory": lambda v: v.pinned.to(v.x.device, non_blocking=True),
    "download to pinned memory": lambda v: v.pinned.copy_(v.x, non_blocking=True),
    "synchronize": lambda v: torch.accelerator.synchronize(),
}

_WAITING: dict[str, Callable[[_Values], object]] = {
    "item": lambda v: v.y[0].item(),
    "condition": lambda v: bool((v.y > 0).all()),
    "tolist": lambda v: v.y.tolist(),
    "print": lambda v: repr(v.y),
    "download": lambda v: v.y.cpu(),
    "upload": lambda v: v.pageable.to(v.x.device),
    "upload of pageable memory": lambda v: v.pageable.to(v.x.device, non_blocking=True),
    "make from numbers": lambda v: torch.tensor([1.0], device=v.x.device),
    "nonzero": lambda v: v.x.nonzero(),
    "read through a mask": lambda v: v.x[v.mask],
    "read through indices of the host": lambda v: v.x[v.host_indices],
    "assign through indices of the host": lambda v: _assign(v.x, v.host_indices, v.y[:3]),
    "one_hot": lambda v: F.one_hot(v.indices),
    "stream": lambda v: torch.accelerator.current_stream().synchronize(),
}


@pytest.mark.parametrize("operation", _QUEUED.values(), ids=_QUEUED.keys())
def test_what_is_queued_may_run(device: str, device_module: ModuleType, operation: Callable[[_Values], object]) -> None:
    values = _Values(device)
    device_module.set_sync_debug_mode("error")
    operation(values)


@pytest.mark.parametrize("operation", _WAITING.values(), ids=_WAITING.keys())
def test_what_waits_is_found(device: str, device_module: ModuleType, operation: Callable[[_Values], object]) -> None:
    values = _Values(device)
    device_module.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing operation"):
        operation(values)
    device_module.set_sync_debug_mode("default")
    operation(values)


def test_compiling_an_operator_is_no_wait_of_the_program(device: str, device_module: ModuleType) -> None:
    values = torch.rand(3, 5, 7, device=device)
    device_module.set_sync_debug_mode("error")
    result = torch.logcumsumexp(values * 1.25 + 3, 1).erfinv()  # nothing else here calls these
    device_module.set_sync_debug_mode("default")
    torch.testing.assert_close(result.cpu(), torch.logcumsumexp(values.cpu() * 1.25 + 3, 1).erfinv(), equal_nan=True)


def test_a_compiled_training_step_waits_nowhere(device: str, device_module: ModuleType) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 3))
    compiled = torch.compile(model.to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    values, wanted = torch.rand(5, 8, device=device), torch.tensor([0, 1, 2, 0, 1], device=device)
    device_module.set_sync_debug_mode("error")  # compilers copy numbers to the device, which is their own business
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(compiled(values), wanted).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def test_a_warning_for_each_wait(device: str, device_module: ModuleType) -> None:
    values = torch.rand(4, device=device)
    device_module.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        values.cpu()
        values[0].item()
        values.add_(1)
    assert len(found) == 2
    assert f"a copy from {device}:0 to cpu" in str(found[0].message) and "item()" in str(found[1].message)
    assert found[0].filename == __file__


def test_modes_are_those_of_cuda(device_module: ModuleType) -> None:
    assert device_module.get_sync_debug_mode() == 0
    for number, word in enumerate(("default", "warn", "error")):
        device_module.set_sync_debug_mode(word)
        assert device_module.get_sync_debug_mode() == number
        device_module.set_sync_debug_mode(number)
        assert device_module.get_sync_debug_mode() == number
    for wrong in ("loud", 3, -1):
        with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
            device_module.set_sync_debug_mode(wrong)
