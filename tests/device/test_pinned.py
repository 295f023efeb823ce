# SPDX-License-Identifier: Apache-2.0
"""Pinned host memory: tensors, DataLoader, non-blocking copies, and the host's cache."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.conftest import RunPython

MIB = 1 << 20


def test_pinned_tensors(device: str) -> None:
    x = torch.arange(10.0)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned[3:].is_pinned() and not x.is_pinned()
    assert pinned.data_ptr() != x.data_ptr() and pinned.pin_memory() is pinned
    assert torch.equal(pinned, x) and pinned.device.type == "cpu"
    assert torch.empty(5, pin_memory=True).is_pinned() and torch.zeros(5, pin_memory=True).is_pinned()
    assert not x.to(device).is_pinned()
    with pytest.raises(RuntimeError, match="pin"):
        x.to(device).pin_memory()


def test_copies_from_pinned_memory(device: str) -> None:
    for size in (1, 1000, 3 * MIB):
        source = torch.arange(size, dtype=torch.int32).pin_memory()
        x = source.to(device, non_blocking=True)
        torch.accelerator.synchronize()
        source.fill_(-1)
        torch.testing.assert_close(x.cpu(), torch.arange(size, dtype=torch.int32))


def test_copies_into_pinned_memory(device: str) -> None:
    target = torch.empty(MIB, pin_memory=True)
    x = torch.full((MIB,), 2.0, device=device)
    target.copy_(x, non_blocking=True)
    x.add_(1)
    torch.accelerator.synchronize()
    assert torch.equal(target, torch.full((MIB,), 2.0)) and x[0].item() == 3


def test_converting_and_strided_copies(device: str) -> None:
    source = torch.arange(60).reshape(6, 10).pin_memory()
    x = source.t().to(device, torch.float32, non_blocking=True)
    y = torch.empty(10, 6, device=device)[:, ::2].copy_(source.t()[:, ::2], non_blocking=True)
    torch.accelerator.synchronize()
    expected = torch.arange(60).reshape(6, 10).t().float()
    source.zero_()
    torch.testing.assert_close(x.cpu(), expected)
    torch.testing.assert_close(y.cpu(), expected[:, ::2])


def test_pinned_memory_is_not_reused_while_a_copy_reads_it(device: str) -> None:
    """A pinned tensor may be dropped, and its memory asked for again, before the copy from it is done."""
    copies = []
    for i in range(30):
        source = torch.full((MIB,), float(i), pin_memory=True)
        copies.append(source.to(device, non_blocking=True))
        del source
    assert [x[MIB - 1].item() for x in copies] == list(range(30))


def test_copies_overlap_computing() -> None:
    """On the simulator, whose copies and fills take the time they are told. In a figure that no other load can move:
    of the copies from pinned memory nothing is left, of spills and restores little."""
    from benchmarks import overlap

    hidden = {name: each["hidden"] for name, each in overlap.run().items()}
    assert hidden["pinned_copies"] > 0.7, hidden
    assert hidden["too_little_memory"] > 0.5, hidden


@pytest.mark.parametrize("batch", [3, 4])
def test_data_loader(batch: int, device: str) -> None:
    inputs, labels = torch.randn(10, 5), torch.arange(10)
    seen = []
    for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=batch, pin_memory=True):
        assert x.is_pinned() and y.is_pinned()
        torch.testing.assert_close(x.to(device, non_blocking=True).cpu(), inputs[y])
        seen += y.to(device, non_blocking=True).tolist()
    assert seen == list(range(10))


def test_data_loader_with_structures(device: str) -> None:
    samples = [{"x": torch.ones(2) * i, "pair": (torch.tensor(i), f"name {i}")} for i in range(4)]
    for sample in DataLoader(samples, batch_size=2, pin_memory=True):
        assert sample["x"].is_pinned() and sample["pair"][0].is_pinned()
        assert sample["x"].to(device)[1, 0].item() == sample["pair"][0][1].item()


def test_the_host_cache(run_python: RunPython) -> None:
    run_python("""
        import gc, torch
        device = torch._C._get_privateuse1_backend_name()
        def bytes_now():
            stats = torch.get_device_module(device).host_memory_stats()
            return stats["active_bytes.current"], stats["allocated_bytes.current"]
        size = 4 << 20
        assert bytes_now() == (0, 0)
        x = torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True)
        assert bytes_now() == (size, size), bytes_now()
        pointer = x.data_ptr()
        del x
        gc.collect()
        assert bytes_now() == (0, size), bytes_now()
        y = torch.ones(3 << 20, dtype=torch.uint8, pin_memory=True)
        assert y.data_ptr() == pointer
        z = y.to(device, non_blocking=True)
        torch.accelerator.empty_host_cache()
        assert bytes_now() == (size, size), bytes_now()
        del y
        torch.accelerator.synchronize()
        torch.accelerator.empty_host_cache()
        assert bytes_now() == (0, 0), bytes_now()
        stats = torch.get_device_module(device).host_memory_stats()
        assert stats["num_host_free"] == stats["num_host_alloc"] == 1, stats
        assert z[0].item() == 1
    """)
