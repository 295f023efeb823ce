# SPDX-License-Identifier: Apache-2.0
"""What a person sees of long compilations: a line on a terminal, updated in place, or one in a log when they begin to
be long and one when they end; sources and schedules on request."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

#: Seconds of work before anything is shown, on a terminal and where lines stay.
QUIET_SECONDS, LOG_QUIET_SECONDS = 2.0, 5.0
#: Seconds between two looks at the work, and without work until the line ends.
INTERVAL = 0.25
PAUSE = 1.0


def _programs() -> tuple[int, int]:
    """Device programs built from source so far, and those being loaded or built."""
    from outboard import _C

    statistics = [_C.program_statistics(index) for index in range(_C.device_count())]
    return sum(s["built"] for s in statistics), sum(s["waiting"] for s in statistics)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, it is closed, or a program's object that can only write
        return False


def _write(text: str) -> None:
    # Whoever reads it may have gone meanwhile: no reason to end a program.
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


class _Line:
    """The line, shared by all compilations of the process. A thread keeps it up to date while there is work."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.active = 0  #: compilations going on
        self.graphs = 0
        self.name = ""
        self.watched = False
        self.shown = False
        self.text = ""  #: what the line says, or would say
        self.patient_since = 0.0  #: when the work began for which people have waited so far
        self.thread: threading.Thread | None = None
        self.closed = threading.Event()  #: once Python ends

    def begin(self, name: str) -> None:
        self.active += 1
        self.name = name
        self.watch()

    def end(self, graphs: int) -> None:
        self.active -= 1
        self.graphs += graphs

    def watch(self) -> None:
        """Has a thread look after the line, if anybody can see it and wants to."""
        if self.watched or self.closed.is_set() or sys.stderr is None or os.environ.get("OUTBOARD_PROGRESS") == "0":
            return
        self.watched = True
        self.patient_since = time.perf_counter()
        self.thread = threading.Thread(target=self._watch, args=(self.graphs,), name="outboard-progress", daemon=True)
        self.thread.start()

    def _watch(self, graphs: int) -> None:
        built, _ = _programs()
        started = time.perf_counter()
        last_work = started
        while not self.closed.wait(INTERVAL):
            now, (programs, waiting) = time.perf_counter(), _programs()
            with self.lock:
                if self.active or waiting:
                    last_work = now
                elif now - last_work > PAUSE:
                    self.finish()
                    self.watched = False
                    return
                self.show(self.graphs - graphs, programs - built, waiting, last_work - started)

    def show(self, graphs: int, programs: int, waiting: int, seconds: float) -> None:
        """Says how far the work is, if people have waited long enough; in a log once."""
        self.text = f"outboard: {seconds:.0f} s, {graphs} graphs compiled, {programs} programs built"
        self.text += f", {waiting} waiting" if waiting else ""
        is_terminal = _is_terminal()
        if time.perf_counter() - self.patient_since <= (QUIET_SECONDS if is_terminal else LOG_QUIET_SECONDS):
            return
        if is_terminal:
            name = f", last {self.name}" if self.name else ""
            _write("\r\x1b[2K" + f"{self.text}{name}"[:100])
        elif not self.shown:
            _write(f"{self.text}, going on; kept for later runs\n")
        self.shown = True

    def give_way(self) -> None:
        """Ends the line for what will be printed of an exception. What goes on may show a new one, but not soon."""
        self.finish()
        self.patient_since = time.perf_counter()

    def finish(self) -> None:
        if self.shown:
            _write("\n" if _is_terminal() else f"{self.text}\n")
            self.shown = False


_line = _Line()


@contextmanager
def task(name: str, graphs: int = 1) -> Iterator[None]:
    """Marks one compilation, of ``graphs`` graphs, or what else takes time meanwhile."""
    with _line.lock:
        _line.begin(name)
    try:
        yield
    except BaseException:
        with _line.lock:
            _line.give_way()
        raise
    finally:
        with _line.lock:
            _line.end(graphs)


def programs() -> None:
    """Programs were asked for, outside any :func:`task`."""
    with _line.lock:
        _line.watch()


def give_way() -> None:
    """Ends the line for an exception that comes from C++, out of a wait for programs or the device."""
    with _line.lock:
        _line.give_way()


@atexit.register
def close() -> None:
    """Ends the line, and its thread: Python ends the process with an error if a thread is within C++ that gives way to
    others while Python ends."""
    _line.closed.set()
    if _line.thread is not None:
        _line.thread.join()
    with _line.lock:
        _line.finish()


def wants(what: str) -> bool:
    """Whether ``OUTBOARD_LOG`` asks for it: ``kernels``, generated sources, or ``schedules``."""
    return what in os.environ.get("OUTBOARD_LOG", "").split(",")


def show_schedule(schedule: object) -> None:
    """Prints what was decided about a kernel if asked to."""
    if wants("schedules"):
        sys.stderr.write(f"// ---- {schedule}\n")


def show_kernels(name: str, programs: Iterable[tuple[str, str]]) -> None:
    """Prints the programs of a plan, each its source and its options, if asked to."""
    if not wants("kernels"):
        return
    for source, options in programs:
        sys.stderr.write(f"// ---- {name}{'  ' + options if options else ''}\n{source}\n")
