# SPDX-License-Identifier: Apache-2.0
"""Device memory: what the caching allocator holds. Sizes in bytes.

Tensors take device memory when work first needs it, not when they are made, so all numbers count memory that exists.
Every function takes ``device`` as index, string, ``torch.device`` or None (the current device).
"""

from __future__ import annotations

from outboard import _C
from outboard.device.devices import DeviceLike, get_device_properties, index_of


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """Statistics of a device's allocator; empty without hardware.

    Keys: ``{allocated,reserved,active,cached}.{current,peak,total_allocated,total_freed}`` in bytes, and the counts
    ``num_alloc_retries``, ``num_ooms``, ``num_device_alloc``, ``num_device_free``.
    """
    if _C.device_count() == 0:
        return {}
    statistics: dict[str, int] = _C.memory_statistics(index_of(device))
    return statistics


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


def empty_cache(device: DeviceLike = None) -> None:
    """Gives cached blocks that no tensor uses back to the driver; no-op without hardware."""
    if _C.device_count() > 0:
        _C.empty_cache(index_of(device))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Resets every ``peak`` to its ``current``."""
    _C.reset_peak_memory_stats(index_of(device))


def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """The same as :func:`reset_peak_memory_stats`, under its older name."""
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


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """The statistics as a table for people.

    Args:
        abbreviated: leave out the counts.
    """
    stats = memory_stats(device)
    lines = [f"{'memory':<12}{'current':>12}{'peak':>12}{'allocated':>14}{'freed':>14}"]
    for gauge in ("allocated", "active", "cached", "reserved"):
        columns = [_size(stats.get(f"{gauge}.{column}", 0)) for column in ("current", "peak")]
        totals = [_size(stats.get(f"{gauge}.{column}", 0)) for column in ("total_allocated", "total_freed")]
        lines.append(f"{gauge:<12}" + "".join(f"{c:>12}" for c in columns) + "".join(f"{t:>14}" for t in totals))
    if not abbreviated:
        counts = ("num_device_alloc", "num_device_free", "num_alloc_retries", "num_ooms")
        lines += [f"{count:<24}{stats.get(count, 0):>12}" for count in counts]
    return "\n".join(lines)


def _size(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
