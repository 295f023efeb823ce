# SPDX-License-Identifier: Apache-2.0
"""Executables: functions that the vendor's compiler makes of graphs."""

from __future__ import annotations

import array
import ctypes
from ctypes import c_void_p
from typing import Any

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect, need
from outboard_conformance.clauses.libraries import listed, tensor
from outboard_conformance.driver import Failed, Status


def loaded(bench: Bench, code: bytes) -> c_void_p:
    """A function of an executable's bytes, which are overwritten after the call."""
    function, memory = c_void_p(), ctypes.create_string_buffer(code, len(code))
    bench.driver.call("function_load", bench.device, memory, len(code), ctypes.byref(function))
    ctypes.memset(memory, 0xA5, len(code))
    bench.at_end("function_release", function)
    return function


#: By ``array``'s name of them.
_DTYPES = {"f": 6, "q": 4}


def examples(bench: Bench, kind: str = "float") -> list[dict[str, Any]]:
    """Executables of a kind that the compiler's package made, with their inputs and results."""
    need(bool(bench.properties.compiler), "the device has no compiler of graphs")
    need(bool(bench.executables), "no package here makes executables for the device, or PyTorch is not installed")
    made = [dict(each) for each in bench.executables if each["kind"] == kind]
    need(bool(made), f"the compiler takes none of the kit's graphs of kind {kind}")
    return made


def example(bench: Bench) -> dict[str, Any]:
    """The first of floats."""
    return examples(bench)[0]


def packed_values(value: dict[str, Any]) -> bytes:
    """The bytes of an input or a result."""
    return array.array(value["format"], value["values"]).tobytes()


def called(bench: Bench, function: c_void_p, case: dict[str, Any], offset: int = 0) -> int:
    """Submits the example to a new stream that is busy. Returns where the result will be."""
    inputs = [(bench.alloc(len(packed_values(each)) + 256) + offset, each) for each in case["inputs"]]
    for pointer, each in inputs:
        bench.write(pointer, packed_values(each))
    made = case["result"]
    result = bench.alloc(len(packed_values(made)) + 256) + offset
    operands = [tensor(pointer, each["sizes"], dtype=_DTYPES[each["format"]]) for pointer, each in inputs]
    operands.append(tensor(result, made["sizes"], dtype=_DTYPES[made["format"]], result=True))
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
    made, wanted = case["result"], case["result"]["values"]
    found = array.array(made["format"], bench.read(result, len(packed_values(made))))
    most = 1e-4 if made["format"] == "f" else 0
    wrong = [(a, b) for a, b in zip(found, wanted, strict=True) if not abs(a - b) <= most]  # NaN is wrong
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


@clause("graph", "Integers are those of PyTorch: of as many bits as their dtype has, exact, and they wrap around.")
def integers_of_executables_have_64_bits(bench: Bench) -> None:
    for case in examples(bench, "integer"):
        function = loaded(bench, case["code"])
        expect_result(bench, called(bench, function, case), case, f"the {case['name']} of integers of 64 bits")


@clause("graph", "a value that PyTorch refuses fails the call, or the queued work, with OB_INDEX_ERROR")
def executables_refuse_wrong_indices(bench: Bench) -> None:
    for case in examples(bench, "index"):
        table, index = case["inputs"]
        function, rows = loaded(bench, case["code"]), table["sizes"][0]
        for wrong in (rows, 2**40, -1 - rows):
            inputs = [table, {**index, "values": [*index["values"][:-1], wrong]}]
            status = outcome(bench, function, {**case, "inputs": inputs})
            what = f"the {case['name']} of {rows} rows at index {wrong} returned {status.name} for INDEX_ERROR"
            expect(status == Status.INDEX_ERROR, what)
        expect_result(bench, called(bench, function, case), case, f"the {case['name']} after a wrong index")


def outcome(bench: Bench, function: c_void_p, case: dict[str, Any]) -> Status:
    """What the call, or the wait for it, returned."""
    try:
        called(bench, function, case)
        bench.wait(bench.streams[-1])
    except Failed as error:
        return Status(error.status)
    return Status.OK


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
