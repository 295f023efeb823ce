# SPDX-License-Identifier: Apache-2.0
"""Counters of the compiler: how often it was asked, and what that cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_counters: dict[str, float] = {}


def _zero() -> dict[str, float]:
    names = ("compiled", "disk_hits", "on_cpu", "measurements", "captures", "replays", "capture_refusals")
    return {**dict.fromkeys(names, 0), "compile_seconds": 0.0}


_counters.update(_zero())


def add(name: str, amount: float = 1) -> None:
    """Adds to a counter."""
    with _lock:
        _counters[name] = _counters.get(name, 0) + amount


def snapshot() -> dict[str, float]:
    """All counters: ``compiled`` (graphs compiled, or found not to be compilable), ``disk_hits`` (plans found on
    disk), ``on_cpu`` (operators that have no plan), ``measurements`` (of a driver's library against our kernels),
    ``compile_seconds``; of graphs compiled with ``reduce-overhead``, ``captures``, ``replays``, and
    ``capture_refusals`` (graphs that cannot be captured)."""
    with _lock:
        return dict(_counters)


def reset() -> None:
    """Sets all counters to zero."""
    with _lock:
        _counters.clear()
        _counters.update(_zero())


@contextmanager
def timed() -> Iterator[None]:
    """Counts a compilation and its time."""
    start = time.perf_counter()
    try:
        yield
    finally:
        add("compiled")
        add("compile_seconds", time.perf_counter() - start)
