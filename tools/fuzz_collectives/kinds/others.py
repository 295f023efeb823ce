# SPDX-License-Identifier: Apache-2.0
"""What comes between collectives: operators of the device, barriers, and collectives of objects."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist
from torch import Tensor

from tools.fuzz_collectives.dtypes import REDUCED
from tools.fuzz_collectives.kinds.base import Kind, Place, fill, rows, single, started
from tools.fuzz_collectives.placing import Placer
from tools.fuzz_collectives.program import Call, Step


class Local(Kind):
    """An operator on the tensor of each rank."""

    is_local = True
    dtypes = tuple(dtype for dtype in REDUCED if dtype not in ("bool", "complex64"))
    may_be_later = False

    def place(self, placer: Placer, step: Step) -> Call:
        dtype, tensor = placer.take(step, self.dtypes, step.shape())
        both = single(step.group, tensor)
        return Call(step, dtype, both, both)

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        for output in outputs:
            self.compute(call, output[0])

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        self.compute(call, outputs[0])
        return []

    def compute(self, call: Call, tensor: Tensor) -> None:
        """What it does, on the CPU as on the device."""
        raise NotImplementedError


class Add(Local):
    """Adds one, several times: the device has something to do when the next collective comes."""

    weight = 4

    def compute(self, call: Call, tensor: Tensor) -> None:
        for _ in range(call.step.several):
            tensor.add_(1)

    def growth(self, call: Call, bound: int) -> int:
        return bound + call.step.several


class Multiply(Local):
    def compute(self, call: Call, tensor: Tensor) -> None:
        tensor.mul_(2)

    def growth(self, call: Call, bound: int) -> int:
        return 2 * bound


class Zero(Local):
    """Zeros that are written nowhere before they are needed."""

    weight = 1

    def compute(self, call: Call, tensor: Tensor) -> None:
        tensor.zero_()


class Copy(Kind):
    """Into a new tensor of another layout."""

    is_local = True
    may_be_later = False

    def place(self, placer: Placer, step: Step) -> Call:
        dtype, tensor = placer.take(step, self.dtypes, step.shape())
        copies = placer.new(step, dtype, {rank: tensor[rank].shape for rank in step.group}, alike=True)
        return Call(step, dtype, single(step.group, tensor), single(step.group, copies))

    def define(self, call: Call, inputs: list[list[Tensor]], outputs: list[list[Tensor]]) -> None:
        for (output,), (source,) in zip(outputs, inputs, strict=True):
            fill(output, rows(source))

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        outputs[0].copy_(inputs[0])
        return []


class Barrier(Kind):
    weight = 1

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        return started(dist.barrier(place.group, async_op=call.step.later))


class Objects(Kind):
    """Collectives of Python objects, which compare their results themselves."""

    weight = 2
    may_be_later = False

    def run(self, place: Place, call: Call, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        root = call.step.root % place.size
        (_gathered, _broadcast, _scattered, _gathered_at_root)[call.step.several % 4](place, call.step, root)
        return []


def _object(step: Step, rank: int) -> dict[str, Any]:
    return {"rank": rank, "text": "x" * (step.number * 37 % 300), "numbers": [step.rows_of(rank)] * (rank + 1)}


def _same(actual: Any, expected: Any) -> None:
    if actual != expected:
        raise AssertionError(f"{actual} instead of {expected}")


def _gathered(place: Place, step: Step, root: int) -> None:
    objects: list[Any] = [None] * place.size
    dist.all_gather_object(objects, _object(step, place.me), place.group)
    _same(objects, [_object(step, rank) for rank in range(place.size)])


def _broadcast(place: Place, step: Step, root: int) -> None:
    right: list[Any] = [_object(step, rank) for rank in range(step.rows_of(0) % 3 + 1)]
    objects = right if place.me == root else [None] * len(right)
    dist.broadcast_object_list(objects, group=place.group, group_src=root)
    _same(objects, right)


def _scattered(place: Place, step: Step, root: int) -> None:
    received: list[Any] = [None]
    sent = [_object(step, rank) for rank in range(place.size)]
    dist.scatter_object_list(received, sent if place.me == root else None, group=place.group, group_src=root)
    _same(received, sent[place.me : place.me + 1])


def _gathered_at_root(place: Place, step: Step, root: int) -> None:
    objects: list[Any] | None = [None] * place.size if place.me == root else None
    dist.gather_object(_object(step, place.me), objects, group=place.group, group_dst=root)
    _same(objects, [_object(step, rank) for rank in range(place.size)] if place.me == root else None)


class Check(Kind):
    """Compares everything that nothing is under way for."""

    weight = 1
    may_be_later = False
    is_local = True


class Wait(Kind):
    """Waits for one of what is under way."""

    weight = 5
    may_be_later = False
    is_local = True


def wait(work: Any, how: str) -> None:
    """Waits for what a call returned: at once, by its future, or after it has been seen to be done."""
    if how == "future" and isinstance(work, dist.Work):
        work.get_future().wait()
        return
    while how == "poll" and isinstance(work, dist.Work) and not work.is_completed():
        time.sleep(1e-4)
    work.wait()
