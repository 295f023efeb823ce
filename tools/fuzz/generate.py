# SPDX-License-Identifier: Apache-2.0
"""Makes programs: chooses operators, and for each of them operands among the values there are, or new ones.

Compiling a new kind of call costs a hundred times what running it does. So what decides the kind - dtypes, ranks,
layouts with the order of dimensions in memory, which dimensions are 1 or 0, constants - comes from one of a few fixed
streams per operator and epoch, and only sizes, values and the choice of operands are free.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tools.fuzz.program import Namespace
from tools.fuzz.state import evaluate

FLOAT = ("float32", "float32", "float64", "float16", "bfloat16", "complex64", "complex64")
HALVES = ("float16", "bfloat16")
INT = ("int64", "int32", "int16", "int8", "uint8")
ANY = (*FLOAT, *INT, "bool")
NUMBER = (*FLOAT, *INT)
LAYOUTS = ("dense",) * 6 + ("permuted",) * 3 + ("gaps", "expanded", "offset", "offset")
_SIZES = (1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 16, 17, 19, 33)
_MOST_ELEMENTS = 3000
#: Extremes are given to operators that ask for no tame values, and to those not often.
_EXTREMES = (float("nan"), float("inf"), float("-inf"), 3e4, -6e4, 1e-6, -1e-30, 1e30)


class Refused(Exception):
    """The operator cannot be drawn now, for example because there is no fitting shape."""


@dataclass(frozen=True)
class Places:
    """How elements lie in memory: dimensions from the outermost to the innermost, the step between neighbours, the
    dimension along which they are the same ones, and the place of the first."""

    order: tuple[int, ...]
    step: int
    expanded: int | None
    offset: int

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The strides of a tensor of this shape."""
        stride, step = [0] * len(shape), self.step
        for dim in reversed(self.order):
            stride[dim] = step
            step *= max(shape[dim], 1)
        if self.expanded is not None:
            stride[self.expanded] = 0
        return tuple(stride)

    def hold(self, value: Tensor) -> bool:
        """Whether a tensor lies so, as far as a compiler tells layouts apart: in the same order, with or without gaps,
        with the same dimensions expanded."""
        return _kind_of_layout(value.shape, value.stride()) == _kind_of_layout(value.shape, self.strides(value.shape))


def _kind_of_layout(shape: Sequence[int], strides: Sequence[int]) -> tuple[bool, list[tuple[int, int]]]:
    """Whether there are gaps, and of each dimension in the order in memory which it is and its stride if that is 0 or
    1. Dimensions of one index do not count."""
    moving = [dim for dim, size in enumerate(shape) if size != 1]
    moving.sort(key=lambda dim: (-strides[dim], -shape[dim]))
    reach = 1 + sum((shape[dim] - 1) * strides[dim] for dim in moving)
    return reach > math.prod(shape), [(dim, min(strides[dim], 2)) for dim in moving]


class Generator:
    """Draws lines. ``emit`` runs a line on both sides and gives its CPU value; ``values`` are the CPU's."""

    def __init__(self, seed: int, epoch: int, emit: Callable[[str], Any], values: Namespace, variants: int) -> None:
        self.free = random.Random(f"program {seed}")
        self.kind = random.Random(0)
        self.pool: list[str] = []
        self.sizes = [self.free.choice(_SIZES[1:]) for _ in range(3)]
        self._epoch, self._emit, self._values, self._variants = epoch, emit, values, variants

    def begin(self, operator: str) -> str:
        """Chooses the variant of the operator that is drawn next; returns its name."""
        name = f"{self._epoch} {operator} {self.free.randrange(self._variants)}"
        self.kind = random.Random(name)
        return name

    def pick(self, options: Sequence[Any]) -> Any:
        """One of ``options``, as part of the kind of the call."""
        return self.kind.choice(options)

    def chance(self, share: float) -> bool:
        """True in this share of the kinds."""
        return self.kind.random() < share

    def value(self, name: str) -> Tensor:
        """The CPU's tensor of that name."""
        base, _, index = name.partition("[")
        found = self._values[base][int(index[:-1])] if index else self._values[base]
        assert isinstance(found, Tensor)
        return found

    def evaluate(self, line: str) -> Any:
        """The CPU's value of a line that is not one of the program's."""
        return evaluate(line, self._values)

    def add(self, name: str, result: Any) -> None:
        """Makes the tensors of a line's result operands of later lines."""
        if isinstance(result, Tensor):
            self.pool.append(name)
        elif isinstance(result, (tuple, list)):
            self.pool += [f"{name}[{i}]" for i, x in enumerate(result) if isinstance(x, Tensor)]

    def tensor(
        self,
        dtypes: Sequence[str] = ANY,
        ranks: Sequence[int] = (0, 1, 1, 2, 2, 2, 3, 3, 4),
        *,
        shape: Sequence[int] | None = None,
        tame: bool = False,
        limits: tuple[float, float] | None = None,
        layout: str | None = None,
        empty: bool = True,
    ) -> str:
        """The name of an operand: of ``shape`` or of one of ``ranks``, with values within ``limits`` (low, high)."""
        dtype = self.pick(dtypes)
        rank = self.pick(ranks)
        pattern = [self.kind.choice("nnnnnnnnnnnnnnnnnnn1") for _ in range(6)]
        if empty and self.chance(0.04):
            pattern[self.kind.randrange(6)] = "0"
        layout = layout or self.pick(LAYOUTS)
        wild = self.chance(0.25)
        places = self._places(rank if shape is None else len(shape), layout)
        if shape is None:
            found = self._find(dtype, pattern[:rank], places, tame or limits is not None)
            if found:
                return found
            shape = [self.size() if p == "n" else int(p) for p in pattern[:rank]]
            while torch.Size(shape).numel() > _MOST_ELEMENTS:
                shape = [n // 2 if n > 3 else n for n in shape]
        elif limits is None and not tame:
            found = self._find_shape(dtype, list(shape), places)
            if found:
                return found
        return self._leaf(dtype, shape, places, tame or not wild, limits)

    def size(self) -> int:
        """A size of a dimension: mostly one of the few of this program, so that shapes meet."""
        return self.free.choice(self.sizes) if self.free.random() < 0.85 else self.free.choice(_SIZES[1:])

    def leaf(
        self, dtype: str, shape: Sequence[int], layout: str, tame: bool, limits: tuple[float, float] | None = None
    ) -> str:
        """A new tensor."""
        return self._leaf(dtype, shape, self._places(len(shape), layout), tame, limits)

    def _leaf(
        self, dtype: str, shape: Sequence[int], places: Places, tame: bool, limits: tuple[float, float] | None
    ) -> str:
        stride, offset = places.strides(shape), places.offset
        numbers = self._numbers(dtype, tame, limits)
        line = f"leaf(torch.{dtype}, {tuple(shape)}, {tuple(stride)}, {offset}, {numbers})"
        return self.line(line)

    def line(self, line: str) -> str:
        """Runs a preparatory line and returns the name of its value."""
        name, result = self._emit(line)
        self.add(name, result)
        return str(name)

    def _find(self, dtype: str, pattern: list[str], places: Places, tame: bool) -> str | None:
        if self.free.random() < 0.2:
            return None
        candidates = [
            name
            for name, value in self._recent()
            if value.dim() == len(pattern)
            and str(value.dtype) == f"torch.{dtype}"
            and [str(n) if n < 2 else "n" for n in value.shape] == pattern
            and places.hold(value)
            and value.numel() <= _MOST_ELEMENTS
            and not (tame and not is_tame(value))
        ]
        return self.free.choice(candidates) if candidates else None

    def _find_shape(self, dtype: str, shape: list[int], places: Places) -> str | None:
        if self.free.random() < 0.2:
            return None
        candidates = [
            name
            for name, value in self._recent()
            if list(value.shape) == shape and str(value.dtype) == f"torch.{dtype}" and places.hold(value)
        ]
        return self.free.choice(candidates) if candidates else None

    def _recent(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self.value(name)) for name in self.pool[-40:])

    def _places(self, rank: int, layout: str) -> Places:
        """How the elements of a new operand lie: chosen as part of the kind of the call."""
        order = list(range(rank))
        if layout == "permuted":
            usual = [0, *order[2:], 1] if rank >= 4 else order[:-2] + order[-2:][::-1]
            order = usual if self.chance(0.6) else self.kind.sample(order, rank)
        expanded = self.kind.randrange(rank) if layout == "expanded" and rank else None
        return Places(tuple(order), 2 if layout == "gaps" else 1, expanded, 3 if layout == "offset" else 0)

    def _numbers(self, dtype: str, tame: bool, limits: tuple[float, float] | None) -> list[Any]:
        count = self.free.choice((1, 5, 7, 11, 13, 23))
        if dtype == "bool":
            return [self.free.random() < 0.5 for _ in range(count)]
        if dtype in INT:
            return self._integers(dtype, count, tame, limits)
        if dtype.startswith("complex"):
            parts = (self._numbers("float32", True, limits) for _ in range(2))
            return [complex(*pair) for pair in zip(*parts, strict=False)]
        low, high = limits or (-3.0, 3.0)
        numbers = [round(self.free.uniform(low, high), 3) for _ in range(count)]
        if limits is None and not tame and dtype in HALVES and self.free.random() < 0.3:
            return self._patterns(dtype, count)
        if limits is None:
            special = (0.0, -0.0, 0.5, 1.0, -1.0, 2.5) + (() if tame else _EXTREMES)
            numbers = [self.free.choice(special) if self.free.random() < 0.3 else number for number in numbers]
        return numbers

    def _patterns(self, dtype: str, count: int) -> list[float]:
        """Elements of any bits: of all exponents, subnormal ones, NaN and infinities."""
        bits = [self.free.randrange(-(2**15), 2**15) for _ in range(count)]
        numbers: list[float] = torch.tensor(bits, dtype=torch.int16).view(getattr(torch, dtype)).tolist()
        return numbers

    def _integers(self, dtype: str, count: int, tame: bool, limits: tuple[float, float] | None) -> list[Any]:
        info = torch.iinfo(getattr(torch, dtype))
        low, high = limits or (-9, 20)
        low, high = max(int(low), info.min), min(int(high), info.max)
        numbers = [self.free.randint(low, max(high, low)) for _ in range(count)]
        if limits is None and not tame:
            numbers = [
                self.free.choice((info.min, info.max)) if self.free.random() < 0.1 else number for number in numbers
            ]
        return numbers


def is_tame(value: Tensor) -> bool:
    """Whether all numbers are finite and small enough to be converted to any dtype."""
    return value.dtype == torch.bool or bool((value.abs() <= 100).all())
