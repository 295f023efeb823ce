# SPDX-License-Identifier: Apache-2.0
"""What a person sees of long compilations: one line on a terminal, updated in place; sources on request."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .plan import Plan

#: Seconds of compilation before anything is shown.
PATIENCE = 2.0


class _Line:
    """The line, shared by all compilations of the process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started = 0.0
        self.last = 0.0
        self.busy = 0.0
        self.count = 0
        self.shown = False

    def begin(self) -> None:
        now = time.perf_counter()
        if now - self.last > PATIENCE:
            self.finish()
            self.busy, self.count = 0.0, 0
        self.started = now

    def end(self, name: str) -> None:
        now = time.perf_counter()
        self.busy += now - self.started
        self.count += 1
        self.last = now
        if self.busy > PATIENCE and sys.stderr.isatty():
            self.shown = True
            text = f"outboard: compiled {self.count} graphs in {self.busy:.0f} s, last {name}"
            sys.stderr.write("\r\x1b[2K" + text[:100])
            sys.stderr.flush()

    def finish(self) -> None:
        if self.shown:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self.shown = False


_line = _Line()


@contextmanager
def task(name: str) -> Iterator[None]:
    """Marks one compilation."""
    with _line.lock:
        _line.begin()
    try:
        yield
    finally:
        with _line.lock:
            _line.end(name)


def finish() -> None:
    """Ends the line, if one is on the screen."""
    with _line.lock:
        _line.finish()


def wants_kernels() -> bool:
    """Whether ``OUTBOARD_LOG`` asks for generated sources."""
    return "kernels" in os.environ.get("OUTBOARD_LOG", "").split(",")


def show_kernels(name: str, plan: Plan) -> None:
    """Prints the programs of a plan if asked to."""
    if not wants_kernels():
        return
    for source, options in plan.programs:
        sys.stderr.write(f"// ---- {name}{'  ' + options if options else ''}\n{source}\n")
