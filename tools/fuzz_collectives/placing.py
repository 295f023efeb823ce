# SPDX-License-Identifier: Apache-2.0
"""Gives tensors places in memory: layouts, offsets, space around them, and tensors of earlier steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tools.fuzz_collectives.program import Buffer, Call, Piece, Pieces, Step

#: Layouts without gaps, and those that are refused.
DENSE = ("rows", "rows", "columns", "channels", "far")
REFUSED = ("gaps", "expanded")
#: Elements before and behind each tensor that nobody may touch.
_GUARD = 4


def strides(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Strides of a tensor that lies so."""
    order = list(range(len(shape)))
    if layout == "columns":
        order.reverse()
    if layout == "channels" and len(shape) > 2:
        order.append(order.pop(1))
    stride, step = [0] * len(shape), 2 if layout == "gaps" else 1
    for dim in reversed(order):
        stride[dim] = step
        step *= max(shape[dim], 1)
    if layout == "expanded" and shape:
        stride[0] = 0
    return tuple(stride)


def is_dense(piece: Piece) -> bool:
    """Whether a tensor's elements fill its place, each once."""
    expected = 1
    if not piece.numel:
        return True
    for step, size in sorted((step, size) for step, size in zip(piece.stride, piece.shape, strict=True) if size > 1):
        if step != expected:
            return False
        expected *= size
    return True


@dataclass
class Placer:
    """The buffers and tensors of a program up to some step."""

    buffers: list[Buffer] = field(default_factory=list)
    tensors: dict[str, tuple[str, dict[int, Piece]]] = field(default_factory=dict)
    _turn: int = 0

    def new(self, step: Step, dtype: str, shapes: Mapping[int, Sequence[int]], alike: bool = False) -> dict[int, Piece]:
        """A tensor on each rank in ``shapes``, of the step's next layout on each or, if they must be ``alike``, of one
        for all. Offsets differ."""
        pieces, lengths, number = {}, {}, len(self.buffers)
        for rank, shape in shapes.items():
            layout = step.layouts[self._turn % len(step.layouts)]
            self._turn += not alike
            offset = _GUARD + 5 * ((rank + number) % 3) + (16 if layout == "far" else 0)
            pieces[rank] = piece = Piece(number, offset, tuple(shape), strides(shape, layout))
            lengths[rank] = max(piece.end, piece.offset) + _GUARD
        self._turn += alike
        self.buffers.append(Buffer(dtype, lengths))
        return pieces

    def begin(self) -> None:
        """The next step begins with its first layout."""
        self._turn = 0

    def take(
        self, step: Step, dtypes: Iterable[str], shape: Sequence[int], times: int = 1
    ) -> tuple[str, dict[int, Piece]]:
        """A dense tensor alike on all ranks of the group: the step's source, if that is one of these dtypes and its
        first size can be divided by ``times``, else a new one of ``shape``; and its dtype."""
        dtype, pieces = self.tensors.get(step.source, ("", {}))
        found = [pieces[rank] for rank in step.group if rank in pieces]
        forms = {(piece.shape, piece.stride) for piece in found}
        fits = len(found) == len(step.group) and len(forms) == 1 and is_dense(found[0]) and dtype in dtypes
        if fits and (times == 1 or (found[0].shape and found[0].shape[0] % times == 0)):
            return dtype, self._parts(step, {rank: pieces[rank] for rank in step.group}, times)
        return step.dtype, self._parts(step, self.new(step, step.dtype, dict.fromkeys(step.group, shape), True), times)

    def _parts(self, step: Step, pieces: dict[int, Piece], times: int) -> dict[int, Piece]:
        """The part of each that the step asks for, if any."""
        count = next(iter(pieces.values())).numel
        ends = {"front": (0, count // 2), "back": (count // 3, count), "middle": (count // 4, count - count // 4)}
        if step.part not in ends or times != 1 or step.refused:
            return pieces
        return {rank: piece.flat(*ends[step.part]) for rank, piece in pieces.items()}

    def keep(self, call: Call) -> None:
        """Lets later steps use the first tensors that a call reads and writes."""
        for name, pieces in (("in", call.inputs), ("out", call.outputs)):
            first = {rank: some[0] for rank, some in pieces.items() if some}
            self.tensors[f"{call.step.number}.{name}"] = (call.dtype, first)


def chunk(piece: Piece, index: int, count: int) -> Piece:
    """One of ``count`` equal parts of a dense tensor in the order of memory, as a tensor of the same form but for its
    first size. The tensor must be contiguous for that, else the part is flat."""
    size = piece.numel // count
    if piece.shape and piece.stride == strides(piece.shape, "rows"):
        shape = (piece.shape[0] // count, *piece.shape[1:])
        return Piece(piece.buffer, piece.offset + index * size, shape, piece.stride)
    return piece.flat(index * size, (index + 1) * size)


def by_rank(group: Sequence[int], lists: Sequence[Mapping[int, Piece]]) -> Pieces:
    """On each rank the list of its tensors."""
    return {rank: [tensors[rank] for tensors in lists] for rank in group}
