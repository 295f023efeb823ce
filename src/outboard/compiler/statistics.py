# SPDX-License-Identifier: Apache-2.0
"""Counters of the compiler: how often it was asked, and what that cost."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_lock = threading.Lock()
_counters: dict[str, float] = {}


def _zero() -> dict[str, float]:
    calls = ("executables", "executables_made", "captures", "replays", "capture_refusals")
    return {**dict.fromkeys(("compiled", "disk_hits", "on_cpu", "measurements", *calls), 0), "compile_seconds": 0.0}


_counters.update(_zero())


def add(name: str, amount: float = 1) -> None:
    """Adds to a counter."""
    with _lock:
        _counters[name] = _counters.get(name, 0) + amount


def snapshot() -> dict[str, float]:
    """All counters: ``compiled`` (graphs compiled, or found not to be compilable), ``disk_hits`` (plans found on
    disk), ``on_cpu`` (operators that have no plan), ``executables`` (runs of what a graph compiler made of parts of
    graphs of ``torch.compile``), ``executables_made`` (of such parts, and of single operators), ``measurements`` (of a
    driver's library against our kernels), ``compile_seconds``; of graphs compiled with ``reduce-overhead``,
    ``captures``, ``replays``, and ``capture_refusals`` (graphs that cannot be captured)."""
    with _lock:
        return dict(_counters)


def reset() -> None:
    """Sets all counters to zero."""
    with _lock:
        _counters.clear()
        _counters.update(_zero())


#: How many reasons are remembered for one operator.
MOST_REASONS = 16
_reasons: dict[str, list[str]] = {}


def note_reason(op: str, reason: str) -> None:
    """Remembers why calls of an operator run on the CPU, and which line of the program made the first of them."""
    with _lock:
        known = _reasons.setdefault(op, [])
        if len(known) < MOST_REASONS and not any(each.startswith(reason) for each in known):
            known.append(f"{reason}{_users_line()}")


def reasons() -> dict[str, list[str]]:
    """What :func:`note_reason` was told, by operator."""
    with _lock:
        return {op: list(known) for op, known in _reasons.items()}


def _users_line() -> str:
    """The innermost line on the stack that is neither ours nor PyTorch's, in brackets; a backward pass has none."""
    libraries = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), "<")
    frames = reversed(traceback.extract_stack())
    return next((f" ({each.filename}:{each.lineno})" for each in frames if not each.filename.startswith(libraries)), "")


@contextmanager
def timed() -> Iterator[None]:
    """Counts a compilation and its time."""
    start = time.perf_counter()
    try:
        yield
    finally:
        add("compiled")
        add("compile_seconds", time.perf_counter() - start)
