# SPDX-License-Identifier: Apache-2.0
"""Programs: building, binaries, names, and their end."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_size_t, c_void_p

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect, expect_bytes, need
from outboard_conformance.driver import KernelProperties, Status

#: ``out[i] = i * scale`` for ``n`` elements, by any number of work-items.
SCALE = """
OB_KERNEL void scale(OB_GLOBAL int* out, int n, int factor) {
  for (long i = OB_ITEM_ID(0); i < n; i += OB_ITEM_COUNT(0)) out[i] = (int)i * factor;
}
OB_KERNEL void other(OB_GLOBAL int* out, int n) {
  for (long i = OB_ITEM_ID(0); i < n; i += OB_ITEM_COUNT(0)) out[i] = 7;
}
"""
#: Dialects whose compilers take ``-DNAME=VALUE``.
_WITH_MACROS = ("opencl-c", "cuda", "hip")


def need_language(bench: Bench) -> None:
    """Raises NotApplicable if programs cannot be built."""
    dialect = bench.properties.dialect.decode()
    need(bool(dialect), "the device has no dialect")
    need(bench.language.name == dialect, f"no package here knows the dialect {dialect!r}")


def multiples(factor: int, count: int) -> bytes:
    """What ``scale`` writes."""
    return b"".join((i * factor).to_bytes(4, "little", signed=True) for i in range(count))


def scaled(bench: Bench, kernel: c_void_p, factor: int = 3, count: int = 100) -> None:
    """Runs ``scale`` and raises Broken unless it is right."""
    memory, stream = bench.alloc(4 * count), bench.stream()
    bench.launch(stream, kernel, [bench.group_of(8)], [bench.group_of(8)], memory, c_int32(count), c_int32(factor))
    bench.wait(stream)
    expect_bytes(bench.read(memory, 4 * count), multiples(factor, count), f"{factor} times the numbers below {count}")


@clause("kernels", "---- required: programs ----")
def programs_are_built_and_run(bench: Bench) -> None:
    need_language(bench)
    program = bench.build(SCALE)
    scaled(bench, bench.kernel(program, "scale"))
    scaled(bench, bench.kernel(program, "scale"), factor=-5, count=1001)


@clause("kernels", "the compiler refused a program; last_error holds its log")
def programs_with_errors_are_refused(bench: Bench) -> None:
    need_language(bench)
    program = c_void_p()
    source = (bench.language.words + "OB_KERNEL void f(OB_GLOBAL int* out) { out[0] = no_such_name_4711; }").encode()
    status = Status(bench.driver.value("program_build", bench.device, source, b"", ctypes.byref(program)))
    text = bench.driver.error()
    expect(status == Status.BUILD_FAILED, f"a program with an error: {status.name} for BUILD_FAILED")
    expect("no_such_name_4711" in text, f"the log does not name what is wrong: {text[:200]!r}")
    scaled(bench, bench.kernel(bench.build(SCALE), "scale"))


@clause("kernels", "`options` are those of the dialect's compiler, separated by spaces, never NULL")
def options_reach_the_compiler(bench: Bench) -> None:
    need_language(bench)
    need(bench.language.name in _WITH_MACROS, f"nobody here knows options of {bench.language.name}")
    text = "OB_KERNEL void f(OB_GLOBAL int* out) { out[0] = FIRST; out[1] = SECOND; }"
    kernel = bench.kernel(bench.build(text, "-DFIRST=11 -DSECOND=22"), "f")
    memory, stream = bench.alloc(8), bench.stream()
    bench.launch(stream, kernel, [1], [1], memory)
    bench.wait(stream)
    wanted = (11).to_bytes(4, "little") + (22).to_bytes(4, "little")
    expect_bytes(bench.read(memory, 8), wanted, "two macros of the options")


@clause("kernels", "(*kernel_get)(ob_program program, const char* name, ob_kernel* kernel /* out */)")
def kernels_are_found_by_name(bench: Bench) -> None:
    need_language(bench)
    program, kernel = bench.build(SCALE), c_void_p()
    status = Status(bench.driver.value("kernel_get", program, b"nothing_like_it", ctypes.byref(kernel)))
    expect(status == Status.INVALID_ARGUMENT, f"a kernel that is not there: {status.name} for INVALID_ARGUMENT")
    expect(bool(bench.driver.error()), "last_error is empty after it")
    memory, stream = bench.alloc(40), bench.stream()
    bench.launch(stream, bench.kernel(program, "other"), [1], [1], memory, c_int32(10))
    bench.wait(stream)
    expect_bytes(bench.read(memory, 40), (7).to_bytes(4, "little") * 10, "the second kernel of a program")
    scaled(bench, bench.kernel(program, "scale"))


@clause("kernels", "With binary = NULL only the size is returned.")
def binaries_are_programs(bench: Bench) -> None:
    need_language(bench)
    binary = binary_of(bench, bench.build(SCALE))
    program = c_void_p()
    bench.driver.call("program_load", bench.device, binary, len(binary), ctypes.byref(program))
    bench.at_end("program_release", program)
    scaled(bench, bench.kernel(program, "scale"))


@clause("kernels", "(*program_load)(ob_device device, const void* binary, size_t bytes, ob_program* program /* out */)")
def bytes_that_are_no_program_are_refused(bench: Bench) -> None:
    need_language(bench)
    for name, data in {"noise": b"\x93no program\x00" * 30, "one byte": b"\x00"}.items():
        program = c_void_p()
        status = Status(bench.driver.value("program_load", bench.device, data, len(data), ctypes.byref(program)))
        expect(status not in (Status.OK, Status.NOT_READY), f"program_load of {name} returned {status.name}")
        expect(bool(bench.driver.error()), f"last_error is empty after program_load of {name}")
    scaled(bench, bench.kernel(bench.build(SCALE), "scale"))


@clause("kernels", "Destroying a stream, an event or a program that queued work still uses is allowed")
def a_program_may_end_before_its_work(bench: Bench) -> None:
    need_language(bench)
    for factor in (2, 3, 4):
        program, memory, stream = bench.build(SCALE), bench.alloc(400), bench.stream()
        kernel = bench.kernel(program, "scale")
        bench.occupy(stream)
        bench.launch(stream, kernel, [1], [1], memory, c_int32(100), c_int32(factor))
        bench.forget(program)
        bench.driver.call("program_release", program)
        bench.wait(stream)
        expect_bytes(
            bench.read(memory, 400), multiples(factor, 100), "a launch whose program was released before it ran"
        )


@clause("kernels", "a kernel lives as long as its program.")
def programs_are_independent(bench: Bench) -> None:
    need_language(bench)
    kept, gone = bench.build(SCALE), bench.build(SCALE)
    kernel = bench.kernel(kept, "scale")
    scaled(bench, bench.kernel(gone, "scale"))
    bench.forget(gone)
    bench.driver.call("program_release", gone)
    scaled(bench, kernel, factor=9)


@clause("kernels", "---- optional, since minor version 5: what a kernel needs ----")
def kernels_say_what_they_need(bench: Bench) -> None:
    need_language(bench)
    need(bench.driver.has("kernel_properties"), "no kernel_properties")
    found = KernelProperties(struct_size=ctypes.sizeof(KernelProperties))
    bench.driver.call("kernel_properties", bench.kernel(bench.build(SCALE), "scale"), ctypes.byref(found))
    most = bench.properties.max_work_group_size
    expect(1 <= found.max_work_group_size <= most, f"work-groups of {found.max_work_group_size}, the device's {most}")
    expect(found.local_memory <= bench.properties.local_memory, f"{found.local_memory} bytes of local memory")


def binary_of(bench: Bench, program: c_void_p) -> bytes:
    """A program's binary. Raises Broken if its size is not what was said."""
    size = c_size_t(0)
    bench.driver.call("program_binary", program, None, ctypes.byref(size))
    expect(size.value > 0, "the size of the binary is 0")
    memory, said = ctypes.create_string_buffer(b"\xa5" * (size.value + 64), size.value + 64), size.value
    bench.driver.call("program_binary", program, ctypes.addressof(memory), ctypes.byref(size))
    expect(size.value == said, f"the size was {said}, and then {size.value}")
    expect(memory.raw[said:] == b"\xa5" * 64, "program_binary wrote behind the size that it said")
    return memory.raw[:said]
