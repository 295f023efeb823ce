# SPDX-License-Identifier: Apache-2.0
"""Writes ``csrc/torch/eager/operator_facts.h``, what C++ knows of ``compiler/operators/facts.py``.

``python tools/operator_facts.py`` writes the file; a test fails where it is not what this would write.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from outboard.compiler.operators.facts import FACTS, Facts, Layout

TARGET = Path(__file__).resolve().parents[1] / "csrc" / "torch" / "eager" / "operator_facts.h"

_HEAD = """// SPDX-License-Identifier: Apache-2.0
// Made by tools/operator_facts.py of src/outboard/compiler/operators/facts.py: change that, and run it.
#pragma once

#include <string>
#include <unordered_map>

#include "torch/eager/eager_operator.h"

namespace outboard::aten {

/// By qualified name: "aten::index_put_". Leaked, as operators run until the process ends.
inline const std::unordered_map<std::string, OperatorFacts>& operator_facts() {
  static const auto* const all = new std::unordered_map<std::string, OperatorFacts>{
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
    flags = {
        "cpu_indices": facts.cpu_indices,
        "contiguous": facts.layout is Layout.CONTIGUOUS,
        "idempotent": facts.idempotent,
        "float_statistics": facts.float_statistics,
        "judges_values": facts.judges_values,
        "sees_storage": facts.sees_storage,
    }
    yield from (f".{name} = true" for name, holds in flags.items() if holds)
    if facts.warning:
        yield f".warning = &{facts.warning}"


def formatted() -> str:
    """The file as it lies in the repository. Raises OSError without clang-format."""
    rows = {name: ", ".join(fields(facts)) for name, facts in FACTS.items()}
    lines = [f'{{"{name}", {{{row}}}}},' for name, row in rows.items() if row]
    tool = Path(sys.executable).parent / "clang-format"
    return subprocess.run(
        [tool, f"--assume-filename={TARGET}"],
        input=_HEAD + "\n".join(lines) + "\n" + _TAIL,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


if __name__ == "__main__":
    TARGET.write_text(formatted())
