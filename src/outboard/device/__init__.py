# SPDX-License-Identifier: Apache-2.0
"""The device's namespace, ``torch.<device>``: devices, streams, memory, random numbers, AMP and counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import AcceleratorError, OutOfMemoryError

from outboard.device import amp, dlpack, memory, printing, sharing, sim, typed_tensors
from outboard.device import ranges as nvtx
from outboard.device.amp import get_amp_supported_dtype, is_autocast_available, is_bf16_supported
from outboard.device.counters import (
    compile_stats,
    fallbacks,
    reset_compile_stats,
    reset_fallbacks,
    set_fallback_policy,
)
from outboard.device.devices import (
    DeviceProperties,
    _is_in_bad_fork,
    _lazy_init,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    is_tf32_supported,
    reset,
    set_device,
    synchronize,
)
from outboard.device.graphs import (
    Graph,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from outboard.device.memory import (
    MemPool,
    caching_allocator_alloc,
    caching_allocator_delete,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    ipc_collect,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from outboard.device.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from outboard.device.sensors import (
    clock_rate,
    device_memory_used,
    memory_usage,
    power_draw,
    temperature,
    utilization,
)
from outboard.device.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from outboard.device.waits import get_sync_debug_mode, set_sync_debug_mode

__all__ = [
    "AcceleratorError",
    "DeviceProperties",
    "Event",
    "Graph",
    "MemPool",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "amp",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "clock_rate",
    "compile_stats",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "dlpack",
    "empty_cache",
    "explain",
    "explain_steady",
    "fallbacks",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_autocast_available",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "memory_usage",
    "nvtx",
    "power_draw",
    "printing",
    "reset",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_compile_stats",
    "reset_fallbacks",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_fallback_policy",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "sharing",
    "sim",
    "stream",
    "synchronize",
    "temperature",
    "typed_tensors",
    "use_mem_pool",
    "_initialized",
    "_is_in_bad_fork",
    "_lazy_init",
    "utilization",
]

#: The default generator of every device, by index.
default_generators: tuple[torch.Generator, ...]


#: Whether devices are open; torch.utils.checkpoint saves random states only then.
_initialized: bool


#: Functions of outboard.reporting, which few programs need.
explain: Callable[..., Any]
explain_steady: Callable[..., Any]


def __getattr__(name: str) -> tuple[torch.Generator, ...] | bool | type | Callable[..., Any]:
    if name == "default_generators":
        from outboard.device.random import default_generators

        return default_generators()
    if name == "_initialized":
        return is_initialized()
    if name in ("explain", "explain_steady"):
        from outboard import reporting

        function: Callable[..., Any] = getattr(reporting, name)
        return function
    if name in typed_tensors.NAMES:
        return typed_tensors.typed_tensor(name)
    raise AttributeError(f"module 'torch.{torch._C._get_privateuse1_backend_name()}' has no attribute {name!r}")
