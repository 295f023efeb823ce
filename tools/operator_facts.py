# SPDX-License-Identifier: Apache-2.0
"""Writes what C++ knows of ``compiler/operators/facts.py``: ``csrc/torch/eager/operator_facts.h``, and
``result_layouts.h`` beside it, which only ``out=`` needs.

``python tools/operator_facts.py`` writes the files; a test fails where they are not what this would write.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from outboard.compiler.operators.facts import FACTS, Facts, Layout

FOLDER = Path(__file__).resolve().parents[1] / "csrc" / "torch" / "eager"

_HEAD = """// SPDX-License-Identifier: Apache-2.0
// Made by tools/operator_facts.py of src/outboard/compiler/operators/facts.py: change that, and run it.
#pragma once

#include <string>
#include <unordered_map>

#include "torch/eager/@INCLUDED@.h"

namespace outboard::aten {

/// By qualified name: "aten::index_put_". Leaked, as operators run until the process ends.
inline const std::unordered_map<std::string, @TYPE@>& @NAME@() {
  static const auto* const all = new std::unordered_map<std::string, @TYPE@>{
"""
_TAIL = """  };
  return *all;
}

}  // namespace outboard::aten
"""


def texts(names: Iterator[str]) -> str:
    return "{" + ", ".join(f'"{name}"' for name in names) + "}"


def fields(facts: Facts) -> Iterator[str]:
    """The initialisers of one row, in the order of ``OperatorFacts``."""
    if facts.whole:
        yield f".whole = {texts('' if name == 'default' else name for name in facts.whole)}"
    if facts.run_time:
        yield f".run_time = {texts(iter(facts.run_time))}"
    if facts.moves:
        yield f".moves = {texts(iter(facts.moves))}"
    if facts.writes:
        yield f".writes = {texts(iter(facts.writes))}"
    flags = {
        "cpu_indices": facts.cpu_indices,
        "contiguous": facts.layout in (Layout.CONTIGUOUS, Layout.CONTIGUOUS_IF_NEW),
        "idempotent": facts.idempotent,
        "float_statistics": facts.float_statistics,
        "judges_values": facts.judges_values,
        "sees_storage": facts.sees_storage,
    }
    yield from (f".{name} = true" for name, holds in flags.items() if holds)
    if facts.warning:
        yield f".warning = &{facts.warning}"


def layout(facts: Facts) -> str:
    """The initialiser of one row of ``ResultLayout``; "" where the shape function says how results lie."""
    if facts.format_of is not None:
        return f"ResultLayout::kOfFormat, {facts.format_of}"
    names = {
        Layout.CONTIGUOUS: "kContiguous",
        Layout.CONTIGUOUS_OUT: "kContiguous",
        Layout.CONTIGUOUS_OUT_OF_COMPLEX: "kContiguousOfComplex",
        Layout.OF_FIRST_OPERAND: "kOfFirstOperand",
        Layout.OF_FIRST_ALONE: "kOfFirstAlone",
    }
    return f"ResultLayout::{names[facts.layout]}" if facts.layout in names else ""


def files() -> dict[Path, str]:
    """The files as they lie in the repository. Raises OSError without clang-format."""
    return {
        FOLDER / "operator_facts.h": formatted(
            {"INCLUDED": "eager_operator", "TYPE": "OperatorFacts", "NAME": "operator_facts"},
            lambda facts: ", ".join(fields(facts)),
        ),
        FOLDER / "result_layouts.h": formatted(
            {"INCLUDED": "result_layout", "TYPE": "ResultLayout", "NAME": "result_layouts"}, layout
        ),
    }


def formatted(words: dict[str, str], row_of: Callable[[Facts], str]) -> str:
    """A table of the rows that are not empty. Raises OSError without clang-format."""
    head = _HEAD
    for name, word in words.items():
        head = head.replace(f"@{name}@", word)
    rows = {name: row_of(facts) for name, facts in FACTS.items()}
    lines = [f'{{"{name}", {{{row}}}}},' for name, row in rows.items() if row]
    tool = Path(sys.executable).parent / "clang-format"
    return subprocess.run(
        [tool, f"--assume-filename={FOLDER / 'table.h'}"],
        input=head + "\n".join(lines) + "\n" + _TAIL,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
