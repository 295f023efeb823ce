# SPDX-License-Identifier: Apache-2.0
"""Launches submitted together: batches, and graphs that are submitted again."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_void_p

from outboard_conformance.bench import Bench, pack
from outboard_conformance.clause import clause, expect, need
from outboard_conformance.clauses.launches import small
from outboard_conformance.clauses.programs import need_language
from outboard_conformance.driver import Launch, Status

_ADD = "OB_KERNEL void add(OB_GLOBAL int* x, int n, int by) { for (int i = 0; i < n; i++) x[i] += by; }"


def adder(bench: Bench) -> c_void_p:
    """A kernel that adds a number to others."""
    need_language(bench)
    return bench.kernel(bench.build(_ADD), "add")


def zeros(bench: Bench) -> int:
    """100 numbers, all 0."""
    memory = bench.alloc(400)
    bench.write(memory, b"\0" * 400)
    return memory


@clause("kernels", "launches that need not wait for one another ----")
def batches_are_whole(bench: Bench) -> None:
    need(bench.driver.has("launch_batch"), "no launch_batch")
    kernel, stream = adder(bench), bench.stream()
    memory = [zeros(bench) for _ in range(9)]
    launches, kept = (Launch * 9)(), []
    for number, (each, pointer) in enumerate(zip(launches, memory, strict=True)):
        packed, values = pack([pointer, c_int32(100), c_int32(number + 1)])
        kept.append((packed, values))
        each.kernel, each.argument_count = kernel, 3
        each.arguments = ctypes.cast(packed, type(each.arguments))
        setattr(each, "global", (ctypes.c_uint64 * 3)(1, 1, 1))
        each.local = (ctypes.c_uint32 * 3)(1, 1, 1)
    bench.occupy(stream)
    for pointer in memory:
        bench.fill(stream, pointer, (10).to_bytes(4, "little"), 400)
    bench.driver.call("launch_batch", stream, launches, 9)
    ctypes.memset(launches, 0xA5, ctypes.sizeof(launches))
    for packed, values in kept:
        ctypes.memset(packed, 0xA5, ctypes.sizeof(packed))
        for value in values:
            ctypes.memset(ctypes.addressof(value), 0xA5, ctypes.sizeof(value))
    reads = [bench.to_host(stream, pointer, 400) for pointer in memory]
    bench.wait(stream)
    for number, read in enumerate(reads):
        expect(small(read()) == [11 + number] * 100, f"launch {number} of a batch of nine, between a fill and a copy")


@clause("kernels", "`launch` on the stream, which nobody else uses, records and does not run.")
def captured_launches_do_not_run(bench: Bench) -> None:
    graph, _, memory, stream = captured(bench, 3)
    bench.wait(stream)
    expect(small(bench.read(memory, 400)) == [0] * 100, "launches ran while they were captured")
    bench.driver.call("graph_launch", stream, graph)
    bench.wait(stream)
    expect(small(bench.read(memory, 400)) == [6] * 100, "a graph of three launches, 1 + 2 + 3")


@clause("kernels", "Submits what was recorded, on any stream of the device, also while an earlier submission")
def graphs_are_submitted_again(bench: Bench) -> None:
    graph, _, memory, stream = captured(bench, 3)
    other = bench.stream()
    bench.occupy(stream)
    for _ in range(5):
        bench.driver.call("graph_launch", stream, graph)
    bench.wait(stream)
    bench.driver.call("graph_launch", other, graph)
    bench.wait(other)
    expect(small(bench.read(memory, 400)) == [36] * 100, "six submissions of a graph that adds 6")


@clause("kernels", "Submits what was recorded, on any stream of the device")
def graphs_are_in_stream_order(bench: Bench) -> None:
    graph, kernel, memory, stream = captured(bench, 1)
    bench.occupy(stream)
    bench.fill(stream, memory, (40).to_bytes(4, "little"), 400)
    bench.driver.call("graph_launch", stream, graph)
    read = bench.to_host(stream, memory, 400)
    bench.launch(stream, kernel, [1], [1], memory, c_int32(100), c_int32(500))
    bench.wait(stream)
    expect(small(read()) == [41] * 100, "a graph between a fill and a copy")
    expect(small(bench.read(memory, 400)) == [541] * 100, "a launch after a graph")


def captured(bench: Bench, launches: int) -> tuple[c_void_p, c_void_p, int, c_void_p]:
    """A graph that adds 1, 2, ... to 100 numbers, its kernel, the numbers, all 0, and the stream it was made on."""
    need(bench.driver.has("capture_begin"), "no capture_begin")
    kernel, memory, stream = adder(bench), zeros(bench), bench.stream()
    status = bench.driver.call("capture_begin", stream, allow=(Status.OK, Status.UNSUPPORTED))
    need(status == Status.OK, "this device has no graphs")
    for by in range(1, launches + 1):
        bench.launch(stream, kernel, [1], [1], memory, c_int32(100), c_int32(by))
    graph = c_void_p()
    bench.driver.call("capture_end", stream, ctypes.byref(graph))
    bench.at_end("graph_destroy", graph)
    return graph, kernel, memory, stream
