"""Executables: what compiler.py makes of a graph. A line says what the chip does, on operands of a call (o0, o1, ...)
and on places in the call's scratch memory (s0, s64, ...), all of them dense numbers of 32 bits:

  mychip 1 CHECKSUM
  add s0 o0 o1 12
  relu o2 s0 - 12
  mm o3 o2 o4 3 4 5
"""

import ctypes
import itertools
import math
import struct

from mychip.errors import DriverError

from outboard_conformance.driver import Status


def checksum(text):
    """FNV-1a."""
    result = 0xCBF29CE484222325
    for byte in text:
        result = (result ^ byte) * 0x100000001B3 % 2**64
    return result


def sigmoid(value):
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def mm(a, b, rows, inner, columns):
    """A product of matrices."""
    b = [b[j::columns] for j in range(columns)]
    return [sum(map(float.__mul__, a[i : i + inner], column)) for i in range(0, rows * inner, inner) for column in b]


OPERATIONS = {
    "add": lambda a, b, count: map(float.__add__, a, b),
    "mul": lambda a, b, count: map(float.__mul__, a, b),
    "relu": lambda a, b, count: (0.0 if value < 0 else value for value in a),  # NaN stays
    "sigmoid": lambda a, b, count: map(sigmoid, a),
    "mm": mm,
}


class Code:
    """What the driver has of executables."""

    properties = {  # of the device
        "compiler": b"mychip-cc 1",  # name and version of compiler.py
        "static_sizes": 1,  # each executable is for one set of sizes
        "max_work_group_size": 1,
        "sub_group_size": 1,
    }

    def __init__(self):
        self.functions, self.names = {}, itertools.count(1)

    def function_load(self, device, data):
        head, _, text = data.partition(b"\n")
        if head != b"mychip 1 %016x" % checksum(text):
            raise DriverError(Status.BUILD_FAILED, "this is no executable of mychip 1, or it is damaged")
        name = next(self.names)
        self.functions[name] = [line.split() for line in text.decode().splitlines()]
        return name

    def function_release(self, function):
        del self.functions[function]

    def library_call(self, stream, function, data):
        """Runs one, with the addresses of its operands. The last is its scratch memory, if it has some."""
        operands = struct.unpack(f"{len(data) // 8}Q", data)

        def numbers(place, count):
            base = operands[int(place[1:])] if place[0] == "o" else operands[-1] + int(place[1:])
            return (ctypes.c_float * count).from_address(base)

        for operation, to, a, b, *sizes in self.functions[function]:
            sizes = [int(size) for size in sizes]
            rows, inner, columns = sizes if operation == "mm" else (*sizes, 1, 1)
            reads = (
                numbers(a, rows * inner),
                None if b == "-" else numbers(b, inner * columns if operation == "mm" else rows),
            )
            numbers(to, rows * columns)[:] = list(OPERATIONS[operation](*reads, *sizes))
