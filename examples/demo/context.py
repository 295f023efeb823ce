# SPDX-License-Identifier: Apache-2.0
"""What the parts of the demo share: the device, the sizes, what was checked and what the device counted."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tqdm import tqdm


def progress_bar(what: str, total: int) -> Any:
    """A bar for work of so many steps: it moves on a terminal, and is a line now and then in a log."""
    interval = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(desc=f"  {what}", total=total, ncols=80, mininterval=interval, maxinterval=interval)


@dataclass
class Context:
    """One run of the demo.

    ``short`` asks for smaller sizes and fewer repeats, ``cpu_compiled`` for a comparison with CPU Inductor, which takes
    minutes to compile for the first time. Failed checks collect in ``failures``; the demo goes on and
    exits with code 1 at its end.
    """

    device: torch.device
    short: bool
    output: Path
    query: str
    cpu_compiled: bool = False
    failures: list[str] = field(default_factory=list)

    @property
    def module(self) -> ModuleType | None:
        """``torch.<device>`` if it keeps Outboard's counters, else None (on the CPU)."""
        module = getattr(torch, self.device.type, None)
        return module if hasattr(module, "compile_stats") else None

    def check(self, what: str, value: float, limit: float, *, at_least: bool = False) -> None:
        """Prints a measured value beside its limit and records a failure if it is on the wrong side.

        A value that is not a number fails.
        """
        good = value >= limit if at_least else value <= limit
        relation = ">=" if at_least else "<="
        print(f"  {'ok  ' if good else 'FAIL'} {what}: {value:.3g} (must be {relation} {limit:g})", flush=True)
        if not good:
            self.failures.append(f"{what}: {value:.3g}, must be {relation} {limit:g}")

    def print_fallbacks(self, part: str, before: dict[str, int]) -> None:
        """Prints the operators that ran on the CPU since ``before`` was taken."""
        after = self.fallbacks()
        new = {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}
        listed = ", ".join(f"{name} x{count}" for name, count in sorted(new.items())) or "none"
        print(f"  CPU fallbacks in {part}: {listed}", flush=True)

    def fallbacks(self) -> dict[str, int]:
        """Operators that ran on the CPU so far, by name. Empty without counters."""
        return dict(self.module.fallbacks()) if self.module is not None else {}
