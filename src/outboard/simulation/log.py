# SPDX-License-Identifier: Apache-2.0
"""What the simulator's clock wrote down (csrc/drivers/sim/clock.h), as a timeline."""

from __future__ import annotations

from typing import cast

import torch

from outboard.simulation.chip import Chip
from outboard.simulation.steps import Engine, Step
from outboard.simulation.timeline import Timed, Timeline, bound_of


def read(log: str, device: int, chip: Chip) -> Timeline:
    """A device's part of a log, from the beginning of its first work on."""
    lines = [line.split("\t") for line in log.splitlines()]
    own = [words for number, *words in lines if number == str(device)]
    works = [words for words in own if words[0] != "memory"]
    begin = min((int(words[1]) for words in works), default=0)
    memory = [(max(0.0, (int(when) - begin) / 1e9), int(size)) for kind, when, size, *_ in own if kind == "memory"]
    return Timeline(chip, [_timed(words, begin, chip) for words in works], memory)


def _timed(words: list[str], begin: int, chip: Chip) -> Timed:
    engine, first, last, dtype, flops, read_bytes, written, name = words
    step = Step(
        operators=tuple(name.split(" + ")),
        engine=cast(Engine, engine),
        dtype=cast(torch.dtype, getattr(torch, dtype)),
        flops=int(flops),
        read=int(read_bytes),
        written=int(written),
        needs=frozenset(),
        makes=0,
        frees=0,
    )
    return Timed(step, (int(first) - begin) / 1e9, (int(last) - begin) / 1e9, bound_of(step, chip))
