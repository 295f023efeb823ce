# SPDX-License-Identifier: Apache-2.0
"""The file of an exported model. ``tools/wire_schema.py`` makes ``csrc/runner/model_fields.h`` of it, by which C++
reads one.

Little-endian, in blocks of 64 bytes. The first block is ``MAGIC``, ``u32 version``, ``u32 0``, ``u64`` bytes of the
header, ``u64`` bytes of the file, and the header's SHA-256. The header follows, filled up with zeros: the fields of
``MODEL`` in order, written as plans are (``outboard.compiler.plans.records``). Then come the tensors that the file
holds, each filled up with zeros and covered, those included, by the SHA-256 that the header has of it. So no byte of a
file can change unnoticed.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from outboard.compiler.plans.dtypes import dtype_of
from outboard.compiler.plans.records import Choice, Field, Many, Record, read, write
from outboard.compiler.plans.strided import span
from outboard.compiler.plans.wire import WireWriter
from outboard.compiler.target import Target

MAGIC = b"OBMODEL\0"
VERSION = 1
BLOCK = 64
_PRELUDE = struct.Struct("<8sIIQQ32s")
UNBOUNDED = 2**63 - 1
MAXIMUM_RANK = 64

T = TypeVar("T")


class DamagedFile(ValueError):
    """A file that is no exported model, or not whole."""


@dataclasses.dataclass
class Symbol:
    """A size that varies between calls: the same wherever its number is used."""

    name: str
    least: int
    most: int  #: inclusive; UNBOUNDED without a limit


@dataclasses.dataclass
class Dimension:
    """A size: ``value``, or the symbol of that number, or (of results only) anything."""

    class Kind(enum.IntEnum):
        FIXED = 0
        SYMBOL = 1
        ANY = 2

    kind: Kind
    value: int = 0


@dataclasses.dataclass
class Argument:
    """An input or a result; ``dtype`` is a ``c10::ScalarType`` number. Inputs are tensors, dense and row-major."""

    class Kind(enum.IntEnum):
        TENSOR = 0
        INT = 1

    name: str
    kind: Kind
    dtype: int
    sizes: list[Dimension]


@dataclasses.dataclass
class Weight:
    """A tensor that comes with the model, as it lies in memory: ``nbytes`` from its first element to its last.

    ``external``: bytes ``offset`` to ``offset + nbytes`` of the weights file, with the SHA-256 ``digest``. Else the
    same of this file, where filling up follows and is part of the digest.
    """

    name: str
    dtype: int
    sizes: list[int]
    strides: list[int]
    external: bool
    offset: int
    nbytes: int
    digest: bytes


class Source(enum.IntEnum):
    """Where an input of the plan comes from."""

    INPUT = 0
    WEIGHT = 1


class Need(enum.IntFlag):
    """What a model's kernels need of a device."""

    HALF = 1
    DOUBLE = 2
    INT64_ATOMICS = 4
    SUB_GROUPS = 8  #: that can shuffle
    MATRIX_UNITS = 16


@dataclasses.dataclass
class Model:
    """All but the tensors."""

    producer: str  #: names and versions
    dialect: str  #: of the device that it is for
    needs: int  #: of :class:`Need`
    symbols: list[Symbol]
    inputs: list[Argument]
    outputs: list[Argument]
    call: str  #: JSON for Python: how arguments and results are nested
    weights_file: str  #: relative to this file, unless absolute; "" without external weights
    weights: list[Weight]
    plan_inputs: list[tuple[Source, int]]  #: number of an input or a weight
    plan: bytes
    device_key: str  #: of the device that made ``binaries``; for others they are worth nothing
    binaries: list[bytes]  #: of the plan's programs, in order; empty where the driver gives none


def offers_of(target: Target) -> int:
    """What a device has, in the bits of ``Model.needs``."""
    has = {
        Need.HALF: target.has_fp16,
        Need.DOUBLE: target.has_fp64,
        Need.INT64_ATOMICS: target.has_int64_atomics,
        Need.SUB_GROUPS: target.sub_group_size > 1,
        Need.MATRIX_UNITS: target.matrix_units,
    }
    return sum(need for need, there in has.items() if there)


def needs_of(target: Target) -> int:
    """What kernels generated for a device may use of it (``Model.needs``): none computes in half precision, and those
    made of vectors use no sub-groups."""
    return offers_of(target) & ~(Need.HALF | (Need.SUB_GROUPS if target.tuning.vectors else 0))


def padded(nbytes: int) -> int:
    """The bytes of whole blocks."""
    return -(-nbytes // BLOCK) * BLOCK


def header(model: Model, file_bytes: int) -> bytes:
    """The first block and the header, whole blocks. Their length does not depend on offsets and digests."""
    writer = _Writer()
    write(writer, MODEL, model)
    body = bytes(writer.data).ljust(padded(len(writer.data)), b"\0")
    return _PRELUDE.pack(MAGIC, VERSION, 0, len(body), file_bytes, hashlib.sha256(body).digest()) + body


def parse(data: memoryview) -> Model:
    """Reads the header from a whole file. Tensors are not looked at.

    Raises DamagedFile, saying what is wrong, unless this is the header of a whole file of this version."""
    if len(data) < BLOCK or data[:8] != MAGIC:
        raise DamagedFile("it is not a model written by outboard.export")
    _, version, reserved, header_bytes, file_bytes, digest = _PRELUDE.unpack(data[:BLOCK])
    if version != VERSION or reserved:
        raise DamagedFile(f"it has version {version} of the format, this is version {VERSION}")
    if file_bytes != len(data):
        raise DamagedFile(f"it should have {file_bytes} bytes, and has {len(data)}")
    body = data[BLOCK : BLOCK + header_bytes]
    if hashlib.sha256(body).digest() != digest:
        raise DamagedFile("its header is damaged (the checksum differs)")
    model = _Reader(body).model()
    _check(model, BLOCK + header_bytes, file_bytes)
    return model


def _check(model: Model, begin: int, end: int) -> None:
    for weight in model.weights:
        _check_weight(weight, begin, end)
    for symbol in model.symbols:
        if symbol.least > symbol.most:
            raise DamagedFile(f"{symbol.name} can have no value")
    for source, number in model.plan_inputs:
        if number >= len(model.inputs if source == Source.INPUT else model.weights):
            raise DamagedFile("the plan takes an input that is not there")
    for argument in model.inputs:
        if argument.kind != Argument.Kind.TENSOR or any(d.kind == Dimension.Kind.ANY for d in argument.sizes):
            raise DamagedFile(f"{argument.name} is an input without a shape")
    for argument in (*model.inputs, *model.outputs):
        _check_rank(argument.sizes)
        for size in argument.sizes:
            if size.kind == Dimension.Kind.SYMBOL and size.value >= len(model.symbols):
                raise DamagedFile(f"a size of {argument.name} is not there")


def _check_weight(weight: Weight, begin: int, end: int) -> None:
    stop = weight.offset + padded(weight.nbytes)
    if not weight.external and not begin <= weight.offset <= stop <= end:
        raise DamagedFile(f"{weight.name} lies outside the file")
    _check_rank(weight.sizes)
    if len(weight.sizes) != len(weight.strides):
        raise DamagedFile(f"{weight.name} has {len(weight.sizes)} sizes and {len(weight.strides)} strides")
    if span(weight.sizes, weight.strides) * _dtype(weight.dtype).itemsize != weight.nbytes:
        raise DamagedFile(f"{weight.name} has another length than its shape needs")


def _check_rank(sizes: Sequence[object]) -> None:
    if len(sizes) > MAXIMUM_RANK:
        raise DamagedFile(f"a tensor has {len(sizes)} dimensions")


def _dtype(number: int) -> torch.dtype:
    try:
        return dtype_of(number)
    except KeyError:
        raise DamagedFile(f"element type {number} is unknown") from None


SYMBOL = Record("ModelFile::Symbol", (Field("name", "text"), Field("least", "size"), Field("most", "size")), Symbol)
DIMENSION = Record(
    "ModelFile::Dimension",
    (Field("kind", Choice(Dimension.Kind, "ModelFile::Dimension")), Field("value", "size")),
    Dimension,
)
ARGUMENT = Record(
    "ModelFile::Argument",
    (
        Field("name", "name"),
        Field("kind", Choice(Argument.Kind, "ModelFile::Argument")),
        Field("dtype", "dtype"),
        Field("sizes", Many(DIMENSION)),
    ),
    Argument,
)
WEIGHT = Record(
    "ModelFile::Weight",
    (
        Field("name", "text"),
        Field("dtype", "dtype"),
        Field("sizes", Many("size")),
        Field("strides", Many("size")),
        Field("external", "boolean"),
        Field("offset", "size"),
        Field("nbytes", "size"),
        Field("digest", "digest"),
    ),
    Weight,
)
PLAN_INPUT = Record(
    "ModelFile::PlanInput",
    (Field("source", Choice(Source, "ModelFile::PlanInput")), Field("number", "u32")),
    lambda source, number: (source, number),
)
MODEL = Record(
    "ModelFile",
    (
        Field("producer", "text"),
        Field("dialect", "text"),
        Field("needs", "u8"),
        Field("symbols", Many(SYMBOL)),
        Field("inputs", Many(ARGUMENT)),
        Field("outputs", Many(ARGUMENT)),
        Field("call", "text"),
        Field("weights_file", "text"),
        Field("weights", Many(WEIGHT)),
        Field("plan_inputs", Many(PLAN_INPUT)),
        Field("plan", "plan"),
        Field("device_key", "text"),
        Field("binaries", Many("blob")),
    ),
    Model,
)
#: Records in an order in which each comes behind those that it is made of.
RECORDS = (SYMBOL, DIMENSION, ARGUMENT, WEIGHT, PLAN_INPUT, MODEL)
#: The bits of ``Model.needs``.
NEEDS = Choice(Need, "ModelFile")


class _Writer(WireWriter):
    """Writes what the encodings of the records' names are."""

    dtype = boolean = WireWriter.u8
    size = WireWriter.i64
    name = WireWriter.text
    plan = WireWriter.blob

    def digest(self, value: bytes) -> None:
        """A SHA-256."""
        self.data += value


class _Reader:
    """Reads fields; what the checksum lets through and is wrong nevertheless was written by another program."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            raise DamagedFile("its header ends early")
        self.at += count
        return self.data[self.at - count : self.at]

    def u8(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def boolean(self) -> bool:
        return self.u8() != 0

    def dtype(self) -> int:
        number = self.u8()
        _dtype(number)
        return number

    def size(self) -> int:
        value = int.from_bytes(self.take(8), "little", signed=True)
        if value < 0:
            raise DamagedFile("a size or an offset is negative")
        return value

    def blob(self) -> bytes:
        return bytes(self.take(self.u32()))

    plan = blob

    def digest(self) -> bytes:
        return bytes(self.take(32))

    def text(self) -> str:
        try:
            return self.blob().decode()
        except UnicodeDecodeError as error:
            raise DamagedFile("a text in its header is no text") from error

    name = text

    def each(self, read_one: Callable[[], T]) -> list[T]:
        return [read_one() for _ in range(self.u32())]

    def choice(self, values: Callable[[int], T]) -> T:
        value = self.u8()
        try:
            return values(value)
        except ValueError as error:
            raise DamagedFile(str(error)) from error

    def model(self) -> Model:
        model: Model = read(self, MODEL)
        if any(self.data[self.at :]):
            raise DamagedFile("its header has fields that this version does not know")
        return model
