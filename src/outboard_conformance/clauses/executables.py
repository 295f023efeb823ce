# SPDX-License-Identifier: Apache-2.0
"""Executables: functions that the vendor's compiler makes of graphs."""

from __future__ import annotations

import array
import ctypes
from ctypes import c_void_p
from typing import Any

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect, need
from outboard_conformance.clauses.libraries import floats, listed, tensor
from outboard_conformance.driver import Status


def loaded(bench: Bench, code: bytes) -> c_void_p:
    """A function of an executable's bytes, which are overwritten after the call."""
    function, memory = c_void_p(), ctypes.create_string_buffer(code, len(code))
    bench.driver.call("function_load", bench.device, memory, len(code), ctypes.byref(function))
    ctypes.memset(memory, 0xA5, len(code))
    bench.at_end("function_release", function)
    return function


def example(bench: Bench) -> dict[str, Any]:
    """An executable that the compiler's package made, with its inputs and results."""
    need(bool(bench.properties.compiler), "the device has no compiler of graphs")
    need(bool(bench.executables), "no package here makes executables for the device, or PyTorch is not installed")
    return dict(bench.executables[0])


def called(bench: Bench, function: c_void_p, case: dict[str, Any], offset: int = 0) -> int:
    """Submits the example to a new stream that is busy. Returns where the result will be."""
    inputs = [(bench.alloc(4 * len(each["values"]) + 256) + offset, each) for each in case["inputs"]]
    for pointer, each in inputs:
        bench.write(pointer, array.array("f", each["values"]).tobytes())
    result = bench.alloc(4 * len(case["result"]["values"]) + 256) + offset
    operands = [tensor(pointer, each["sizes"]) for pointer, each in inputs]
    operands.append(tensor(result, case["result"]["sizes"], result=True))
    if case["scratch"]:
        operands.append(tensor(bench.alloc(case["scratch"]), [case["scratch"]], dtype=0, result=True))
    stream, packed = bench.stream(), listed(operands)
    bench.occupy(stream)
    bench.driver.call("library_call", stream, function, packed, len(operands))
    ctypes.memset(packed, 0, ctypes.sizeof(packed))
    return result


def expect_result(bench: Bench, result: int, case: dict[str, Any], what: str) -> None:
    """Raises Broken unless the result is what PyTorch says."""
    for stream in bench.streams:
        bench.wait(stream)
    found, wanted = floats(bench.read(result, 4 * len(case["result"]["values"]))), case["result"]["values"]
    wrong = [(a, b) for a, b in zip(found, wanted, strict=True) if not abs(a - b) <= 1e-4]  # NaN is wrong
    expect(not wrong, f"{what}: {len(wrong)} of {len(wanted)} numbers are wrong, such as {wrong[:1]}")


@clause("graph", "A function from the bytes of an executable, read during the call only.")
def executables_are_loaded_and_run(bench: Bench) -> None:
    case = example(bench)
    function = loaded(bench, case["code"])
    for turn in range(3):
        expect_result(bench, called(bench, function, case), case, f"call {turn} of an executable")


@clause("graph", "0: the operands of each call have sizes of their own, 1 included")
def executables_are_for_all_sizes(bench: Bench) -> None:
    first = example(bench)
    need(bool(first["others"]), "the device says `static_sizes`: an executable is for one set of sizes")
    for case in bench.executables:
        function = loaded(bench, case["code"])
        for call in (case, *case["others"], case):
            sizes = " and ".join("x".join(map(str, each["sizes"])) for each in call["inputs"])
            what = f"the {case['name']} of {sizes}, compiled without sizes"
            expect_result(bench, called(bench, function, {**case, **call}), call, what)


@clause("graph", "Interior addresses (base + offset) are valid wherever one is taken.")
def executables_take_interior_addresses(bench: Bench) -> None:
    case = example(bench)
    function = loaded(bench, case["code"])
    for offset in (4, 16, 64):
        expect_result(bench, called(bench, function, case, offset), case, f"operands at offset {offset}")


@clause(
    "graph", "Only of what `function_load` gave. Queued work may still use it: the driver defers it, as of programs."
)
def an_executable_may_end_before_its_work(bench: Bench) -> None:
    case = example(bench)
    function = loaded(bench, case["code"])
    result = called(bench, function, case)
    bench.forget(function)
    bench.driver.call("function_release", function)
    expect_result(bench, result, case, "an executable that was released before it ran")


@clause("graph", "A function from the bytes of an executable")
def executables_are_loaded_more_than_once(bench: Bench) -> None:
    case = example(bench)
    kept, gone = loaded(bench, case["code"]), loaded(bench, case["code"])
    bench.forget(gone)
    bench.driver.call("function_release", gone)
    expect_result(bench, called(bench, kept, case), case, "one of two functions of the same bytes")


@clause("graph", "OB_BUILD_FAILED: the bytes are damaged, or another version's")
def damaged_executables_are_refused(bench: Bench) -> None:
    need(bench.driver.has("function_load"), "no function_load")
    refused(bench, b"\x07no executable\x00" * 20, "noise")
    refused(bench, b"\x00", "one byte")
    if not bench.executables:
        return
    code = example(bench)["code"]
    refused(bench, code[:-1], "an executable without its last byte")
    refused(bench, code[: len(code) // 2], "half of an executable")
    for place in range(0, len(code), max(1, len(code) // 40)):
        damaged = bytearray(code)
        damaged[place] ^= 0x10
        refused(bench, bytes(damaged), f"an executable with a wrong bit in byte {place}")


def refused(bench: Bench, data: bytes, what: str) -> None:
    """Raises Broken unless ``function_load`` says OB_BUILD_FAILED and why."""
    function = c_void_p()
    status = Status(bench.driver.value("function_load", bench.device, data, len(data), ctypes.byref(function)))
    expect(status == Status.BUILD_FAILED, f"function_load of {what} returned {status.name} for BUILD_FAILED")
    expect(bool(bench.driver.error()), f"last_error is empty after function_load of {what}")
