# SPDX-License-Identifier: Apache-2.0
"""Finding the places where a program makes the host wait for the device, as ``torch.cuda`` does it."""

from __future__ import annotations

from outboard import _C

_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Says what an operation does that makes the host wait for the device: nothing, a warning, an exception.

    Such operations are reading a number (``item()``, ``bool(tensor)``, ``nonzero``), copies between host and device
    unless ``non_blocking=True`` and the host's memory is pinned, operators that run on the CPU, and
    ``Stream.synchronize``. Waits that are asked for by name, ``synchronize()`` of the device and of events, are not.

    Args:
        debug_mode: ``"default"`` or 0, ``"warn"`` or 1, ``"error"`` or 2; for all threads.

    Raises:
        RuntimeError: for another mode.
    """
    if isinstance(debug_mode, str):
        if debug_mode not in _MODES:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = _MODES.index(debug_mode)
    _C.set_sync_debug_mode(debug_mode)


def get_sync_debug_mode() -> int:
    """The mode that :func:`set_sync_debug_mode` set, as a number."""
    return _C.sync_debug_mode()
