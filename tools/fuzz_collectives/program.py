# SPDX-License-Identifier: Apache-2.0
"""What a program is: steps that every rank knows, and the places in memory that they come to use."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Step:
    """One line. Whatever does not fit what is there when the line is reached gives way: a source that is missing or of
    another form becomes a new tensor, so that lines may be dropped and made smaller one by one.

    ``rows`` and ``layouts`` are those of the tensors in turn, from the beginning again where there are more tensors.
    """

    number: int
    kind: str
    group: tuple[int, ...] = ()
    dtype: str = "float32"
    rows: tuple[int, ...] = (3,)
    tail: tuple[int, ...] = ()
    layouts: tuple[str, ...] = ("rows",)
    reduction: str = "SUM"
    root: int = 0
    source: str = ""
    part: str = ""
    alias: bool = False
    several: int = 1
    later: bool = False
    refused: bool = False
    late_rank: int = -1
    ends: str = "wait"

    @property
    def root_rank(self) -> int:
        """The root, by its number in the world."""
        return self.group[self.root % len(self.group)]

    def rows_of(self, turn: int) -> int:
        """Rows of the tensor of this number."""
        return self.rows[turn % len(self.rows)]

    def shape(self, turn: int = 0, times: int = 1) -> tuple[int, ...]:
        """Shape of the tensor of this number, or of so many joined ones."""
        return (self.rows_of(turn) * times, *self.tail)

    def text(self) -> str:
        """The line as people read it: what differs from the defaults."""
        default = Step(self.number, self.kind)
        told = {
            f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(default, f.name)
        }
        return f"{self.number}: {self.kind}({', '.join(f'{name}={value}' for name, value in told.items())})"


@dataclass(frozen=True)
class Program:
    """Steps of so many ranks. ``seed`` decides the numbers in the tensors; ``nones``: some are none (NaN)."""

    seed: int
    ranks: int
    steps: tuple[Step, ...]
    nones: bool = False

    def to_json(self) -> str:
        """One line that :func:`from_json` reads."""
        steps = []
        for step in self.steps:
            default = asdict(Step(step.number, step.kind))
            required = ("number", "kind")
            steps.append({k: v for k, v in asdict(step).items() if k in required or v != default[k]})
        whole = {"seed": self.seed, "ranks": self.ranks, "nones": self.nones, "steps": steps}
        return json.dumps(whole, separators=(",", ":"))

    def with_steps(self, steps: Sequence[Step]) -> Program:
        """The same with other steps."""
        return replace(self, steps=tuple(steps))


def from_json(text: str) -> Program:
    """The program that ``to_json`` wrote."""
    read = json.loads(text)
    return Program(read["seed"], read["ranks"], tuple(_step(step) for step in read["steps"]), read.get("nones", False))


def _step(values: dict[str, Any]) -> Step:
    given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return Step(**given)


@dataclass(frozen=True)
class Piece:
    """A tensor on one rank: a place in one of its buffers."""

    buffer: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """The place behind its last element."""
        if not self.numel:
            return self.offset
        return self.offset + 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    def touches(self, other: Piece) -> bool:
        """Whether the two may share memory."""
        return self.buffer == other.buffer and self.offset < other.end and other.offset < self.end

    def flat(self, begin: int, end: int) -> Piece:
        """Some of its elements, which must have no gaps, in the order of memory."""
        return Piece(self.buffer, self.offset + begin, (end - begin,), (1,))


#: On each rank, by its number in the world, the tensors that a call is given.
Pieces = dict[int, list[Piece]]


@dataclass(frozen=True)
class Buffer:
    """Memory of one dtype: how many elements it has on each rank that has it."""

    dtype: str
    lengths: dict[int, int]


@dataclass(frozen=True)
class Call:
    """A step with the tensors that it reads and writes."""

    step: Step
    dtype: str
    inputs: Pieces
    outputs: Pieces

    def touched(self, rank: int) -> list[Piece]:
        """What it reads or writes on a rank."""
        return self.inputs.get(rank, []) + self.outputs.get(rank, [])
