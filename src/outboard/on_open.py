# SPDX-License-Identifier: Apache-2.0
"""What is called when devices are opened, which happens when they are first needed, and after one was reset."""

from __future__ import annotations

import threading
from collections.abc import Callable

_lock = threading.Lock()
_waiting: list[Callable[[int], None]] = []
_count: int | None = None
_after_resets: list[Callable[[int], None]] = []


def call_when_opened(callback: Callable[[int], None]) -> None:
    """Calls back with the number of devices, at once if they are opened, else by the thread that opens them."""
    with _lock:
        if _count is None:
            _waiting.append(callback)
            return
    callback(_count)


def opened(count: int) -> None:
    """Says that devices are opened, once per process. A callback may not ask PyTorch about devices: it waits for this
    to end."""
    global _count
    with _lock:
        _count = count
        waiting = _waiting.copy()
        _waiting.clear()
    for callback in waiting:
        callback(count)


def call_after_resets(callback: Callable[[int], None]) -> None:
    """Calls back with the index of each device that is made as new."""
    _after_resets.append(callback)


def was_reset(index: int) -> None:
    """Says that a device was made as new."""
    for callback in _after_resets:
        callback(index)
