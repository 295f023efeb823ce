# SPDX-License-Identifier: Apache-2.0
"""Allocations."""

from __future__ import annotations

import ctypes
import random
from ctypes import c_uint64

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect, expect_bytes, need
from outboard_conformance.driver import Status

#: Above this much memory, using it up is not tried.
_TRIED = 2 << 30


@clause("contract", "bytes every allocation is aligned to")
def allocations_are_aligned(bench: Bench) -> None:
    for size in (1, 2, 15, 16, 17, 63, 64, 100, 4095, 4097, 65537):
        pointer = bench.alloc(size)
        rest = pointer % bench.properties.alignment
        expect(pointer != 0 and rest == 0, f"{size} bytes lie at {pointer:#x}, which is no multiple of alignment")


@clause("contract", "The contents are undefined.")
def allocations_do_not_overlap(bench: Bench) -> None:
    draw = random.Random(1)
    sizes = [draw.choice([1, 7, 64, 100, 4096, 5000, 70000]) for _ in range(48)]
    blocks = [(bench.alloc(size), size) for size in sizes]
    ends = sorted(blocks)
    for (start, size), (following, _) in zip(ends, ends[1:], strict=False):
        expect(start + size <= following, f"{size} bytes at {start:#x} reach into those at {following:#x}")
    for number, (start, size) in enumerate(blocks):
        bench.write(start, bytes([number]) * size)
    for number, (start, size) in enumerate(blocks):
        expect_bytes(bench.read(start, size), bytes([number]) * size, f"block {number}")


@clause("contract", "`memory_free` and `host_free` are called after a wait for all work that uses the memory")
def freed_memory_can_be_had_again(bench: Bench) -> None:
    kept = bench.alloc(4096)
    bench.write(kept, b"\x11" * 4096)
    size = min(4 << 20, bench.properties.total_memory // 16)
    for _ in range(64):
        pointer = c_uint64()
        bench.driver.call("memory_alloc", bench.device, size, ctypes.byref(pointer))
        bench.write(pointer.value, b"\x22" * 64)
        bench.driver.call("memory_free", bench.device, pointer)
    expect_bytes(bench.read(kept, 4096), b"\x11" * 4096, "an allocation beside others that come and go")


@clause("contract", "device or pinned memory exhausted; the caller may free and retry")
def memory_that_is_used_up_is_said_to_be(bench: Bench) -> None:
    total = bench.properties.total_memory
    need(total <= _TRIED, f"the device has {total >> 20} MiB; using up more than {_TRIED >> 20} is not tried")
    size = max(1, min(bench.properties.max_allocation or total, total // 8))
    blocks: list[c_uint64] = []
    status = Status.OK
    while status == Status.OK and len(blocks) < 64:
        pointer = c_uint64()
        status = bench.driver.call(
            "memory_alloc", bench.device, size, ctypes.byref(pointer), allow=(Status.OK, Status.OUT_OF_MEMORY)
        )
        blocks += [pointer] if status == Status.OK else []
    text = bench.driver.error() if status != Status.OK else "-"
    for pointer in blocks:
        bench.driver.call("memory_free", bench.device, pointer)
    expect(len(blocks) * size <= 2 * total, f"{len(blocks)} allocations of {size} bytes on a device of {total}")
    expect(bool(text), "OB_OUT_OF_MEMORY without a text")
    bench.alloc(size)


@clause("contract", "1 if the host may dereference an ob_ptr while the device is idle")
def accessible_memory_can_be_read_in_place(bench: Bench) -> None:
    need(bool(bench.properties.host_accessible), "the host cannot address the device's memory")
    pointer = bench.alloc(1000)
    bench.write(pointer, bytes(range(250)) * 4)
    expect_bytes(ctypes.string_at(pointer, 1000), bytes(range(250)) * 4, "read in place")
    ctypes.memset(pointer, 0x77, 500)
    expect_bytes(bench.read(pointer, 500), b"\x77" * 500, "written in place")


@clause("memory", "1 if any address of the process is an ob_ptr, too")
def host_memory_is_taken(bench: Bench) -> None:
    need(bool(bench.properties.takes_host_memory), "takes_host_memory is 0")
    buffer = ctypes.create_string_buffer(b"\x42" * 3 * 4096, 3 * 4096)
    stream, inside = bench.stream(), bench.alloc(4096)
    bench.move(stream, inside, ctypes.addressof(buffer) + 100, 4096)
    bench.fill(stream, (ctypes.addressof(buffer) + 8191) // 4096 * 4096, b"\x24", 100)
    bench.wait(stream)
    expect_bytes(bench.read(inside, 4096), b"\x42" * 4096, "copied from host memory as if it were the device's")
    expect(buffer.raw.count(b"\x24") == 100, "a fill of host memory did not arrive")


@clause("contract", "`memory_alloc` will soon be asked for about this much in all. Returns at once")
def expected_memory_costs_nothing(bench: Bench) -> None:
    need(bench.driver.has("memory_expect"), "no memory_expect")
    bench.driver.call("memory_expect", bench.device, min(1 << 22, bench.properties.total_memory // 4))
    pointer = bench.alloc(1 << 16)
    expect_bytes(bench.read(pointer, 1 << 16), b"\xee" * (1 << 16), "memory that was announced")
