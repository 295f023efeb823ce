# SPDX-License-Identifier: Apache-2.0
"""Memory for those who ask for it alone: ``MemPool`` and ``use_mem_pool``, as ``torch.cuda`` has them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from outboard import _C

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    yield


def made(device: str, value: float = 1.0, mebibytes: int = 3) -> torch.Tensor:
    """A tensor that is in device memory."""
    return torch.ones(mebibytes * MIB // 4, device=device).mul_(value)


def sizes(segments: list[dict[str, Any]], key: str = "active_size") -> int:
    return sum(segment[key] for segment in segments)


def test_memory_of_a_pool_is_its_own(device: str, device_module: ModuleType) -> None:
    pool = device_module.MemPool()
    with device_module.use_mem_pool(pool):
        inside = made(device, 2)
    outside = made(device, 3)
    assert sizes(pool.snapshot()) == 3 * MIB
    assert all(segment["segment_pool_id"] == pool.id for segment in pool.snapshot())
    assert sizes(device_module.memory_snapshot()) >= 6 * MIB
    addresses = {segment["address"] for segment in pool.snapshot()}
    del inside
    again = made(device, 4)  # does not reuse what the pool has free
    assert sizes(pool.snapshot()) == 0
    with device_module.use_mem_pool(pool):
        reused = made(device, 5)
    assert {segment["address"] for segment in pool.snapshot()} == addresses
    for tensor, value in ((outside, 3.0), (again, 4.0), (reused, 5.0)):
        assert tensor.cpu().eq(value).all()


def test_a_pool_keeps_its_memory_until_it_goes(device: str, device_module: ModuleType) -> None:
    pool = device_module.MemPool()
    with device_module.use_mem_pool(pool):
        tensor = made(device)
    count = pool.use_count()
    assert count >= 2
    del tensor
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    assert pool.use_count() < count
    assert sizes(pool.snapshot(), "total_size") >= 3 * MIB
    with device_module.use_mem_pool(pool):
        torch.accelerator.empty_cache()
    assert pool.snapshot() == []
    with device_module.use_mem_pool(pool):
        tensor = made(device, 7)
    identity = pool.id
    del pool
    torch.accelerator.empty_cache()
    assert sizes(device_module.memory_snapshot(identity)) == 3 * MIB
    assert tensor.cpu().eq(7).all()
    del tensor
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    assert device_module.memory_snapshot(identity) == []


def test_pools_nest_and_other_threads_have_none(device: str, device_module: ModuleType) -> None:
    first, second = device_module.MemPool(), device_module.MemPool()
    kept = []
    with device_module.use_mem_pool(first):
        with device_module.use_mem_pool(second):
            kept.append(made(device, mebibytes=1))
        kept.append(made(device, mebibytes=2))
        thread = threading.Thread(target=lambda: kept.append(made(device, mebibytes=4)))
        thread.start()
        thread.join()
    assert (sizes(first.snapshot()), sizes(second.snapshot())) == (2 * MIB, MIB)


def test_a_pool_gives_way_and_gets_back(device: str, device_module: ModuleType) -> None:
    """What a pool's tensors hold moves to the host where memory lacks, and comes back to the pool."""
    pool = device_module.MemPool()
    device_module.empty_cache()
    others = device_module.memory_reserved()
    with device_module.use_mem_pool(pool):
        tensor = made(device, 9, 32)
        free = made(device, 1, 32)
    torch.accelerator.synchronize()
    del free
    total = device_module.mem_get_info()[1]
    device_module.set_per_process_memory_fraction((others + 80 * MIB) / total)
    try:
        other = made(device, 2, 64)
        torch.accelerator.synchronize()
        assert sizes(pool.snapshot()) == 0
        assert other.sum().item() == 2.0 * other.numel()
        del other
        assert tensor.add(1).cpu().eq(10).all()
    finally:
        device_module.set_per_process_memory_fraction(1.0)
    assert sizes(pool.snapshot()) == 32 * MIB


def test_blocks_without_tensors(device: str, device_module: ModuleType) -> None:
    pool = device_module.MemPool()
    with device_module.use_mem_pool(pool):
        pointer = device_module.caching_allocator_alloc(MIB)
    assert sizes(pool.snapshot()) == MIB
    device_module.caching_allocator_delete(pointer)
    assert sizes(pool.snapshot()) == 0


def test_graphs_take_a_pool(device: str, device_module: ModuleType) -> None:
    pool = device_module.MemPool()
    x = torch.ones(8, device=device)
    x * 2 + 1  # compiled before it is captured
    first, second = device_module.Graph(), device_module.Graph()
    with device_module.graph(first, pool=pool.id):
        y = x * 2
    with device_module.graph(second, pool=pool.id):
        z = y + 1
    assert first.pool() == second.pool()
    x.fill_(3)
    first.replay()
    second.replay()
    assert z.cpu().tolist() == [7.0] * 8


def test_bad_use(device_module: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="allocator must be None"):
        device_module.MemPool(object())
    with pytest.raises(RuntimeError, match="no_split"):
        device_module.MemPool(no_split=True)
    pool = device_module.MemPool()
    scope = device_module.use_mem_pool(pool)
    scope.__enter__()
    failures = []

    def leave() -> None:
        try:
            scope.__exit__(None, None, None)
        except RuntimeError as error:
            failures.append(str(error))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert len(failures) == 1 and "another thread" in failures[0]
    _C.end_memory_pool(device_module.current_device(), pool._pool)  # on this thread it is still in use


def test_statistics_of_pinned_memory_start_again(device_module: ModuleType) -> None:
    kept = torch.ones(MIB, dtype=torch.uint8).pin_memory()
    device_module.reset_accumulated_host_memory_stats()
    device_module.reset_peak_host_memory_stats()
    statistics = device_module.host_memory_stats()
    assert statistics["active_bytes.peak"] == statistics["active_bytes.current"] >= kept.numel()
    assert statistics["active_bytes.allocated"] == 0
