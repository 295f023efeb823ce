# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks, and rings of them. Elements go by their order in memory."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from tools.fuzz_collectives.kinds.base import Kind, Place, memory, started
from tools.fuzz_collectives.placing import Placer
from tools.fuzz_collectives.program import Call, Piece, Step


class Message(Kind):
    """From the root to the next rank of the group, which both wait for."""

    is_message = True
    weight = 3

    def place(self, placer: Placer, step: Step) -> Call:
        if len(step.group) < 2:
            return Call(step, step.dtype, {}, {})
        dtype, sent = placer.take(step, self.dtypes, step.shape())
        sender, receiver = _pair(step)
        form = sent[sender]
        received = placer.new(step, dtype, {receiver: form.shape})[receiver]
        alike = Piece(received.buffer, received.offset, form.shape, form.stride)
        inputs = {rank: [form] if rank == sender else [] for rank in step.group}
        outputs = {rank: [alike] if rank == receiver else [] for rank in step.group}
        return Call(step, dtype, inputs, outputs)

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        if not call.inputs:
            return
        (sent,), (received,) = [each for each in inputs if each], [each for each in outputs if each]
        memory(received[0]).copy_(memory(sent[0]))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        root, tag = call.step.root % place.size, call.step.number % 3
        if inputs:
            dist.send(inputs[0], group=place.group, tag=tag, group_dst=(root + 1) % place.size)
        if outputs:
            dist.recv(outputs[0], group=place.group, tag=tag, group_src=root)
        return []


class LaterMessage(Message):
    """The same, for which both wait later."""

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        root, tag = call.step.root % place.size, call.step.number % 3
        if inputs:
            return started(dist.isend(inputs[0], group=place.group, tag=tag, group_dst=(root + 1) % place.size))
        if outputs:
            return started(dist.irecv(outputs[0], group=place.group, tag=tag, group_src=root))
        return []


def _pair(step: Step) -> tuple[int, int]:
    root = step.root % len(step.group)
    return step.root_rank, step.group[(root + 1) % len(step.group)]


class Ring(Kind):
    """Each rank sends to the next ones, ``several`` messages in all, of sizes that differ by sender; as a batch, or one
    by one if the root's number is odd."""

    is_message = True
    weight = 4

    def place(self, placer: Placer, step: Step) -> Call:
        size = len(step.group)
        inputs: dict[int, list[Piece]] = {rank: [] for rank in step.group}
        outputs: dict[int, list[Piece]] = {rank: [] for rank in step.group}
        for turn in range(step.several if size > 1 else 0):
            for me, rank in enumerate(step.group):
                receiver = step.group[(me + _shift(turn, size)) % size]
                shape = step.shape(turn * size + me)
                sent = placer.new(step, step.dtype, {rank: shape})[rank]
                place = placer.new(step, step.dtype, {receiver: shape})[receiver]
                inputs[rank].append(sent)
                outputs[receiver].append(Piece(place.buffer, place.offset, shape, sent.stride))
        return Call(step, step.dtype, inputs, outputs)

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        size = len(inputs)
        for me, tensors in enumerate(outputs):
            for turn, output in enumerate(tensors):
                memory(output).copy_(memory(inputs[(me - _shift(turn, size)) % size][turn]))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        operations = []
        for turn, (sent, received) in enumerate(zip(inputs, outputs, strict=True)):
            shift = _shift(turn, place.size)
            target, source = (place.me + shift) % place.size, (place.me - shift) % place.size
            operations += [
                dist.P2POp(dist.irecv, received, group=place.group, group_peer=source),
                dist.P2POp(dist.isend, sent, group=place.group, group_peer=target),
            ]
        if not operations:
            return []
        if call.step.root % 2 == 0:
            return list(dist.batch_isend_irecv(operations))
        works = [operation.op(operation.tensor, group=place.group, **_peer(operation)) for operation in operations]
        return [work for work in works if work is not None]


def _peer(operation: dist.P2POp) -> dict[str, int]:
    return {"group_dst" if operation.op is dist.isend else "group_src": operation.group_peer}


def _shift(turn: int, size: int) -> int:
    return 1 + turn % (size - 1)
