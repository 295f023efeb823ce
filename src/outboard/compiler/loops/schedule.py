# SPDX-License-Identifier: Apache-2.0
"""What was decided about a nest: pure data, from which text follows without asking the device for anything.

``vector`` and ``simt`` decide, one for devices with explicit vectors, one for those of many short work-items. Values go
by their names, regions by their places in the nest. Equal schedules of a nest have equal texts.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import sympy

from .accesses import Accesses
from .nest import LoopKernel
from .splits import Split


@dataclasses.dataclass(frozen=True)
class Combination:
    """The launch that turns the partial results of a reduction in pieces into results.

    It takes the same arguments as the launch before it. The grid is empty if there is one piece only.
    ``scratch`` is the size in bytes of the memory for partial results.
    """

    grid: tuple[sympy.Expr, sympy.Expr]
    scratch: sympy.Expr
    local_size: tuple[int, int, int] = (1, 1, 1)

    def __str__(self) -> str:
        return f"{_grid(self.grid, self.local_size)}, {self.scratch} bytes"


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a kernel is launched, and the arguments that its outer loops take (``extra0`` and so on)."""

    grid: tuple[sympy.Expr, sympy.Expr]
    local_size: tuple[int, int, int] = (1, 1, 1)
    extra: tuple[sympy.Expr, ...] = ()

    @property
    def group(self) -> int:
        """Work-items of a work-group."""
        return self.local_size[0]

    def __str__(self) -> str:
        extra = f" with {', '.join(map(str, self.extra))}" if self.extra else ""
        return _grid(self.grid, self.local_size) + extra


@dataclasses.dataclass(frozen=True)
class Far:
    """A buffer whose vectors go past the caches where ``times`` is above 0: how often it holds what a cache does; None
    if that is known to be so."""

    buffer: str
    times: sympy.Expr | None

    def __str__(self) -> str:
        return self.buffer if self.times is None else f"{self.buffer} if {self.times}"


@dataclasses.dataclass(frozen=True)
class Stream:
    """A load that also asks for what comes ``elements`` later; None: as many as the last extra argument says."""

    load: str
    elements: int | None

    def __str__(self) -> str:
        return f"{self.load} + {'extra2' if self.elements is None else self.elements}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
    """How one loop of a reduction takes its terms."""

    #: Sums whose terms are added to partial sums, and these to the totals, exactly. ``tails`` are those of them that
    #: do so, too, with what is left of each of many short rows and fills no vector.
    in_parts: tuple[str, ...]
    tails: tuple[str, ...] = ()
    #: Terms that one accumulator takes before that, and that all of them do.
    each: int
    all: int
    #: Terms of the innermost loop, at most.
    block: int
    #: Vectors of a step.
    vectors: int = 1
    #: Values computed for all vectors of a step at once.
    together: tuple[str, ...] = ()
    #: Reductions that leave NaN to an accumulator of its own: an operation that keeps NaN is a chain of several, and
    #: each step would have to wait for the one before.
    apart: tuple[str, ...] = ()
    far: tuple[Far, ...] = ()
    #: Neighbouring terms of a work-item, whose loads ``packed``, and stores to buffers of ``packed``, are one access.
    pack: int = 1
    packed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"[{'; '.join(_decisions(self))}]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """What is decided for all devices. ``terms`` has an entry for each region, None for those that are no loop.

    With a ``combination``, the reduction is cut into pieces, each of which starts with a launch of its own.
    ``assumptions`` are conditions on sizes under which the schedule is the right choice; elsewhere it is only slow."""

    x: Split
    r: Split | None
    #: Entries in terms of the inner and outer indices of both.
    formulas: tuple[tuple[sympy.Symbol, sympy.Expr], ...] = dataclasses.field(repr=False)
    terms: tuple[Terms | None, ...]
    launch: Launch
    combination: Combination | None = None
    assumptions: tuple[sympy.Basic, ...] = ()

    @property
    def in_pieces(self) -> bool:
        """Whether several work-items, or work-groups, share each reduction."""
        return self.combination is not None

    def accesses(self, kernel: LoopKernel) -> Accesses:
        """The accesses of the nest that this is the schedule of."""
        return Accesses(kernel, self.x, self.r, dict(self.formulas))

    def __str__(self) -> str:
        """A line for each decision that is not the usual one."""
        return "\n  ".join([type(self).__name__, *_decisions(self)])


def _decisions(decided: Any) -> list[str]:
    """The fields of a dataclass, with what they are, but for those that are as usual."""
    values = {field: getattr(decided, field.name) for field in dataclasses.fields(decided) if field.repr}
    shown = {field.name: value for field, value in values.items() if value not in (field.default, ())}
    return [f"{name.replace('_', ' ')}: {_text(value)}" for name, value in shown.items()]


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    return str(value.value if isinstance(value, enum.Enum) else value)


def _grid(grid: tuple[sympy.Expr, sympy.Expr], local_size: tuple[int, int, int]) -> str:
    """Work-items, and how many of them are a work-group."""
    return f"{grid[0]} x {grid[1]} by {local_size[0]}"


class Order(enum.Enum):
    """What a work-item of a device with vectors goes through."""

    PIECE = "a piece of a reduction"
    POINTS = "points, one after another"
    CHUNKS = "a chunk of each of some rows"
    TILES = "tiles of some rows"


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorSchedule(Schedule):
    """For devices with explicit vectors: of ``lanes`` lanes along ``lane``, the inner index of ``x`` or ``r``."""

    order: Order
    lanes: int
    lane: sympy.Symbol | None
    #: Vectors of neighbouring columns that are reduced at once.
    columns: int = 1
    #: ``beside`` points go through each of several stages, lists of regions, before the next one, and values of
    #: ``kept`` wait for it. None: each point goes through all regions by itself.
    stages: tuple[tuple[int, ...], ...] = ()
    beside: int = 1
    kept: tuple[str, ...] = ()
    streams: tuple[Stream, ...] = ()
    #: Values computed once before each chunk.
    hoisted: tuple[str, ...] = ()
    #: Loads of looked-up rows, each of which is asked for ``rows_ahead`` rows before.
    looked_up: tuple[str, ...] = ()
    rows_ahead: int = 0
    far: tuple[Far, ...] = ()
    #: Rows of a tile, and loads that lie across them.
    tile: int = 0
    crossing: tuple[str, ...] = ()

    @property
    def along_terms(self) -> bool:
        """Whether vectors lie along the terms of reductions."""
        return self.r is not None and self.lane == self.r.inner


class Sharing(enum.Enum):
    """What takes the terms of one reduction, or of a piece of it."""

    ITEM = "item"
    SUB_GROUP = "sub-group"
    GROUP = "group"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimtSchedule(Schedule):
    """For devices of many short work-items."""

    sharing: Sharing
    #: Whether the second dimension of the grid counts rows, and whether items go on with rows behind those of the grid.
    by_rows: bool = False
    in_turn: bool = False
    #: Neighbouring points of an item, whose loads ``packed``, and stores to buffers of ``packed``, are one access each;
    #: ``hoisted`` are computed once for all of them.
    each: int = 1
    packed: tuple[str, ...] = ()
    hoisted: tuple[str, ...] = ()
    #: Points of a work-group of sub-groups, of ``sub_group`` items each (1: the device has none).
    points: int = 1
    sub_group: int = 1
    #: Results that meet at the same barrier.
    together: int = 1
