# SPDX-License-Identifier: Apache-2.0
"""Streams: order, waits, and their end."""

from __future__ import annotations

import random

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect, expect_bytes, need
from outboard_conformance.clauses.copies import noise
from outboard_conformance.driver import Status


@clause("contract", "streams (in order; work on different streams is unordered)")
def work_of_a_stream_is_in_order(bench: Bench) -> None:
    """A program of copies and fills, which a model on the host runs, too."""
    draw, size = random.Random(7), 8192
    for _ in range(4):
        memory, stream = bench.alloc(size), bench.stream()
        model = bytearray(noise(size))
        bench.write(memory, bytes(model))
        bench.occupy(stream)
        reads = []
        for step in range(60):
            count = draw.choice([1, 16, 100, 1000, 4000])
            source, target = draw.randrange(size - count), draw.randrange(size - count)
            kind = draw.choice(["move", "fill", "write", "read"])
            if kind == "move":
                bench.move(stream, memory + target, memory + source, count)
                model[target : target + count] = model[source : source + count]
            elif kind == "fill":
                bench.fill(stream, memory + target, bytes([step]), count)
                model[target : target + count] = bytes([step]) * count
            elif kind == "write":
                bench.to_device(stream, memory + target, noise(count, step))
                model[target : target + count] = noise(count, step)
            else:
                reads.append((bench.to_host(stream, memory + source, count), bytes(model[source : source + count])))
        bench.wait(stream)
        for number, (read, wanted) in enumerate(reads):
            expect_bytes(read(), wanted, f"read {number} of a program of 60 commands")
        expect_bytes(bench.read(memory, size), bytes(model), "after a program of 60 commands")


@clause("contract", "Only a wait that returns OB_OK says that work is finished.")
def a_wait_waits(bench: Bench) -> None:
    memory, stream = bench.alloc(4096), bench.stream()
    for value in (1, 2, 3):
        read = bench.read_late(stream, memory, value)
        bench.wait(stream)
        expect_bytes(read(), bytes([value]) * 4096, "when stream_wait returned")


@clause("contract", "blocking = 0: OB_OK if all work so far is finished, else OB_NOT_READY.")
def asking_a_stream_tells_the_truth(bench: Bench) -> None:
    memory, stream = bench.alloc(4096), bench.stream()
    for value in (1, 2, 3):
        read = bench.read_late(stream, memory, value)
        bench.poll("stream_wait", stream)
        expect_bytes(read(), bytes([value]) * 4096, "when stream_wait said OB_OK")


@clause("contract", "blocking = 0: OB_OK if all work so far is finished")
def an_idle_stream_is_ready(bench: Bench) -> None:
    stream = bench.stream()
    bench.wait(stream)
    bench.poll("stream_wait", stream, seconds=2.0)


@clause("contract", "Work submitted to `stream` after this call starts only after `event` is reached")
def streams_wait_for_events(bench: Bench) -> None:
    memory, first, second = bench.alloc(4096), bench.stream(), bench.stream()
    for value in range(1, 6):
        event = bench.event()
        bench.fill_late(first, memory, value)
        bench.driver.call("event_record", event, first)
        bench.driver.call("stream_wait_event", second, event)
        read = bench.to_host(second, memory, 4096)
        bench.wait(second)
        expect_bytes(read(), bytes([value]) * 4096, "what a stream read that waits for another one's event")
        bench.wait(first)


@clause("contract", "Work submitted to `stream` after this call starts only after `event` is reached")
def streams_take_turns(bench: Bench) -> None:
    """A value goes to and fro between two streams, each of which waits for the other."""
    memory, streams = bench.alloc(1 << 16), (bench.stream(), bench.stream())
    half = 1 << 15
    bench.write(memory, noise(1 << 16))
    for turn in range(20):
        mine = streams[turn % 2]
        if turn % 5 == 0:
            bench.occupy(mine)
        bench.move(mine, memory + (turn + 1) % 2 * half, memory + turn % 2 * half, half)
        bench.fill(mine, memory + (turn + 1) % 2 * half + turn, bytes([turn]), 1)
        event = bench.event()
        bench.driver.call("event_record", event, mine)
        bench.driver.call("stream_wait_event", streams[(turn + 1) % 2], event)
    bench.wait(streams[0])
    bench.wait(streams[1])
    wanted = bytes(range(20)) + noise(1 << 16)[20:half]
    expect_bytes(bench.read(memory, half), wanted, "what two streams wrote in turn")


@clause("contract", "which may be of another device of the driver's.")
def streams_wait_for_events_of_other_devices(bench: Bench) -> None:
    need(bench.count() > 1, "there is one device")
    other = bench.open(1)
    memory, theirs = bench.alloc(4096), bench.alloc(4096, device=other)
    first, second = bench.stream(), bench.stream(device=other)
    for value in range(1, 4):
        event = bench.event()
        bench.occupy(first)
        read = bench.to_host(first, memory, 4096)
        bench.driver.call("event_record", event, first)
        bench.driver.call("stream_wait_event", second, event)
        bench.fill(second, theirs, bytes([value]), 4096)
        bench.wait(second)
        expect_bytes(read(), b"\xee" * 4096, "what device 0 copied before an event that device 1 waited for")
        bench.wait(first)


@clause("contract", "An event never recorded counts as reached.")
def streams_do_not_wait_for_events_without_a_record(bench: Bench) -> None:
    stream, memory = bench.stream(), bench.alloc(64)
    bench.driver.call("stream_wait_event", stream, bench.event())
    bench.fill(stream, memory, b"\x31", 64)
    bench.wait(stream)
    expect_bytes(bench.read(memory, 64), b"\x31" * 64, "a fill after a wait for an event that was never recorded")


@clause("contract", "Destroying a stream, an event or a program that queued work still uses is allowed")
def a_stream_may_end_before_its_work(bench: Bench) -> None:
    memory = bench.alloc(4096)
    for value in (1, 2, 3):
        stream, event = bench.stream(), bench.event()
        bench.fill_late(stream, memory, value)
        bench.driver.call("event_record", event, stream)
        bench.forget(stream)
        bench.driver.call("stream_destroy", stream)
        bench.driver.call("event_wait", event, 1)
        expect_bytes(bench.read(memory, 4096), bytes([value]) * 4096, "a fill of a stream that was destroyed")


@clause("contract", "Destroying a stream, an event or a program that queued work still uses is allowed")
def an_event_may_end_before_it_is_reached(bench: Bench) -> None:
    memory, first, second = bench.alloc(4096), bench.stream(), bench.stream()
    for value in (1, 2, 3):
        event = bench.event()
        bench.fill_late(first, memory, value)
        bench.driver.call("event_record", event, first)
        bench.driver.call("stream_wait_event", second, event)
        bench.forget(event)
        bench.driver.call("event_destroy", event)
        read = bench.to_host(second, memory, 4096)
        bench.wait(second)
        expect_bytes(read(), bytes([value]) * 4096, "behind an event that was destroyed early")
        bench.wait(first)


@clause("contract", "Handles live until the call that destroys them")
def streams_and_events_come_and_go(bench: Bench) -> None:
    memory = bench.alloc(64)
    for number in range(200):
        stream, event = bench.stream(), bench.event()
        bench.fill(stream, memory, bytes([number % 256]), 64)
        bench.driver.call("event_record", event, stream)
        bench.driver.call("event_wait", event, 1)
        for made, function in ((event, "event_destroy"), (stream, "stream_destroy")):
            bench.forget(made)
            bench.driver.call(function, made)
    expect_bytes(bench.read(memory, 64), bytes([199]) * 64, "after 200 streams")


@clause("contract", "work on different streams is unordered")
def streams_do_not_wait_for_each_other(bench: Bench) -> None:
    """A driver that runs all streams one after the other is slow, not wrong: only that nothing hangs is asked."""
    first, second, memory = bench.stream(), bench.stream(), bench.alloc(64)
    bench.occupy(first)
    bench.fill(second, memory, b"\x05", 64)
    bench.wait(second)
    expect(bench.driver.call("stream_wait", first, 1) == Status.OK, "the first stream")
    expect_bytes(bench.read(memory, 64), b"\x05" * 64, "the second stream's fill")
