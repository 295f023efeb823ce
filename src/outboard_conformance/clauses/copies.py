# SPDX-License-Identifier: Apache-2.0
"""Copies: sizes, offsets, overlap, and what they leave alone."""

from __future__ import annotations

import ctypes
import random

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect_bytes, need
from outboard_conformance.driver import CopyKind

_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 255, 1000, 4095, 4096, 4097, 65537, (1 << 20) + 3)
_OFFSETS = (0, 1, 2, 3, 5, 8, 13, 16, 61, 64, 127)


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes of which no two neighbourhoods are alike."""
    return random.Random(seed).randbytes(size)


@clause("memory", "---- required: data movement (asynchronous) ----")
def copies_bring_back_what_they_took(bench: Bench) -> None:
    pointer = bench.alloc(max(_SIZES))
    for size in _SIZES:
        data = noise(size, size)
        bench.write(pointer, data)
        expect_bytes(bench.read(pointer, size), data, f"{size} bytes to the device and back")


@clause("memory", "Interior addresses (base + offset) are valid wherever one is taken.")
def copies_begin_anywhere(bench: Bench) -> None:
    whole = noise(4096)
    pointer = bench.alloc(4096)
    for offset in _OFFSETS:
        for size in (1, 3, 16, 100, 2000):
            bench.write(pointer, whole)
            data = noise(size, offset)
            bench.write(pointer + offset, data)
            wanted = whole[:offset] + data + whole[offset + size :]
            expect_bytes(bench.read(pointer, 4096), wanted, f"{size} bytes to offset {offset}")
            expect_bytes(bench.read(pointer + offset, size), data, f"{size} bytes from offset {offset}")


@clause("memory", "The ranges may overlap: the target receives what the source held before.")
def copies_may_overlap(bench: Bench) -> None:
    for size in (256, 4096, (1 << 18) + 13):
        whole, pointer, stream = noise(2 * size, size), bench.alloc(2 * size), bench.stream()
        for shift in (1, 3, 16, 64, 100, size // 2, size - 1):
            for source, target in ((0, shift), (shift, 0)):
                bench.write(pointer, whole)
                bench.move(stream, pointer + target, pointer + source, size)
                bench.wait(stream)
                wanted = bytearray(whole)
                wanted[target : target + size] = whole[source : source + size]
                what = f"{size} bytes from {source} to {target} of one allocation"
                expect_bytes(bench.read(pointer, 2 * size), bytes(wanted), what)


@clause("memory", "typedef enum ob_copy_kind")
def copies_within_the_device_keep_their_offsets(bench: Bench) -> None:
    source, target, stream = bench.alloc(4096), bench.alloc(4096), bench.stream()
    data = noise(4096)
    bench.write(source, data)
    for start in _OFFSETS:
        for end in _OFFSETS[::2]:
            bench.write(target, b"\x99" * 4096)
            bench.move(stream, target + end, source + start, 1001)
            bench.wait(stream)
            wanted = b"\x99" * end + data[start : start + 1001] + b"\x99" * (4096 - end - 1001)
            expect_bytes(bench.read(target, 4096), wanted, f"1001 bytes from offset {start} to {end}")


@clause("memory", "Host memory belongs to the copy until a wait for it succeeded")
def copies_touch_their_bytes_alone(bench: Bench) -> None:
    pointer, stream = bench.alloc(4096), bench.stream()
    data = noise(4096)
    bench.write(pointer, data)
    for size in (1, 5, 16, 100, 1023):
        for offset in (0, 1, 7, 64):
            memory = ctypes.create_string_buffer(b"\xdd" * 2048, 2048)
            address = ctypes.addressof(memory) + offset
            bench.driver.call("copy", stream, CopyKind.DEVICE_TO_HOST, address, pointer + offset, size)
            bench.wait(stream)
            wanted = b"\xdd" * offset + data[offset : offset + size] + b"\xdd" * (2048 - offset - size)
            expect_bytes(memory.raw, wanted, f"{size} bytes to a host address with offset {offset}")
            sent = ctypes.create_string_buffer(data[: offset + size], offset + size)
            bench.driver.call("copy", stream, CopyKind.HOST_TO_DEVICE, pointer + offset, address, size)
            bench.wait(stream)
            expect_bytes(sent.raw, data[: offset + size], "the host memory that was copied to the device")


@clause("memory", "Host memory belongs to the copy until a wait for it succeeded")
def pinned_memory_is_copied_as_any(bench: Bench) -> None:
    need(bench.driver.has("host_alloc"), "no host_alloc")
    pinned, device, stream = ctypes.c_void_p(), bench.alloc(70000), bench.stream()
    bench.driver.call("host_alloc", bench.device, 70000, ctypes.byref(pinned))
    bench.at_end("host_free", bench.device, pinned)
    address, data = pinned.value or 0, noise(70000)
    ctypes.memmove(address, data, 70000)
    bench.driver.call("copy", stream, CopyKind.HOST_TO_DEVICE, device, address, 70000)
    bench.wait(stream)
    ctypes.memset(address, 0, 70000)
    bench.driver.call("copy", stream, CopyKind.DEVICE_TO_HOST, address + 1, device + 1, 69998)
    bench.wait(stream)
    expect_bytes(ctypes.string_at(address, 70000), b"\0" + data[1:-1] + b"\0", "through pinned memory")


@clause("memory", "---- optional: peers; `stream` is of the source's device")
def peers_copy_to_each_other(bench: Bench) -> None:
    need(bench.driver.has("copy_peer"), "no copy_peer")
    need(bench.count() > 1, "there is one device")
    other = bench.open(1)
    source, target = bench.alloc(5000), bench.alloc(5000, device=other)
    data, stream, back = noise(5000), bench.stream(), bench.stream(device=other)
    bench.write(source, data)
    bench.driver.call("copy_peer", stream, other, target + 3, bench.device, source + 1, 4990)
    bench.wait(stream)
    read = bench.to_host(back, target + 3, 4990)
    bench.wait(back)
    expect_bytes(read(), data[1:4991], "4990 bytes from device 0 to device 1")
