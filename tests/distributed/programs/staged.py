# SPDX-License-Identifier: Apache-2.0
"""Long tensors go in parts: results are those of whole ones, and copies run beside the exchange. Some of the tensors
have no even number of parts, or another order of dimensions."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import profile

from benchmarks.data_parallel import hidden, spans
from tests.distributed.orders import exchange_lists_in_any_order
from tests.distributed.ranks import device_type, run_checks

DEVICE = device_type()
HOST_ACCESSIBLE = torch.get_device_module(DEVICE).get_device_properties().host_accessible
BY_DRIVER = os.environ.get("OUTBOARD_DRIVER") == "sim"  # which has collectives of its own: nothing is staged
COUNT = (5 << 20) // 4 * 3 + 7  # float32 elements of nearly 16 MiB: parts of which each has 4 MiB at most


def value(rank: int, count: int = COUNT, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same 1,009 numbers again and again, which no number of parts divides."""
    numbers = torch.arange(1009) * (rank + 3) % 1009 - 500
    period = torch.complex(numbers.float(), -numbers.float()) if dtype.is_complex else numbers.to(dtype)
    return period.repeat(count // 1009 + 1)[:count].clone()


def values(count: int = COUNT, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [value(rank, count, dtype) for rank in range(dist.get_world_size())]


def check_all_reduce() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, count in ((torch.float32, COUNT), (torch.complex64, COUNT), (torch.int64, COUNT)):
        own = value(rank, count, dtype).to(DEVICE)
        work = dist.all_reduce(own, async_op=True)
        doubled_before = value(rank, 5).to(DEVICE) * 2  # the current stream goes on
        work.wait()
        after = own + 1  # behind the copies back
        wanted = torch.stack(values(count, dtype)).sum(0)
        assert torch.equal(own.cpu(), wanted) and torch.equal(after.cpu(), wanted + 1)
        assert torch.equal(doubled_before.cpu(), value(rank, 5) * 2)
    mean = value(rank, COUNT).to(DEVICE)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert torch.equal(mean.cpu(), torch.stack(values()).sum(0) / size)
    turned = value(rank, 2048 * 1024).view(2048, 1024).to(DEVICE).t()
    dist.all_reduce(turned)
    assert torch.equal(turned.cpu(), torch.stack(values(2048 * 1024)).sum(0).view(2048, 1024).t())


def check_broadcast_and_reduce() -> None:
    rank = dist.get_rank()
    own = value(rank).to(DEVICE)
    dist.broadcast(own, 1)
    assert torch.equal(own.cpu(), value(1))
    own = value(rank).to(DEVICE)
    dist.reduce(own, 1)
    if rank == 1:
        assert torch.equal(own.cpu(), torch.stack(values()).sum(0))


def check_gather_and_scatter() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.empty(size * COUNT, device=DEVICE)
    dist.all_gather_into_tensor(whole, value(rank).to(DEVICE))
    assert torch.equal(whole.cpu(), torch.cat(values()))
    part = torch.empty(COUNT, device=DEVICE)
    dist.reduce_scatter_tensor(part, value(rank, size * COUNT).to(DEVICE))
    assert torch.equal(part.cpu(), torch.stack(values(size * COUNT)).sum(0).view(size, COUNT)[rank])


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in a matrix whose columns lie one after the other."""
    return tensor[:-1].view(2, -1).t() if tensor.numel() % 2 else tensor.view(2, -1).t()


def check_lists() -> None:
    """Lists of tensors, whose elements may be in another order of memory than those of another rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = [turned(each) for each in values()]
    own = value(rank).to(DEVICE)
    own = turned(own) if rank == 0 else turned(own).contiguous()
    places = [torch.zeros_like(own), torch.zeros(own.shape, device=DEVICE)]
    places += [torch.zeros_like(own) for _ in range(size - 2)]
    dist.all_gather(places, own)
    equal(places, whole)
    dist.gather(own, (places := [torch.zeros_like(each) for each in places]) if rank == 1 else None, dst=1)
    equal(places if rank == 1 else [], whole if rank == 1 else [])
    place = torch.zeros_like(own)
    dist.scatter(place, [turned(each).to(DEVICE) for each in values()] if rank == 1 else None, src=1)
    equal([place], [whole[rank]])
    counts = [COUNT, 5] + [COUNT // 2] * (size - 2)
    places = [torch.zeros(count, dtype=torch.complex64, device=DEVICE) for count in counts]
    dist.all_gather(places, value(rank, counts[rank], torch.complex64).to(DEVICE))
    equal(places, [value(each, count, torch.complex64) for each, count in enumerate(counts)])
    place = torch.zeros(counts[rank], device=DEVICE)
    dist.reduce_scatter(place, [value(rank, count).to(DEVICE) for count in counts])
    equal([place], [torch.stack(values(counts[rank])).sum(0)])
    shapes = [COUNT, 3]
    lists = [[torch.zeros(shape, device=DEVICE) for shape in shapes] for _ in range(size)]
    dist.all_gather_coalesced(lists, [value(rank, shape).to(DEVICE) for shape in shapes])
    for each, tensors in enumerate(lists):
        equal(tensors, [value(each, shape) for shape in shapes])


def check_orders_of_memory() -> None:
    for dtype in (torch.float32, torch.complex64):
        exchange_lists_in_any_order(DEVICE, 400_001, dtype)  # from two parts on


def equal(tensors: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for tensor, right in zip(tensors, wanted, strict=True):
        assert tensor.dtype == right.dtype and tensor.shape == right.shape
        wrong = (tensor.cpu() != right).flatten().nonzero().flatten()
        assert not len(wrong), (wrong, tensor.cpu().flatten()[wrong], right.flatten()[wrong])


def check_all_to_all() -> None:
    """Parts of very unlike sizes, and none at all: each rank has another number of them."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def count(source: int, target: int) -> int:
        return 0 if source == target else (COUNT if source < target else 6)

    def sent(source: int, target: int, dtype: torch.dtype) -> torch.Tensor:
        return value(3 * source + target, count(source, target), dtype)

    for dtype in (torch.float32, torch.int8, torch.complex64):
        received = [torch.zeros(count(source, rank), dtype=dtype, device=DEVICE) for source in range(size)]
        dist.all_to_all(received, [sent(rank, target, dtype).to(DEVICE) for target in range(size)])
        equal(received, [sent(source, rank, dtype) for source in range(size)])
    splits = [
        [count(source, rank) // 2 for source in range(size)],
        [count(rank, target) // 2 for target in range(size)],
    ]
    rows = [sent(rank, target, torch.float32)[: 2 * splits[1][target]].view(-1, 2) for target in range(size)]
    wanted = [sent(source, rank, torch.float32)[: 2 * splits[0][source]].view(-1, 2) for source in range(size)]
    for by_columns in (False, True):
        place, own = torch.zeros(sum(splits[0]), 2, device=DEVICE), torch.cat(rows).to(DEVICE)
        if by_columns:
            place, own = place.t().contiguous().t(), own.t().contiguous().t()
        dist.all_to_all_single(place, own, *splits)
        equal([place], [torch.cat(wanted)])
    even = torch.zeros(size * 6, device=DEVICE)
    dist.all_to_all_single(even, value(rank, size * 6).to(DEVICE))
    equal([even], [torch.cat([value(source, size * 6).view(size, 6)[rank] for source in range(size)])])


def check_messages() -> None:
    """In both directions at once, from any source, in any order of memory, and several under way."""
    rank, size = dist.get_rank(), dist.get_world_size()
    behind, before = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.int8, torch.complex64, torch.bfloat16):
        for count in (COUNT, 1 << 20, 40000, 1, 0):
            place = torch.zeros(count, dtype=dtype, device=DEVICE)
            sending = dist.isend(value(rank, count, dtype).to(DEVICE), behind)
            receiving = dist.irecv(place, before)
            assert sending is not None and receiving is not None
            sending.wait()  # before anybody waits for what arrives
            receiving.wait()
            equal([place], [value(before, count, dtype)])
    matrix = turned(value(rank)).to(DEVICE)
    place = turned(torch.zeros(COUNT, device=DEVICE))
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, matrix, behind), dist.P2POp(dist.irecv, place, before)]):
        work.wait()
    equal([place + 1], [turned(value(before)) + 1])
    if rank == 0:
        places = [torch.zeros(COUNT, device=DEVICE) for _ in range(3 * (size - 1))]
        works = [dist.irecv(place) for place in places]
        for work in works:
            assert work is not None and work.wait()
        arrived = sorted(int(place[-1].item()) for place in places)
        assert arrived == sorted(int(value(3 * source + i)[-1]) for source in range(1, size) for i in range(3))
        equal(places if size == 2 else [], [value(3 + i) for i in range(3)] if size == 2 else [])
    else:
        for work in [dist.isend(value(3 * rank + i).to(DEVICE), 0) for i in range(3)]:
            assert work is not None and work.wait()


def check_page_locked_memory_is_that_of_a_few_parts() -> None:
    """Of a tensor with ten parts, three are on their way at most: to the host, between ranks, and to the device."""
    rank, size, part = dist.get_rank(), dist.get_world_size(), 4 << 20
    count = 10 * part // 4
    own = torch.ones(count, device=DEVICE)
    places = [torch.zeros(count, device=DEVICE) for _ in range(size)]
    several = [torch.ones(count // size, device=DEVICE) for _ in range(size)]
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "all_reduce": (lambda: dist.all_reduce(own), 1),
        "all_gather": (lambda: dist.all_gather(places, own), 1 + size),
        "gather": (lambda: dist.gather(own, None if rank else places), 1 + size),
        "scatter": (lambda: dist.scatter(own, None if rank else places), 1 + size),
        "reduce_scatter": (lambda: dist.reduce_scatter(own, places), 1 + size),
        "all_to_all": (lambda: dist.all_to_all([place[: count // size] for place in places], several), 2),
        "all_to_all_single": (lambda: dist.all_to_all_single(places[0], own), 2),
        "messages": (lambda: dist.send(own, 1) if rank == 0 else (dist.recv(own, 0) if rank == 1 else None), 1),
    }
    memory = torch.get_device_module(DEVICE)
    for name, (call, parts) in calls.items():
        torch.accelerator.synchronize()
        memory.reset_peak_host_memory_stats()
        before = memory.host_memory_stats()["active_bytes.current"]
        call()
        torch.accelerator.synchronize()
        used = memory.host_memory_stats()["active_bytes.peak"] - before
        assert used <= (0 if HOST_ACCESSIBLE else 3 * parts * part), (name, used)
        assert HOST_ACCESSIBLE or BY_DRIVER or used > 0 or rank > 1, name


def check_copies_run_beside_the_exchange() -> None:
    own = value(dist.get_rank()).to(DEVICE)
    with profile() as profiled:
        for _ in range(5):
            dist.all_reduce(own)
        torch.accelerator.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
    collectives, _ = spans(trace)
    assert len(collectives) == 5 * (1 if BY_DRIVER else 4), len(collectives)
    copies = [
        (event["ts"], event["ts"] + event["dur"]) for event in trace["traceEvents"] if event.get("cat") == "gpu_memcpy"
    ]
    if not HOST_ACCESSIBLE and not BY_DRIVER:
        assert len(copies) > len(collectives)
        share = hidden(copies, collectives)
        print(f"{share:.0%} of the time of copies beside the exchange")
        assert share > 0


if __name__ == "__main__":
    run_checks(globals())
