# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a group whose collectives are the driver's: faults of its own beside those of
:mod:`tests.distributed.programs.faults`, one in each run (VARIANT)."""

from __future__ import annotations

import ctypes
import datetime
import os
import select
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed.programs.driver_collectives import submitted
from tests.distributed.programs.faults import GRACE, TIMEOUT, join, ones, refused, resources

#: Streams that a device hands out in turn (csrc/runtime/device.cpp); one that was never used has no threads.
POOL = 32
OUT_OF_MEMORY = 3  # an ob_status


def ended(call: Any, seconds: float, kind: type[BaseException], *words: str) -> None:
    """Calls a function, which must raise an error with these words within a time."""
    begin = time.perf_counter()
    try:
        call()
    except kind as error:
        assert time.perf_counter() - begin < seconds, time.perf_counter() - begin
        assert all(word in str(error) for word in words), str(error)
        return
    raise AssertionError(f"no {kind.__name__}")


def first_call() -> None:
    """The call that makes the communicator, of which one rank has not heard yet: what ends the wait for it."""
    join(600)
    for end in (times_out, is_aborted, is_interrupted):
        group = dist.new_group(timeout=datetime.timedelta(seconds=TIMEOUT if end is times_out else 600))
        dist.barrier()
        end(group, dist.get_rank() == 0)
        dist.barrier()
    assert submitted() == 4  # of the last group alone
    dist.destroy_process_group()


def times_out(group: Any, first: bool) -> None:
    if first:
        tensor, begin = ones(3), time.perf_counter()
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert time.perf_counter() - begin < TIMEOUT / 2  # the caller does not wait
        ended(work.wait, TIMEOUT + GRACE, dist.DistBackendError, "all_reduce", "Timed out after 3 s", "1 did not come")
        refused(dist.DistBackendError, ["of no use any more"], lambda: dist.all_reduce(ones(3), group=group))
        assert tensor.tolist() == [1.0] * 3  # its stream tells nobody else
    else:
        time.sleep(TIMEOUT + 1)
        refused(dist.DistBackendError, ["rank 0 gave up: Timed out"], lambda: dist.all_reduce(ones(3), group=group))


def is_aborted(group: Any, first: bool) -> None:
    def call() -> None:
        dist.all_reduce(ones(3), group=group)

    if first:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ended, call, GRACE, dist.DistBackendError, "all_reduce", "aborted")
            time.sleep(0.5)
            begin = time.perf_counter()
            group._get_backend(torch.device(ones(1).device)).abort()
            waiting.result(GRACE)
            assert time.perf_counter() - begin < TIMEOUT
    else:
        time.sleep(1)
        ended(call, GRACE, dist.DistBackendError, "rank 0 gave up: aborted")


def is_interrupted(group: Any, first: bool) -> None:
    """The process goes on, and so does the group."""
    tensors = [ones(3) for _ in range(3)]
    if first:
        works = [dist.all_reduce(tensors[0], group=group, async_op=True)]
        for call in (works[0].wait, lambda: dist.all_reduce(tensors[1], group=group)):
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            ended(call, 0.5 + 2, KeyboardInterrupt)  # within a second, where others do not use the processor
    else:
        time.sleep(2)
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors[:2]]
    works.append(dist.all_reduce(tensors[2], group=group, async_op=True))
    for work in works:
        work.wait()
    assert all(tensor.tolist() == [2.0] * 3 for tensor in tensors)
    dist.all_reduce(tensors[0], group=group)


def lost_store() -> None:
    """The rank that has the store ends before its first collective: the other one does not wait until the timeout."""
    join(600)
    dist.barrier()
    if dist.get_rank() == 0:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    ended(lambda: dist.all_reduce(ones(3)), 1 + GRACE, dist.DistBackendError, "all_reduce", "store", "out of reach")


def unlike_calls() -> None:
    """All ranks are told, and the group goes on."""
    join(30)
    shape, words = 3 + dist.get_rank(), ["different collectives"]
    refused(dist.DistBackendError, ["all_reduce", *words], lambda: dist.all_reduce(ones(shape)))
    refused(dist.DistBackendError, ["broadcast", *words], lambda: dist.broadcast(ones(shape), 0))
    other = (lambda: dist.all_reduce(ones(3))) if dist.get_rank() == 0 else (lambda: dist.broadcast(ones(3), 0))
    refused(dist.DistBackendError, words, other)
    tensor = ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3


def refused_call() -> None:
    """A rank whose driver refuses its part: the others wait for that no longer than it takes to tell them."""
    join(600)
    tensor = ones(3)
    dist.all_reduce(tensor)
    words = ["aborted"]
    if dist.get_rank() == 0:
        library = ctypes.CDLL(os.environ["OUTBOARD_DRIVER"])
        library.outboard_faults_fail(b"collective", ctypes.c_uint64(1), OUT_OF_MEMORY)
        words = ["injected failure of collective"]
    ended(lambda: dist.all_reduce(tensor), GRACE, dist.DistBackendError, "all_reduce", *words)
    refused(dist.DistBackendError, ["aborted"], lambda: dist.all_reduce(tensor))
    assert ones(3).tolist() == [1.0] * 3


def exits_in_first_call() -> None:
    """A program need not destroy its groups: it does not wait for ranks that have not come, and they are told."""
    join(600)
    dist.barrier()
    exit_in_a_call("rank 1 gave up", "exits")


def exits_in_later_call() -> None:
    join(600)
    dist.all_reduce(ones(3))
    exit_in_a_call("aborted")


def exit_in_a_call(*words: str) -> None:
    """Rank 1 ends while its collective is under way, which raises an error with these words on the other one."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        dist.all_reduce(ones(3), async_op=True)
        store.set("process", str(os.getpid()))
        return
    process = os.pidfd_open(int(store.get("process")))
    begin = time.perf_counter()
    assert select.select([process], [], [], GRACE)[0], "it waits for this rank"
    print(f"ended within {time.perf_counter() - begin:.2f} s", flush=True)
    ended(lambda: dist.all_reduce(ones(3)), GRACE, dist.DistBackendError, "all_reduce", *words)


def killed_before_first_call() -> None:
    """A rank that does not have the store ends: the other one is told long before the timeout."""
    join(600)
    dist.barrier()
    lose_rank_1()


def killed_before_later_call() -> None:
    join(600)
    dist.all_reduce(ones(3))
    lose_rank_1()


def lose_rank_1() -> None:
    if dist.get_rank() == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    ended(lambda: dist.all_reduce(ones(3)), GRACE, dist.DistBackendError, "all_reduce", "rank 1 has ended")


def stopped_in_a_call() -> None:
    """A rank that stops while the communicator is made."""
    join()
    dist.barrier()
    if dist.get_rank() == 1:
        store = dist.distributed_c10d._get_default_store()
        store.set("process", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    peer = int(dist.distributed_c10d._get_default_store().get("process"))
    try:
        refused(dist.DistBackendError, ["Timed out", "1 did not come"], lambda: dist.all_reduce(ones(3)))
        refused(dist.DistBackendError, ["of no use any more"], lambda: dist.broadcast(ones(3), 1))
    finally:
        os.kill(peer, signal.SIGKILL)


def threads() -> dict[str, int]:
    """How many threads of this process have each name."""
    counts: dict[str, int] = {}
    for thread in Path("/proc/self/task").iterdir():
        name = (thread / "comm").read_text().strip()
        counts[name] = counts.get(name, 0) + 1
    return counts


def many_groups() -> None:
    """Each group has a stream of the device's pool, whose threads stay. Once all of them are there, groups add none."""
    join(60)

    def one() -> None:
        group = dist.new_group()
        tensor = ones(100)
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == 2
        dist.destroy_process_group(group)

    for _ in range(POOL + 1):
        one()
    before, named = resources(), threads()
    count = int(os.environ["OUTBOARD_TEST_GROUPS"])
    for _ in range(count):
        one()
    after = resources()
    print(before, after, named, threads())
    assert after["threads"] == before["threads"], (named, threads())
    assert after["files"] == before["files"]
    assert after["KiB"] < before["KiB"] + 8 * 1024 + 32 * count


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[os.environ["VARIANT"]]()
    print("done", flush=True)
