# SPDX-License-Identifier: Apache-2.0
"""Which collectives the simulator's driver carries out, and which the usual transport does. Two ranks."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import torch
import torch.distributed as dist

from outboard import drivers
from tests.distributed.ranks import device_type, run_checks

DEVICE = device_type()
#: What is expected of the driver where OUTBOARD_TRANSPORT leaves its collectives aside.
ASIDE = os.environ.get("OUTBOARD_TRANSPORT", "driver") != "driver"


def submitted() -> int:
    """Collectives that the simulator was given in this process."""
    count = ctypes.CDLL(drivers.sim()).outboard_sim_collectives
    count.restype = ctypes.c_uint64
    return int(count())


def by_driver(expected: int, function: Callable[[], object]) -> None:
    """Calls a function, for which the driver is given so many collectives."""
    before = submitted()
    function()
    given = submitted() - before
    assert given == (0 if ASIDE else expected), given


def own(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.full(shape, dist.get_rank() + 1, dtype=dtype).to(DEVICE)


def check_reductions() -> None:
    # PyTorch makes complex numbers pairs of real ones.
    taken = (torch.float32, torch.int64, torch.bool, torch.complex64)
    for dtype, by in (*((dtype, 1) for dtype in taken), (torch.bfloat16, 0), (torch.float16, 0)):
        tensor = own(dtype, 5)
        by_driver(by, lambda tensor=tensor: dist.all_reduce(tensor))
        assert torch.equal(tensor.cpu(), torch.full((5,), 3).to(dtype)), (dtype, tensor.cpu())
    tensor = own(torch.float32, 4)
    by_driver(1, lambda: dist.reduce(tensor, 1, op=dist.ReduceOp.AVG))
    assert dist.get_rank() == 0 or tensor.tolist() == [1.5] * 4
    part = torch.zeros(2, device=DEVICE)
    by_driver(1, lambda: dist.reduce_scatter_tensor(part, own(torch.float32, 4)))
    assert part.tolist() == [3.0] * 2
    part.zero_()
    by_driver(1, lambda: dist.reduce_scatter(part, [own(torch.float32, 2), own(torch.float32, 2)]))
    assert part.tolist() == [3.0] * 2


def check_moves() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = own(dtype, 3)
        by_driver(1, lambda tensor=tensor: dist.broadcast(tensor, 1))
        assert tensor.tolist() == [2] * 3
        whole = torch.zeros(4, dtype=dtype, device=DEVICE)
        by_driver(1, lambda dtype=dtype, whole=whole: dist.all_gather_into_tensor(whole, own(dtype, 2)))
        assert whole.tolist() == [1, 1, 2, 2]
        by_driver(1, lambda dtype=dtype, whole=whole: dist.all_to_all_single(whole, own(dtype, 4)))
        assert whole.tolist() == [1, 1, 2, 2]
        parts = [torch.zeros(2, dtype=dtype, device=DEVICE) for _ in range(2)]
        by_driver(1, lambda dtype=dtype, parts=parts: dist.all_gather(parts, own(dtype, 2)))
        assert [part.tolist() for part in parts] == [[1, 1], [2, 2]]
        by_driver(1, lambda dtype=dtype, parts=parts: dist.all_to_all(parts, [own(dtype, 2), own(dtype, 2)]))
        assert [part.tolist() for part in parts] == [[1, 1], [2, 2]]


def check_messages_go_by_the_usual_transport() -> None:
    tensor = own(torch.float32, 3)
    by_driver(0, lambda: dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0))
    assert tensor.tolist() == [1.0] * 3


def check_messages_overtake_collectives() -> None:
    """A rank that waits for a message first comes to the collective later, be it the group's first one or not."""
    group = dist.new_group()
    for _ in range(2):
        tensor, message = own(torch.float32, 3), own(torch.float32, 2)
        if dist.get_rank() == 0:
            work = dist.all_reduce(tensor, group=group, async_op=True)
            dist.send(message, 1, group=group)
        else:
            dist.recv(message, 0, group=group)
            work = dist.all_reduce(tensor, group=group, async_op=True)
        work.wait()
        assert message.tolist() == [1.0] * 2 and tensor.tolist() == [3.0] * 3
    dist.destroy_process_group(group)


def check_collectives_of_both_kinds_in_order() -> None:
    """The driver moves numbers that it cannot reduce: nobody waits between."""
    if ASIDE:
        return  # the usual transport begins with what a tensor is at the call
    tensor = torch.full((1 << 20,), 1.0 if dist.get_rank() == 1 else 5.0, dtype=torch.bfloat16).to(DEVICE)
    works = [dist.broadcast(tensor, 1, async_op=True), dist.all_reduce(tensor, async_op=True)]
    for work in works:
        work.wait()
    assert torch.equal(tensor.cpu(), torch.full((1 << 20,), 2.0, dtype=torch.bfloat16))


def check_order_and_overlap() -> None:
    """Collectives that nobody waits for between, and their futures."""
    tensors = [own(torch.float32, 1 << 18) for _ in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    future = works[-1].get_future()
    for work in works:
        work.wait()
    for tensor in (*tensors, future.wait()[0]):
        assert torch.equal(tensor.cpu(), torch.full((1 << 18,), 3.0))


def check_parts_of_the_group() -> None:
    group = dist.new_group([0, 1])
    tensor = own(torch.int64, 3)
    by_driver(1, lambda: dist.all_reduce(tensor, group=group))
    assert tensor.tolist() == [3] * 3
    dist.destroy_process_group(group)
    dist.new_group([0])


if __name__ == "__main__":
    run_checks(globals())
