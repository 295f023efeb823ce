# SPDX-License-Identifier: Apache-2.0
"""Counters: what ran on the CPU instead of the device, and what was compiled."""

from __future__ import annotations

import sys
from typing import Any, Literal, overload

from outboard import _C


@overload
def fallbacks() -> dict[str, int]: ...
@overload
def fallbacks(*, reasons: Literal[True]) -> dict[str, tuple[int, list[str]]]: ...


def fallbacks(*, reasons: bool = False) -> Any:
    """How often each operator ran on the CPU for want of a device implementation, by name (``aten::...``).

    With ``reasons=True`` as (number, reasons): what the compiler said when it first met such calls, each with the line
    of the program that made one.
    """
    counts: dict[str, int] = _C.fallbacks()
    if not reasons:
        return counts
    compiler = sys.modules.get("outboard.compiler.statistics")
    known = {} if compiler is None else compiler.reasons()
    return {name: (count, known.get(name.partition(".")[0], [])) for name, count in counts.items()}


def reset_fallbacks() -> None:
    """Sets :func:`fallbacks` to empty."""
    _C.reset_fallbacks()


def set_fallback_policy(policy: str) -> None:
    """What a fallback does: ``"allow"`` (run), ``"warn"`` (run and warn) or ``"error"`` (raise NotImplementedError)."""
    _C.set_fallback_policy(policy)


def compile_stats() -> dict[str, float]:
    """What compilation did since start or :func:`reset_compile_stats`.

    Keys: ``hits`` (calls that ran a plan found in memory), ``misses`` (calls that had to ask for one), ``disk_hits``
    (plans found on disk), ``compiled`` (plans made), ``compile_seconds``, ``programs_built`` and ``programs_loaded``
    (device programs built from source, and loaded from disk), ``executables`` (runs of what a graph compiler made of
    parts of graphs of ``torch.compile``), ``executables_made`` (of such parts, and of single operators),
    ``measurements`` (of a driver's library against our kernels); of graphs of
    ``torch.compile(mode="reduce-overhead")``, ``captures``, ``replays`` (calls that ran a capture) and
    ``capture_refusals`` (graphs that cannot be captured).
    """
    stats: dict[str, float] = dict.fromkeys(("disk_hits", "compiled", "executables", "executables_made"), 0)
    stats["compile_seconds"] = 0.0
    stats.update(_C.eager_stats())
    # The compiler is imported on the first miss only; until then it has nothing to report.
    if (compiler := sys.modules.get("outboard.compiler.statistics")) is not None:
        stats.update(compiler.snapshot())
    built = loaded = 0
    for index in range(_C.device_count() if _C.devices_opened() else 0):
        programs = _C.program_statistics(index)
        built += programs["built"]
        loaded += programs["loaded_from_disk"]
    return stats | {"programs_built": built, "programs_loaded": loaded}


def reset_compile_stats() -> None:
    """Sets the counters of :func:`compile_stats` to zero, but for those of programs, which count from start."""
    _C.reset_eager_stats()
    if (compiler := sys.modules.get("outboard.compiler.statistics")) is not None:
        compiler.reset()
