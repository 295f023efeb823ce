# SPDX-License-Identifier: Apache-2.0
"""Device memory: what the caching allocator holds, what waits on the host, and what must stay. Sizes in bytes.

Tensors take device memory when work first needs it, not when they are made, and leave it, the least recently used
first, when the device is full; see docs/memory.md. All numbers but the ``lazy`` ones count memory of the device.
Every function takes ``device`` as index, string, ``torch.device`` or None (the current device).
"""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from outboard import _C
from outboard.device.devices import DeviceLike, get_device_properties, index_of, name

#: The first number of the pools that users make; the others are graphs'.
USERS = 2

#: Parts of :func:`memory_summary`, with the names that :func:`memory_stats` has under ``lazy``.
_LAZY_GAUGES = {
    "not on the device": ("unbacked", "zero", "host", "spilled"),
    "in layouts": ("arranged",),
    "so far": ("materialized", "spills", "restores", "relayouts"),
}


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Statistics of a device's allocator; empty without hardware.

    Keys: ``{allocated,reserved,active,cached}.{current,peak,total_allocated,total_freed}`` in bytes, and the counts
    ``num_alloc_retries``, ``num_ooms``, ``num_device_alloc``, ``num_device_free``.

    ``lazy.{unbacked,zero,host,spilled}.{bytes,count}`` tell how much is not in device memory now: not written yet, only
    known to be zero, waiting on the host since it came from there, moved to the host because the device was full.
    ``lazy.arranged`` tells how much is in :func:`layouts <outboard.layout_of>` of the device's compiler.
    ``lazy.{materialized,spills,restores,relayouts}.{bytes,count}`` tell what was filled in on first use, moved out,
    moved back, and brought to or from a layout since start or :func:`reset_accumulated_memory_stats`.
    """
    if _C.device_count() == 0:
        return {}
    statistics: dict[str, int] = _C.memory_statistics(index_of(device))
    return statistics


def host_memory_stats() -> dict[str, int]:
    """Statistics of pinned host memory, named as ``torch.cuda.host_memory_stats`` names them.

    ``{allocations,allocated_bytes}.{current,peak,allocated,freed}`` count what was got from the driver or the system,
    ``{active_requests,active_bytes}`` with the same endings what tensors use of it; the rest is cached until
    ``torch.accelerator.empty_host_cache()``. ``num_host_alloc`` and ``num_host_free`` count calls.
    """
    return _C.host_memory_statistics()


def reset_peak_host_memory_stats() -> None:
    """Peaks of :func:`host_memory_stats` become current values."""
    _C.reset_peak_host_memory_stats()


def reset_accumulated_host_memory_stats() -> None:
    """Totals of :func:`host_memory_stats` become zero."""
    _C.reset_accumulated_host_memory_stats()


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """:func:`memory_stats` as dictionaries in dictionaries: ``"reserved.peak"`` is ``["reserved"]["peak"]``."""
    return _nested(memory_stats(device))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """:func:`host_memory_stats` as dictionaries in dictionaries."""
    return _nested(host_memory_stats())


def memory_allocated(device: DeviceLike = None) -> int:
    """Device memory occupied by tensors."""
    return memory_stats(device).get("allocated.current", 0)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Most device memory occupied by tensors since start or :func:`reset_peak_memory_stats`."""
    return memory_stats(device).get("allocated.peak", 0)


def memory_reserved(device: DeviceLike = None) -> int:
    """Device memory managed by the caching allocator."""
    return memory_stats(device).get("reserved.current", 0)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Most device memory managed by the caching allocator since start or :func:`reset_peak_memory_stats`."""
    return memory_stats(device).get("reserved.peak", 0)


def memory_cached(device: DeviceLike = None) -> int:
    """:func:`memory_reserved` under its older name, which warns, as with CUDA."""
    _warn_of_old_name("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: DeviceLike = None) -> int:
    """:func:`max_memory_reserved` under its older name, which warns, as with CUDA."""
    _warn_of_old_name("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def empty_cache(device: DeviceLike = None) -> None:
    """Gives cached memory that no tensor uses back: the device's to the driver, the host's to the system.

    No-op without hardware, and before a device was used."""
    if _C.devices_opened() and _C.device_count() > 0:
        _C.empty_cache(index_of(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Resets every ``peak`` to its ``current``."""
    _C.reset_peak_memory_stats(index_of(device))


def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """The same as :func:`reset_peak_memory_stats`, under its older name."""
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: DeviceLike = None) -> None:
    """:func:`reset_peak_memory_stats` under an older name, which warns, as with CUDA."""
    _warn_of_old_name("reset_max_memory_cached", "reset_peak_memory_stats")
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Resets totals and counts to zero."""
    _C.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total memory of a device."""
    free, total = _C.memory_info(index_of(device))
    return int(free), int(total)


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits the allocator to a fraction (0 to 1) of a device's memory.

    Raises:
        ValueError: if ``fraction`` is out of range.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0 to 1")
    _C.set_memory_limit(index_of(device), int(fraction * get_device_properties(device).total_memory))


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The part of a device's memory (0 to 1) that the allocator may take."""
    return min(1.0, _C.memory_limit(index_of(device)) / get_device_properties(device).total_memory)


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """The statistics as a table for people.

    Args:
        abbreviated: leave out the counts, and what is put off, in layouts, or was moved.
    """
    from outboard.reporting import quantities

    stats = memory_stats(device)
    lines = [f"{'memory':<12}{'current':>12}{'peak':>12}{'allocated':>14}{'freed':>14}"]
    for gauge in ("allocated", "active", "cached", "reserved"):
        columns = [quantities.size(stats.get(f"{gauge}.{column}", 0)) for column in ("current", "peak")]
        totals = [quantities.size(stats.get(f"{gauge}.{column}", 0)) for column in ("total_allocated", "total_freed")]
        lines.append(f"{gauge:<12}" + "".join(f"{c:>12}" for c in columns) + "".join(f"{t:>14}" for t in totals))
    if not abbreviated:
        for title, gauges in _LAZY_GAUGES.items():
            lines += ["", f"{title:<24}{'size':>12}{'count':>12}"]
            for gauge in gauges:
                size, count = stats.get(f"lazy.{gauge}.bytes", 0), stats.get(f"lazy.{gauge}.count", 0)
                lines.append(f"{gauge:<24}{quantities.size(size):>12}{count:>12}")
        counts = ("num_device_alloc", "num_device_free", "num_alloc_retries", "num_ooms")
        lines += ["", *(f"{count:<24}{stats.get(count, 0):>12}" for count in counts)]
    return "\n".join(lines)


def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True, device: DeviceLike = None
) -> list[dict[str, Any]]:
    """The memory got from the driver, segment by segment with its blocks, as ``torch.cuda.memory_snapshot`` has it.

    Args:
        mempool_id: only memory of this pool (see ``Graph.pool`` and :class:`MemPool`).
        include_traces: accepted; the history of events is in ``_snapshot`` alone.
        device: only this device (default: all).
    """
    segments = [segment for index in _indices(device) for segment in _C.memory_segments(index)]
    if mempool_id is None:
        return segments
    if mempool_id[0] == USERS:
        return [s for s in segments if s["segment_pool_id"] == mempool_id]
    # A graph's pool is the memory of the stream that captures into it, and has its number.
    return [s for s in segments if s["stream"] == mempool_id[1]]


class MemPool:
    """Device memory for those who ask for it alone, as ``torch.cuda.MemPool``.

    What :func:`use_mem_pool` allocates is in segments of its own, which are kept for the pool as long as it lives. It
    is lazy and spillable as all device memory: what moves to the host comes back to the pool. Under pressure, segments
    that hold nothing go back to the driver, so that a pool never makes another allocation fail; ``use_on_oom`` need not
    be asked for.
    """

    def __init__(self, allocator: object = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        """Makes a pool for all devices.

        Args:
            allocator: only None. Memory comes from the device's driver.
            use_on_oom: accepted; see above.
            no_split: only False: how blocks are cut is ``PYTORCH_ALLOC_CONF``'s.

        Raises:
            RuntimeError: another allocator, or ``no_split``.
        """
        if allocator is not None:
            raise RuntimeError("MemPool: memory comes from the device's driver; allocator must be None")
        if no_split:
            raise RuntimeError(
                "MemPool: no_split is not there; PYTORCH_ALLOC_CONF=max_split_size_mb:... is, for all pools"
            )
        self._pool = _C.MemoryPool()

    @property
    def id(self) -> tuple[int, int]:
        """As ``segment_pool_id`` of :func:`memory_snapshot` has it. Graphs take it as ``pool=``, too."""
        return self._pool.id

    def use_count(self) -> int:
        """How many things keep the pool: this object, :func:`use_mem_pool`, and tensors."""
        return self._pool.use_count()

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """The pool's segments on all devices, as :func:`memory_snapshot` has them."""
        return memory_snapshot(self.id, include_traces)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: DeviceLike = None) -> Iterator[None]:
    """Allocations of this thread on a device are for a pool meanwhile, as with ``torch.cuda.use_mem_pool``.

    Other threads' are not: neither those of a backward pass.
    """
    index = index_of(device)
    _C.begin_memory_pool(index, pool._pool)
    try:
        yield
    finally:
        _C.end_memory_pool(index, pool._pool)


def _snapshot(device: DeviceLike = None) -> dict[str, Any]:
    """Segments, the events that :func:`_record_memory_history` kept for each device, and the allocator's settings.

    Pickled, this is what https://pytorch.org/memory_viz reads.
    """
    wanted = _indices(device)
    traces = [_C.memory_history(index) if index in wanted else [] for index in range(_C.device_count())]
    settings = {"PYTORCH_ALLOC_CONF": torch._C._accelerator_getAllocatorSettings()}
    return {
        "segments": memory_snapshot(device=device),
        "device_traces": traces,
        "allocator_settings": settings,
        "external_annotations": [],
    }


def _dump_snapshot(filename: str | Path = "dump_snapshot.pickle") -> None:
    """Writes :func:`_snapshot` of all devices to a file, for PyTorch's memory visualiser."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


#: What stacks are kept of, as the runtime counts it (``csrc/runtime/memory/memory_context.h``).
_CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}


def _record_memory_history(
    enabled: Literal["all", "state"] | None = "all",
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python", "all"] = "all",
    max_entries: int = 1 << 20,
    device: DeviceLike = None,
    clear_history: bool = False,
) -> None:
    """Keeps what happens to memory, and the lines of the program where it does, for :func:`_snapshot`, as
    ``torch.cuda.memory._record_memory_history``.

    Memory is taken when an operator first needs it, so the stack is that operator's.

    Args:
        enabled: ``"all"`` keeps a history of allocations, frees and segments, ``"state"`` only who has the memory that
            is in use, ``None`` stops.
        context: keep stacks of nothing, of memory in use, also of each allocation, or also of each free.
        stacks: of Python alone, or of C++, too.
        max_entries: of the history; older ones are forgotten.
        device: only of this one (default: all). Stacks are kept of all or none.
        clear_history: forget what was kept before.

    Raises:
        ValueError: for other values.
    """
    if enabled not in ("all", "state", None) or context not in _CONTEXTS or stacks not in ("python", "all"):
        raise ValueError(
            "enabled is 'all', 'state' or None, context 'all', 'alloc', 'state' or None, stacks 'python' or 'all': "
            f"got {enabled!r}, {context!r} and {stacks!r}"
        )
    contexts = _CONTEXTS[None if enabled is None else context]
    for index in _indices(device):
        _C.record_memory_history(
            index, max_entries if enabled == "all" else 0, contexts, stacks == "all", clear_history
        )


def caching_allocator_alloc(size: int, device: DeviceLike = None, stream: torch.Stream | int | None = None) -> int:
    """Device memory without a tensor, which never moves.

    Args:
        size: bytes.
        stream: whose work uses the memory, as a stream of the device or its id (default: the current stream).

    Returns:
        The device address; 0 for 0 bytes.

    Raises:
        torch.OutOfMemoryError: if it cannot be had.
    """
    index = index_of(device)
    if stream is None:
        stream = torch._C._accelerator_getStream(index)
    return _C.allocate_raw(index, size, stream if isinstance(stream, int) else stream.stream_id)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees memory of :func:`caching_allocator_alloc`.

    Raises:
        ValueError: if ``mem_ptr`` is not such memory.
    """
    _C.free_raw(mem_ptr)


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Brings a tensor's whole storage into device memory and keeps it there, however full the device gets.

    Returns:
        The tensor.

    Raises:
        torch.OutOfMemoryError: if it does not fit.
        RuntimeError: for a tensor of another device.
    """
    _C.pin(tensor)
    return tensor


def unpin(tensor: torch.Tensor) -> torch.Tensor:
    """Lets a tensor's storage move to the host again when the device is full. Returns the tensor."""
    _C.unpin(tensor)
    return tensor


def _nested(statistics: dict[str, int]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in statistics.items():
        *path, last = key.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def _warn_of_old_name(old: str, new: str) -> None:
    device = f"torch.{name()}"
    warnings.warn(f"`{device}.{old}` has been renamed to `{device}.{new}`", FutureWarning, stacklevel=3)


def _indices(device: DeviceLike) -> list[int]:
    return list(range(_C.device_count())) if device is None else [index_of(device)]


def get_allocator_backend() -> str:
    """The allocator's name, as ``torch.cuda.get_allocator_backend``: there is one, which caches."""
    return "native"


def ipc_collect() -> None:
    """Nothing: tensors travel to other processes as copies, which are freed when they have arrived."""
