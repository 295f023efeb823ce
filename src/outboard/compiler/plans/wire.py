# SPDX-License-Identifier: Apache-2.0
"""The fields that plans and exported models are written in, as ``csrc/runtime/base/wire_reader.h`` reads them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class WireWriter:
    """Appends fields to ``data``: little-endian numbers; texts, bytes and lists behind their length."""

    def __init__(self) -> None:
        self.data = bytearray()

    def u8(self, value: int) -> None:
        """One byte."""
        self.data += struct.pack("<B", value)

    def u32(self, value: int) -> None:
        """An unsigned number of four bytes."""
        self.data += struct.pack("<I", value)

    def i64(self, value: int) -> None:
        """A signed number of eight bytes."""
        self.data += struct.pack("<q", value)

    def f64(self, value: float) -> None:
        """A ``double``."""
        self.data += struct.pack("<d", value)

    def text(self, value: str) -> None:
        """A text in UTF-8."""
        self.blob(value.encode())

    def blob(self, value: bytes) -> None:
        """Bytes."""
        self.u32(len(value))
        self.data += value

    def each(self, items: Sequence[T], write: Callable[[T], None]) -> None:
        """A list, each item by ``write``."""
        self.u32(len(items))
        for item in items:
            write(item)
