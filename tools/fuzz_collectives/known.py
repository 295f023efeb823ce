# SPDX-License-Identifier: Apache-2.0
"""Defects that are known and open: programs that meet one are counted, and found no more.

What the definition leaves open is no defect. It stands with the kinds: in :meth:`Kind.undefined`, such as the tensor of
a rank that is not the root of ``reduce``, and in :meth:`Kind.is_exact`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.fuzz_collectives.program import Program


@dataclass(frozen=True)
class Defect:
    """``kinds``: those of a program's steps, all of which it must have; ``outcome``: how it ends."""

    kinds: frozenset[str]
    transport: str
    outcome: str
    reason: str


DEFECTS: tuple[Defect, ...] = ()


def defect_of(program: Program, transport: str, outcome: str) -> str:
    """The reason of the known defect that a program, made small, shows; or ''."""
    kinds = {step.kind for step in program.steps}
    for defect in DEFECTS:
        if defect.kinds <= kinds and (defect.transport, defect.outcome) == (transport, outcome):
            return defect.reason
    return ""
