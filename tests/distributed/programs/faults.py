# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a group, one fault in each run (VARIANT), of two ranks: nobody hangs, and everybody is told."""

from __future__ import annotations

import datetime
import functools
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed.ranks import JOIN_SECONDS, device_type

DEVICE = device_type()
TIMEOUT = 3.0  # seconds
GRACE = 20.0  # seconds that a busy machine may add


def refused(kind: type[Exception], words: list[str], function: Callable[[], Any]) -> str:
    begin = time.perf_counter()
    try:
        function()
    except kind as error:
        text = str(error)
        assert all(word in text for word in words), text
        assert time.perf_counter() - begin < TIMEOUT + GRACE
        return text
    raise AssertionError(f"no {kind.__name__}")


def join(timeout: float = TIMEOUT) -> None:
    """Joins the group, whose timeout begins when every rank is there and has used the device."""
    dist.set_debug_level_from_env()
    ones(3)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        size,
        rank == 0,
        datetime.timedelta(seconds=JOIN_SECONDS),
    )
    store.set(f"ready {rank}", "")
    store.wait([f"ready {other}" for other in range(size)])
    dist.init_process_group(store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=timeout))


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=DEVICE)


def killed_peer() -> None:
    join()
    dist.all_reduce(ones(3))
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    refused(dist.DistBackendError, ["all_reduce", "rank 0 of 2"], lambda: dist.all_reduce(ones(1 << 20)))
    # The group is of no use any more, and says so at once.
    refused(dist.DistBackendError, ["send"], lambda: dist.send(ones(1 << 20), 1))


def stalled_peer() -> None:
    join()
    peers: list[Any] = [None, None]
    dist.all_gather_object(peers, os.getpid())
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    try:
        refused(dist.DistBackendError, ["Timed out", "all_reduce"], lambda: dist.all_reduce(ones(3)))
        refused(dist.DistBackendError, [], lambda: dist.broadcast(ones(3), 1))
    finally:
        os.kill(peers[1], signal.SIGKILL)


def late_peer() -> None:
    """A rank that comes too late is named, and the others go on without it."""
    join(60)
    if dist.get_rank() == 0:
        seconds = datetime.timedelta(seconds=TIMEOUT)
        refused(RuntimeError, ["1"], lambda: dist.monitored_barrier(timeout=seconds))
    else:
        time.sleep(TIMEOUT + 1)


def mismatched_shapes() -> None:
    join(30)
    shape = 3 + dist.get_rank()
    refused(RuntimeError, ["mismatch", "shape"], lambda: dist.all_reduce(ones(shape)))
    tensor = ones(3).to(torch.float32 if dist.get_rank() == 0 else torch.float64)
    refused(RuntimeError, ["mismatch"], lambda: dist.all_reduce(tensor))
    dist.all_reduce(ones(3))


def mismatched_order() -> None:
    join(30)
    other = (lambda: dist.all_reduce(ones(3))) if dist.get_rank() == 0 else (lambda: dist.broadcast(ones(3), 0))
    refused(RuntimeError, ["mismatch", "ALLREDUCE", "BROADCAST"], other)
    dist.barrier()


def unlike_calls() -> None:
    """Through shared memory all ranks are told without a debug mode, and the group goes on."""
    join(30)
    shape = 3 + dist.get_rank()
    each = ["rank 0", "rank 1", "of 3", "of 4"]
    refused(dist.DistBackendError, [*each, "all_reduce"], lambda: dist.all_reduce(ones(shape)))
    refused(dist.DistBackendError, [*each, "broadcast"], lambda: dist.broadcast(ones(shape), 0))
    other = (lambda: dist.all_reduce(ones(3))) if dist.get_rank() == 0 else (lambda: dist.broadcast(ones(3), 0))
    refused(dist.DistBackendError, ["all_reduce", "broadcast"], other)
    size = dist.get_world_size()
    lists = [ones(shape) for _ in range(size)]
    first = dist.get_rank() == 0
    refused(dist.DistBackendError, [*each, "gather"], lambda: dist.gather(ones(shape), lists if first else None))
    refused(dist.DistBackendError, [*each, "scatter"], lambda: dist.scatter(ones(shape), lists if first else None))
    long = ones((1 << 21) + dist.get_rank())  # which goes in parts
    refused(dist.DistBackendError, ["rank 0", "rank 1", "all_reduce"], lambda: dist.all_reduce(long))
    out, own = ones(4 + dist.get_rank()), ones(4)
    splits = [2, 2 + dist.get_rank()]
    refused(dist.DistBackendError, ["bytes"], lambda: dist.all_to_all_single(out, own, splits, [2, 2]))
    tensor = ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3


def interrupted() -> None:
    """Ctrl-C ends a wait for other ranks, which are told."""
    join(60)
    groups = [dist.new_group(), dist.new_group()]
    for asynchronous, group in zip((True, False), groups, strict=True):
        dist.barrier()
        if dist.get_rank() == 0:
            _interrupt_a_wait(asynchronous, group)
    dist.barrier()
    if dist.get_rank() == 1:
        refused(dist.DistBackendError, ["gave up"], lambda: dist.all_reduce(ones(1 << 20), group=groups[1]))


def interrupted_messages() -> None:
    """Ctrl-C ends a wait for a message, in both directions, and the group goes on."""
    join(60)
    tensor, rank = ones(3), dist.get_rank()
    dist.barrier()
    if rank == 0:
        _interrupted(lambda: dist.recv(tensor, 1, tag=1))
        _interrupted(lambda: dist.irecv(tensor, 1, tag=2).wait())
        _interrupted(lambda: dist.send(ones(1 << 22), 1, tag=3))
    dist.barrier()
    dist.send(tensor, 1, tag=4) if rank == 0 else dist.recv(tensor, 0, tag=4)
    assert tensor.tolist() == [1.0] * 3


def _interrupted(call: Callable[[], object]) -> None:
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.perf_counter()
    try:
        call()
    except KeyboardInterrupt:
        assert time.perf_counter() - begin < GRACE
        return
    raise AssertionError("no KeyboardInterrupt")


def unlike_messages() -> None:
    """Messages of other lengths than the receiver expects: it is told, nothing is written, and the group goes on."""
    join(60)
    short, long, parts = 3, 1 << 18, (9 << 20) // 4  # elements: with the header, in one piece, in several
    for number, (sent, expected) in enumerate(itertools.permutations((0, short, short + 1, long, long + 1, parts), 2)):
        _unlike_message(sent, expected, number)
    everything = ones(parts)
    dist.send(everything, 1) if dist.get_rank() == 0 else dist.recv(everything, 0)


def _unlike_message(sent: int, expected: int, number: int) -> None:
    if dist.get_rank() == 0:
        if number % 2:
            dist.send(ones(sent) * 2, 1, tag=number)
        else:
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, ones(sent) * 2, 1, tag=number)]):
                work.wait()
        dist.send(ones(2) * 3, 1, tag=number)
        return
    tensor, after = ones(expected), ones(2)
    sizes = ["recv", f"sent {4 * sent} bytes", f"has {4 * expected}"]
    if number % 3 == 0:  # from any source
        sizes[0] = "recvAnySource"
        refused(dist.DistBackendError, sizes, lambda: dist.recv(tensor, tag=number))
    else:
        refused(dist.DistBackendError, sizes, lambda: dist.irecv(tensor, 0, tag=number).wait())
    assert bool((tensor == 1).all())
    dist.recv(after, 0, tag=number)
    assert after.tolist() == [3.0] * 2


def unlike_sizes() -> None:
    """Collectives with unlike sizes, over sockets, in debug mode: all ranks are told what each called, and the group
    goes on."""
    join(60)
    for collective in COLLECTIVES.values():
        refused(RuntimeError, ["Rank 0", "Rank 1", "mismatch"], functools.partial(collective, 3 + dist.get_rank()))
    tensor = ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3


COLLECTIVES: dict[str, Callable[[int], object]] = {
    "all_reduce": lambda shape: dist.all_reduce(ones(shape)),
    "broadcast": lambda shape: dist.broadcast(ones(shape), 0),
    "reduce": lambda shape: dist.reduce(ones(shape), 0),
    "all_gather": lambda shape: dist.all_gather([ones(shape), ones(shape)], ones(shape)),
    "all_gather_into_tensor": lambda shape: dist.all_gather_into_tensor(ones(2 * shape), ones(shape)),
    "gather": lambda shape: dist.gather(ones(shape), None if dist.get_rank() else [ones(shape), ones(shape)]),
    "scatter": lambda shape: dist.scatter(ones(shape), None if dist.get_rank() else [ones(shape), ones(shape)]),
}


def _interrupt_a_wait(asynchronous: bool, group: Any) -> None:
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.perf_counter()
    try:
        work = dist.all_reduce(ones(1 << 20), async_op=asynchronous, group=group)
        work.wait()
    except KeyboardInterrupt:
        assert time.perf_counter() - begin < GRACE
        return
    raise AssertionError("no KeyboardInterrupt")


def wrong_world_size() -> None:
    rank = int(os.environ["RANK"])
    patience = datetime.timedelta(seconds=10)  # in which two come on a busy machine
    refused(
        dist.DistError,
        ["2/3"] if rank == 0 else [],
        lambda: dist.init_process_group(timeout=patience, world_size=3, rank=rank),
    )


def port_in_use() -> None:
    """Only the first rank opens it."""
    if os.environ["RANK"] == "0":
        refused(dist.DistNetworkError, ["EADDRINUSE"], dist.init_process_group)


def aborted() -> None:
    """What nobody will send is given up."""
    join(600)
    work = dist.irecv(ones(3), 1 - dist.get_rank())
    collective = dist.all_reduce(ones(3), async_op=True) if dist.get_rank() == 0 else None
    with ThreadPoolExecutor() as pool:
        ends = [pool.submit(refused, dist.DistBackendError, ["aborted"], w.wait) for w in (work, collective) if w]
        time.sleep(0.5)
        dist.distributed_c10d._abort_process_group()
        for end in ends:
            end.result(GRACE)
    assert not dist.is_initialized()


def failed_kernel() -> None:
    """An error of the device's comes up where the program waits, and the group stays usable."""
    join(60)
    index = torch.tensor([9], device=DEVICE)
    result = ones(3)[index]
    dist.all_reduce(ones(3))
    refused(IndexError, ["out of"], result.cpu)
    tensor = ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3


def resources() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "threads": int(status["Threads"]),
        "files": len(os.listdir("/proc/self/fd")),
        "KiB": int(status["VmRSS"].split()[0]),
    }


def many_groups() -> None:
    join(60)
    count = int(os.environ.get("OUTBOARD_TEST_GROUPS", "40"))

    def one() -> None:
        group = dist.new_group()
        tensor = ones(100)
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == 2
        dist.destroy_process_group(group)

    for _ in range(5):
        one()
    before = resources()
    for _ in range(count):
        one()
    after = resources()
    print(before, after)
    assert after["threads"] <= before["threads"] + 1 and after["files"] <= before["files"] + 1
    assert after["KiB"] < before["KiB"] + 16 * 1024 + 32 * count


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[os.environ["VARIANT"]]()
    print("done", flush=True)
