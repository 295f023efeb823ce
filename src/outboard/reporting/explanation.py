# SPDX-License-Identifier: Apache-2.0
"""``torch.<device>.explain()``: in ten lines, what a part of a program lost time with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

import torch
from torch._C._autograd import DeviceType, _profiler_enabled
from torch.profiler import profile

from outboard.reporting import quantities
from outboard.reporting.findings import ADVICE, Finding, find
from outboard.reporting.watch import Watch

#: Findings that a report shows.
_LINES = 5
#: What no steady loop has, however little time it takes.
_FAULTS = frozenset({"fallback", "compilation", "spill"})
#: The part of the time that anything else may take.
_SHARE = 0.05

Self = TypeVar("Self", bound="Explanation")


class Explanation:
    """A region of a program, and what it lost time with: ``with torch.<device>.explain() as report: ...``, then
    ``print(report)``.

    The region runs under PyTorch's profiler, which makes the host slower: times are for comparing with each other.
    What is looked for: operators that ran on the CPU, compilations, waits of the host, copies that it waits for,
    changes of dtype, launches too small to fill the device, and memory that moved to the host for want of room.

    Attributes:
        findings: what was found, the costliest first.
        wall: seconds from beginning to end, with the device's work.
        busy: seconds in which the device computed.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.wall = self.busy = 0.0
        self._watch = Watch()
        self._profiler: profile | None = None
        self._begin = 0.0
        self._ended = False
        self._spills = (0, 0)

    def start(self: Self) -> Self:
        """Begins the region, once. Raises RuntimeError if another one is open, of this kind or of the profiler's."""
        if self._profiler is not None:
            raise RuntimeError("an explanation is of one region: make another one")
        if _profiler_enabled():
            raise RuntimeError("no region can be explained inside one of torch.profiler")
        self._watch.__enter__()
        try:
            threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
            profiler = profile(record_shapes=True, experimental_config=threads)
            profiler.start()
        except BaseException:
            self._watch.__exit__()
            raise
        self._profiler, self._spills = profiler, _spills()
        self._begin = time.perf_counter()
        return self

    def stop(self: Self) -> Self:
        """Ends it, when the device has done what it was asked; no-op if it has ended. Raises RuntimeError if it has not
        begun, and what the device failed with."""
        if self._profiler is None:
            raise RuntimeError("the region has not begun")
        if self._ended:
            return self
        self._ended = True
        try:
            torch.accelerator.synchronize()
        finally:
            self.wall = time.perf_counter() - self._begin
            self._watch.__exit__()
            self._profiler.stop()
        events = list(self._profiler.events())  # type: ignore[no-untyped-call]
        on_device = (one for one in events if one.device_type == DeviceType.PrivateUse1)
        self.busy = sum(one.time_range.elapsed_us() for one in on_device if one.activity_type == "kernel") / 1e6
        self.findings = find(events, self._watch.notes, self.wall) + _spilled(self._spills, _spills())
        return self

    def __enter__(self: Self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        return self.report()

    def report(self) -> str:
        """The costliest findings, a line each, and what to do about each kind of them."""
        shown, rest = self.findings[:_LINES], self.findings[_LINES:]
        busy = f"{quantities.seconds(self.busy)} ({quantities.percent(self.busy, self.wall) or '0 %'})"
        lines = [f"{quantities.seconds(self.wall)}, of which the device computed {busy}; {_counted(self.findings)}"]
        lines += [described(finding) for finding in shown]
        if rest:
            lines.append(f"  and {len(rest)} more, {quantities.seconds(sum(one.seconds for one in rest))}")
        return "\n".join([*lines, *(f"  {kind}: {ADVICE[kind]}" for kind in dict.fromkeys(one.kind for one in shown))])

    def help(self, kind: str | None = None) -> str:
        """What to do about a kind of finding, or about all that were found. Raises KeyError for another word."""
        kinds = dict.fromkeys(one.kind for one in self.findings) if kind is None else [kind]
        return "\n".join(f"{one}: {ADVICE[one]}" for one in kinds)

    def dump(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        return {"wall": self.wall, "busy": self.busy, "findings": [finding.dump() for finding in self.findings]}

    def verdict(self, share: float = _SHARE) -> dict[str, Any]:
        """For continuous integration: whether the region is ``clean``, how often each kind was found, and ``reasons``
        why it is not.

        Fallbacks, compilations and spills are always a reason; what else was found is one if it takes more than this
        ``share`` of the region's time.
        """
        counts = dict.fromkeys(ADVICE, 0)
        for finding in self.findings:
            counts[finding.kind] += finding.count
        faults = [one for one in self.findings if one.kind in _FAULTS or one.seconds > share * self.wall]
        return {"clean": not faults, **counts, "reasons": [described(one).strip() for one in faults]}

    def diff(self, other: Explanation) -> Difference:
        """What another region, as after a change of the program, has more and less than this one."""
        return Difference(self, other)


class Difference:
    """What two regions lost time with, ``before`` and ``after``, finding by finding.

    Attributes:
        gone, appeared: findings of one of them alone.
        persists: those of both, as pairs.
    """

    def __init__(self, before: Explanation, after: Explanation) -> None:
        self.before, self.after = before, after
        old = {finding.key(): finding for finding in before.findings}
        new = {finding.key(): finding for finding in after.findings}
        self.gone = [finding for key, finding in old.items() if key not in new]
        self.appeared = [finding for key, finding in new.items() if key not in old]
        self.persists = [(finding, new[key]) for key, finding in old.items() if key in new]

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        return self.report()

    def report(self) -> str:
        """A line for each finding, with both counts and times where it is in both."""
        lines = [f"{quantities.seconds(self.before.wall)} before, {quantities.seconds(self.after.wall)} after"]
        lines += [f"  gone      {described(finding)}" for finding in self.gone]
        lines += [f"  appeared  {described(finding)}" for finding in self.appeared]
        for old, new in self.persists:
            lines.append(f"  persists  {described(new)}; before {old.count} x, {quantities.seconds(old.seconds)}")
        return "\n".join(lines)

    def dump(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        return {
            "wall": [self.before.wall, self.after.wall],
            "gone": [finding.dump() for finding in self.gone],
            "appeared": [finding.dump() for finding in self.appeared],
            "persists": [[old.dump(), new.dump()] for old, new in self.persists],
        }


def described(finding: Finding) -> str:
    """A finding as a line."""
    moved = f", {quantities.size(finding.moved)}" if finding.moved else ""
    cause = f" ({finding.cause})" if finding.cause else ""
    cost = f"{finding.count:>5} x {quantities.seconds(finding.seconds):>9}{moved}"
    where = "" if finding.place is None else f"  at {finding.place}  {finding.place.text[:60]}"
    return f"  {finding.kind:<11} {cost}  {finding.what}{cause}{where}".rstrip()


def explain() -> Explanation:
    """A region of the program that is explained: ``with torch.<device>.explain() as report: step()``, then
    ``print(report)`` says in ten lines what hurt, ``report.verdict()`` tells a test, and ``report.diff(other)``
    compares. One region can be open at a time, and none inside one of ``torch.profiler``."""
    return Explanation()


Region = TypeVar("Region", bound=Explanation)


@overload
def explain_steady(fn: Callable[[], Any], *, warmup: int = 2) -> Explanation: ...
@overload
def explain_steady(
    fn: Callable[[], Any], *, warmup: int = 2, return_cold: Literal[True]
) -> tuple[Explanation, Explanation]: ...
@overload
def explain_steady(fn: Callable[[], Any], *, warmup: int = 2, as_diff: Literal[True]) -> Difference: ...


def explain_steady(
    fn: Callable[[], Any], *, warmup: int = 2, return_cold: bool = False, as_diff: bool = False
) -> Explanation | tuple[Explanation, Explanation] | Difference:
    """Explains a call of a function after others, which compile what there is to compile.

    Args:
        fn: a step of the program.
        warmup: calls before the one that is explained, one or more.
        return_cold: returns the explanation of the first call, too, before the other.
        as_diff: returns what they differ in.

    Raises:
        ValueError: for fewer than one call before.
    """
    explained: Explanation | tuple[Explanation, Explanation] | Difference
    explained = steady(explain, fn, warmup, return_cold, as_diff)
    return explained


def steady(region: Callable[[], Region], fn: Callable[[], Any], warmup: int, return_cold: bool, as_diff: bool) -> Any:
    """As :func:`explain_steady`, with regions of a class of its own."""
    if warmup < 1:
        raise ValueError(f"warmup has to be 1 or more, not {warmup}")
    with region() as cold:
        fn()
    for _ in range(warmup - 1):
        fn()
    with region() as warm:
        fn()
    if as_diff:
        return cold.diff(warm)
    return (cold, warm) if return_cold else warm


# ---- pieces ----


def _counted(findings: list[Finding]) -> str:
    if len(findings) < 2:
        return "one thing to look at:" if findings else "nothing to look at"
    return f"{len(findings)} things to look at, the costliest first:"


def _spills() -> tuple[int, int]:
    """How often memory moved to the host for want of room, and how much, on all devices."""
    module = torch.get_device_module()
    stats = [module.memory_stats(index) for index in range(module.device_count())]
    count, moved = (sum(one.get(f"lazy.spills.{what}", 0) for one in stats) for what in ("count", "bytes"))
    return count, moved


def _spilled(before: tuple[int, int], after: tuple[int, int]) -> list[Finding]:
    count, moved = (new - old for old, new in zip(before, after, strict=True))
    return [Finding("spill", "memory of the device to the host", count=count, moved=moved)] if count else []
