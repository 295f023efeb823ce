# SPDX-License-Identifier: Apache-2.0
"""The one description of how plans are written: the fields of each part, in order, and how each is encoded.

``records.write`` follows it. ``tools/wire_schema.py`` makes ``csrc/runtime/plans/wire_fields.h`` of it, by which C++
reads plans, and its tests write them.

Wire format, little-endian. A plan is ``MAGIC``, ``u32 version``, ``u64 payload length``, the first 16 bytes of the
payload's SHA-256, then the payload: the fields of ``PLAN``, where

* ``u8``, ``u32``, ``i64`` and ``f64`` are themselves; ``str`` is ``u32`` length and UTF-8 bytes;
* a list is ``u32`` length and its items;
* an expression is a list of ``(u8 op, i64 immediate)``, postfix (see ``plan.Op``).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from . import plan as p
from .records import Choice, Field, Many, Record, Times, Variants, write
from .wire import WireWriter

MAGIC = b"OBPLAN\0\0"
#: Raised whenever what a reader finds would no longer mean the same.
VERSION = 4

_KIND = p.CallArgumentKind
_NUMBERS = (_KIND.FLOAT_SYMBOL, _KIND.BOOL, _KIND.DTYPE, _KIND.LAYOUT, _KIND.MEMORY_FORMAT)

SYMBOL = Record(
    "Symbol",
    (
        Field("source", Choice(p.SymbolSource, "Symbol")),
        Field("input", "u32"),
        Field("dim", "dimension"),
        Field("derived", "expr"),
    ),
)
VIEW = Record(
    "ViewSpec",
    (
        Field("buffer", "buffer"),
        Field("dtype", "dtype"),
        Field("sizes", Many("expr")),
        Field("strides", Many("expr")),
        Field("offset", "expr"),
    ),
)
ARGUMENT = Record(
    "Argument",
    (
        Field("kind", Choice(p.ArgumentKind, "Argument")),
        Field("buffer", "u32"),
        Field("symbol", "u32"),
        Field("expr", "expr"),
    ),
)
CALL_ARGUMENT = Record(
    "CallArgument",
    (
        Field("kind", Choice(p.CallArgumentKind, "CallArgument")),
        Field("tensor", VIEW, only=(_KIND.TENSOR,)),
        Field("expr", "expr", only=(_KIND.INT,)),
        Field("number", "f64", only=(_KIND.FLOAT,)),
        Field("text", "text", only=(_KIND.STRING,)),
        Field("items", "call_arguments", only=(_KIND.LIST,)),
        Field("value", "i64", only=_NUMBERS),
    ),
)
STEP = Variants(
    "Step",
    {
        p.Allocate: Record("kAllocate", (Field("buffer", "buffer"), Field("nbytes", "expr"))),
        p.Free: Record("kFree", (Field("buffer", "buffer"),)),
        p.Launch: Record(
            "kLaunch",
            (
                Field("kernel", "kernel"),
                Field("global_size", Times(3, "expr")),
                Field("local_size", Times(3, "u32")),
                Field("arguments", Many(ARGUMENT)),
            ),
        ),
        p.Call: Record(
            "kCall",
            (
                Field("name", "text"),
                Field("call_arguments", Many(CALL_ARGUMENT)),
                Field("argument_names", Many("text")),
                Field("results", Many(VIEW)),
                Field("fallback", "boolean"),
            ),
        ),
        p.Seeds: Record("kSeeds", (Field("buffer", "buffer"), Field("nbytes", "expr"))),
        p.Copy: Record(
            "kCopy",
            (
                Field("source", "buffer"),
                Field("source_offset", "expr"),
                Field("target", "buffer"),
                Field("target_offset", "expr"),
                Field("nbytes", "expr"),
            ),
        ),
        p.Execute: Record(
            "kExecute",
            (
                Field("name", "text"),
                Field("code", "blob"),
                Field("call_arguments", Many(CALL_ARGUMENT)),
                Field("results", Many(VIEW)),
            ),
        ),
        p.Fill: Record(
            "kFill",
            (
                Field("target", "buffer"),
                Field("target_offset", "expr"),
                Field("nbytes", "expr"),
                Field("pattern", "blob"),
            ),
        ),
        p.ToLayout: Record(
            "kToLayout",
            (
                Field("source", "buffer"),
                Field("source_offset", "expr"),
                Field("target", "buffer"),
                Field("layout", "layout"),
            ),
        ),
        p.FromLayout: Record(
            "kFromLayout",
            (
                Field("source", "buffer"),
                Field("target", "buffer"),
                Field("target_offset", "expr"),
                Field("layout", "layout"),
            ),
        ),
    },
)
OUTPUT = Record(
    "Output",
    (
        Field("kind", Choice(p.OutputKind, "Output")),
        Field("view", VIEW, only=(p.OutputKind.TENSOR,)),
        Field("input", "input", only=(p.OutputKind.INPUT,)),
        Field("expr", "expr", only=(p.OutputKind.INT,)),
        Field("symbol", "float_symbol", only=(p.OutputKind.FLOAT_SYMBOL,)),
    ),
)
PROGRAM = Record("ProgramSpec", (Field("source", "text"), Field("options", "text")))
KERNEL = Record("KernelSpec", (Field("program", "program"), Field("entry", "text")))
ASSERTION = Record(
    "AssertionSpec",
    (Field("code", "i32"), Field("kind", Choice(p.AssertionKind, "Assertions")), Field("text", "text")),
)
LAYOUT = Record(
    "LayoutSpec",
    (
        Field("name", "text"),
        Field("dtype", "dtype"),
        Field("sizes", Many("i64")),
        Field("arranged_dtype", "dtype"),
        Field("arranged_sizes", Many("i64")),
        Field("to_code", "blob"),
        Field("to_scratch", "i64"),
        Field("from_code", "blob"),
        Field("from_scratch", "i64"),
    ),
)
PLAN = Record(
    "Plan",
    (
        Field("inputs", Many(Choice(p.InputKind, "Plan", "k{}Input"))),
        Field("symbols", Many(SYMBOL)),
        Field("guards", Many("expr")),
        Field("buffer_count", "buffer_count"),
        Field("programs", Many(PROGRAM)),
        Field("kernels", Many(KERNEL)),
        Field("assertions", Many(ASSERTION)),
        Field("layouts", Many(LAYOUT)),
        Field("steps", Many(STEP)),
        Field("outputs", Many(OUTPUT)),
    ),
)

#: Records in an order in which each comes behind those that it is made of.
RECORDS = (SYMBOL, VIEW, ARGUMENT, CALL_ARGUMENT, STEP, OUTPUT, PROGRAM, KERNEL, ASSERTION, LAYOUT, PLAN)
#: What is a byte of an expression's instructions.
INSTRUCTION = Choice(p.Op, "Expr")


class PlanWriter(WireWriter):
    """Writes what the encodings of the schema's names are."""

    buffer = kernel = program = layout = input = dimension = float_symbol = buffer_count = WireWriter.u32
    dtype = boolean = WireWriter.u8

    def i32(self, value: int) -> None:
        """A signed number of four bytes."""
        self.data += struct.pack("<i", value)

    def expr(self, value: p.Expr) -> None:
        """A list of instructions, each a byte and a number of eight bytes."""
        self.u32(len(value))
        for op, immediate in value:
            self.data += struct.pack("<Bq", op, immediate)

    def call_arguments(self, value: Sequence[p.CallArgument]) -> None:
        """A list of arguments, which may hold lists of arguments."""
        write(self, Many(CALL_ARGUMENT), value)


def serialize(plan: p.Plan) -> bytes:
    """A plan as bytes that ``outboard::Plan::parse`` reads."""
    writer = PlanWriter()
    write(writer, PLAN, plan)
    payload = bytes(writer.data)
    digest = hashlib.sha256(payload).digest()[:16]
    return MAGIC + struct.pack("<IQ", VERSION, len(payload)) + digest + payload
