# SPDX-License-Identifier: Apache-2.0
"""Launches: work-items, work-groups, arguments, limits, and what the words of dialects mean."""

from __future__ import annotations

import array
import ctypes
from ctypes import c_int8, c_int16, c_int32, c_int64, c_uint32, c_uint64

from outboard_conformance.bench import Bench, three, together
from outboard_conformance.clause import clause, expect, need
from outboard_conformance.clauses.programs import SCALE, need_language
from outboard_conformance.driver import Status

_PLACES = """
OB_KERNEL void places(OB_GLOBAL long* out) {
  long w = OB_ITEM_COUNT(0), h = OB_ITEM_COUNT(1);
  long i = OB_ITEM_ID(0) + w * (OB_ITEM_ID(1) + h * OB_ITEM_ID(2));
  OB_GLOBAL long* at = out + 12 * i;
  at[0] = OB_ITEM_ID(0); at[1] = OB_ITEM_ID(1); at[2] = OB_ITEM_ID(2);
  at[3] = OB_GROUP_ID(0); at[4] = OB_GROUP_ID(1); at[5] = OB_GROUP_ID(2);
  at[6] = OB_LOCAL_ID(0); at[7] = OB_LOCAL_ID(1); at[8] = OB_LOCAL_ID(2);
  at[9] = OB_LOCAL_COUNT(0); at[10] = OB_GROUP_COUNT(1); at[11] = OB_ITEM_COUNT(2);
}
"""
_ARGUMENTS = """
OB_KERNEL void arguments(OB_GLOBAL long* out, char a, short b, int c, long d, float e, OB_GLOBAL const int* p,
                         uchar f) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = (long)(e * 4.0f); out[5] = p[0]; out[6] = f;
}
"""
_REVERSE = """
OB_KERNEL void reverse(OB_GLOBAL int* out) {
  OB_SHARED int row[SIZE];
  int i = OB_LOCAL_ID(0);
  row[i] = (int)OB_ITEM_ID(0) * 3;
  OB_BARRIER();
  int other = row[SIZE - 1 - i];
  OB_BARRIER();
  row[i] = other + 1;
  OB_BARRIER();
  out[OB_ITEM_ID(0)] = row[(i + 1) % SIZE];
}
"""
_COUNT = """
OB_KERNEL void count(OB_GLOBAL int* out) { OB_ATOMIC_ADD(out + 1, 3); }
"""
_COUNT_LONG = """
OB_KERNEL void count(OB_GLOBAL long* out) { OB_ATOMIC_ADD_LONG(out + 1, 5000000000L); }
"""
_EXCHANGE = """
OB_KERNEL void add(OB_GLOBAL int* out) {
  int seen = out[0];
  for (;;) {
    int found = OB_EXCHANGE(out, seen, seen + 1);
    if (found == seen) break;
    seen = found;
  }
}
"""
_TYPES = """
OB_KERNEL void types(OB_GLOBAL ulong* out, OB_GLOBAL ushort* halves) {
  out[0] = sizeof(uchar); out[1] = sizeof(ushort); out[2] = sizeof(uint); out[3] = sizeof(ulong); out[4] = sizeof(long);
  out[5] = as_uint(1.5f); out[6] = (ulong)convert_int_sat(3.0e10f); out[7] = mul_hi(0x80000000u, 6u);
  out[8] = (ulong)clamp(9, 1, 5); out[9] = (ulong)max(min(3, 8), 2); out[10] = as_uint(fma(2.0f, 3.0f, 0.5f));
  OB_GLOBAL ob_half* h = (OB_GLOBAL ob_half*)halves;
  OB_STORE_HALF(h, 1, 1.0f + 1.0f / 2048.0f);
  OB_STORE_HALF(h, 2, OB_LOAD_HALF(h, 0) * 2.0f);
}
"""
_DOUBLES = """
#ifdef OB_HAS_DOUBLES
OB_KERNEL void third(OB_GLOBAL double* out) { out[0] = 1.0 / 3.0; }
#endif
"""
_NULL = """
OB_KERNEL void unused(OB_GLOBAL int* out, OB_GLOBAL const int* maybe, int there) { out[0] = there ? maybe[0] : 17; }
"""
_SHUFFLE = """
OB_KERNEL OB_SUB_GROUPS_OF(SIZE) OB_GROUP_OF(GROUP, 1, 1) void shuffle(OB_GLOBAL int* out) {
  int size = OB_SUB_GROUP_SIZE(), item = OB_SUB_GROUP_ITEM();
  out[OB_ITEM_ID(0)] = OB_SHUFFLE((int)OB_ITEM_ID(0), size - 1 - item);
  if (OB_ITEM_ID(0) == 0) out[OB_ITEM_COUNT(0)] = size;
}
"""


def integers(data: bytes) -> list[int]:
    """Bytes as 64-bit integers."""
    return list(array.array("q", data))


def small(data: bytes) -> list[int]:
    """Bytes as 32-bit integers."""
    return list(array.array("i", data))


@clause("kernels", "`global` counts work-items per dimension and is a multiple of `local`")
def work_items_know_their_places(bench: Bench) -> None:
    need_language(bench)
    kernel, stream = bench.kernel(bench.build(_PLACES), "places"), bench.stream()
    most = bench.group_of(8)
    groups = [(1, 1, 1)] + [each for each in ((2, 1, 1), (2, 2, 1), (2, 2, 2)) if each[0] * each[1] * each[2] <= most]
    for group in groups:
        for counts in ((1, 1, 1), (5, 1, 1), (3, 2, 1), (2, 3, 4)):
            items = [n * g for n, g in zip(counts, group, strict=True)]
            total = items[0] * items[1] * items[2]
            memory = bench.alloc(96 * total)
            bench.launch(stream, kernel, items, group, memory)
            bench.wait(stream)
            found, wanted = integers(bench.read(memory, 96 * total)), []
            for z in range(items[2]):
                for y in range(items[1]):
                    for x in range(items[0]):
                        at = (x, y, z)
                        wanted += [*at, *(a // g for a, g in zip(at, group, strict=True))]
                        wanted += [*(a % g for a, g in zip(at, group, strict=True)), group[0], counts[1], items[2]]
            expect(found == wanted, f"{items} work-items in groups of {group} do not know their places")


@clause("kernels", "local[0] = 0 lets the driver choose.")
def the_driver_chooses_a_group(bench: Bench) -> None:
    need_language(bench)
    kernel, stream = bench.kernel(bench.build(SCALE), "scale"), bench.stream()
    for items in (1, 7, 64, 1000):
        memory = bench.alloc(4000)
        bench.launch(stream, kernel, [items], [0], memory, c_int32(1000), c_int32(2))
        bench.wait(stream)
        expect(small(bench.read(memory, 4000)) == [2 * i for i in range(1000)], f"{items} work-items, local[0] = 0")


@clause("kernels", "bytes of a by-value argument; ignored for pointers")
def arguments_have_their_values(bench: Bench) -> None:
    need_language(bench)
    kernel, stream = bench.kernel(bench.build(_ARGUMENTS), "arguments"), bench.stream()
    memory, numbers = bench.alloc(56), bench.alloc(16)
    bench.write(numbers, array.array("i", [1, 2, 3, -4]).tobytes())
    values = (c_int8(-3), c_int16(-300), c_int32(-70000), c_int64(-(1 << 40)), ctypes.c_float(2.25))
    bench.launch(stream, kernel, [1], [1], memory, *values, numbers + 12, ctypes.c_uint8(200))
    bench.wait(stream)
    found = integers(bench.read(memory, 56))
    wanted = [-3, -300, -70000, -(1 << 40), 9, -4, 200]
    expect(found == wanted, f"arguments of 1, 2, 4, 8 bytes, a float, an interior address: {found} for {wanted}")


@clause("kernels", "read during the call only")
def arguments_are_read_during_the_call(bench: Bench) -> None:
    """Every launch of this kit overwrites its arguments after the call; here the device is busy meanwhile."""
    need_language(bench)
    kernel, stream = bench.kernel(bench.build(SCALE), "scale"), bench.stream()
    memory = [bench.alloc(400) for _ in range(8)]
    bench.occupy(stream)
    for factor, pointer in enumerate(memory):
        bench.launch(stream, kernel, [4], [1], pointer, c_int32(100), c_int32(factor))
    bench.wait(stream)
    for factor, pointer in enumerate(memory):
        expect(small(bench.read(pointer, 400)) == [factor * i for i in range(100)], f"launch {factor} of eight")


@clause("kernels", "A pointer is 0 or lies in an allocation, or at its end if the kernel does not use it.")
def pointers_may_be_nothing(bench: Bench) -> None:
    need_language(bench)
    kernel, stream, memory = bench.kernel(bench.build(_NULL), "unused"), bench.stream(), bench.alloc(64)
    for unused in (0, memory + 64):
        bench.write(memory, b"\0" * 64)
        bench.launch(stream, kernel, [1], [1], memory, unused, c_int32(0))
        bench.wait(stream)
        expect(small(bench.read(memory, 4)) == [17], f"an unused pointer {unused:#x}")


@clause("kernels", "Work submitted to `stream` after this call starts only after `event` is reached")
def launches_are_in_order(bench: Bench) -> None:
    need_language(bench)
    text = "OB_KERNEL void next(OB_GLOBAL int* x, int n) { for (int i = 0; i < n; i++) x[i] = x[i] * 3 + 1; }"
    kernel, memory = bench.kernel(bench.build(text), "next"), bench.alloc(400)
    first, second = bench.stream(), bench.stream()
    value = 0
    for turn in range(12):
        mine, other = (first, second) if turn % 2 == 0 else (second, first)
        if turn % 4 == 0:
            value = turn + 5
            bench.occupy(mine)
            bench.fill(mine, memory, value.to_bytes(4, "little"), 400)
        bench.launch(mine, kernel, [1], [1], memory, c_int32(100))
        value = value * 3 + 1
        event = bench.event()
        bench.driver.call("event_record", event, mine)
        bench.driver.call("stream_wait_event", other, event)
    read = bench.to_host(first, memory, 400)
    bench.wait(first)
    expect(small(read()) == [value] * 100, "twelve launches in turn on two streams")


@clause("kernels", "The caller never asks for more than `ob_device_properties` declares")
def the_largest_group_works(bench: Bench) -> None:
    need_language(bench)
    need(bench.properties.max_work_group_size > 1, "work-groups have one item")
    size = bench.properties.max_work_group_size
    need(4 * size <= bench.properties.local_memory, "such a group's numbers do not fit local memory")
    text = f"#define SIZE {size}\n{_REVERSE}"
    kernel, stream, memory = bench.kernel(bench.build(text), "reverse"), bench.stream(), bench.alloc(12 * size)
    bench.launch(stream, kernel, [3 * size], [size], memory)
    bench.wait(stream)
    expect(small(bench.read(memory, 12 * size)) == reversed_rows(size, 3), f"work-groups of {size} items")


@clause("kernels", "out: bytes per work-group")
def barriers_and_local_memory_work(bench: Bench) -> None:
    need_language(bench)
    size = bench.group_of(16)
    need(size > 1, "work-groups have one item")
    need(bench.properties.local_memory >= 64, "there is no local memory")
    text = f"#define SIZE {size}\n{_REVERSE}"
    kernel, stream, memory = bench.kernel(bench.build(text), "reverse"), bench.stream(), bench.alloc(40 * size)
    bench.launch(stream, kernel, [10 * size], [size], memory)
    bench.wait(stream)
    expect(small(bench.read(memory, 40 * size)) == reversed_rows(size, 10), "ten groups that reverse their numbers")


def reversed_rows(size: int, groups: int) -> list[int]:
    """What ``reverse`` writes."""
    rows = []
    for group in range(groups):
        row = [3 * (group * size + i) for i in range(size)][::-1]
        row = [each + 1 for each in row]
        rows += row[1:] + row[:1]
    return rows


@clause("kernels", "bytes of all arguments of one launch, 8 for a pointer; 0: 1024")
def as_many_arguments_as_declared_are_taken(bench: Bench) -> None:
    need_language(bench)
    count = min(bench.properties.max_argument_bytes or 1024, 1024) // 8 - 1
    names = [f"a{i}" for i in range(count)]
    text = f"OB_KERNEL void many(OB_GLOBAL long* out, {', '.join(f'long {name}' for name in names)}) {{\n"
    text += "".join(f"  out[{i}] = {name};\n" for i, name in enumerate(names)) + "}\n"
    kernel, stream, memory = bench.kernel(bench.build(text), "many"), bench.stream(), bench.alloc(8 * count)
    bench.launch(stream, kernel, [1], [1], memory, *(c_int64(i * i - 7) for i in range(count)))
    bench.wait(stream)
    expect(integers(bench.read(memory, 8 * count)) == [i * i - 7 for i in range(count)], f"{count} numbers by value")


@clause("kernels", "no program with `double` where there is no has_fp64")
def doubles_are_double(bench: Bench) -> None:
    need_language(bench)
    need(bool(bench.properties.has_fp64), "has_fp64 is 0")
    kernel, stream, memory = bench.kernel(bench.build(_DOUBLES), "third"), bench.stream(), bench.alloc(8)
    bench.launch(stream, kernel, [1], [1], memory)
    bench.wait(stream)
    expect(array.array("d", bench.read(memory, 8))[0] == 1.0 / 3.0, "one third in double precision")


@clause("kernels", "out: atomic additions and exchanges of 64-bit words of global memory")
def long_atomics_add_up(bench: Bench) -> None:
    need_language(bench)
    need(bool(bench.properties.has_int64_atomics), "has_int64_atomics is 0")
    kernel, stream, memory = bench.kernel(bench.build(_COUNT_LONG), "count"), bench.stream(), bench.alloc(24)
    bench.write(memory, b"\0" * 24)
    bench.launch(stream, kernel, [1000], [1], memory)
    bench.wait(stream)
    expect(integers(bench.read(memory, 24)) == [0, 5_000_000_000_000, 0], "a thousand additions of 5e9")


@clause("kernels", "What a device can do.")
def atomics_add_up(bench: Bench) -> None:
    need_language(bench)
    kernel, stream, memory = bench.kernel(bench.build(_COUNT), "count"), bench.stream(), bench.alloc(12)
    bench.write(memory, b"\0" * 12)
    bench.launch(stream, kernel, [4096], [bench.group_of(4)], memory)
    bench.wait(stream)
    expect(small(bench.read(memory, 12)) == [0, 3 * 4096, 0], "4096 atomic additions of 3")
    kernel = bench.kernel(bench.build(_EXCHANGE), "add")
    bench.launch(stream, kernel, [2048], [bench.group_of(4)], memory)
    bench.wait(stream)
    expect(small(bench.read(memory, 4)) == [2048], "2048 additions of 1 by exchange")


@clause("kernels", "out: language of programs")
def words_mean_what_the_documents_say(bench: Bench) -> None:
    need_language(bench)
    kernel, stream = bench.kernel(bench.build(_TYPES), "types"), bench.stream()
    memory, halves = bench.alloc(88), bench.alloc(6)
    bench.write(halves, (0x4200).to_bytes(2, "little") + b"\0" * 4)  # 3.0
    bench.launch(stream, kernel, [1], [1], memory, halves)
    bench.wait(stream)
    found = integers(bench.read(memory, 88))
    wanted = [1, 2, 4, 8, 8, 0x3FC00000, 0x7FFFFFFF, 3, 5, 3, 0x40D00000]
    expect(found == wanted, f"sizes of types, as_, convert_, mul_hi, clamp, min, max, fma: {found} for {wanted}")
    stored = list(array.array("H", bench.read(halves, 6)))
    expect(stored == [0x4200, 0x3C00, 0x4600], f"halves: {[hex(each) for each in stored]}")


@clause("kernels", "out: 1 where there are no sub-groups whose work-items can shuffle")
def sub_groups_shuffle(bench: Bench) -> None:
    need_language(bench)
    size = bench.properties.sub_group_size
    need(size > 1, "sub_group_size is 1")
    text = f"#define SIZE {size}\n#define GROUP {size}\n{_SHUFFLE}"
    kernel, stream, memory = bench.kernel(bench.build(text), "shuffle"), bench.stream(), bench.alloc(8 * size + 4)
    bench.launch(stream, kernel, [2 * size], [size], memory)
    bench.wait(stream)
    *found, said = small(bench.read(memory, 8 * size + 4))
    expect(said == size, f"sub-groups have {said} items, the properties say {size}")
    expect(found == [*range(size)][::-1] + [*range(size, 2 * size)][::-1], f"shuffled: {found}")


@clause("kernels", "The caller never asks for more than `ob_device_properties` declares")
def grids_may_be_long(bench: Bench) -> None:
    need_language(bench)
    kernel, stream, memory = bench.kernel(bench.build(_COUNT), "count"), bench.stream(), bench.alloc(12)
    bench.write(memory, b"\0" * 12)
    bench.launch(stream, kernel, [70000, 2], [1, 1], memory)
    bench.wait(stream)
    expect(small(bench.read(memory, 12)) == [0, 3 * 140000, 0], "a grid of 70,000 by 2 groups")


@clause("kernels", "the driver serialises whatever else it shares (kernel argument slots, for instance).")
def threads_launch_one_kernel(bench: Bench) -> None:
    need_language(bench)
    kernel = bench.kernel(bench.build(SCALE), "scale")
    memory = [bench.alloc(4000) for _ in range(4)]
    streams = [bench.stream() for _ in range(4)]

    def work(number: int) -> None:
        for turn in range(25):
            factor = number * 1000 + turn
            bench.launch(streams[number], kernel, [3], [1], memory[number], c_int32(1000), c_int32(factor))
            read = bench.to_host(streams[number], memory[number], 4000)
            bench.wait(streams[number])
            expect(small(read()) == [factor * i for i in range(1000)], f"thread {number}, turn {turn}")

    together(work, 4)


@clause("kernels", "About how many nanoseconds `launch` would take the caller")
def costs_are_told(bench: Bench) -> None:
    need_language(bench)
    need(bench.driver.has("launch_cost"), "no launch_cost")
    kernel = bench.kernel(bench.build(SCALE), "scale")
    cost = bench.driver.value("launch_cost", kernel, (c_uint64 * 3)(*three([8])), (c_uint32 * 3)(*three([1])))
    expect(cost == (1 << 64) - 1 or cost < 10**12, f"{cost} nanoseconds for a launch of eight work-items")


@clause("kernels", "A call that submits work and fails may have submitted it nevertheless")
def a_stream_stays_usable_after_a_refused_launch(bench: Bench) -> None:
    """Of a launch that no caller may make, nothing is asked but that the stream goes on."""
    need_language(bench)
    kernel, stream, memory = bench.kernel(bench.build(SCALE), "scale"), bench.stream(), bench.alloc(400)
    global_, local = (c_uint64 * 3)(*three([8])), (c_uint32 * 3)(*three([1]))
    status = Status(bench.driver.value("launch", stream, kernel, global_, local, None, 0))
    expect(status != Status.DEVICE_LOST, "a launch with too few arguments lost the device")
    bench.driver.value("stream_wait", stream, 1)  # tells of the failure, where the launch itself did not
    bench.launch(stream, kernel, [1], [1], memory, c_int32(100), c_int32(6))
    bench.wait(stream)
    expect(small(bench.read(memory, 400)) == [6 * i for i in range(100)], "a launch after one that was refused")
