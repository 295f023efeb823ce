# SPDX-License-Identifier: Apache-2.0
"""One rank: runs programs on the device beside their definition, and says where the two differ."""

from __future__ import annotations

import datetime
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor

from tools.fuzz_collectives import faults, numbers
from tools.fuzz_collectives.kinds import KINDS
from tools.fuzz_collectives.kinds.base import Place
from tools.fuzz_collectives.kinds.others import wait
from tools.fuzz_collectives.ordering import Action, Check, Renew, Wait, ordered
from tools.fuzz_collectives.program import Buffer, Call, Piece, Pieces, Program

#: Exit status of a rank that found something.
FOUND = 3


class Difference(Exception):
    """What the device has is not what the definition says."""


class Groups:
    """Process groups by their ranks, made once: all ranks ask for them in the same order."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], Any] = {}

    def make(self, program: Program) -> None:
        """Makes those of a program that are not there yet."""
        for step in program.steps:
            if step.group and step.group not in self._made:
                self._made[step.group] = self._new(step.group)

    def place(self, ranks: tuple[int, ...]) -> Place:
        """Where this rank is in a group of it."""
        return Place(self._made[ranks], ranks.index(dist.get_rank()), len(ranks))

    @staticmethod
    def _new(ranks: tuple[int, ...]) -> Any:
        if ranks == tuple(range(dist.get_world_size())):
            return dist.group.WORLD
        return dist.new_group(list(ranks), sort_ranks=False)


class Running:
    """A program that is being run. ``right`` are the buffers of all ranks as they are by definition."""

    def __init__(self, program: Program, buffers: Sequence[Buffer], groups: Groups, device: str) -> None:
        self._program, self._groups, self._buffers = program, groups, buffers
        self._me = dist.get_rank()
        self._works: dict[int, list[Any]] = {}
        self._calls: dict[int, Call] = {}
        self._last_writers: dict[int, list[Call]] = {}
        self._right = [
            {rank: self._new(count, each.dtype, index, rank) for rank, count in each.lengths.items()}
            for index, each in enumerate(buffers)
        ]
        self._mine = {i: by[self._me].to(device) for i, by in enumerate(self._right) if self._me in by}

    def _new(self, count: int, dtype: str, *place: int) -> Tensor:
        return numbers.new(count, dtype, self._program.seed, *place, nones=self._program.nones)

    def do(self, action: Action) -> None:
        """One thing after the other."""
        if isinstance(action, Call):
            self._call(action)
        elif isinstance(action, Wait):
            for work in self._works.pop(action.number, []):
                wait(work, action.how)
        elif isinstance(action, Renew):
            self._renew(action)
        else:
            self._check(action)

    def _call(self, call: Call) -> None:
        step = call.step
        if step.late_rank == self._me:
            time.sleep(0.001 * (step.number % 8 + 1))
        if self._me in step.group:
            if step.refused:
                return self._refused(call)
            works = self._run(call)
            if step.later:
                self._works[step.number] = works
            else:
                for work in works:
                    wait(work, step.ends)
        if not step.refused:
            self._define(call)
        return None

    def _run(self, call: Call) -> list[Any]:
        inputs, outputs = (self._views(pieces.get(self._me, [])) for pieces in (call.inputs, call.outputs))
        return KINDS[call.step.kind].run(self._groups.place(call.step.group), call, inputs, outputs)

    def _refused(self, call: Call) -> None:
        try:
            for work in self._run(call):
                work.wait()
        except ValueError as error:
            if "contiguous" not in str(error):
                raise
            return
        raise Difference(f"step {call.step.number}, {call.step.kind}, took a tensor with gaps")

    def _define(self, call: Call) -> None:
        """Computes what all ranks have now."""
        group = call.step.group
        inputs = [[self._view_of(rank, each).clone() for each in call.inputs.get(rank, [])] for rank in group]
        outputs = [[self._view_of(rank, each) for each in call.outputs.get(rank, [])] for rank in group]
        KINDS[call.step.kind].define(call, inputs, outputs)
        for piece in call.outputs.get(self._me, []):
            self._last_writers.setdefault(piece.buffer, []).append(call)

    def _view_of(self, rank: int, piece: Piece) -> Tensor:
        return self._right[piece.buffer][rank].as_strided(piece.shape, piece.stride, piece.offset)

    def _views(self, pieces: Sequence[Piece]) -> list[Tensor]:
        return [self._mine[each.buffer].as_strided(each.shape, each.stride, each.offset) for each in pieces]

    def _renew(self, action: Renew) -> None:
        mine = action.pieces.get(self._me, [])
        for view, piece in zip(self._views(mine), mine, strict=True):
            if action.compared != "none":
                self._compare(piece.buffer, view.cpu(), self._view_of(self._me, piece), action.compared == "close")
        self._renew_right(action.turn, action.pieces)
        for view, piece in zip(self._views(mine), mine, strict=True):
            view.copy_(self._view_of(self._me, piece))

    def _renew_right(self, turn: int, pieces: Pieces) -> None:
        for rank, some in pieces.items():
            for index, piece in enumerate(some):
                dtype = self._buffers[piece.buffer].dtype
                new = self._new(piece.numel, dtype, 1_000 + turn, index, rank)
                self._view_of(rank, piece).copy_(new.view(piece.shape))

    def _check(self, action: Check) -> None:
        for index, buffer in self._mine.items():
            if index not in action.busy:
                self._compare(index, buffer.cpu(), self._right[index][self._me])

    def _compare(self, index: int, actual: Tensor, right: Tensor, close: bool = False) -> None:
        """Raises Difference with what used the buffer."""
        text = numbers.difference(actual, right, close)
        if not text:
            return
        users = ", ".join(f"{call.step.number} {call.step.kind}" for call in self._last_writers.get(index, [])[-4:])
        places = sorted(
            {piece for call in self._last_writers.get(index, []) for piece in call.touched(self._me)
             if piece.buffer == index}, key=lambda piece: piece.offset
        )  # fmt: skip
        shown = "; ".join(f"{p.shape} strides {p.stride} at {p.offset}" for p in places[:4])
        raise Difference(f"buffer {index}, written by {users or 'nothing'}: {text}\n  tensors in it: {shown}")


def run(programs: Sequence[Program], say: Any, patience: float, fault: str = "") -> None:
    """Joins the group and runs the programs. Ends the process if one of them shows anything."""
    import outboard  # noqa: F401 - the device, which a process that forks ranks leaves out

    warnings.simplefilter("ignore")  # of functions that have new names, which are here for their old ones
    torch.set_num_threads(1)
    dist.init_process_group(timeout=datetime.timedelta(seconds=patience))
    device, groups = torch._C._get_privateuse1_backend_name(), Groups()
    with faults.seeded(fault):
        for index, program in enumerate(programs):
            actions, buffers = ordered(program)
            groups.make(program)
            running = Running(program, buffers, groups, device)
            for turn, action in enumerate(actions):
                say({"program": index, "at": turn, "what": _text(action)})
                try:
                    running.do(action)
                except Exception as error:
                    kind = "difference" if isinstance(error, Difference) else type(error).__name__
                    where = "" if kind == "difference" else "".join(traceback.format_exc()[-1500:])
                    say({"finding": kind, "program": index, "text": f"{_text(action)}: {error}", "trace": where})
                    sys.stderr.flush()
                    os._exit(FOUND)
    dist.barrier()
    say({"done": len(programs)})
    dist.destroy_process_group()


def _text(action: Action) -> str:
    if isinstance(action, Call):
        return action.step.text()
    return (
        f"wait for {action.number}" if isinstance(action, Wait) else f"look at what is there ({type(action).__name__})"
    )


class Speaker:
    """Writes what a rank says to a file, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def __call__(self, message: dict[str, Any]) -> None:
        self._file.write(json.dumps(message | {"time": time.time()}).encode() + b"\n")


def main(folder: Path, programs: Sequence[Program], patience: float, fault: str) -> None:
    """A rank whose number is in the environment; it writes to ``folder``, and threads' stacks at SIGUSR1."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    number = os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
    run(programs, Speaker(folder / f"rank{number}.jsonl"), patience, fault)


if __name__ == "__main__":
    from tools.fuzz_collectives.program import from_json

    place = Path(sys.argv[1])
    given = [from_json(line) for line in (place / "programs.jsonl").read_text().splitlines()]
    main(place, given, float(sys.argv[2]), sys.argv[3])
