# SPDX-License-Identifier: Apache-2.0
"""Calls from many threads at once."""

from __future__ import annotations

import ctypes
import random
from ctypes import c_uint64

from outboard_conformance.bench import Bench, together
from outboard_conformance.clause import clause, expect, expect_bytes
from outboard_conformance.clauses.copies import noise

_THREADS = 6


@clause("contract", "Every function may be called from any thread.")
def threads_have_streams_of_their_own(bench: Bench) -> None:
    memory = [bench.alloc(8192) for _ in range(_THREADS)]
    streams = [bench.stream() for _ in range(_THREADS)]

    def work(number: int) -> None:
        for turn in range(30):
            data = noise(4096, number * 100 + turn)
            bench.to_device(streams[number], memory[number], data)
            bench.move(streams[number], memory[number] + 4096, memory[number], 4096)
            bench.fill(streams[number], memory[number] + 4096, bytes([turn]), 16)
            read = bench.to_host(streams[number], memory[number] + 4096, 4096)
            bench.wait(streams[number])
            expect_bytes(read(), bytes([turn]) * 16 + data[16:], f"thread {number}, turn {turn}")

    together(work, _THREADS)


@clause("contract", "the driver serialises whatever else it shares")
def threads_allocate_at_once(bench: Bench) -> None:
    taken: list[list[tuple[int, int]]] = [[] for _ in range(_THREADS)]

    def work(number: int) -> None:
        draw = random.Random(number)
        for _ in range(40):
            size = draw.choice([1, 100, 4096, 10000])
            pointer = c_uint64()
            bench.driver.call("memory_alloc", bench.device, size, ctypes.byref(pointer))
            taken[number].append((pointer.value, size))
            if draw.random() < 0.4:
                bench.driver.call("memory_free", bench.device, taken[number].pop(0)[0])

    together(work, _THREADS)
    blocks = sorted(block for each in taken for block in each)
    overlaps = [a for a, b in zip(blocks, blocks[1:], strict=False) if a[0] + a[1] > b[0]]
    for pointer, _ in blocks:
        bench.driver.call("memory_free", bench.device, pointer)
    expect(not overlaps, f"{len(overlaps)} of {len(blocks)} allocations of {_THREADS} threads overlap the next one")


@clause("contract", "Calls on one stream are ordered by the caller")
def a_stream_goes_from_thread_to_thread(bench: Bench) -> None:
    memory, stream = bench.alloc(64), bench.stream()
    for number in range(8):
        together(lambda _, value=number: bench.fill(stream, memory, bytes([value]), 64), 1)  # type: ignore[misc]
    together(lambda _: bench.wait(stream), 1)
    expect_bytes(bench.read(memory, 64), b"\x07" * 64, "the last of eight threads' fills")
