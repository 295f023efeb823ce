# SPDX-License-Identifier: Apache-2.0
"""Collectives that compute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tools.fuzz_collectives import dtypes
from tools.fuzz_collectives.kinds.base import Kind, Place, fill, managed, memory, rows, single, started
from tools.fuzz_collectives.placing import Placer, by_rank, chunk
from tools.fuzz_collectives.program import Call, Pieces, Step

#: The factor of PREMUL_SUM.
FACTOR = 0.5

_FOLDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def reduction_of(call: Call) -> str:
    """The reduction that the step asks for, or a sum where there is none of this kind for the dtype."""
    return call.step.reduction if dtypes.reduces(call.step.reduction, call.dtype) else "SUM"


def reduced(call: Call, tensors: list[Tensor]) -> Tensor:
    """What the ranks' tensors become."""
    reduction = reduction_of(call)
    if reduction == "PREMUL_SUM":
        tensors = [tensor * FACTOR for tensor in tensors]
    whole = functools.reduce(_FOLDS[reduction], tensors).to(tensors[0].dtype)
    if reduction != "AVG":
        return whole
    return whole.div(len(tensors), rounding_mode="trunc" if dtypes.is_whole(call.dtype) else None).to(whole.dtype)


def operator(call: Call) -> Any:
    """The same for torch.distributed."""
    reduction = reduction_of(call)
    return dist._make_nccl_premul_sum(FACTOR) if reduction == "PREMUL_SUM" else getattr(dist.ReduceOp, reduction)


class Reducing(Kind):
    """What all of them have in common."""

    dtypes = dtypes.REDUCED

    def growth(self, call: Call, bound: int) -> int:
        return dtypes.growth(reduction_of(call), bound, len(call.step.group))

    def is_exact(self, call: Call) -> bool:
        return dtypes.is_exact(reduction_of(call), call.dtype)


class AllReduce(Reducing):
    weight = 8

    def place(self, placer: Placer, step: Step) -> Call:
        dtype, tensor = placer.take(step, self.dtypes, step.shape())
        both = single(step.group, tensor)
        return Call(step, dtype, both, both)

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        for turn in range(len(inputs[0])):
            whole = reduced(call, [memory(tensors[turn]) for tensors in inputs])
            for tensors in outputs:
                memory(tensors[turn]).copy_(whole)

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        return started(dist.all_reduce(inputs[0], operator(call), place.group, async_op=call.step.later))


class AllReduceSparse(AllReduce):
    """The same of a sparse tensor, whose entries are the numbers that are not zero."""

    dtypes = tuple(dtype for dtype in dtypes.REDUCED if not dtypes.is_complex(dtype))
    weight = 2
    may_be_later = False

    def growth(self, call: Call, bound: int) -> int:
        return dtypes.growth("SUM", bound, len(call.step.group))

    def is_exact(self, call: Call) -> bool:
        return True

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        whole = functools.reduce(torch.add, [rows(tensors[0]) for tensors in inputs])
        for tensors in outputs:
            fill(tensors[0], whole)

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        sparse = inputs[0].to_sparse()
        dist.all_reduce(sparse, group=place.group)
        outputs[0].copy_(sparse.to_dense())
        return []


class AllReduceSeveral(AllReduce):
    """Several tensors in one call."""

    weight = 1

    def place(self, placer: Placer, step: Step) -> Call:
        shapes = [step.shape(turn) for turn in range(step.several)]
        tensors = [placer.new(step, step.dtype, dict.fromkeys(step.group, shape), alike=True) for shape in shapes]
        both = by_rank(step.group, tensors)
        return Call(step, step.dtype, both, both)

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        return started(dist.all_reduce_coalesced(inputs, operator(call), place.group, async_op=call.step.later))


class AllReduceManaged(AllReduceSeveral):
    """The same by the context that joins calls."""

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        return managed(place, call, lambda tensor: dist.all_reduce(tensor, operator(call), place.group), inputs)


class Reduce(AllReduce):
    weight = 3

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        root = call.step.root % len(outputs)
        memory(outputs[root][0]).copy_(reduced(call, [memory(tensors[0]) for tensors in inputs]))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        root = call.step.root % place.size
        work = dist.reduce(inputs[0], op=operator(call), group=place.group, async_op=call.step.later, group_dst=root)
        return started(work)

    def undefined(self, call: Call) -> Pieces:
        return {rank: pieces for rank, pieces in call.outputs.items() if rank != call.step.root_rank}


class ReduceScatter(Reducing):
    """A list, of which each rank gets the tensor of its number. Rows may differ from rank to rank."""

    weight = 3

    def place(self, placer: Placer, step: Step) -> Call:
        lists = [
            placer.new(step, step.dtype, dict.fromkeys(step.group, step.shape(turn))) for turn in range(len(step.group))
        ]
        inputs = by_rank(step.group, lists)
        if step.alias:
            outputs = {rank: [inputs[rank][turn]] for turn, rank in enumerate(step.group)}
        else:
            shapes = {rank: step.shape(turn) for turn, rank in enumerate(step.group)}
            outputs = single(step.group, placer.new(step, step.dtype, shapes))
        return Call(step, step.dtype, inputs, outputs)

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        for me, (output,) in enumerate(outputs):
            fill(output, reduced(call, [rows(tensors[me]) for tensors in inputs]))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        return started(dist.reduce_scatter(outputs[0], inputs, operator(call), place.group, call.step.later))


class ReduceScatterTensor(Reducing):
    """One tensor, of which each rank gets a part in the order of memory."""

    weight = 3

    def place(self, placer: Placer, step: Step) -> Call:
        size = len(step.group)
        dtype, whole = placer.take(step, self.dtypes, step.shape(times=size), size)
        parts = {rank: chunk(whole[rank], turn, size) for turn, rank in enumerate(step.group)}
        if not step.alias:
            parts = placer.new(step, dtype, {rank: piece.shape for rank, piece in parts.items()}, alike=True)
        return Call(step, dtype, single(step.group, whole), single(step.group, parts))

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        for turn in range(len(inputs[0])):
            whole = reduced(call, [memory(tensors[turn]) for tensors in inputs])
            for me, part in enumerate(whole.chunk(len(outputs)) if len(whole) else [whole] * len(outputs)):
                memory(outputs[me][turn]).copy_(part)

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        work = dist.reduce_scatter_tensor(outputs[0], inputs[0], operator(call), place.group, call.step.later)
        return started(work)


class ReduceScatterManaged(ReduceScatterTensor):
    """Several of them in one."""

    weight = 1

    def place(self, placer: Placer, step: Step) -> Call:
        size, turns = len(step.group), range(step.several)
        wholes = [
            placer.new(step, step.dtype, dict.fromkeys(step.group, step.shape(turn, size)), True) for turn in turns
        ]
        parts = [placer.new(step, step.dtype, dict.fromkeys(step.group, step.shape(turn)), True) for turn in turns]
        return Call(step, step.dtype, by_rank(step.group, wholes), by_rank(step.group, parts))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        def scatter(output: Tensor, tensor: Tensor) -> None:
            dist.reduce_scatter_tensor(output, tensor, operator(call), place.group)

        return managed(place, call, scatter, outputs, inputs)
