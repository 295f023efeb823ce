# SPDX-License-Identifier: Apache-2.0
"""Writes ``csrc/runtime/plans/wire_fields.h``, by which C++ reads plans, after ``compiler/plans/schema.py``.

``python tools/plan_schema.py`` writes the file; a test fails where it is not what this would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from outboard.compiler.plans import schema
from outboard.compiler.plans.schema import Choice, Encoding, Field, Many, Record, Times, Variants

TARGET = Path(__file__).resolve().parents[1] / "csrc" / "runtime" / "plans" / "wire_fields.h"

_HEAD = """// SPDX-License-Identifier: Apache-2.0
// Made by tools/plan_schema.py of src/outboard/compiler/plans/schema.py: change that, and run it.
#pragma once

#include "runtime/plans/plan.h"
#include "runtime/streams/assertions.h"

/// The fields of a plan in the order in which they are written. `Wire` reads or writes: it has a method for each
/// encoding, which takes the field.
namespace outboard::plan_wire {

constexpr uint32_t kVersion = {version};

"""


def enumerator(choice: Choice, name: str) -> str:
    """``SHIFT_LEFT`` of Op is ``Expr::kShiftLeft``."""
    words = "".join(word.capitalize() for word in name.split("_"))
    return f"{choice.owner}::{choice.pattern.format(words)}"


def numbers(choice: Choice) -> Iterator[str]:
    """Assertions that an enumeration has the same numbers in both languages."""
    for value in choice.values:
        yield f"static_assert({enumerator(choice, value.name)} == {value.value});"


def last(choice: Choice) -> str:
    """The enumerator with the greatest number."""
    return enumerator(choice, max(choice.values).name)


def statement(encoding: Encoding, place: str) -> str:
    """What reads or writes one field."""
    if isinstance(encoding, str):
        return f"wire.{encoding}({place});"
    if isinstance(encoding, Choice):
        return f"wire.choice({place}, {last(encoding)});"
    if isinstance(encoding, Times):
        return f"for (auto& item : {place}) {statement(encoding.item, 'item')}"
    if isinstance(encoding, Many):
        return f"wire.each({place}, [&](auto& item) {{ {statement(encoding.item, 'item')} }});"
    return f"wire.record({place});"


def field_lines(record: Record, owner: str, indent: str) -> Iterator[str]:
    """The statements for the fields of a record, those of certain kinds in a switch at its end."""
    conditional = [field for field in record.fields if field.only]
    for field in record.fields:
        if not field.only:
            yield indent + statement(field.encoding, f"x.{field.member or field.name}")
    if not conditional:
        return
    yield f"{indent}switch (x.kind) {{"
    for field in conditional:
        yield from _case(field, owner, indent + "  ")
    yield f"{indent}  default:"
    yield f"{indent}    return;"
    yield f"{indent}}}"


def _case(field: Field, owner: str, indent: str) -> Iterator[str]:
    for kind in field.only:
        yield f"{indent}case {enumerator(Choice(type(kind), owner), kind.name)}:"
    yield f"{indent}  {statement(field.encoding, f'x.{field.member or field.name}')}"
    yield f"{indent}  return;"


def function(record: Record | Variants) -> Iterator[str]:
    """``fields`` for one structure."""
    yield "template <typename Wire>"
    yield f"void fields(Wire& wire, {record.name}& x) {{"
    if isinstance(record, Record):
        yield from field_lines(record, record.name, "  ")
    else:
        kinds = list(record.kinds.values())
        yield f"  wire.choice(x.kind, {record.name}::{kinds[-1].name});"
        yield "  switch (x.kind) {"
        for kind in kinds:
            yield f"    case {record.name}::{kind.name}:"
            yield from field_lines(kind, record.name, "      ")
            yield "      return;"
        yield "  }"
    yield "}"


def _choices(record: Record | Variants) -> Iterator[Choice]:
    fields = record.fields if isinstance(record, Record) else ()
    for field in fields:
        encoding = field.encoding.item if isinstance(field.encoding, Many) else field.encoding
        if isinstance(encoding, Choice):
            yield encoding


def text() -> str:
    """The whole file, but for its layout, which is clang-format's."""
    lines = [_HEAD.replace("{version}", str(schema.VERSION))]
    for choice in (schema.INSTRUCTION, *(each for record in schema.RECORDS for each in _choices(record))):
        lines += numbers(choice)
    for number, kind in enumerate(schema.STEP.kinds.values()):
        lines.append(f"static_assert({schema.STEP.name}::{kind.name} == {number});")
    for record in schema.RECORDS:
        lines += ["", *function(record)]
    return "\n".join([*lines, "", "}  // namespace outboard::plan_wire", ""])


def formatted() -> str:
    """The file as it lies in the repository. Raises OSError without clang-format."""
    import subprocess  # only who writes the file needs it

    tool = Path(sys.executable).parent / "clang-format"
    return subprocess.run(
        [tool, f"--assume-filename={TARGET}"], input=text(), capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    TARGET.write_text(formatted())
