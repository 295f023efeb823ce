# SPDX-License-Identifier: Apache-2.0
"""A device as new: what a reset leaves, and what it ends."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from ctypes import c_uint64, c_void_p

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect, expect_bytes, need
from outboard_conformance.driver import CopyKind, Status

_GONE = (Status.OK, Status.DEVICE_LOST)


def needs_reset(bench: Bench) -> None:
    """Raises NotApplicable without ``device_reset``."""
    need(bench.driver.has("device_reset"), "no device_reset")


@clause("contract", "Gives up the device, lost or not, and opens it again as `fresh`")
def a_reset_device_is_as_new(bench: Bench) -> None:
    needs_reset(bench)
    for turn in range(3):
        bench.write(bench.alloc(4096), b"\x07" * 4096)
        bench.fill_late(bench.stream(), bench.alloc(4096), 9)
        earlier = bench.reset()
        expect(bench.device.value != earlier.value, "the new handle is the old one")
        expect(bench.open(0).value == bench.device.value, "device_open(0) returned another handle than device_reset")
        memory, data = bench.alloc(4096), bytes([turn]) * 4096
        bench.write(memory, data)
        expect_bytes(bench.read(memory, 4096), data, f"memory of the new device, turn {turn}")


@clause("contract", "`device` is lost then, for ever")
def what_was_before_a_reset_is_lost(bench: Bench) -> None:
    needs_reset(bench)
    driver, memory, stream, event = bench.driver, bench.alloc(64), bench.stream(), bench.event()
    bench.fill(stream, memory, b"\x01", 64)
    driver.call("event_record", event, stream)
    old, pointer, made = bench.reset(), c_uint64(), c_void_p()
    host = ctypes.create_string_buffer(64)
    calls: dict[str, tuple[object, ...]] = {
        "memory_alloc": (old, 64, ctypes.byref(pointer)),
        "stream_create": (old, ctypes.byref(made)),
        "event_create": (old, ctypes.byref(made)),
        "stream_wait": (stream, 1),
        "event_record": (event, stream),
        "event_wait": (event, 1),
        "stream_wait_event": (stream, event),
        "fill": (stream, memory, b"\x02", 1, 64),
        "copy": (stream, CopyKind.DEVICE_TO_HOST, ctypes.addressof(host), memory, 64),
    }
    for name, arguments in calls.items():
        status = Status(driver.value(name, *arguments))
        expect(status == Status.DEVICE_LOST, f"{name} of before returned {status.name} for DEVICE_LOST")
    for name, handle in (("event_destroy", event), ("stream_destroy", stream)):
        driver.call(name, handle, allow=_GONE)
    bench.write(bench.alloc(64), b"\x03" * 64)  # and all that concerned the new one no more than this


@clause("contract", "nothing of it reads or writes memory any more")
def nothing_runs_after_a_reset(bench: Bench) -> None:
    needs_reset(bench)
    memory, stream = bench.alloc(4096), bench.stream()
    for _ in range(5):
        bench.occupy(stream)
    read = bench.read_late(stream, memory, 5)
    bench.reset()
    seen = read()
    time.sleep(0.05)
    expect_bytes(read(), seen, "host memory that a copy of before was to write, 50 ms after the reset")


@clause("contract", "calls of other threads that were waiting return")
def a_reset_ends_waits(bench: Bench) -> None:
    needs_reset(bench)
    stream, event = bench.stream(), bench.event()
    for _ in range(5):
        bench.occupy(stream)
    bench.driver.call("event_record", event, stream)
    found: list[Status] = []

    def asks(name: str, made: c_void_p) -> Callable[[], None]:
        return lambda: found.append(Status(bench.driver.value(name, made, 1)))

    waiting = [threading.Thread(target=asks(*each)) for each in (("stream_wait", stream), ("event_wait", event))]
    for thread in waiting:
        thread.start()
    bench.reset()
    for thread in waiting:
        thread.join()
    expect(set(found) <= set(_GONE), f"waits during a reset returned {[each.name for each in found]}")
