# SPDX-License-Identifier: Apache-2.0
"""Collectives that bring tensors of all ranks together, or one rank's to all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tools.fuzz_collectives.kinds.base import Kind, Place, fill, managed, memory, rows, single, started
from tools.fuzz_collectives.placing import Placer, by_rank, chunk, strides
from tools.fuzz_collectives.program import Call, Piece, Step


class Broadcast(Kind):
    weight = 5

    def place(self, placer: Placer, step: Step) -> Call:
        dtype, tensor = placer.take(step, self.dtypes, step.shape())
        both = single(step.group, tensor)
        root = step.root_rank
        return Call(step, dtype, {rank: both[rank] if rank == root else [] for rank in step.group}, both)

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        (sent,) = [tensors[0] for tensors in inputs if tensors]
        for (output,) in outputs:
            memory(output).copy_(memory(sent))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        root = call.step.root % place.size
        return started(dist.broadcast(outputs[0], group=place.group, async_op=call.step.later, group_src=root))


class AllGather(Kind):
    """Lists of tensors whose rows may differ from rank to rank, and whose layouts always do."""

    weight = 5

    def place(self, placer: Placer, step: Step) -> Call:
        shapes = [step.shape(turn) for turn in range(len(step.group))]
        dtype, own = step.dtype, placer.tensors.get(step.source, ("", {}))
        outputs = by_rank(step.group, [placer.new(step, dtype, dict.fromkeys(step.group, s)) for s in shapes])
        if step.alias:
            mine = {rank: outputs[rank][turn] for turn, rank in enumerate(step.group)}
        elif own[0] == dtype and all(
            rank in own[1] and own[1][rank].shape == shape for rank, shape in zip(step.group, shapes, strict=True)
        ):
            mine = own[1]
        else:
            mine = placer.new(step, dtype, dict(zip(step.group, shapes, strict=True)))
        return Call(step, dtype, single(step.group, mine), outputs)

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        for tensors in outputs:
            for output, (sent,) in zip(tensors, inputs, strict=True):
                fill(output, rows(sent))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        return started(dist.all_gather(outputs, inputs[0], place.group, call.step.later))


class AllGatherChunks(Kind):
    """Lists that are the parts of one tensor: the usual way to gather into one."""

    def place(self, placer: Placer, step: Step) -> Call:
        size = len(step.group)
        dtype, own = placer.take(step, self.dtypes, step.shape())
        shape = own[step.group[0]].shape or (1,)
        whole = placer.new(step, dtype, dict.fromkeys(step.group, (shape[0] * size, *shape[1:])))
        lists = [{rank: _rows(whole[rank], turn, own[rank]) for rank in step.group} for turn in range(size)]
        return Call(step, dtype, single(step.group, own), by_rank(step.group, lists))

    define = AllGather.define
    run = AllGather.run


def _rows(whole: Piece, turn: int, form: Piece) -> Piece:
    """The rows of a tensor that belong to a rank, if they have no gaps; else as many elements somewhere in it."""
    if not form.shape or (whole.shape[1:] and whole.stride[0] < whole.stride[1]):
        part = whole.flat(turn * form.numel, (turn + 1) * form.numel)
        return Piece(part.buffer, part.offset, form.shape, strides(form.shape, "rows"))
    begin = whole.offset + turn * form.shape[0] * whole.stride[0]
    return Piece(whole.buffer, begin, form.shape, whole.stride)


class AllGatherTensor(Kind):
    """Into one tensor, in the order of memory."""

    weight = 4

    def place(self, placer: Placer, step: Step) -> Call:
        size = len(step.group)
        if step.alias:
            whole = placer.new(step, step.dtype, dict.fromkeys(step.group, step.shape(times=size)), alike=True)
            own = {rank: chunk(whole[rank], turn, size) for turn, rank in enumerate(step.group)}
            return Call(step, step.dtype, single(step.group, own), single(step.group, whole))
        dtype, own = placer.take(step, self.dtypes, step.shape())
        shape = own[step.group[0]].shape
        joined = (shape[0] * size, *shape[1:]) if shape and step.root % 2 else (size, *shape)
        whole = placer.new(step, dtype, dict.fromkeys(step.group, joined), alike=True)
        return Call(step, dtype, single(step.group, own), single(step.group, whole))

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        for turn in range(len(inputs[0])):
            whole = torch.cat([memory(tensors[turn]) for tensors in inputs])
            for tensors in outputs:
                memory(tensors[turn]).copy_(whole)

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        return started(dist.all_gather_into_tensor(outputs[0], inputs[0], place.group, call.step.later))


class AllGatherManaged(AllGatherTensor):
    """Several of them in one."""

    weight = 1

    def place(self, placer: Placer, step: Step) -> Call:
        size, turns = len(step.group), range(step.several)
        own = [placer.new(step, step.dtype, dict.fromkeys(step.group, step.shape(turn)), True) for turn in turns]
        wholes = [
            placer.new(step, step.dtype, dict.fromkeys(step.group, step.shape(turn, size)), True) for turn in turns
        ]
        return Call(step, step.dtype, by_rank(step.group, own), by_rank(step.group, wholes))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        def gather(output: Tensor, tensor: Tensor) -> None:
            dist.all_gather_into_tensor(output, tensor, place.group)

        return managed(place, call, gather, outputs, inputs)


class AllGatherSeveral(Kind):
    """Several tensors of each rank into lists of lists."""

    weight = 1

    def place(self, placer: Placer, step: Step) -> Call:
        turns = range(step.several)
        own = [placer.new(step, step.dtype, dict.fromkeys(step.group, step.shape(turn))) for turn in turns]
        outputs = [
            placer.new(step, step.dtype, dict.fromkeys(step.group, step.shape(turn)))
            for _ in step.group
            for turn in turns
        ]
        return Call(step, step.dtype, by_rank(step.group, own), by_rank(step.group, outputs))

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        for tensors in outputs:
            for output, sent in zip(tensors, (each for some in inputs for each in some), strict=True):
                fill(output, rows(sent))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        count = len(inputs)
        lists = [outputs[rank * count : (rank + 1) * count] for rank in range(place.size)]
        return started(dist.all_gather_coalesced(lists, inputs, place.group, call.step.later))


class Gather(Kind):
    weight = 3

    def place(self, placer: Placer, step: Step) -> Call:
        root = step.root_rank
        dtype, own = placer.take(step, self.dtypes, step.shape())
        shape = own[root].shape
        if step.source not in placer.tensors and not step.refused:
            own = placer.new(step, dtype, dict.fromkeys(step.group, shape))
        lists = [placer.new(step, dtype, {root: shape}) for _ in step.group]
        if step.alias:
            lists[step.root % len(step.group)] = {root: own[root]}
        outputs = {rank: [each[root] for each in lists] if rank == root else [] for rank in step.group}
        return Call(step, dtype, single(step.group, own), outputs)

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        (gathered,) = [tensors for tensors in outputs if tensors]
        for output, (sent,) in zip(gathered, inputs, strict=True):
            fill(output, rows(sent))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        root = call.step.root % place.size
        work = dist.gather(inputs[0], outputs or None, group=place.group, async_op=call.step.later, group_dst=root)
        return started(work)


class Scatter(Kind):
    weight = 3

    def place(self, placer: Placer, step: Step) -> Call:
        root = step.root_rank
        lists = [placer.new(step, step.dtype, {root: step.shape()}) for _ in step.group]
        own = placer.new(step, step.dtype, dict.fromkeys(step.group, step.shape()))
        if step.alias:
            own[root] = lists[step.root % len(step.group)][root]
        inputs = {rank: [each[root] for each in lists] if rank == root else [] for rank in step.group}
        return Call(step, step.dtype, inputs, single(step.group, own))

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        (scattered,) = [tensors for tensors in inputs if tensors]
        for (output,), sent in zip(outputs, scattered, strict=True):
            fill(output, rows(sent))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        root = call.step.root % place.size
        work = dist.scatter(outputs[0], inputs or None, group=place.group, async_op=call.step.later, group_src=root)
        return started(work)
