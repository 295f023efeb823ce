# SPDX-License-Identifier: Apache-2.0
"""Functions of a vendor's library, and collectives of one rank."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from typing import Any

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect, need
from outboard_conformance.driver import Collective, Operand, Status

FLOAT = 6  #: c10::ScalarType::Float
_TENSOR = 1


def tensor(data: int, sizes: Sequence[int], *, dtype: int = FLOAT, result: bool = False) -> tuple[Operand, Any]:
    """A dense tensor as an operand, and what has to be kept for it."""
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= size
    kept = (c_int64 * max(1, len(sizes)))(*sizes), (c_int64 * max(1, len(sizes)))(*strides)
    pointers = [ctypes.cast(each, ctypes.POINTER(c_int64)) for each in kept]
    return Operand(_TENSOR, dtype, len(sizes), int(result), data, *pointers, 0, 0.0), kept


def listed(operands: Sequence[tuple[Operand, Any]]) -> Any:
    """Operands one after the other, as the driver takes them."""
    return (Operand * len(operands))(*(operand for operand, _ in operands))


def floats(data: bytes) -> list[float]:
    """Bytes as float32."""
    return list(array.array("f", data))


@clause("kernels", 'The function that carries out an operator of PyTorch, "aten::mm", on operands such as these')
def products_of_the_library_are_right(bench: Bench) -> None:
    need(bench.driver.has("library_find"), "no library_find")
    for rows, inner, columns in ((2, 3, 4), (5, 1, 7), (16, 16, 16)):
        product(bench, rows, inner, columns)


def product(bench: Bench, rows: int, inner: int, columns: int) -> None:
    """Tries ``aten::mm`` of small integers, whose sums are exact."""
    sizes = ((rows, inner), (inner, columns), (rows, columns))
    asked = [tensor(16, each, result=i == 2) for i, each in enumerate(sizes)]
    function = c_void_p()
    found = bench.driver.call(
        "library_find",
        bench.device,
        b"aten::mm",
        listed(asked),
        3,
        ctypes.byref(function),
        allow=(Status.OK, Status.UNSUPPORTED),
    )
    need(found == Status.OK, "the library has no aten::mm for it")
    left = [float(i % 5 - 2) for i in range(rows * inner)]
    right = [float(i % 7 - 3) for i in range(inner * columns)]
    memory = [bench.alloc(4 * a * b + 64) + 16 for a, b in sizes]
    for pointer, values in zip(memory, (left, right), strict=False):
        bench.write(pointer, array.array("f", values).tobytes())
    stream = bench.stream()
    bench.occupy(stream)
    given = [tensor(pointer, each, result=i == 2) for i, (pointer, each) in enumerate(zip(memory, sizes, strict=True))]
    operands = listed(given)
    bench.driver.call("library_call", stream, function, operands, 3)
    ctypes.memset(operands, 0, ctypes.sizeof(operands))
    bench.wait(stream)
    wanted = [
        sum(left[r * inner + k] * right[k * columns + c] for k in range(inner))
        for r in range(rows)
        for c in range(columns)
    ]
    expect(floats(bench.read(memory[2], 4 * rows * columns)) == wanted, f"{rows} x {inner} times {inner} x {columns}")


@clause("contract", "OB_UNSUPPORTED if there is none.")
def libraries_refuse_what_they_do_not_have(bench: Bench) -> None:
    need(bench.driver.has("library_find"), "no library_find")
    operand, function = tensor(16, (2, 2)), c_void_p()
    status = Status(
        bench.driver.value("library_find", bench.device, b"aten::no_such", listed([operand]), 1, ctypes.byref(function))
    )
    expect(status == Status.UNSUPPORTED, f"library_find of an operator that does not exist returned {status.name}")


@clause("contract", "Whether communicators of this device carry out a kind with a dtype")
def collectives_are_supported_or_not(bench: Bench) -> None:
    need(bench.driver.has("collective_supported"), "no collectives")
    for kind in range(6):
        for reduction in range(8):
            bench.driver.call(
                "collective_supported", bench.device, kind, FLOAT, reduction, allow=(Status.OK, Status.UNSUPPORTED)
            )


@clause("memory", "Submits this member's part, in stream order, on a stream of the communicator's device.")
def a_communicator_of_one_is_a_copy(bench: Bench) -> None:
    need(bench.driver.has("collective_supported"), "no collectives")
    supported = bench.driver.call(
        "collective_supported", bench.device, 0, FLOAT, 0, allow=(Status.OK, Status.UNSUPPORTED)
    )
    need(supported == Status.OK, "no sums of float32")
    name, communicator = ctypes.create_string_buffer(128), c_void_p()
    bench.driver.call("communicator_id", bench.device, ctypes.addressof(name))
    patience = 0 if bench.driver.has("communicator_joined") else 10_000
    address = ctypes.addressof(name)
    bench.driver.call("communicator_create", bench.device, address, 0, 1, patience, ctypes.byref(communicator))
    if bench.driver.has("communicator_joined"):
        _join(bench, communicator)
    bench.at_end("communicator_destroy", communicator)
    source, target, stream = bench.alloc(400), bench.alloc(400), bench.stream()
    bench.write(source, array.array("f", range(100)).tobytes())
    part = Collective(ctypes.sizeof(Collective), 0, 0, FLOAT, 0, source, target, 100, None, None)
    bench.driver.call("collective", stream, communicator, ctypes.byref(part))
    bench.wait(stream)
    expect(floats(bench.read(target, 400)) == [float(i) for i in range(100)], "a sum over one rank")


def _join(bench: Bench, communicator: c_void_p) -> None:
    status = Status.NOT_READY
    for _ in range(1_000_000):
        status = bench.driver.call("communicator_joined", communicator, allow=(Status.OK, Status.NOT_READY))
        if status == Status.OK:
            return
    expect(False, "a communicator of one rank never joined")
