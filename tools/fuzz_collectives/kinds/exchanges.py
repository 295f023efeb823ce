# SPDX-License-Identifier: Apache-2.0
"""Collectives in which each rank has something of its own for each other one."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from tools.fuzz_collectives.kinds.base import Kind, Place, fill, rows, single, started
from tools.fuzz_collectives.placing import Placer
from tools.fuzz_collectives.program import Call, Step


def _turn(step: Step, sender: int, receiver: int) -> int:
    """The number of what one rank of the group has for another."""
    return sender * len(step.group) + receiver


class AllToAll(Kind):
    """Lists; rows and layouts differ from pair to pair."""

    weight = 4

    def place(self, placer: Placer, step: Step) -> Call:
        turns = range(len(step.group))
        inputs = {
            rank: [placer.new(step, step.dtype, {rank: step.shape(_turn(step, me, to))})[rank] for to in turns]
            for me, rank in enumerate(step.group)
        }
        outputs = {
            rank: [placer.new(step, step.dtype, {rank: step.shape(_turn(step, of, me))})[rank] for of in turns]
            for me, rank in enumerate(step.group)
        }
        return Call(step, step.dtype, inputs, outputs)

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        for me, tensors in enumerate(outputs):
            for output, sent in zip(tensors, inputs, strict=True):
                fill(output, rows(sent[me]))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        return started(dist.all_to_all(outputs, inputs, place.group, call.step.later))


class AllToAllSingle(Kind):
    """Rows of one tensor, as many for each rank."""

    weight = 2

    def place(self, placer: Placer, step: Step) -> Call:
        dtype, own = placer.take(step, self.dtypes, step.shape(times=len(step.group)), len(step.group))
        if step.source not in placer.tensors:
            own = placer.new(step, dtype, {rank: own[rank].shape for rank in step.group})
        output = placer.new(step, dtype, {rank: own[rank].shape for rank in step.group})
        return Call(step, dtype, single(step.group, own), single(step.group, output))

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        for me, (output,) in enumerate(outputs):
            size = output.shape[0] // len(outputs)
            for sender, (sent,) in enumerate(inputs):
                output[sender * size : (sender + 1) * size] = sent[me * size : (me + 1) * size]

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        return started(dist.all_to_all_single(outputs[0], inputs[0], group=place.group, async_op=call.step.later))


class AllToAllSplits(Kind):
    """Rows of one tensor, another number for each pair."""

    weight = 4

    def place(self, placer: Placer, step: Step) -> Call:
        sent = {rank: (sum(_splits(step, me)[0]), *step.tail) for me, rank in enumerate(step.group)}
        received = {rank: (sum(_splits(step, me)[1]), *step.tail) for me, rank in enumerate(step.group)}
        inputs = single(step.group, placer.new(step, step.dtype, sent))
        return Call(step, step.dtype, inputs, single(step.group, placer.new(step, step.dtype, received)))

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        for me, (output,) in enumerate(outputs):
            places = output.split(_splits(call.step, me)[1])
            for sender, place in enumerate(places):
                place.copy_(inputs[sender][0].split(_splits(call.step, sender)[0])[me])

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        sent, received = _splits(call.step, place.me)
        work = dist.all_to_all_single(outputs[0], inputs[0], received, sent, place.group, call.step.later)
        return started(work)


def _splits(step: Step, me: int) -> tuple[list[int], list[int]]:
    """How many rows a rank of the group sends to each, and gets from each."""
    turns = range(len(step.group))
    return [step.rows_of(_turn(step, me, to)) for to in turns], [step.rows_of(_turn(step, of, me)) for of in turns]
