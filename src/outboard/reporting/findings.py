# SPDX-License-Identifier: Apache-2.0
"""What a program lost time with, out of the profiler's events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch._C._autograd import DeviceType

from outboard.reporting import roofline
from outboard.reporting.places import Place
from outboard.reporting.watch import Note

#: What to do about each kind.
ADVICE = {
    "fallback": "the CPU computed it: write it of operators that the device has, or do it less often; "
    "fallbacks(reasons=True) says why",
    "compilation": "call it before the loop, and keep sizes and dtypes the same: pad batches, drop the last short one; "
    "outboard warmup compiles ahead",
    "wait": "keep the number on the device (torch.where, a sum that is read every hundredth step)",
    "copy": "keep the tensor where it is used; for batches, pinned memory and non_blocking=True",
    "conversion": "make the tensor in the dtype in which it is used, or autocast a larger part",
    "launch": 'torch.compile(mode="reduce-overhead") or outboard.graphed submits many at once; larger batches fill '
    "the device",
    "spill": "smaller batches, torch.utils.checkpoint, or tensors that are let go of earlier",
}
#: Launches of less than this do not fill a device: to submit one takes about as long.
_SMALL = 10e-6
#: Fewer of them are no loop.
_FEW = 10
#: Events of Dynamo's that are compilations of functions, backward passes among them, as the profiler names them.
_DYNAMO = ("_compile.compile_inner (dynamo_timed)", "compile_fx.<locals>.bw_compiler (dynamo_timed)")


@dataclass(frozen=True)
class Finding:
    """One thing that took time.

    Attributes:
        kind: a key of ``ADVICE``.
        what: an operator, a copy's ends, two dtypes.
        cause: of a fallback, why; of launches, of how many.
        place: the line of the program, where it is known.
        count: how often.
        seconds: what it took in all.
        moved: bytes, of a copy or a spill.
    """

    kind: str
    what: str
    cause: str = ""
    place: Place | None = None
    count: int = 0
    seconds: float = 0.0
    moved: int = 0

    def key(self) -> tuple[str, str, str]:
        """What is the same in two runs."""
        return self.kind, self.what, "" if self.place is None else str(self.place)

    def dump(self) -> dict[str, Any]:
        """The same as plain data."""
        place = None if self.place is None else str(self.place)
        return {"kind": self.kind, "what": self.what, "cause": self.cause, "place": place, "count": self.count,
                "seconds": self.seconds, "bytes": self.moved}  # fmt: skip


def find(events: Iterable[Any], notes: Mapping[str, Note], wall: float) -> list[Finding]:
    """What a region lost time with, the worst first.

    Args:
        events: the profiler's.
        notes: those of the region's :class:`~outboard.reporting.watch.Watch`.
        wall: seconds that the region took.
    """
    events = list(events)
    found = [*_noted(events, notes), *_compiled(events), *_small_launches(events, wall)]
    return sorted(found, key=lambda finding: -finding.seconds)


def _noted(events: list[Any], notes: Mapping[str, Note]) -> Iterable[Finding]:
    """What has a mark, which lies in the event whose time it took."""
    totals: dict[Note, tuple[int, float, int]] = {}
    for event in events:
        if (note := notes.get(event.name)) is None:
            continue
        count, seconds, moved = totals.get(note, (0, 0.0, 0))
        owner = event.cpu_parent or event
        moved += _copied(owner) if note.kind == "copy" else 0
        totals[note] = count + 1, seconds + _time_of(note, owner), moved
    return (Finding(note.kind, note.what, note.cause, note.place, *total) for note, total in totals.items())


def _time_of(note: Note, owner: Any) -> float:
    """Seconds: of the host, or of the device if it is the device that works."""
    host = float(owner.cpu_time_total)
    return (max(host, _device_time(owner)) if note.kind == "conversion" else host) / 1e6


def _copied(event: Any) -> int:
    """Bytes that a copy moves: those of its target, which is its second argument."""
    shapes, dtypes = list(event.input_shapes or []), list(event.input_dtypes or [])
    return math.prod(shapes[1]) * roofline.BYTES.get(dtypes[1], 0) if min(len(shapes), len(dtypes)) > 1 else 0


def _compiled(events: list[Any]) -> Iterable[Finding]:
    """What ``torch.compile`` did."""
    times = [event.cpu_time_total / 1e6 for event in events if event.name in _DYNAMO]
    return [Finding("compilation", "torch.compile", count=len(times), seconds=sum(times))] if times else []


def _small_launches(events: list[Any], wall: float) -> Iterable[Finding]:
    """Launches that the host takes longer to submit than the device to carry out, where that is what a program does
    most of the time."""
    launched = [kernel for kernel in events if kernel.device_type == DeviceType.PrivateUse1]
    times = [kernel.time_range.elapsed_us() / 1e6 for kernel in launched if kernel.activity_type == "kernel"]
    small = sum(time < _SMALL for time in times)
    if small < _FEW or 2 * small <= len(times) or 2 * sum(times) > wall:
        return []
    calls = [event for event in events if event.device_type == DeviceType.CPU and event.kernels]
    lost = sum(max(0.0, event.self_cpu_time_total - _device_time(event)) for event in calls) / 1e6
    return [Finding("launch", "launches shorter than 10 µs", f"of {len(times)}", count=small, seconds=lost)]


def _device_time(event: Any) -> float:
    """Microseconds of the kernels that an operator launched itself."""
    return float(sum(kernel.duration for kernel in event.kernels))
