# SPDX-License-Identifier: Apache-2.0
"""torch.accelerator, memory statistics and AMP switches."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

GAUGES = [f"{g}.{f}" for g in ("allocated", "reserved", "active", "cached") for f in ("current", "peak")]
TOTALS = [f"{g}.{f}" for g in ("allocated", "reserved") for f in ("total_allocated", "total_freed")]
COUNTS = ["num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"]


def test_the_device_is_the_accelerator(device: str, device_module: ModuleType) -> None:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    assert accelerator is not None and accelerator.type == device
    assert torch.accelerator.device_count() == device_module.device_count()
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(0):
        torch.accelerator.synchronize()
    assert torch.accelerator.get_device_capability()["supported_dtypes"]
    torch.accelerator.empty_host_cache()
    with pytest.raises(RuntimeError):
        torch.accelerator.set_device_index(99)


def test_memory_through_torch_accelerator(device: str) -> None:
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_allocated()
    x = torch.ones(1 << 20, device=device)
    assert torch.accelerator.memory_allocated() >= before + x.nbytes
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    assert len(torch.accelerator.memory_stats()) > 100
    free, total = torch.accelerator.get_memory_info()
    assert 0 <= free <= total


def test_statistics_have_every_documented_key(device_module: ModuleType) -> None:
    assert set(GAUGES + TOTALS + COUNTS) <= set(device_module.memory_stats())


def test_statistics_follow_tensors(device: str, device_module: ModuleType) -> None:
    device_module.synchronize()
    device_module.empty_cache()
    base = device_module.memory_allocated()
    lazy = torch.empty(1 << 20, device=device)
    assert device_module.memory_allocated(device) == base, "memory is taken when it is needed"
    lazy.fill_(1)
    assert device_module.memory_allocated() == base + lazy.nbytes
    del lazy
    assert device_module.memory_allocated(0) == base
    assert device_module.max_memory_allocated() >= base + (4 << 20)
    device_module.reset_peak_memory_stats()
    assert device_module.max_memory_allocated() == base
    device_module.reset_accumulated_memory_stats()
    stats = device_module.memory_stats(torch.device(device, 0))
    assert all(stats[key] == 0 for key in TOTALS + COUNTS)
    reserved = device_module.memory_reserved()
    device_module.synchronize()
    device_module.empty_cache()
    assert device_module.memory_reserved() <= reserved
    assert device_module.max_memory_reserved() >= device_module.memory_reserved()


def test_summary_and_info(device_module: ModuleType) -> None:
    assert "reserved" in device_module.memory_summary()
    assert "num_ooms" not in device_module.memory_summary(abbreviated=True)
    free, total = device_module.mem_get_info()
    assert 0 <= free <= total
    assert 0 <= device_module.device_memory_used() <= total
    with pytest.raises(ValueError):
        device_module.set_per_process_memory_fraction(2.0)


def test_a_memory_limit_is_kept(device: str, device_module: ModuleType) -> None:
    device_module.set_per_process_memory_fraction(0.01)
    try:
        limit = int(0.01 * device_module.get_device_properties().total_memory)
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(limit + 1, dtype=torch.uint8, device=device).fill_(1)
    finally:
        device_module.set_per_process_memory_fraction(1.0)
    assert torch.zeros(3, device=device).cpu().sum() == 0


def test_amp(device: str, device_module: ModuleType) -> None:
    supported = device_module.get_amp_supported_dtype()
    assert torch.amp.is_autocast_available(device) and device_module.is_autocast_available()
    for dtype in supported:
        with torch.autocast(device, dtype=dtype):
            assert torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == dtype
    assert not torch.is_autocast_enabled(device)
    assert device_module.is_bf16_supported() == (torch.bfloat16 in supported)


def test_pinned_memory(device: str) -> None:
    x = torch.arange(10.0).pin_memory()
    assert x.is_pinned() and x[3:].is_pinned() and not torch.ones(2).is_pinned()
    assert x.tolist() == list(range(10))
    assert torch.empty(0).pin_memory().numel() == 0
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, pin_memory=True)
    assert all(batch.is_pinned() and batch.to(device, non_blocking=True).device.type == device for batch in loader)
