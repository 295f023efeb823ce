# SPDX-License-Identifier: Apache-2.0
"""What each kind of step says of itself: the tensors it takes, its definition, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from tools.fuzz_collectives.dtypes import MOVED
from tools.fuzz_collectives.placing import Placer
from tools.fuzz_collectives.program import Call, Piece, Pieces, Step


@dataclass(frozen=True)
class Place:
    """Where a call is made: the group, this rank's number in it, and how many there are."""

    group: dist.ProcessGroup
    me: int
    size: int


class Kind:
    """One kind of step. Lists of tensors by rank have the order of the group."""

    #: Messages and collectives have orders of their own.
    is_message = False
    #: Whether it takes part in no exchange between ranks.
    is_local = False
    #: Dtypes that it takes.
    dtypes: Sequence[str] = MOVED
    #: Whether it may be called with async_op.
    may_be_later = True
    #: How often it is drawn.
    weight = 2

    def place(self, placer: Placer, step: Step) -> Call:
        """The step with its tensors. Here: it has none."""
        return Call(step, step.dtype, {}, {})

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        """Writes ``outputs`` of all ranks by definition. ``inputs`` are copies of what was there before."""

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        """Makes the call with this rank's tensors; what is to be waited for, if it is asynchronous."""
        return []

    def growth(self, call: Call, bound: int) -> int:
        """How great numbers may be on the way and in the end, of numbers up to ``bound``."""
        return bound

    def is_exact(self, call: Call) -> bool:
        """Whether results are whole numbers again."""
        return True

    def undefined(self, call: Call) -> Pieces:
        """Tensors that nothing is said about when it is done."""
        return {}


def memory(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in the order of memory."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def rows(tensor: Tensor) -> Tensor:
    """The elements of a tensor by their indices, as a copy."""
    return tensor.reshape(-1)


def fill(tensor: Tensor, elements: Tensor) -> None:
    """Sets elements by their indices."""
    tensor.copy_(elements.reshape(tensor.shape))


def single(group: Sequence[int], tensor: Mapping[int, Piece]) -> Pieces:
    """Lists of one tensor for each rank."""
    return {rank: [tensor[rank]] for rank in group}


def started(work: Any) -> list[Any]:
    """What a call returned, if that is something to wait for."""
    return [] if work is None else [work]


def managed(place: Place, call: Call, function: Callable[..., Any], *lists: Sequence[Tensor]) -> list[Any]:
    """Calls a function with one tensor of each list after the other, joined to one call; what is to be waited for."""
    with dist._coalescing_manager(place.group, async_ops=call.step.later) as manager:
        for tensors in zip(*lists, strict=True):
            function(*tensors)
    return [manager] if call.step.later else []
