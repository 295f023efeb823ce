# SPDX-License-Identifier: Apache-2.0
"""Streams and events, through torch.<device> and through torch.Stream and torch.Event."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch


def test_current_and_default(device_module: ModuleType) -> None:
    assert device_module.current_stream() == device_module.default_stream()
    stream = device_module.Stream()
    assert isinstance(stream, device_module.Stream) and isinstance(stream, torch.Stream)
    assert stream != device_module.default_stream()
    with device_module.stream(stream):
        assert device_module.current_stream() == stream
        with device_module.stream(None):
            assert device_module.current_stream() == stream
    assert device_module.current_stream() == device_module.default_stream()
    with stream:
        assert torch.accelerator.current_stream() == stream
    device_module.set_stream(stream)
    assert device_module.current_stream() == stream
    device_module.set_stream(device_module.default_stream())


def test_work_is_ordered_by_events(device: str, device_module: ModuleType) -> None:
    first, second = device_module.Stream(), device_module.Stream()
    x = torch.zeros(1 << 20, device=device)
    first.wait_stream(device_module.current_stream())
    with device_module.stream(first):
        for value in range(20):
            x.fill_(value)
        done = first.record_event()
    second.wait_event(done)
    with device_module.stream(second):
        y = torch.empty_like(x)
        y.copy_(x)
    x.record_stream(second)
    second.synchronize()
    assert second.query() and done.query()
    assert (y.cpu() == 19).all()


def test_timing(device: str, device_module: ModuleType) -> None:
    start, end = (device_module.Event(enable_timing=True) for _ in range(2))
    assert isinstance(start, device_module.Event)
    start.record()
    torch.zeros(1 << 20, device=device).fill_(1)
    end.record()
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 10_000
    assert end.elapsed_time(start) <= 0


def test_timing_needs_to_be_asked_for(device: str, device_module: ModuleType) -> None:
    plain, timed = device_module.Event(), device_module.Event(enable_timing=True)
    plain.record()
    timed.record()
    device_module.synchronize()
    with pytest.raises(ValueError, match="enable_timing"):
        plain.elapsed_time(timed)
    with pytest.raises(ValueError, match="recorded"):
        timed.elapsed_time(torch.Event(device, enable_timing=True))


def test_events_not_recorded_count_as_reached(device_module: ModuleType) -> None:
    event = device_module.Event()
    assert event.query()
    event.synchronize()
    device_module.current_stream().wait_event(event)


def test_memory_is_not_reused_while_another_stream_reads_it(device: str, device_module: ModuleType) -> None:
    reader = device_module.Stream()
    for value in range(30):
        x = torch.full((1 << 18,), float(value), device=device)
        reader.wait_stream(device_module.current_stream())
        with device_module.stream(reader):
            y = torch.empty_like(x)
            y.copy_(x)
        x.record_stream(reader)
        del x
        torch.full((1 << 18,), -1.0, device=device)
        reader.synchronize()
        assert (y.cpu() == value).all()


def test_streams_of_a_pool_may_be_many(device: str, device_module: ModuleType) -> None:
    streams = [torch.Stream(device, priority=-1) for _ in range(100)]
    tensors = []
    for index, stream in enumerate(streams):
        with stream:
            tensors.append(torch.full((16,), index, device=device))
    device_module.synchronize()
    assert [int(t[0]) for t in tensors] == list(range(100))


def test_record_stream_refuses_other_devices(device: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ones(2).record_stream(torch.Stream(device))
