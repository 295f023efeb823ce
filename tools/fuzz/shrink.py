# SPDX-License-Identifier: Apache-2.0
"""Makes a failing program small: fewer lines, then smaller shapes, then plainer numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from torch import Tensor

from tools.fuzz.program import LEAF, is_leaf, leaf_line, namespace, references, tensors, without

#: Whether a program still fails in the same way.
Fails = Callable[[list[str]], bool]
_MOST_TRIALS = 80


def alone(line: str, operands: dict[str, list[Tensor] | Tensor], states: list[str]) -> list[str]:
    """The program of ``line`` with leaves for operands, under the state that the lines ``states`` make."""
    lines = states[:]
    names: dict[str, str] = {}
    for name in references(line):
        values = operands[name]
        if isinstance(values, Tensor):
            names[name] = f"v{len(lines)}"
            lines.append(leaf_line(values))
            continue
        for part in sorted(set(re.findall(rf"\b{name}\[(\d+)\]", line))):
            lines.append(leaf_line(tensors(values)[int(part)]))
            names[f"{name}[{part}]"] = f"v{len(lines) - 1}"
    for name in sorted(names, key=len, reverse=True):
        line = re.sub(rf"\b{re.escape(name)}(?!\d)", names[name].replace("v", "<>"), line)
    return [*lines, line.replace("<>", "v")]


def shrink(lines: list[str], fails: Fails) -> list[str]:
    """The smallest program found that still fails. ``lines`` must fail."""
    trials = iter(range(_MOST_TRIALS))

    def check(candidate: list[str]) -> bool:
        return next(trials, None) is not None and fails(candidate)

    lines = _fewer_lines(lines, check)
    for candidates in (_smaller, _plainer):
        progress = True
        while progress:
            progress = False
            for candidate in candidates(lines):
                if check(candidate):
                    lines, progress = candidate, True
                    break
    return lines


def _fewer_lines(lines: list[str], check: Fails) -> list[str]:
    """Drops lines that no later line uses, last first."""
    index = len(lines) - 2
    while index >= 0:
        used = any(f"v{index}" in references(line) for line in lines[index + 1 :])
        if not used and check(without(lines, index)):
            lines = without(lines, index)
            index = min(index, len(lines) - 1)
        index -= 1
    return lines


def _smaller(lines: list[str]) -> Iterator[list[str]]:
    """Programs in which one size is smaller everywhere, densely laid out or as it was."""
    sizes = sorted({n for line in lines if is_leaf(line) for n in _parts(line)[1]}, reverse=True)
    for size in sizes:
        for less in dict.fromkeys((1, 2, size // 2, size - 1)):
            if 0 < less < size:
                yield [_resized(line, size, less) for line in lines]
    for index, line in enumerate(lines):
        if is_leaf(line):
            dtype, shape, stride, offset, pattern = _parts(line)
            dense = _dense(shape)
            if stride != dense or offset:
                yield [*lines[:index], _leaf(dtype, shape, dense, 0, pattern), *lines[index + 1 :]]


def _plainer(lines: list[str]) -> Iterator[list[str]]:
    """Programs in which one leaf holds fewer different numbers."""
    for index, line in enumerate(lines):
        if not is_leaf(line):
            continue
        dtype, shape, stride, offset, pattern = _parts(line)
        half = len(pattern) // 2
        plain = [pattern[:half], pattern[half:]] if half else []
        for other in [[1], *([x] for x in pattern[:12]), *plain] if len(pattern) > 1 else []:
            yield [*lines[:index], _leaf(dtype, shape, stride, offset, other), *lines[index + 1 :]]


def _parts(line: str) -> tuple[str, list[int], list[int], int, list[object]]:
    match = LEAF.match(line)
    assert match, line
    size, stride, pattern = (eval(match[key], namespace("cpu")) for key in ("size", "stride", "pattern"))  # noqa: S307
    return match["dtype"], list(size), list(stride), int(match["offset"]), pattern


def _leaf(dtype: str, size: list[int], stride: list[int], offset: int, pattern: list[object]) -> str:
    return f"leaf({dtype}, {tuple(size)}, {tuple(stride)}, {offset}, {pattern})"


def _dense(size: list[int]) -> list[int]:
    stride, step = [0] * len(size), 1
    for dim in reversed(range(len(size))):
        stride[dim] = step
        step *= max(size[dim], 1)
    return stride


def _resized(line: str, size: int, less: int) -> str:
    if not is_leaf(line):
        return re.sub(rf"(?<![\w.]){size}(?![\w.])", str(less), line)
    dtype, shape, stride, offset, pattern = _parts(line)
    smaller = [less if n == size else n for n in shape]
    if stride == _dense(shape):
        stride = _dense(smaller)
    return _leaf(dtype, smaller, stride, offset, pattern)
