# SPDX-License-Identifier: Apache-2.0
"""``torch.rbln.explain`` and ``profile``, with the arguments and the words of torch-rbln 0.12 for what ``explain``
finds for every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outboard.reporting.explanation import Difference, Explanation, steady
from outboard.reporting.findings import ADVICE


class RBLNDiff(Difference):
    """What two regions lost time with.

    Args:
        a, b: the region before, and the one after.
    """

    def __init__(self, a: Explanation, b: Explanation) -> None:
        super().__init__(a, b)


class RBLNExplain(Explanation):
    """A region of a program, and what it lost time with.

    Args:
        with_stack, trace: whether lines of the program are told, which they always are.
    """

    def __init__(self, with_stack: bool = False, *, trace: bool | None = None) -> None:
        super().__init__()

    def verdict(self, share: float = 0.05) -> dict[str, Any]:
        """As :meth:`Explanation.verdict`, by torch-rbln's keys: bounces are copies between host and device, what is
        read back (``d2h``) are waits of the host."""
        found = super().verdict(share)
        waits = {one.what: one.count for one in self.findings if one.kind == "wait"}
        return {
            "clean": found["clean"],
            "hidden_host_bounces": found["copy"],
            "hidden_host_bounce_bytes": sum(one.moved for one in self.findings if one.kind == "copy"),
            "runtime_hidden_d2h": found["wait"],
            "runtime_hidden_by_reason": waits,
            "cpu_fallbacks": found["fallback"],
            "recompiles": found["compilation"],
            "reasons": found["reasons"],
            "notes": [
                {"signal": kind, "fix": ADVICE[kind]} for kind in dict.fromkeys(one.kind for one in self.findings)
            ],
        }

    def help(self, signal: str | None = None) -> str:
        """What to do about a kind of finding, or about all that were found. Raises KeyError for another word."""
        return super().help(signal)

    def diff(self, other: Explanation) -> RBLNDiff:
        """What another region has more and less than this one."""
        return RBLNDiff(self, other)


def explain(with_stack: bool = False, *, trace: bool | None = None) -> RBLNExplain:
    """A region of the program that is explained, as a context; arguments as of :class:`RBLNExplain`."""
    return RBLNExplain(with_stack, trace=trace)


def explain_steady(
    fn: Callable[[], Any],
    *,
    warmup: int = 2,
    return_cold: bool = False,
    as_diff: bool = False,
    with_stack: bool = False,
    trace: bool | None = None,
) -> RBLNExplain | tuple[RBLNExplain, RBLNExplain] | RBLNDiff:
    """Explains a call of a function after ``warmup`` others; with ``return_cold`` the first one, too, before it, and
    with ``as_diff`` what they differ in. Raises ValueError for fewer than one call before."""
    explained: RBLNExplain | tuple[RBLNExplain, RBLNExplain] | RBLNDiff
    explained = steady(lambda: explain(with_stack, trace=trace), fn, warmup, return_cold, as_diff)
    return explained
