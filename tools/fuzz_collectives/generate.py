# SPDX-License-Identifier: Apache-2.0
"""Draws programs from a seed."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

from tools.fuzz_collectives import dtypes
from tools.fuzz_collectives.kinds import KINDS
from tools.fuzz_collectives.placing import DENSE
from tools.fuzz_collectives.program import Program, Step

_ROWS = (0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 64, 129)
_TAILS: tuple[tuple[int, ...], ...] = ((), (), (3,), (4,), (2, 3), (5, 2), (2, 3, 4), (1,), (0,))
#: What is longer goes in parts.
_PART = 4 << 20
#: Kinds that may get a tensor with gaps on all ranks, and have to refuse it.
_REFUSING = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all",
             "all_to_all_single", "gather", "scatter", "reduce", "reduce_scatter")  # fmt: skip


class Generator:
    """Draws the steps of one program."""

    def __init__(self, seed: int, ranks: int, match: str = "", long: float = 0.01) -> None:
        self._random = random.Random(f"collectives {seed} {ranks}")
        self._ranks, self._long, self._seed = ranks, long, seed
        names = [name for name in KINDS if not match or match in name or KINDS[name].is_local]
        self._kinds = names, [KINDS[name].weight for name in names]
        world = tuple(range(ranks))
        parts = [p for n in range(1, ranks) for p in itertools.permutations(world, n)]
        self._groups = [world] * 4 + [world[::-1]] + self._random.sample(parts, min(3, len(parts)))
        self._favourites = self._random.choices(dtypes.REDUCED, k=2) + [self._random.choice(dtypes.MOVED)]
        self._eager = self._random.random() < 0.3

    def program(self, length: int) -> Program:
        """A program of so many steps."""
        return Program(self._seed, self._ranks, tuple(self._step(number) for number in range(length)))

    def _step(self, number: int) -> Step:
        draw = self._random
        names, weights = self._kinds
        kind = draw.choices(names, weights)[0]
        if self._eager and draw.random() < 0.2:
            kind = "check"
        refused = kind in _REFUSING and draw.random() < 0.02
        step = Step(
            number,
            kind,
            group=draw.choice([g for g in self._groups if len(g) > 1 or not KINDS[kind].is_message]),
            dtype=self._dtype(kind),
            rows=tuple(draw.choice(_ROWS) for _ in range(draw.choice((1, 1, 2, 3, 5)))),
            tail=draw.choice(_TAILS),
            layouts=tuple(draw.choice(DENSE) for _ in range(draw.choice((1, 3, 5, 7)))),
            reduction=draw.choice(dtypes.REDUCTIONS),
            root=draw.randrange(8),
            source=self._source(number),
            part=draw.choice(("", "", "", "front", "back", "middle")),
            alias=draw.random() < 0.2,
            several=draw.choice((1, 2, 2, 3, 5)),
            later=KINDS[kind].may_be_later and not refused and draw.random() < 0.55,
            refused=refused,
            late_rank=draw.randrange(self._ranks) if draw.random() < 0.08 else -1,
            ends=draw.choice(("wait", "wait", "wait", "future", "poll")),
        )  # fmt: skip
        return self._lengthened(step) if draw.random() < self._long else step

    def _dtype(self, kind: str) -> str:
        fitting = [dtype for dtype in self._favourites if dtype in KINDS[kind].dtypes]
        if fitting and self._random.random() < 0.7:
            return self._random.choice(fitting)
        return self._random.choice(KINDS[kind].dtypes)

    def _source(self, number: int) -> str:
        """An earlier tensor, rather one of the last ones; or a new one."""
        if number == 0 or self._random.random() < 0.35:
            return ""
        back = min(number, int(self._random.expovariate(0.4)) + 1)
        return f"{number - back}.{self._random.choice(('in', 'out', 'out'))}"

    def _lengthened(self, step: Step) -> Step:
        """With tensors about as long as a part, or longer."""
        tail = step.tail if 0 not in step.tail else ()
        count = _PART // dtypes.ITEM_SIZES[step.dtype] // math.prod(tail)
        rows = (count, count - 1, count + 1, count * 2 + 1, count // len(step.group) + 1, 3)
        chosen = tuple(self._random.choice(rows) for _ in step.rows[:3])
        return replace(step, rows=chosen, tail=tail, several=min(step.several, 2))


def draw(seed: int, ranks: int, length: int, match: str = "", long: float = 0.01, nones: bool = True) -> Program:
    """The program of a seed, the same wherever it is drawn. ``match``: only collectives whose names contain it.
    ``long``: the share of steps with tensors that go in parts. ``nones``: every third program has numbers that are
    none."""
    return replace(Generator(seed, ranks, match, long).program(length), nones=nones and seed % 3 == 0)
