# SPDX-License-Identifier: Apache-2.0
"""Events: when they are reached, and what time it was."""

from __future__ import annotations

import ctypes
import time
from ctypes import c_int64, c_void_p

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect, expect_bytes


@clause("contract", "An event never recorded counts as reached.")
def events_without_a_record_are_reached(bench: Bench) -> None:
    event = bench.event()
    bench.driver.call("event_wait", event, 0)
    bench.driver.call("event_wait", event, 1)


@clause("contract", "(*event_wait)(ob_event event, int blocking)")
def a_wait_for_an_event_waits(bench: Bench) -> None:
    for blocking in (True, False):
        memory, stream = bench.alloc(4096), bench.stream()
        for value in (1, 2, 3):
            event = bench.event()
            read = bench.read_late(stream, memory, value)
            bench.driver.call("event_record", event, stream)
            if blocking:
                bench.driver.call("event_wait", event, 1)
            else:
                bench.poll("event_wait", event)
            expect_bytes(read(), bytes([value]) * 4096, f"when event_wait said OB_OK (blocking = {int(blocking)})")


@clause("contract", "(*event_record)(ob_event event, ob_stream stream)")
def an_event_stands_for_its_last_record(bench: Bench) -> None:
    memory, stream, event = bench.alloc(4096), bench.stream(), bench.event()
    bench.driver.call("event_record", event, stream)
    bench.driver.call("event_wait", event, 1)
    for value in (1, 2, 3):
        read = bench.read_late(stream, memory, value)
        bench.driver.call("event_record", event, stream)
        bench.driver.call("event_wait", event, 1)
        expect_bytes(read(), bytes([value]) * 4096, "at the second and later records of an event")


@clause("contract", "Nanoseconds on the device's clock from `start` to `end`, both recorded and reached.")
def events_tell_nanoseconds(bench: Bench) -> None:
    stream, start, end = bench.stream(), bench.event(), bench.event()
    before = time.perf_counter_ns()
    record(bench, start, stream)
    inner = time.perf_counter_ns()
    time.sleep(0.03)
    slept = time.perf_counter_ns() - inner
    record(bench, end, stream)
    around = time.perf_counter_ns() - before
    found = elapsed(bench, start, end)
    expect(
        0.8 * slept <= found <= 1.25 * around + 1_000_000,
        f"{found} for a time between {slept} and {around} nanoseconds of the host's clock",
    )


@clause("contract", "Nanoseconds on the device's clock from `start` to `end`")
def time_goes_forward(bench: Bench) -> None:
    stream = bench.stream()
    events = [bench.event() for _ in range(5)]
    for event in events:
        bench.driver.call("event_record", event, stream)
        bench.occupy(stream)
    bench.wait(stream)
    steps = [elapsed(bench, one, other) for one, other in zip(events, events[1:], strict=False)]
    expect(min(steps) >= 0, f"times between events one after the other: {steps}")
    whole = elapsed(bench, events[0], events[-1])
    expect(abs(whole - sum(steps)) <= 0.05 * whole + 1_000_000, f"parts of {steps} make a whole of {whole}")
    expect(elapsed(bench, events[0], events[0]) == 0, "from an event to itself there is time")


def record(bench: Bench, event: c_void_p, stream: c_void_p) -> None:
    """Records an event and waits for it."""
    bench.driver.call("event_record", event, stream)
    bench.driver.call("event_wait", event, 1)


def elapsed(bench: Bench, start: c_void_p, end: c_void_p) -> int:
    """Nanoseconds between two events."""
    nanoseconds = c_int64(-(1 << 60))
    bench.driver.call("event_elapsed", start, end, ctypes.byref(nanoseconds))
    return nanoseconds.value
