# SPDX-License-Identifier: Apache-2.0
"""Runs commands that take minutes, several at once, and says all the while what they are at.

On a terminal that is one line, updated in place; in a log a line now and then. Only the standard library is used.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

#: Seconds between two looks, and between two lines in a log.
INTERVAL = 0.5
PAUSE = 20.0
_WIDTH = 100
_KEPT_LINES = 40
#: What is worth showing of the output of pip and Ninja.
_STEP = re.compile(r"\s*(\[\d+/\d+\]|Collecting|Downloading|Building|Configuring|Installing|Processing)\s+(.*)")


class CommandFailed(RuntimeError):
    """A command ended with another exit code than 0; the text has its last lines."""


class Command:
    """A program that is running. ``what`` is what it does, for people."""

    def __init__(self, arguments: Sequence[str], what: str, folder: Path) -> None:
        self.what = what
        self.step = ""
        self._arguments = arguments
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def running(self) -> bool:
        return self._reader.is_alive()

    def end(self) -> None:
        """Stops the program if it still runs."""
        self._process.terminate()
        self._process.wait()

    def check(self) -> None:
        """Raises CommandFailed if the program, which has ended, failed."""
        if (code := self._process.wait()) != 0:
            tail = "\n".join(self._lines)
            raise CommandFailed(f"{self.what} failed (exit code {code}): {' '.join(self._arguments)}\n{tail}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines = [*self._lines, line.rstrip()][-_KEPT_LINES:]
            if found := _STEP.match(line):
                self.step = f"{found[1]} {_shortened(found[2])}"


def _shortened(text: str) -> str:
    """The last word of Ninja's "Building CXX object a/b/c.cpp.o", the first of pip's."""
    words = text.split()
    return Path(words[-1]).name if len(words) > 2 and "/" in words[-1] else " ".join(words[:2])


class Display:
    """Shows what commands are at. ``prefix`` begins each line."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._start = time.monotonic()
        self._next = self._start + PAUSE
        self._terminal = sys.stdout.isatty()

    def show(self, commands: Sequence[Command]) -> None:
        """Brings the line up to date, or writes another if it is time."""
        now = time.monotonic()
        if not self._terminal and now < self._next:
            return
        self._next = now + PAUSE
        states = [each.what + (f" {each.step}" if each.step else "") for each in commands if each.running()]
        text = f"{self._prefix} {now - self._start:.0f} s: {'; '.join(states)}"
        if self._terminal:
            print(f"\r\x1b[2K{text[:_WIDTH]}", end="", flush=True)
        elif states:
            print(text, flush=True)

    def close(self) -> None:
        """Removes the line."""
        if self._terminal:
            print("\r\x1b[2K", end="", flush=True)


def run_all(commands: Sequence[tuple[Sequence[str], str]], folder: Path, prefix: str) -> None:
    """Runs (arguments, what it does) at once, in a folder, and waits for all.

    Raises CommandFailed for the first that fails, and ends the others.
    """
    for _, what in commands:
        print(f"{prefix} {what}", flush=True)
    display = Display(prefix)
    started: list[Command] = []
    try:
        started += [Command(arguments, what, folder) for arguments, what in commands]
        waiting = list(started)
        while waiting:
            display.show(waiting)
            time.sleep(INTERVAL)
            for each in [each for each in waiting if not each.running()]:
                waiting.remove(each)
                each.check()
    finally:
        display.close()
        for each in started:
            each.end()
