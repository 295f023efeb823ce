# SPDX-License-Identifier: Apache-2.0
"""Writes the C++ headers by which files are read that Python describes: plans and exported models.

``python -m tools.wire_schema`` writes them; a test fails where one is not what this would write.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from outboard.compiler.plans import schema
from outboard.compiler.plans.records import Choice, Encoding, Field, Many, Record, Times, Variants
from outboard.exporting import format as model

_CODE = Path(__file__).resolve().parents[1] / "csrc"


@dataclasses.dataclass(frozen=True)
class Header:
    """A header: where it lies, what it is made of, and what is in it. ``choices`` beside those of records' fields."""

    target: Path
    source: str
    includes: Sequence[str]
    what: str
    namespace: str
    version: int
    records: Sequence[Record | Variants]
    choices: Sequence[Choice]


HEADERS = (
    Header(
        _CODE / "runtime" / "plans" / "wire_fields.h",
        "src/outboard/compiler/plans/schema.py",
        ("runtime/plans/plan.h", "runtime/streams/assertions.h"),
        "a plan",
        "plan_wire",
        schema.VERSION,
        schema.RECORDS,
        (schema.INSTRUCTION,),
    ),
    Header(
        _CODE / "runner" / "model_fields.h",
        "src/outboard/exporting/format.py",
        ("runner/model_file.h",),
        "a model",
        "model_wire",
        model.VERSION,
        model.RECORDS,
        (model.NEEDS,),
    ),
)

_HEAD = """// SPDX-License-Identifier: Apache-2.0
// Made by tools/wire_schema.py of {source}: change that, and run it.
#pragma once

{includes}

/// The fields of {what} in the order in which they are written. `Wire` reads or writes: it has a method for each
/// encoding, which takes the field.
namespace outboard::{namespace} {{

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
            yield indent + statement(field.encoding, f"x.{field.name}")
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
    yield f"{indent}  {statement(field.encoding, f'x.{field.name}')}"
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


def text(header: Header) -> str:
    """The whole file, but for its layout, which is clang-format's."""
    includes = "\n".join(f'#include "{name}"' for name in header.includes)
    lines = [_HEAD.format(**vars(header) | {"includes": includes})]
    for choice in (*header.choices, *(each for record in header.records for each in _choices(record))):
        lines += numbers(choice)
    for record in header.records:
        if isinstance(record, Variants):
            kinds = enumerate(record.kinds.values())
            lines += [f"static_assert({record.name}::{kind.name} == {number});" for number, kind in kinds]
    for record in header.records:
        lines += ["", *function(record)]
    return "\n".join([*lines, "", f"}}  // namespace outboard::{header.namespace}", ""])


def formatted(header: Header) -> str:
    """The file as it lies in the repository. Raises OSError without clang-format."""
    tool = Path(sys.executable).parent / "clang-format"
    return subprocess.run(
        [tool, f"--assume-filename={header.target}"], input=text(header), capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    for each in HEADERS:
        each.target.write_text(formatted(each))
