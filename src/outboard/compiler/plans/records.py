# SPDX-License-Identifier: Apache-2.0
"""How parts of plans and of exported models are described, once for Python and C++, and written and read by that.

``tools/wire_schema.py`` makes C++ headers of the descriptions.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .wire import WireWriter


@dataclass(frozen=True)
class Choice:
    """A byte that is one of an enumeration's values. ``owner`` has the enumerators in C++, named by ``pattern``."""

    values: type[enum.IntEnum] | type[enum.IntFlag]
    owner: str
    pattern: str = "k{}"


@dataclass(frozen=True)
class Many:
    """A number of items, and the items."""

    item: Encoding


@dataclass(frozen=True)
class Times:
    """So many items, without their number."""

    count: int
    item: Encoding


@dataclass(frozen=True)
class Record:
    """A part with fields of its own. ``name`` is that of its structure in C++; ``make`` makes one in Python of its
    fields, where Python reads it."""

    name: str
    fields: tuple[Field, ...]
    make: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Variants:
    """One of several records, behind a byte that says which: ``kind`` of the structure in C++ that is all of them."""

    name: str
    kinds: dict[type, Record]


#: A method of the writers and readers in both languages, or what is made of such.
Encoding: TypeAlias = "str | Choice | Many | Times | Record | Variants"


@dataclass(frozen=True)
class Field:
    """A field by its name, in Python and C++. ``only``: values of ``kind`` with which it is written."""

    name: str
    encoding: Encoding
    only: tuple[enum.IntEnum, ...] = ()


def write(writer: WireWriter, encoding: Encoding, value: Any) -> None:
    """Writes a value."""
    if isinstance(encoding, str):
        getattr(writer, encoding)(value)
    elif isinstance(encoding, Choice):
        writer.u8(value)
    elif isinstance(encoding, Many):
        writer.each(value, lambda item: write(writer, encoding.item, item))
    elif isinstance(encoding, Times):
        for item in value:
            write(writer, encoding.item, item)
    elif isinstance(encoding, Variants):
        writer.u8(list(encoding.kinds).index(type(value)))
        write(writer, encoding.kinds[type(value)], value)
    else:
        _write_record(writer, encoding, value)


def _write_record(writer: WireWriter, record: Record, value: Any) -> None:
    for number, field in enumerate(record.fields):
        if field.only and value.kind not in field.only:
            continue
        held = value[number] if isinstance(value, tuple) else getattr(value, field.name)
        write(writer, field.encoding, held)


def read(reader: Any, encoding: Encoding) -> Any:
    """Reads a value. ``reader`` has a method for each encoding, and ``choice`` and ``each``; records have ``make``."""
    if isinstance(encoding, str):
        return getattr(reader, encoding)()
    if isinstance(encoding, Choice):
        return reader.choice(encoding.values)
    if isinstance(encoding, Many):
        return reader.each(lambda: read(reader, encoding.item))
    assert isinstance(encoding, Record) and encoding.make is not None
    return encoding.make(*(read(reader, field.encoding) for field in encoding.fields))
