# SPDX-License-Identifier: Apache-2.0
"""Programs that are called for several sizes: ``sizes((2, 0), (1, 3))`` says that all are called again with each size
``n`` of their leaves, 0 and 1 aside, as ``2 * n``, then as ``n + 3``.

Such a program is compiled with ``dynamic=True``, and for each of its sizes as a process would that finds the graphs of
others: Dynamo starts anew, and what was kept of compiled graphs serves it, if its guards hold.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Sequence

from torch import Tensor

from tools.fuzz.program import LEAF, Namespace, is_leaf, namespace, references, without
from tools.fuzz.state import evaluate

#: A factor and a term for each further size. Sums of sizes stay sums by factors, and differences by terms.
_CHANGES = (((2, 0), (3, 0)), ((1, 1), (1, 4)), ((1, 2), (2, 0)), ((3, 1), (1, 3)))
_LINE = "sizes("
_WHOLE = re.compile(r"(?<![\w.\[])([2-9]|[1-9]\d+)(?![\w.])")

Change = tuple[int, int]


def draw(numbers: random.Random) -> str:
    """A line that says for which other sizes a program is called."""
    return f"sizes{numbers.choice(_CHANGES)}"


def changes(lines: Sequence[str]) -> list[Change]:
    """How the sizes of a program change from call to call; those of the first do not."""
    own = [line for line in lines if line.startswith(_LINE)]
    return [(1, 0), *(ast.literal_eval(own[-1].removeprefix("sizes")) if own else ())]


def resized(line: str, change: Change) -> str:
    """A leaf of other sizes, which lies in memory as it did; any other line as it is."""
    if not is_leaf(line) or change == (1, 0):
        return line
    parts = LEAF.match(line)
    assert parts is not None, line
    size, stride = (ast.literal_eval(parts[name]) for name in ("size", "stride"))
    factor, term = change
    other = tuple(factor * n + term if n > 1 else n for n in size)
    return f"leaf({parts['dtype']}, {other}, {_strides(size, stride, other)}, {parts['offset']}, {parts['pattern']})"


def _strides(size: tuple[int, ...], stride: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Strides with which tensors of other sizes have the order and the gaps that those had. What overlaps keeps its
    strides."""
    found = list(stride)
    reach = reach_of_other = 1
    for dim in sorted(range(len(size)), key=lambda dim: (stride[dim], -dim)):
        if stride[dim] >= reach:
            found[dim] = stride[dim] - reach + reach_of_other
        reach += max(size[dim] - 1, 0) * stride[dim]
        reach_of_other += max(other[dim] - 1, 0) * found[dim]
    return tuple(found)


def symbolic(line: str, values: Namespace, numbers: random.Random) -> str:
    """The line with some of its whole numbers as sizes of its operands that are the same."""
    shapes = {name: values[name].shape for name in references(line) if isinstance(values.get(name), Tensor)}

    def size(match: re.Match[str]) -> str:
        found = [
            f"{name}.shape[{dim}]"
            for name, shape in shapes.items()
            for dim, n in enumerate(shape)
            if n == int(match[0])
        ]
        return numbers.choice(found) if found and numbers.random() < 0.6 else match[0]

    return _WHOLE.sub(size, line)


def fitting(lines: list[str]) -> list[str]:
    """The program without what the CPU does not take for one of its sizes, and what needs that."""
    dead: set[str] = set()
    for change in changes(lines):
        names = namespace("cpu")
        for place, line in enumerate(lines):
            if dead.intersection(references(line)) or f"v{place}" in dead:
                dead.add(f"v{place}")
                continue
            try:
                names[f"v{place}"] = evaluate(resized(line, change), names)
            except Exception:  # noqa: BLE001 - such a line is none for this size
                dead.add(f"v{place}")
    for place in sorted((int(name[1:]) for name in dead), reverse=True):
        lines = without(lines, place)
    return lines
