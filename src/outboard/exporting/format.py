# SPDX-License-Identifier: Apache-2.0
"""The file of an exported model (mirror of ``csrc/runner/model_file.h``).

Little-endian, in blocks of 64 bytes. The first block is ``MAGIC``, ``u32 version``, ``u32 0``, ``u64`` bytes of the
header, ``u64`` bytes of the file, and the header's SHA-256. The header follows, filled up with zeros: the fields of
:class:`Model` in order, written as plans are (``outboard.compiler.plans.wire``). Then come the tensors that the file
holds, each filled up with zeros and covered, those included, by the SHA-256 that the header has of it. So no byte of a
file can change unnoticed.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import struct
from collections.abc import Callable
from typing import TypeVar

import torch

from outboard.compiler.plans.dtypes import dtype_of
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


@dataclasses.dataclass
class Model:
    """All but the tensors."""

    producer: str  #: names and versions
    dialect: str  #: of the device that it is for
    needs: int  #: bits: 1 half precision, 2 double precision, 4 atomics on 64 bits, 8 sub-groups that can shuffle
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
    sub_groups = target.sub_group_size > 1
    return target.has_fp16 | target.has_fp64 << 1 | target.has_int64_atomics << 2 | sub_groups << 3


def needs_of(target: Target) -> int:
    """What kernels generated for a device may use of it (``Model.needs``): none computes in half precision, and those
    made of vectors use no sub-groups."""
    return offers_of(target) & ~(1 | target.tuning.vectors << 3)


def padded(nbytes: int) -> int:
    """The bytes of whole blocks."""
    return -(-nbytes // BLOCK) * BLOCK


def header(model: Model, file_bytes: int) -> bytes:
    """The first block and the header, whole blocks. Their length does not depend on offsets and digests."""
    writer = _Writer()
    writer.model(model)
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
        _dtype(argument.dtype)
        for size in argument.sizes:
            if size.kind == Dimension.Kind.SYMBOL and size.value >= len(model.symbols):
                raise DamagedFile(f"a size of {argument.name} is not there")


def _check_weight(weight: Weight, begin: int, end: int) -> None:
    stop = weight.offset + padded(weight.nbytes)
    if not weight.external and not begin <= weight.offset <= stop <= end:
        raise DamagedFile(f"{weight.name} lies outside the file")
    if len(weight.sizes) != len(weight.strides):
        raise DamagedFile(f"{weight.name} has {len(weight.sizes)} sizes and {len(weight.strides)} strides")
    if span(weight.sizes, weight.strides) * _dtype(weight.dtype).itemsize != weight.nbytes:
        raise DamagedFile(f"{weight.name} has another length than its shape needs")


def _dtype(number: int) -> torch.dtype:
    try:
        return dtype_of(number)
    except KeyError:
        raise DamagedFile(f"element type {number} is unknown") from None


class _Writer(WireWriter):
    """Writes a header, part by part."""

    def symbol(self, symbol: Symbol) -> None:
        self.text(symbol.name)
        self.i64(symbol.least)
        self.i64(symbol.most)

    def dimension(self, dimension: Dimension) -> None:
        self.u8(dimension.kind)
        self.i64(dimension.value)

    def argument(self, argument: Argument) -> None:
        self.text(argument.name)
        self.u8(argument.kind)
        self.u8(argument.dtype)
        self.each(argument.sizes, self.dimension)

    def weight(self, weight: Weight) -> None:
        self.text(weight.name)
        self.u8(weight.dtype)
        self.each(weight.sizes, self.i64)
        self.each(weight.strides, self.i64)
        self.u8(weight.external)
        self.i64(weight.offset)
        self.i64(weight.nbytes)
        self.data += weight.digest

    def plan_input(self, item: tuple[Source, int]) -> None:
        self.u8(item[0])
        self.u32(item[1])

    def model(self, model: Model) -> None:
        self.text(model.producer)
        self.text(model.dialect)
        self.u8(model.needs)
        self.each(model.symbols, self.symbol)
        self.each(model.inputs, self.argument)
        self.each(model.outputs, self.argument)
        self.text(model.call)
        self.text(model.weights_file)
        self.each(model.weights, self.weight)
        self.each(model.plan_inputs, self.plan_input)
        self.blob(model.plan)
        self.text(model.device_key)
        self.each(model.binaries, self.blob)


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

    def i64(self) -> int:
        return int.from_bytes(self.take(8), "little", signed=True)

    def size(self) -> int:
        value = self.i64()
        if value < 0:
            raise DamagedFile("a size or an offset is negative")
        return value

    def blob(self) -> bytes:
        return bytes(self.take(self.u32()))

    def text(self) -> str:
        try:
            return self.blob().decode()
        except UnicodeDecodeError as error:
            raise DamagedFile("a text in its header is no text") from error

    def each(self, read: Callable[[], T]) -> list[T]:
        return [read() for _ in range(self.u32())]

    def kind(self, kinds: Callable[[int], T]) -> T:
        value = self.u8()
        try:
            return kinds(value)
        except ValueError as error:
            raise DamagedFile(str(error)) from error

    def sizes(self, read: Callable[[], T]) -> list[T]:
        found = self.each(read)
        if len(found) > MAXIMUM_RANK:
            raise DamagedFile(f"a tensor has {len(found)} dimensions")
        return found

    def symbol(self) -> Symbol:
        return Symbol(self.text(), self.size(), self.size())

    def argument(self) -> Argument:
        return Argument(self.text(), self.kind(Argument.Kind), self.u8(), self.sizes(self.dimension))

    def dimension(self) -> Dimension:
        return Dimension(self.kind(Dimension.Kind), self.size())

    def weight(self) -> Weight:
        return Weight(
            name=self.text(),
            dtype=self.u8(),
            sizes=self.sizes(self.size),
            strides=self.sizes(self.size),
            external=self.u8() != 0,
            offset=self.size(),
            nbytes=self.size(),
            digest=bytes(self.take(32)),
        )

    def plan_input(self) -> tuple[Source, int]:
        return self.kind(Source), self.u32()

    def model(self) -> Model:
        model = Model(
            producer=self.text(),
            dialect=self.text(),
            needs=self.u8(),
            symbols=self.each(self.symbol),
            inputs=self.each(self.argument),
            outputs=self.each(self.argument),
            call=self.text(),
            weights_file=self.text(),
            weights=self.each(self.weight),
            plan_inputs=self.each(self.plan_input),
            plan=self.blob(),
            device_key=self.text(),
            binaries=self.each(self.blob),
        )
        if any(self.data[self.at :]):
            raise DamagedFile("its header has fields that this version does not know")
        return model
