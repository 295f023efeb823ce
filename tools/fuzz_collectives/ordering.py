# SPDX-License-Identifier: Apache-2.0
"""What a rank does, one after the other: a program's calls, and between them the waits that make it a right program.

Collectives of one group that use the same memory come one after the other, though nobody waits between them. Everything
else that uses memory of what is under way has to wait for it: operators of the device, messages, other groups'
collectives. Numbers are replaced by new ones before they grow beyond what their dtype holds exactly, and where a result
is not exact, or not defined.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.fuzz_collectives import dtypes
from tools.fuzz_collectives.calls import place
from tools.fuzz_collectives.kinds import KINDS
from tools.fuzz_collectives.program import Buffer, Call, Piece, Pieces, Program


@dataclass(frozen=True)
class Wait:
    """For the call of this number, in one of the ways of ``Step.ends``."""

    number: int
    how: str


@dataclass(frozen=True)
class Renew:
    """New numbers for some tensors, which are compared before: exactly, closely or not at all."""

    turn: int
    pieces: Pieces
    compared: str


@dataclass(frozen=True)
class Check:
    """Compares all buffers but those that something under way uses, on each rank."""

    busy: frozenset[int]


Action = Call | Wait | Renew | Check
#: A call, those of its results that are not exact or not defined, and how they are compared.
Soft = tuple[Call, Pieces, str]


@dataclass
class _Order:
    buffers: list[Buffer]
    actions: list[Action] = field(default_factory=list)
    under_way: dict[int, Call] = field(default_factory=dict)
    soft: list[Soft] = field(default_factory=list)
    bounds: dict[int, int] = field(default_factory=dict)

    def add(self, call: Call) -> None:
        kind = call.step.kind
        if kind == "wait":
            if self.under_way:
                self.wait(list(self.under_way)[call.step.root % len(self.under_way)], call.step.ends)
            return
        if kind == "check":
            self.check()
            return
        self.keep_exact(call)
        for number in [n for n, earlier in self.under_way.items() if _must_wait(call, earlier)]:
            self.wait(number)
        self.actions.append(call)
        if not call.step.refused:
            self.note(call)

    def note(self, call: Call) -> None:
        """Remembers what a call does."""
        kind = KINDS[call.step.kind]
        bound = kind.growth(call, self.bound(call))
        for buffer in _buffers(call.outputs):
            self.bounds[buffer] = max(bound, self.bounds.get(buffer, dtypes.MOST))
        if call.step.later:
            self.under_way[call.step.number] = call
        undefined = kind.undefined(call)
        if undefined:
            self.soft.append((call, undefined, "none"))
        if not kind.is_exact(call):
            rounded = {rank: pieces for rank, pieces in call.outputs.items() if rank not in undefined}
            self.soft.append((call, rounded, "close"))

    def bound(self, call: Call) -> int:
        """How great the numbers are that a call reads."""
        return max((self.bounds.get(buffer, dtypes.MOST) for buffer in _buffers(call.inputs)), default=0)

    def wait(self, number: int, how: str = "") -> None:
        """Waits for a call, as it says itself where nothing else is asked for."""
        call = self.under_way.pop(number)
        self.actions.append(Wait(number, how or call.step.ends))

    def keep_exact(self, call: Call) -> None:
        """Replaces numbers that the call could not compute with exactly."""
        self.harden(call.inputs, call.outputs)
        if KINDS[call.step.kind].growth(call, self.bound(call)) <= dtypes.limit(call.dtype):
            return
        for buffer in _buffers(call.inputs):
            lengths = self.buffers[buffer].lengths
            whole = {rank: [Piece(buffer, 0, (length,), (1,))] for rank, length in lengths.items()}
            self.harden(whole)
            self.renew(whole, "exactly")
            self.bounds[buffer] = dtypes.MOST

    def harden(self, *touched: Pieces) -> None:
        """Replaces numbers of these tensors that are not exact or not defined."""
        for entry in list(self.soft):
            if any(_meet(entry[1], pieces) for pieces in touched):
                self.harden_one(entry)

    def harden_one(self, entry: Soft) -> None:
        """Replaces such numbers when the call that made them is done."""
        call, pieces, compared = entry
        self.soft.remove(entry)
        if call.step.number in self.under_way:
            self.wait(call.step.number)
        self.renew(pieces, compared)

    def renew(self, pieces: Pieces, compared: str) -> None:
        """Gives tensors new numbers when nothing under way uses them."""
        for number in [n for n, call in self.under_way.items() if _meet(pieces, call.inputs, call.outputs)]:
            self.wait(number)
        self.actions.append(Renew(len(self.actions), pieces, compared))

    def check(self) -> None:
        """Compares what can be compared."""
        for entry in list(self.soft):
            self.harden_one(entry)
        busy = {buffer for call in self.under_way.values() for buffer in _buffers(call.inputs) | _buffers(call.outputs)}
        self.actions.append(Check(frozenset(busy)))


def ordered(program: Program) -> tuple[list[Action], list[Buffer]]:
    """Everything that ranks do for a program, with a last look at everything, and the buffers that they need."""
    calls, buffers = place(program)
    order = _Order(buffers)
    for call in calls:
        order.add(call)
    for number in sorted(order.under_way, key=lambda number: (number * 7919 + program.seed) % 101):
        order.wait(number)
    order.check()
    return order.actions, buffers


def _must_wait(call: Call, earlier: Call) -> bool:
    if not _conflict(call, earlier):
        return False
    kinds = [KINDS[each.step.kind] for each in (call, earlier)]
    in_order = call.step.group == earlier.step.group and not any(kind.is_local or kind.is_message for kind in kinds)
    return not in_order


def _conflict(call: Call, earlier: Call) -> bool:
    """Whether the two use the same memory on some rank, of which one writes."""
    return _meet(call.outputs, earlier.inputs, earlier.outputs) or _meet(call.inputs, earlier.outputs)


def _meet(these: Pieces, *those: Pieces) -> bool:
    return any(
        one.touches(other)
        for rank, pieces in these.items()
        for one in pieces
        for some in those
        for other in some.get(rank, [])
    )


def _buffers(pieces: Pieces) -> set[int]:
    return {piece.buffer for some in pieces.values() for piece in some}
