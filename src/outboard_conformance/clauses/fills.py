# SPDX-License-Identifier: Apache-2.0
"""Fills: patterns of 1 to 16 bytes, offsets, and what they leave alone."""

from __future__ import annotations

import ctypes

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect_bytes

_PATTERN = bytes.fromhex("01 82 13 94 25 a6 37 b8 49 ca 5b dc 6d ee 7f f0")


@clause("memory", "Fills with a pattern of 1, 2, 4, 8 or 16 bytes")
def fills_repeat_their_pattern(bench: Bench) -> None:
    size = 6000
    pointer, stream = bench.alloc(size), bench.stream()
    for width in (1, 2, 4, 8, 16):
        for first in (0, 1, 3, 4, 7):
            for count in (1, 2, 3, 5, 17, 100, size // width - 8):
                start, pattern = first * width, _PATTERN[-width:]
                bench.write(pointer, b"\x66" * size)
                bench.fill(stream, pointer + start, pattern, count * width)
                bench.wait(stream)
                wanted = (b"\x66" * start + pattern * count).ljust(size, b"\x66")
                what = f"{count} times {width} bytes at offset {start}"
                expect_bytes(bench.read(pointer, size), wanted, what)


@clause("memory", "read during the call; `dst` and `bytes` are multiples of its size.")
def fills_read_their_pattern_at_once(bench: Bench) -> None:
    pointer, stream = bench.alloc(4096), bench.stream()
    for width in (1, 4, 16):
        pattern = ctypes.create_string_buffer(_PATTERN[:width], width)
        bench.occupy(stream)
        bench.driver.call("fill", stream, pointer, pattern, width, 4096)
        ctypes.memset(pattern, 0, width)
        bench.wait(stream)
        expect_bytes(bench.read(pointer, 4096), _PATTERN[:width] * (4096 // width), f"a pattern of {width} bytes")


@clause("memory", "Fills with a pattern of 1, 2, 4, 8 or 16 bytes")
def large_fills_are_whole(bench: Bench) -> None:
    size = min(9 << 20, bench.properties.total_memory // 8) // 16 * 16
    pointer, stream = bench.alloc(size), bench.stream()
    for width in (1, 8, 16):
        bench.fill(stream, pointer, _PATTERN[:width], size)
        bench.wait(stream)
        expect_bytes(bench.read(pointer, size), _PATTERN[:width] * (size // width), f"{size} bytes, {width} each")
