# SPDX-License-Identifier: Apache-2.0
"""What a device says of itself."""

from __future__ import annotations

import ctypes

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect, need
from outboard_conformance.driver import NOT_KNOWN, Properties, Sensors

_FLAGS = (
    "host_accessible",
    "has_fp16",
    "has_fp64",
    "has_int64_atomics",
    "serial_builds",
    "static_sizes",
    "takes_host_memory",
    "matrix_units",
)


@clause("contract", "Filled by device_properties; the caller sets struct_size first.")
def properties_stay_within_their_size(bench: Bench) -> None:
    for field in ("serial_builds", "max_argument_bytes", "execution", "library", "compiler"):
        size = getattr(Properties, field).offset
        memory = (ctypes.c_uint8 * (ctypes.sizeof(Properties) + 64))(*[0xA5] * (ctypes.sizeof(Properties) + 64))
        asked = Properties.from_buffer(memory)
        asked.struct_size = size
        bench.driver.call("device_properties", bench.device, ctypes.byref(asked))
        # What ends within a word may have been written up to that word's end by nobody but a careless driver.
        beyond = bytes(memory[size:])
        expect(beyond == b"\xa5" * len(beyond), f"with struct_size {size} (before {field}) it wrote behind that")


@clause("contract", "out: changes whenever a program binary made before is no longer valid")
def properties_stay_the_same(bench: Bench) -> None:
    first, second = bench.ask(bench.device), bench.ask(bench.device)
    for name, *_ in Properties._fields_:
        one, other = getattr(first, name), getattr(second, name)
        expect(one == other, f"{name} was {one!r}, then {other!r}")


@clause("contract", "out: what a user calls it")
def properties_have_names(bench: Bench) -> None:
    for name in ("name", "cache_key"):
        expect(bool(getattr(bench.properties, name)), f"{name} is empty")


@clause("contract", "out: bytes every allocation is aligned to, a multiple of 16")
def the_alignment_is_a_multiple_of_16(bench: Bench) -> None:
    alignment = bench.properties.alignment
    expect(alignment > 0 and alignment % 16 == 0, f"alignment is {alignment}")


@clause("contract", "What a device can do.")
def properties_are_possible(bench: Bench) -> None:
    p = bench.properties
    expect(p.type in (0, 1, 2), f"type is {p.type}, which is no ob_device_type")
    expect(p.execution in (0, 1, 2), f"execution is {p.execution}, which is no ob_execution")
    for name in ("compute_units", "max_work_group_size", "sub_group_size", "vector_width", "total_memory"):
        expect(getattr(p, name) >= 1, f"{name} is 0")
    for name in _FLAGS:
        expect(getattr(p, name) in (0, 1), f"{name} is {getattr(p, name)}, neither 0 nor 1")
    most = p.max_allocation
    expect(most <= p.total_memory, f"max_allocation ({most}) is above total_memory ({p.total_memory})")
    expect(p.sub_group_size <= p.max_work_group_size, "sub_group_size is above max_work_group_size")


@clause("contract", "name and version of what makes the bytes that `function_load` takes")
def a_compiler_comes_with_its_functions(bench: Bench) -> None:
    there = bench.driver.has("function_load")
    named = bool(bench.properties.compiler)
    expect(there or not named, f"compiler is {bench.properties.compiler.decode()!r}, and function_load is NULL")


@clause("contract", "name and version of what `library_find` finds functions in")
def a_library_comes_with_its_functions(bench: Bench) -> None:
    named = bool(bench.properties.library)
    expect(bench.driver.has("library_find") or not named, "library has a name, and library_find is NULL")


@clause("contract", "Page-locked host memory for asynchronous copies.")
def pinned_memory_is_memory(bench: Bench) -> None:
    need(bench.driver.has("host_alloc"), "no host_alloc")
    pointer = ctypes.c_void_p()
    bench.driver.call("host_alloc", bench.device, 4097, ctypes.byref(pointer))
    bench.at_end("host_free", bench.device, pointer)
    ctypes.memset(pointer.value or 0, 0x5A, 4097)
    expect(ctypes.string_at(pointer.value or 0, 4097) == b"\x5a" * 4097, "it does not keep what is written")


@clause("contract", "(*memory_info)(ob_device device, uint64_t* free_bytes /* out */")
def memory_info_is_possible(bench: Bench) -> None:
    need(bench.driver.has("memory_info"), "no memory_info")
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    bench.alloc(1 << 16)
    bench.driver.call("memory_info", bench.device, ctypes.byref(free), ctypes.byref(total))
    expect(total.value > 0 and free.value <= total.value, f"{free.value} bytes are free of {total.value}")


def sensors(bench: Bench, size: int = ctypes.sizeof(Sensors)) -> Sensors:
    """What the sensors say to a caller whose struct has this size."""
    asked = Sensors(size, *[NOT_KNOWN] * (len(Sensors._fields_) - 1))
    bench.driver.call("device_sensors", bench.device, ctypes.byref(asked))
    return asked


@clause("contract", "Fields that the device has no sensor for are left alone.")
def sensors_are_possible(bench: Bench) -> None:
    need(bench.driver.has("device_sensors"), "no device_sensors")
    for _ in range(2):
        read = sensors(bench)
        for name in ("compute_busy", "memory_busy"):
            value = getattr(read, name)
            expect(value == NOT_KNOWN or 0 <= value <= 100, f"{name} is {value} percent")
        for name in ("memory_used", "power", "clock"):
            value = getattr(read, name)
            expect(value == NOT_KNOWN or value >= 0, f"{name} is {value}")
        kelvin = read.temperature + 273
        expect(read.temperature == NOT_KNOWN or 0 < kelvin < 1000, f"temperature is {read.temperature} degrees")
    old = sensors(bench, Sensors.power.offset)
    expect(old.power == NOT_KNOWN and old.clock == NOT_KNOWN, "it wrote behind a struct_size that ends before power")
