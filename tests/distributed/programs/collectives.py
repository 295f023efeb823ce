# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed on the device, against what it is by definition. Runs as two ranks or more."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed.orders import exchange_lists_in_any_order
from tests.distributed.ranks import device_type, run_checks

DEVICE = device_type()
BACKEND = dist.Backend.default_device_backend_map[DEVICE]

REDUCED = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
]
MOVED = [*REDUCED, torch.int16, torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex128]


def value(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """What a rank gives to a collective, as a CPU tensor that every rank can make."""
    generator = torch.Generator().manual_seed(rank + 1)
    numbers = torch.randint(1, 5, shape, generator=generator)
    if dtype is torch.bool:
        return numbers > 2
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers - 3).double()).to(dtype)
    return numbers.to(dtype)


def ranks() -> range:
    return range(dist.get_world_size())


def own(dtype: torch.dtype = torch.float32, *shape: int) -> torch.Tensor:
    return value(dist.get_rank(), dtype, *shape).to(DEVICE)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == DEVICE and actual.dtype == expected.dtype and actual.shape == expected.shape
    assert torch.equal(bits(actual), bits(expected)), (actual.cpu(), expected)


def folded(op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dtype: torch.dtype, *shape: int) -> torch.Tensor:
    result = value(0, dtype, *shape)
    for rank in ranks()[1:]:
        result = op(result, value(rank, dtype, *shape))
    return result.to(dtype)


def raises(kind: type[Exception], text: str, function: Callable[[], Any]) -> None:
    try:
        function()
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"no {kind.__name__}")


def check_backend() -> None:
    assert dist.get_backend() == BACKEND and dist.is_initialized()
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device(DEVICE))
    assert backend.name() == BACKEND and backend.rank() == dist.get_rank() and backend.size() == len(ranks())
    # Another spelling of the same, with gloo for CPU tensors beside it.
    both = dist.new_group(backend=f"cpu:gloo,{DEVICE}:{BACKEND}")
    for device in ("cpu", DEVICE):
        tensor = torch.ones(2, device=device)
        dist.all_reduce(tensor, group=both)
        assert tensor.tolist() == [len(ranks())] * 2
    dist.destroy_process_group(both)


def check_all_reduce() -> None:
    operators: list[tuple[Any, Callable[..., torch.Tensor], Callable[[torch.dtype], bool]]] = [
        (dist.ReduceOp.SUM, torch.add, lambda dtype: True),
        (dist.ReduceOp.PRODUCT, torch.mul, lambda dtype: not dtype.is_complex),
        (dist.ReduceOp.MIN, torch.minimum, lambda dtype: not dtype.is_complex),
        (dist.ReduceOp.MAX, torch.maximum, lambda dtype: not dtype.is_complex),
        (dist.ReduceOp.BAND, torch.bitwise_and, lambda dtype: not (dtype.is_complex or dtype.is_floating_point)),
        (dist.ReduceOp.BOR, torch.bitwise_or, lambda dtype: not (dtype.is_complex or dtype.is_floating_point)),
        (dist.ReduceOp.BXOR, torch.bitwise_xor, lambda dtype: not (dtype.is_complex or dtype.is_floating_point)),
    ]
    for dtype in REDUCED:
        for reduction, function, defined in operators:
            if not defined(dtype):
                continue
            tensor = own(dtype, 3, 5)
            dist.all_reduce(tensor, op=reduction)
            same(tensor, folded(function, dtype, 3, 5))
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.complex64):
        tensor = own(dtype, 7)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        same(tensor, folded(torch.add, dtype, 7) / len(ranks()))
    for factor in (0.5, torch.tensor([0.5], device=DEVICE)):
        tensor = own(torch.float32, 7)
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
        same(tensor, folded(torch.add, torch.float32, 7) / 2)


def check_means_of_integers() -> None:
    """The sum, divided without a remainder."""
    me, size = dist.get_rank(), len(ranks())
    for dtype in (torch.int8, torch.int32, torch.int64):
        tensors = [torch.tensor([[-5 * rank, 3 * rank - 1, -1, rank]] * size, dtype=dtype) for rank in ranks()]
        mean = sum(tensors[1:], tensors[0]).div(size, rounding_mode="trunc").to(dtype)
        tensor = tensors[me].to(DEVICE)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        same(tensor, mean)
        tensor = tensors[me].to(DEVICE)
        dist.reduce(tensor, 1, op=dist.ReduceOp.AVG)
        if me == 1:
            same(tensor, mean)
        part = torch.zeros(1, 4, dtype=dtype, device=DEVICE)
        dist.reduce_scatter_tensor(part, tensors[me].to(DEVICE), op=dist.ReduceOp.AVG)
        same(part, mean[me : me + 1])
    several = [torch.full((2,), 2 * me + step, device=DEVICE) for step in range(2)]
    dist.all_reduce_coalesced(several, op=dist.ReduceOp.AVG)
    assert [tensor.tolist() for tensor in several] == [[size - 1 + step] * 2 for step in range(2)]


def sparse(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank gives as a sparse tensor: entries that others have, too, one twice, none on rank 1."""
    entries = 0 if rank == 1 else rank + 3
    indices = torch.stack([torch.arange(entries) % 3, (torch.arange(entries) * 2 + rank) % 4])
    return torch.sparse_coo_tensor(indices, value(rank, dtype, entries, 2), (3, 4, 2), check_invariants=True)


def check_sparse_all_reduce() -> None:
    for dtype in REDUCED:
        if dtype.is_complex:
            continue  # PyTorch reduces a copy, on the CPU as well
        tensors = [sparse(rank, dtype) for rank in ranks()]
        wanted = torch.stack([tensor.to_dense() for tensor in tensors]).sum(0).to(dtype)
        for later in (False, True):
            tensor = tensors[dist.get_rank()].to(DEVICE)
            work = dist.all_reduce(tensor, async_op=later)
            if later:
                work.wait()
            assert tensor.is_coalesced() and tensor.device.type == DEVICE
            same(tensor.to_dense(), wanted)
    [result] = dist.all_reduce(sparse(dist.get_rank(), torch.float32).to(DEVICE), async_op=True).get_future().wait()
    assert result.is_sparse and result.shape == (3, 4, 2)
    numbers = torch.sparse_coo_tensor(torch.zeros(0, 1, dtype=torch.int64), torch.ones(1), (), check_invariants=True)
    numbers = numbers.to(DEVICE)
    dist.all_reduce(numbers)
    assert numbers.to_dense().item() == len(ranks())
    shape = (3, 4) if dist.get_rank() else (3, 5)
    unlike = torch.eye(*shape).to_sparse().to(DEVICE)
    raises(ValueError, "different shapes", lambda: dist.all_reduce(unlike))
    raises(ValueError, "ReduceOp.SUM", lambda: dist.all_reduce(numbers, op=dist.ReduceOp.MAX))
    assert numbers.to_dense().item() == len(ranks())


def check_layouts_and_sizes() -> None:
    for size in (0, 1, 1 << 18):
        tensor = own(torch.float32, size)
        dist.all_reduce(tensor)
        same(tensor, folded(torch.add, torch.float32, size))
    whole = own(torch.float32, 8, 6)
    part, column_major = whole[2:5], own(torch.float32, 4, 6).t()
    dist.all_reduce(part)
    dist.all_reduce(column_major)
    expected = value(dist.get_rank(), torch.float32, 8, 6)
    expected[2:5] = sum(value(rank, torch.float32, 8, 6)[2:5] for rank in ranks())
    same(whole, expected)
    same(column_major, folded(torch.add, torch.float32, 4, 6).t())
    images = own(torch.float32, 2, 3, 4, 4).to(memory_format=torch.channels_last)
    dist.broadcast(images, 0)
    same(images, value(0, torch.float32, 2, 3, 4, 4))
    raises(ValueError, "contiguous", lambda: dist.all_reduce(own(torch.float32, 4, 6)[:, :2]))
    # Contents that exist nowhere yet, or are known to be zero, or wait on the host.
    zeros, waiting = torch.zeros(5, device=DEVICE), torch.ones(5).to(DEVICE)
    dist.all_reduce(zeros)
    dist.all_reduce(waiting)
    assert zeros.tolist() == [0] * 5 and waiting.tolist() == [len(ranks())] * 5
    leaf = torch.nn.Parameter(own(torch.float32, 5))
    dist.all_reduce(leaf)
    same(leaf.detach(), folded(torch.add, torch.float32, 5))
    with torch.inference_mode():
        constant = own(torch.float32, 5)
        dist.all_reduce(constant)
    same(constant, folded(torch.add, torch.float32, 5))


def check_broadcast_and_reduce() -> None:
    for dtype in MOVED:
        tensor = own(dtype, 4, 3)
        dist.broadcast(tensor, 1)
        same(tensor, value(1, dtype, 4, 3))
    for dtype in REDUCED:
        tensor = own(dtype, 5)
        dist.reduce(tensor, 1)
        if dist.get_rank() == 1:
            same(tensor, folded(torch.add, dtype, 5))
    tensor = own(torch.float32, 5)
    dist.reduce(tensor, 0, op=dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        same(tensor, folded(torch.add, torch.float32, 5) / len(ranks()))


def check_all_gather() -> None:
    size = len(ranks())
    for dtype in MOVED:
        gathered = [torch.zeros(2, 3, dtype=dtype, device=DEVICE) for _ in ranks()]
        dist.all_gather(gathered, own(dtype, 2, 3))
        for rank in ranks():
            same(gathered[rank], value(rank, dtype, 2, 3))
        joined = torch.cat([bits(value(rank, dtype, 2, 3)) for rank in ranks()]).view(dtype)
        for shape in ((2 * size, 3), (size, 2, 3)):
            whole = torch.zeros(shape, dtype=dtype, device=DEVICE)
            dist.all_gather_into_tensor(whole, own(dtype, 2, 3))
            same(whole, joined.view(shape))
    uneven = [torch.zeros(rank + 1, 2, device=DEVICE) for rank in ranks()]
    dist.all_gather(uneven, own(torch.float32, dist.get_rank() + 1, 2))
    for rank in ranks():
        same(uneven[rank], value(rank, torch.float32, rank + 1, 2))
    shapes = [(3,), (2, 2)]
    lists = [[torch.zeros(shape, device=DEVICE) for shape in shapes] for _ in ranks()]
    dist.all_gather_coalesced(lists, [own(torch.float32, *shape) for shape in shapes])
    for rank in ranks():
        for tensor, shape in zip(lists[rank], shapes, strict=True):
            same(tensor, value(rank, torch.float32, *shape))
    raises(
        ValueError,
        "world_size",
        lambda: dist.all_gather_into_tensor(torch.zeros(1, device=DEVICE), own(torch.float32, 4)),
    )


def check_gather_and_scatter() -> None:
    for dtype in MOVED:
        root = dist.get_rank() == 1
        gathered = [torch.zeros(3, dtype=dtype, device=DEVICE) for _ in ranks()] if root else None
        dist.gather(own(dtype, 3), gathered, dst=1)
        for rank, tensor in enumerate(gathered or []):
            same(tensor, value(rank, dtype, 3))
        tensor = torch.zeros(3, dtype=dtype, device=DEVICE)
        parts = [value(rank, dtype, 3).to(DEVICE) for rank in ranks()] if root else None
        dist.scatter(tensor, parts, src=1)
        same(tensor, value(dist.get_rank(), dtype, 3))


def check_gather_single() -> None:
    """PyTorch has it from 2.14 on."""
    gather_single = getattr(dist, "gather_single", None)
    if gather_single is None:
        return
    for dtype in MOVED:
        joined = torch.cat([bits(value(rank, dtype, 4, 3)) for rank in ranks()]).view(dtype)
        for tensor, shape in ((own(dtype, 4, 3), (-1, 3)), (own(dtype, 4, 3).view(2, 6), (-1,))):
            whole = torch.zeros(joined.view(shape).shape, dtype=dtype, device=DEVICE)
            gather_single(tensor, whole if dist.get_rank() == 1 else None, dst=1)
            if dist.get_rank() == 1:
                same(whole, joined.view(shape))
    short = torch.zeros(3, device=DEVICE)
    raises(ValueError, "world_size times", lambda: gather_single(short, short, dst=dist.get_rank()))


def check_reduce_scatter() -> None:
    me, size = dist.get_rank(), len(ranks())
    for dtype in REDUCED:
        whole = own(dtype, size, 3)
        expected = folded(torch.add, dtype, size, 3)[me]
        part = torch.zeros(3, dtype=dtype, device=DEVICE)
        dist.reduce_scatter(part, list(whole.unbind()))
        same(part, expected)
        part.zero_()
        dist.reduce_scatter_tensor(part, whole)
        same(part, expected)
        same(whole, value(me, dtype, size, 3))
    uneven = [value(me, torch.float32, rank + 1).to(DEVICE) for rank in ranks()]
    part = torch.zeros(me + 1, device=DEVICE)
    dist.reduce_scatter(part, uneven, op=dist.ReduceOp.MAX)
    same(part, folded(torch.maximum, torch.float32, me + 1))
    alone = [dist.new_group([rank]) for rank in ranks()][me]
    for tensor in (own(torch.float32, 4, 3), own(torch.float32, 4, 3).t()):
        part = torch.zeros_like(tensor)
        dist.reduce_scatter(part, [tensor], group=alone)
        same(part, tensor.cpu())
    dist.destroy_process_group(alone)
    for op in (dist.ReduceOp.AVG, dist._make_nccl_premul_sum(1 / size)):
        whole, part = own(torch.float32, size, 3), torch.zeros(3, device=DEVICE)
        dist.reduce_scatter_tensor(part, whole, op=op)
        torch.testing.assert_close(part.cpu(), folded(torch.add, torch.float32, size, 3)[me] / size)
        same(whole, value(me, torch.float32, size, 3))


def check_all_to_all() -> None:
    me, size = dist.get_rank(), len(ranks())
    for dtype in MOVED:
        received = [torch.zeros(sender + 1, dtype=dtype, device=DEVICE) for sender in ranks()]
        dist.all_to_all(received, [value(10 * me + target, dtype, me + 1).to(DEVICE) for target in ranks()])
        for sender in ranks():
            same(received[sender], value(10 * sender + me, dtype, sender + 1))
        even = torch.zeros(size, 2, dtype=dtype, device=DEVICE)
        dist.all_to_all_single(even, own(dtype, size, 2))
        same(even, torch.stack([bits(value(sender, dtype, size, 2)[me]) for sender in ranks()]).view(dtype))
    counts = [target + 1 for target in ranks()]
    uneven = torch.zeros(size * (me + 1), 2, device=DEVICE)
    dist.all_to_all_single(uneven, own(torch.float32, sum(counts), 2), [me + 1] * size, counts)
    same(uneven, torch.cat([value(sender, torch.float32, sum(counts), 2).split(counts)[me] for sender in ranks()]))


def check_orders_of_memory() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.complex64):
        exchange_lists_in_any_order(DEVICE, 5, dtype)


def check_point_to_point() -> None:
    me, size = dist.get_rank(), len(ranks())
    behind, before = (me + 1) % size, (me - 1) % size
    for dtype in MOVED:
        tensor = torch.zeros(4, dtype=dtype, device=DEVICE)
        if me == 0:
            dist.send(own(dtype, 4), 1)
        elif me == 1:
            assert dist.recv(tensor, 0) == 0
            same(tensor, value(0, dtype, 4))
    # A ring in which everybody sends first, with more than sockets hold.
    count = 1 << 20
    received = torch.zeros(count, device=DEVICE)
    sending, receiving = dist.isend(own(torch.float32, count), behind), dist.irecv(received, before)
    assert sending is not None and receiving is not None
    receiving.wait()
    sending.wait()
    same(received, value(before, torch.float32, count))
    received = torch.zeros(5, device=DEVICE)
    operations = [dist.P2POp(dist.isend, own(torch.float32, 5), behind), dist.P2POp(dist.irecv, received, before)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(received, value(before, torch.float32, 5))
    if me == 0:
        tensor = torch.zeros(3, device=DEVICE)
        senders = {dist.recv(tensor) for _ in ranks()[1:]}
        assert senders == set(ranks()[1:])
    else:
        dist.send(own(torch.float32, 3), 0)
    # Tags tell messages of one pair apart.
    if me == 0:
        for work in [dist.isend(torch.full((2,), float(tag), device=DEVICE), 1, tag=tag) for tag in (1, 2)]:
            work.wait()
    elif me == 1:
        for tag in (2, 1):
            tensor = torch.zeros(2, device=DEVICE)
            dist.recv(tensor, 0, tag=tag)
            assert tensor.tolist() == [tag] * 2
    # Whoever does not wait sees the end, too.
    if me == 0:
        dist.isend(own(torch.float32, 3), 1).wait()
    elif me == 1:
        tensor = torch.zeros(3, device=DEVICE)
        work = dist.irecv(tensor, 0)
        (result,) = work.get_future().wait()
        assert work.wait() and work.is_completed()
        same(result, value(0, torch.float32, 3))


def check_names_in_profiles() -> None:
    """As gloo's, which PyTorch's own tests look for."""
    me = dist.get_rank()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        if me == 0:
            for _ in ranks()[1:]:
                dist.recv(torch.zeros(3, device=DEVICE))
        else:
            dist.send(own(torch.float32, 3), 0)
    names = [event.name for event in profile.events()]
    wanted = "recvAnySource" if me == 0 else "send"
    assert names.count(f"{dist.get_backend()}:{wanted}") == (len(ranks()) - 1 if me == 0 else 1), names


def check_coalesced() -> None:
    tensors = [own(torch.float32, 3), own(torch.float32, 2, 2), own(torch.int64, 4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        same(tensor, folded(torch.add, tensor.dtype, *tensor.shape))
    size = len(ranks())
    with dist._coalescing_manager() as manager:
        wholes = [torch.zeros(size, 3, device=DEVICE), torch.zeros(size, 5, device=DEVICE)]
        for whole in wholes:
            dist.all_gather_into_tensor(whole, own(torch.float32, whole.shape[1]))
    for whole in wholes:
        same(whole, torch.stack([value(rank, torch.float32, whole.shape[1]) for rank in ranks()]))
    with dist._coalescing_manager() as manager:
        parts = [torch.zeros(3, device=DEVICE), torch.zeros(5, device=DEVICE)]
        for part in parts:
            dist.reduce_scatter_tensor(part, own(torch.float32, size, len(part)))
    for part in parts:
        same(part, folded(torch.add, torch.float32, size, len(part))[dist.get_rank()])


def check_asynchronous() -> None:
    """Works come behind what was queued before them, and futures' callbacks behind the works."""
    size = len(ranks())
    matrix = torch.eye(256, device=DEVICE)
    for _ in range(5):
        tensor = own(torch.float32, 256, 256)
        for _ in range(20):
            tensor = matrix @ tensor
        works = [dist.all_reduce(tensor, async_op=True)]
        others = [own(torch.float32, 100) for _ in range(4)]
        works += [dist.all_reduce(other, async_op=True) for other in others]
        future = works[0].get_future().then(lambda done: [done.value()[0] / size])
        for work in works:
            work.wait()
            assert work.is_completed() and work.is_success()
        same(tensor, folded(torch.add, torch.float32, 256, 256))
        same(works[0].result()[0], folded(torch.add, torch.float32, 256, 256))
        for other in others:
            same(other, folded(torch.add, torch.float32, 100))
        torch.testing.assert_close(future.wait()[0].cpu(), folded(torch.add, torch.float32, 256, 256) / size)
    side = torch.Stream(DEVICE)
    with side:
        tensor = own(torch.float32, 1 << 16) * 2
        dist.all_reduce(tensor)
        result = tensor + 1
    side.synchronize()
    same(result, folded(torch.add, torch.float32, 1 << 16) * 2 + 1)
    dropped = [dist.all_reduce(own(torch.float32, 1000), async_op=True) for _ in range(3)]
    del dropped
    dist.barrier()


def check_one_tensor_in_several_collectives() -> None:
    """Collectives that nobody waits for between come one after the other, as on the one stream of a GPU's library."""
    size = dist.get_world_size()
    for count in (5, 3 << 20):
        numbers = torch.arange(count, dtype=torch.int64) % 7
        tensor = (numbers + dist.get_rank()).to(DEVICE)
        gathered = torch.zeros(size * count, dtype=torch.int64, device=DEVICE)
        works = [
            dist.all_reduce(tensor, async_op=True),
            dist.all_reduce(tensor, async_op=True),
            dist.all_reduce(tensor[: count // 2], async_op=True),
            dist.all_gather_into_tensor(gathered, tensor, async_op=True),
            dist.broadcast(tensor[1:], src=0, async_op=True),
            dist.all_reduce(gathered, async_op=True),
        ]
        for work in works:
            work.wait()
        expected = (size * numbers + sum(range(size))) * size
        expected[: count // 2] *= size
        same(tensor, expected)
        same(gathered, expected.repeat(size) * size)


def check_asking_whether_it_has_ended() -> None:
    """Python asks without giving other threads a turn, while one of these lets go of the tensors, which needs one."""
    for _ in range(400):
        whole = own(torch.float32, 64)
        works = [dist.broadcast(whole[turn : turn + 1], 0, async_op=True) for turn in range(4)]
        works.append(
            dist.gather(whole[:5], [whole[:5] for _ in ranks()] if dist.get_rank() == 0 else None, async_op=True)
        )
        del whole
        for work in works:
            while not work.is_completed():
                pass


def check_callbacks_that_wait() -> None:
    """A future's callback may wait for a collective that it starts itself, as PowerSGD's do."""
    expected = folded(torch.add, torch.float32, 8)

    def second(_: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        tensor = own(torch.float32, 8)
        return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

    matrix = torch.eye(256, device=DEVICE)
    for _ in range(50):
        tensor = matrix @ matrix[:, :1]  # so that the device is busy where a collective is started
        works = [
            dist.all_reduce(tensor[:8, 0], async_op=True),
            dist.all_gather([torch.empty(8, device=DEVICE) for _ in ranks()], own(torch.float32, 8), async_op=True),
        ]
        futures = [work.get_future().then(second) for work in works]
        for future in futures:
            same(future.wait(), expected)


def check_barriers() -> None:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()
    dist.monitored_barrier(wait_all_ranks=True)
    dist.monitored_barrier(timeout=60.0)  # seconds, as PyTorch's own takes them, too


def check_objects() -> None:
    me, size = dist.get_rank(), len(ranks())
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": me, "tensor": torch.full((2,), me, device=DEVICE)})
    assert [o["rank"] for o in objects] == list(ranks())
    assert [o["tensor"].tolist() for o in objects] == [[rank] * 2 for rank in ranks()]
    shared: list[Any] = ["a" * 100, 3, None] if me == 0 else [None] * 3
    dist.broadcast_object_list(shared, src=0)
    assert shared == ["a" * 100, 3, None]
    gathered: list[Any] | None = [None] * size if me == 1 else None
    dist.gather_object(me * 2, gathered, dst=1)
    assert gathered is None or gathered == [rank * 2 for rank in ranks()]
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, [f"for {rank}" for rank in ranks()] if me == 0 else None, src=0)
    assert scattered == [f"for {me}"]
    if me == 0:
        dist.send_object_list([1, "two"], dst=1)
    elif me == 1:
        received: list[Any] = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == [1, "two"]


def check_groups() -> None:
    me, size = dist.get_rank(), len(ranks())
    groups = [dist.new_group([rank]) for rank in ranks()]
    tensor = own(torch.float32, 3)
    dist.all_reduce(tensor, group=groups[me])
    same(tensor, value(me, torch.float32, 3))
    backwards = dist.new_group(list(reversed(ranks())), sort_ranks=False) if size == 2 else dist.new_group()
    tensor = own(torch.float32, 3)
    dist.broadcast(tensor, group_src=0, group=backwards)
    same(tensor, value(size - 1 if size == 2 else 0, torch.float32, 3))
    subgroup, _ = dist.new_subgroups(group_size=1)
    assert subgroup.size() == 1
    for group in [*groups, backwards, subgroup]:
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)
    raises(ValueError, "not initialized", lambda: dist.broadcast(tensor, group_src=0, group=backwards))


def check_split() -> None:
    """A part of a group that is made from the group itself, which has to know its device."""
    whole = dist.group.WORLD
    assert whole is not None and whole._get_backend(torch.device(DEVICE)).supports_splitting
    whole.bound_device_id = torch.device(DEVICE, 0)
    part = dist.split_group(whole, [[rank] for rank in ranks()])
    assert part is not None and part.size() == 1
    tensor = own(torch.float32, 3)
    dist.all_reduce(tensor, group=part)
    same(tensor, value(dist.get_rank(), torch.float32, 3))
    everybody = dist.split_group(whole, [list(ranks())])
    dist.all_reduce(tensor, group=everybody)
    same(tensor, folded(torch.add, torch.float32, 3))


def check_bad_input() -> None:
    """Mistakes that every rank makes are errors on every rank, and the group goes on."""
    itself = [dist.P2POp(kind, own(torch.float32, 3), dist.get_rank()) for kind in (dist.irecv, dist.isend)]
    for operation in itself:
        raises(ValueError, "cannot send to itself", lambda one=operation: dist.batch_isend_irecv([one]))
    raises(TypeError, "Reductions", lambda: dist.all_reduce(own(torch.float8_e4m3fn, 3)))
    raises(
        ValueError,
        "complex",
        lambda: dist.reduce_scatter_tensor(
            torch.zeros(3, dtype=torch.complex64, device=DEVICE),
            own(torch.complex64, 3 * len(ranks())),
            op=dist.ReduceOp.MAX,
        ),
    )
    raises(TypeError, "Boolean", lambda: dist.all_reduce(own(torch.bool, 3), op=dist.ReduceOp.AVG))
    raises(RuntimeError, "BAND", lambda: dist.all_reduce(own(torch.float32, 3), op=dist.ReduceOp.BAND))
    raises(
        ValueError, "tensor for each", lambda: dist.all_gather([torch.zeros(3, device=DEVICE)], own(torch.float32, 3))
    )
    raises(RuntimeError, "cpu", lambda: dist.all_reduce(torch.ones(3)))
    work = dist.all_reduce(own(torch.float32, 3), async_op=True)
    work.wait()
    dist.barrier()


def check_pickle_of_results() -> None:
    tensor = own(torch.float32, 3)
    dist.all_reduce(tensor)
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    same(torch.load(buffer), folded(torch.add, torch.float32, 3))


if __name__ == "__main__":
    run_checks(globals())
