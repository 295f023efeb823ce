# SPDX-License-Identifier: Apache-2.0
"""What is left of a function's operators after fusion: steps, and the bytes that each moves.

An operator joins the step that made its last operand if both go over the same elements, and nothing between the two
stands in the way: what works element by element joins any other, as epilogues of products do; sums, norms and the like
join what is no product. None joins a step that would have to wait for a copy or a collective then. A tensor that only
its own step touches never comes to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

import torch

from outboard.simulation.recording import Count, Operation, Record, most

Engine = Literal["compute", "upload", "download", "link", "host"]


@dataclass(frozen=True)
class Step:
    """Operators that run as one.

    Attributes:
        operators: their names, in order.
        engine: "compute"; "upload" and "download", copies from and to the host; "link", a collective; "host", an
            operator that the device lacks.
        dtype: of the product in it, else of the first operand.
        flops: operations of products.
        read, written: bytes.
        needs: places of the steps that have to be done before.
        makes, frees: bytes of memory that is there from its beginning on, and no longer after its end.
    """

    operators: tuple[str, ...]
    engine: Engine
    dtype: torch.dtype
    flops: Count
    read: Count
    written: Count
    needs: frozenset[int]
    makes: Count
    frees: Count

    @property
    def moved(self) -> Count:
        """Bytes that it reads and writes."""
        return self.read + self.written

    @property
    def name(self) -> str:
        """Its operators in a line."""
        return " + ".join(name.rpartition("::")[2] for name in self.operators)


def fuse(record: Record, has: Callable[[str, torch.dtype], bool], fused: bool = True) -> tuple[Step, ...]:
    """The steps of a function on a device that ``has`` some operators; one for each operator without ``fused``."""
    groups = _groups(record, has, fused)
    places = {group: place for place, group in enumerate(groups)}
    users: dict[int, list[int]] = {}  # of each memory, the groups that touch it, in order
    for group, place in places.items():
        for number in group.touched():
            users.setdefault(number, []).append(place)
    passing = {number for number, those in users.items() if len(those) > 1} | record.given | record.kept
    makes: list[Count] = [0] * len(groups)
    frees: list[Count] = [0] * len(groups)
    for number in (passing - record.given) & users.keys():
        makes[users[number][0]] += record.sizes[number]
        if number not in record.kept:
            frees[users[number][-1]] += record.sizes[number]
    return tuple(
        group.step(passing, frozenset(places[one.now()] for one in group.needs), makes[place], frees[place])
        for group, place in places.items()
    )


@dataclass(eq=False)
class _Group:
    engine: Engine
    size: Count
    operations: list[Operation] = field(default_factory=list)
    needs: set[_Group] = field(default_factory=set)
    needed_by: set[_Group] = field(default_factory=set)
    into: _Group | None = None  # the group that has its operations now

    def now(self) -> _Group:
        group = self
        while group.into is not None:
            group = group.into
        return group

    def need(self, others: Set[_Group]) -> None:
        for other in others - {self}:
            self.needs.add(other)
            other.needed_by.add(self)

    def multiplies(self) -> bool:
        return any(one.kind == "product" for one in self.operations)

    def takes(self, operation: Operation) -> bool:
        """Whether an operator of the device's can join."""
        if self.engine != "compute" or operation.size != self.size:
            return False
        return operation.kind == "pointwise" or (operation.kind == "other" and not self.multiplies())

    def touched(self) -> set[int]:
        return {number for one in self.operations for number in (*one.reads, *one.writes)}

    def absorb(self, other: _Group) -> None:
        self.operations[:0] = other.operations
        self.needs.discard(other)
        self.need(other.needs)
        self.needed_by |= other.needed_by - {self}
        other.into = self

    def step(self, passing: Set[int], needs: frozenset[int], makes: Count, frees: Count) -> Step:
        read: dict[int, Count] = {}
        written: dict[int, Count] = {}
        for one in self.operations:
            _widen(read, {number: size for number, size in one.reads.items() if number not in written})
            _widen(written, one.writes)
        first = next((one for one in self.operations if one.kind == "product"), self.operations[0])
        return Step(
            operators=tuple(one.name for one in self.operations),
            engine=self.engine,
            dtype=first.dtype,
            flops=sum(one.flops for one in self.operations),
            read=sum(read.values()),
            written=sum(size for number, size in written.items() if number in passing),
            needs=needs,
            makes=makes,
            frees=frees,
        )


def _groups(record: Record, has: Callable[[str, torch.dtype], bool], fused: bool) -> list[_Group]:
    groups: dict[_Group, int] = {}  # with the place of the operation that each began with
    made: dict[int, _Group] = {}  # of each memory, the group that wrote it last
    used: dict[int, list[_Group]] = {}  # and those that touched it since
    for place, operation in enumerate(record.operations):
        before = {made[number].now() for number in operation.reads if number in made}
        before |= {group.now() for number in operation.writes for group in used.get(number, ())}
        home = max(before, key=groups.__getitem__, default=None)
        engine = _engine(operation, has)
        others = {group for group in before if group.engine != "compute"}
        if not fused or home is None or engine != "compute" or not home.takes(operation) or others - home.needs:
            home = _Group(engine, operation.size)
            groups[home] = place
        home.operations.append(operation)
        home.need(before)
        for number in operation.reads:
            used.setdefault(number, []).append(home)
        for number in operation.writes:
            made[number] = home
            used[number] = [home]
        for other in sorted(before - {home}, key=groups.__getitem__, reverse=True):
            if fused and _can_wait(other, home, groups):
                home.absorb(other)
                del groups[other]
    return list(groups)


def _can_wait(group: _Group, other: _Group, groups: Mapping[_Group, int]) -> bool:
    """Whether a group may run with a later one, which needs it: no other group needs it, and it is of the same kind."""
    if group.engine != "compute" or other.engine != "compute" or group.size != other.size or group.multiplies():
        return False
    if other.multiplies() and any(one.kind != "pointwise" for one in group.operations):
        return False
    multiplied = {number for one in other.operations if one.kind == "product" for number in one.reads}
    if any(number in multiplied for one in group.operations for number in one.writes):
        return False
    return all(groups[one.now()] >= groups[other] for one in group.needed_by)


def _engine(operation: Operation, has: Callable[[str, torch.dtype], bool]) -> Engine:
    if operation.kind == "upload":
        return "upload"
    if operation.kind == "collective":
        return "link"
    return "compute" if has(operation.name, operation.dtype) else "host"


def _widen(total: dict[int, Count], more: Mapping[int, Count]) -> None:
    """Of two views of one memory, the larger counts."""
    for number, size in more.items():
        total[number] = most(total.get(number, 0), size)
