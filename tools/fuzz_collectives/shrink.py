# SPDX-License-Identifier: Apache-2.0
"""Makes a failing program small: fewer steps, then plainer ones, each tried in processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tools.fuzz_collectives.program import Program, Step

#: Whether a program still fails in the same way.
Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, trials: int = 120) -> Program:
    """The smallest program found that still fails. ``program`` must fail."""
    left = iter(range(trials))

    def check(candidate: Program) -> bool:
        return next(left, None) is not None and fails(candidate)

    program = _fewer_steps(program, check)
    program = _plainer(program, check)
    return _fewer_steps(program, check)


def _fewer_steps(program: Program, check: Fails) -> Program:
    """Drops runs of steps, long ones first, the last ones first."""
    length = len(program.steps) // 2
    while length >= 1:
        begin = len(program.steps) - length
        while begin >= 0:
            candidate = program.with_steps(program.steps[:begin] + program.steps[begin + length :])
            if candidate.steps and check(candidate):
                program = candidate
            begin = min(begin, len(program.steps)) - length
        length //= 2
    return program


def _plainer(program: Program, check: Fails) -> Program:
    """Makes one thing of one step plainer after the other, as long as that goes."""
    progress = True
    while progress:
        progress = False
        for index in range(len(program.steps)):
            for plain in _plain(program.steps[index]):
                steps = list(program.steps)
                steps[index] = plain
                candidate = program.with_steps(steps)
                if check(candidate):
                    program, progress = candidate, True
                    break
    return program


def _plain(step: Step) -> Iterator[Step]:
    """The same step, plainer in one way."""
    default = Step(step.number, step.kind)
    for name in ("late_rank", "part", "alias", "source", "ends", "layouts", "tail", "dtype", "reduction", "later"):
        if getattr(step, name) != getattr(default, name):
            yield replace(step, **{name: getattr(default, name)})
    for name in ("root", "several"):
        if getattr(step, name) > 1:
            yield replace(step, **{name: getattr(step, name) // 2})
    if len(step.rows) > 1:
        yield replace(step, rows=step.rows[:1])
    if len(step.layouts) > 1:
        yield replace(step, layouts=step.layouts[:1])
        yield replace(step, layouts=step.layouts[:2]) if len(step.layouts) > 2 else step
    for index, rows in enumerate(step.rows):
        for less in dict.fromkeys((2, rows // 2)):
            if 0 < less < rows:
                yield replace(step, rows=(*step.rows[:index], less, *step.rows[index + 1 :]))
