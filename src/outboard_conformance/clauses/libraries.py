# SPDX-License-Identifier: Apache-2.0
"""Functions of a vendor's library, and collectives of one rank."""

from __future__ import annotations

import array
import ctypes
import functools
import itertools
import math
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from typing import Any

from outboard_conformance.bench import Bench
from outboard_conformance.clause import NotApplicable, clause, expect, need
from outboard_conformance.driver import Collective, Operand, Status

FLOAT = 6  #: c10::ScalarType::Float
_TENSOR, _INTEGER, _INTEGERS = 1, 2, 4


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
    left, right = Numbers((rows, inner), 5), Numbers((inner, columns), 7)
    found = carry_out(bench, "aten::mm", [left, right], (rows, columns))
    wanted = [sum(left.at(r, k) * right.at(k, c) for k in range(inner)) for r in range(rows) for c in range(columns)]
    expect(found == wanted, f"{rows} x {inner} times {inner} x {columns}")


@clause("kernels", "all arguments of the operator's schema in order, then its results.")
def convolutions_of_the_library_are_right(bench: Bench) -> None:
    need(bench.driver.has("library_find"), "no library_find")
    problem = Convolution()
    x, w, y, none = problem.x, problem.w, problem.y, Operand()
    numbers = [integers(2, 1), integers(1, 0), integers(1, 1), integer(0), integers(0, 0), integer(1)]
    calls: list[tuple[str, list[Numbers | Operand], Numbers]] = [
        ("aten::convolution", [x, w, none, *numbers], y),
        ("aten::convolution_backward", [y, x, w, none, *numbers, integers(1, 0, 0)], x),
        ("aten::convolution_backward", [y, x, w, none, *numbers, integers(0, 1, 0)], w),
    ]
    answers = []
    for name, arguments, made in calls:
        try:
            found = carry_out(bench, name, arguments, made.sizes)
        except NotApplicable:
            continue
        answers.append(name)
        expect(found == problem.sums(made), f"{name}: a result of {made.sizes}")
    need(bool(answers), "the library has no convolution for it")


class Numbers:
    """A dense tensor of small integers."""

    def __init__(self, sizes: tuple[int, ...], period: int) -> None:
        self.sizes = sizes
        self.values = [float(i % period - period // 2) for i in range(math.prod(sizes))]

    def place(self, *index: int) -> int:
        """Where an element is."""
        return functools.reduce(lambda place, each: place * each[0] + each[1], zip(self.sizes, index, strict=True), 0)

    def at(self, *index: int) -> float:
        """An element."""
        return self.values[self.place(*index)]


class Convolution:
    """A convolution of two images of three channels, with steps of 2 and 1 and a row of padding."""

    def __init__(self) -> None:
        self.x, self.w, self.y = Numbers((2, 3, 5, 4), 5), Numbers((4, 3, 3, 2), 7), Numbers((2, 4, 3, 3), 3)

    def sums(self, made: Numbers) -> list[float]:
        """By the definition, one of the three from the other two."""
        sums = [0.0] * len(made.values)
        for n, k, row, column, c, i, j in itertools.product(*map(range, (*self.y.sizes, *self.w.sizes[1:]))):
            from_row = 2 * row + i - 1
            if not 0 <= from_row < self.x.sizes[2]:
                continue
            places = {self.y: (n, k, row, column), self.x: (n, c, from_row, column + j), self.w: (k, c, i, j)}
            sums[made.place(*places.pop(made))] += math.prod(each.at(*place) for each, place in places.items())
        return sums


def integer(value: int) -> Operand:
    """A number as an operand."""
    return Operand(_INTEGER, integer=value)


def integers(*values: int) -> Operand:
    """Numbers as an operand."""
    return Operand(_INTEGERS, count=len(values), sizes=(c_int64 * len(values))(*values))


def carry_out(bench: Bench, name: str, arguments: Sequence[Numbers | Operand], made: tuple[int, ...]) -> list[float]:
    """The result of an operator, of sizes ``made``, by the library. Raises NotApplicable if that does not have it."""
    inputs = [each for each in arguments if isinstance(each, Numbers)]
    memory = [bench.alloc(4 * math.prod(sizes) + 64) + 16 for sizes in (*(each.sizes for each in inputs), made)]
    for pointer, each in zip(memory, inputs, strict=False):
        bench.write(pointer, array.array("f", each.values).tobytes())

    def operands(addresses: Sequence[int]) -> tuple[Any, Any]:
        where = iter(addresses)
        kept = [tensor(next(where), each.sizes) if isinstance(each, Numbers) else (each, None) for each in arguments]
        kept.append(tensor(next(where), made, result=True))
        return listed(kept), kept

    function, (asked, _kept) = c_void_p(), operands([16] * len(memory))
    allowed, count = (Status.OK, Status.UNSUPPORTED), len(asked)
    found = bench.driver.call(
        "library_find", bench.device, name.encode(), asked, count, ctypes.byref(function), allow=allowed
    )
    need(found == Status.OK, f"the library has no {name} for it")
    stream = bench.stream()
    bench.occupy(stream)
    given, _kept = operands(memory)
    bench.driver.call("library_call", stream, function, given, count)
    ctypes.memset(given, 0, ctypes.sizeof(given))
    bench.wait(stream)
    return floats(bench.read(memory[-1], 4 * math.prod(made)))


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
