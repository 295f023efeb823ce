# SPDX-License-Identifier: Apache-2.0
"""The calls of a program: its steps with the tensors that they come to have."""

from __future__ import annotations

from dataclasses import replace

from tools.fuzz_collectives.kinds import KINDS
from tools.fuzz_collectives.placing import REFUSED, Placer, is_dense
from tools.fuzz_collectives.program import Buffer, Call, Pieces, Program


def place(program: Program) -> tuple[list[Call], list[Buffer]]:
    """The program's calls with their tensors, and the buffers that these are in."""
    placer, calls = Placer(), []
    for step in program.steps:
        placer.begin()
        call = KINDS[step.kind].place(placer, step)
        if step.refused:
            call = _with_gaps(placer, call)
        if not call.step.refused:
            placer.keep(call)
        calls.append(call)
    return calls, placer.buffers


def _with_gaps(placer: Placer, call: Call) -> Call:
    """The call with a first tensor that has gaps or elements that are in it more than once, on every rank; or, where
    that cannot be, as one that is not refused."""
    which = "inputs" if all(call.inputs.get(rank) for rank in call.step.group) else "outputs"
    pieces: Pieces = getattr(call, which)
    shapes = {rank: pieces[rank][0].shape for rank in call.step.group if pieces.get(rank)}
    spoiling = replace(call.step, layouts=(REFUSED[call.step.root % 2],))
    new = placer.new(spoiling, call.dtype, shapes)
    if len(call.step.group) < 2 or len(new) < len(call.step.group) or any(is_dense(piece) for piece in new.values()):
        return replace(call, step=replace(call.step, refused=False))
    spoilt = {rank: [new[rank], *pieces[rank][1:]] for rank in call.step.group}
    if call.inputs is call.outputs:
        return replace(call, inputs=spoilt, outputs=spoilt)
    return replace(call, inputs=spoilt) if which == "inputs" else replace(call, outputs=spoilt)
