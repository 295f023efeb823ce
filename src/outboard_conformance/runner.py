# SPDX-License-Identifier: Apache-2.0
"""Runs clauses in workers, a new one after each clause that ends badly."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outboard_conformance.clause import CLAUSES, LEVELS
from outboard_conformance.language import Offer

#: Seconds that a clause may take before it counts as hung.
PATIENCE = 60.0
#: How many times that a clause may take in which PyTorch compiles for an empty cache.
_COMPILING = {"operators": 20.0, "models": 20.0}


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a clause: "kept", "broken", "crashed", "hung" or "not applicable"."""

    name: str
    level: str
    says: str
    outcome: str
    text: str = ""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether the driver keeps the clause or has nothing that it is about."""
        return self.outcome in ("kept", "not applicable")


def chosen(level: str, only: Sequence[str] = ()) -> list[str]:
    """The names of the driver's clauses up to a level, or of those of ``only``. Raises LookupError."""
    from outboard_conformance import clauses  # noqa: F401, PLC0415 - registers them

    unknown = [name for name in only if name not in CLAUSES]
    if unknown:
        raise LookupError(f"no clause {unknown[0]!r}; `--list` prints their names")
    upto = LEVELS[: LEVELS.index(level) + 1]
    beyond = [name for name in only if CLAUSES[name].level not in upto]
    if beyond:
        raise LookupError(f"{beyond[0]} needs --level {CLAUSES[beyond[0]].level}")
    found = sorted(CLAUSES.values(), key=lambda each: LEVELS.index(each.level))
    return [each.name for each in found if each.level in upto and (not only or each.name in only)]


def probe(driver: str) -> tuple[dict[str, Any], str]:
    """The first device's properties, as a worker sees them; or none, and what is wrong."""
    with _Worker(driver, [], Offer()) as worker:
        line = worker.line(PATIENCE)
        if line is None:
            return {}, worker.last_words() if worker.process.poll() is not None else "opening the device hangs"
    return line.get("device", {}), line.get("broken", "")


def run(
    driver: str,
    names: Sequence[str],
    offer: Offer,
    *,
    patience: float = PATIENCE,
    said: Callable[[Result], None] = lambda result: None,
) -> tuple[dict[str, Any], list[Result]]:
    """The device's properties and what became of each clause. ``said`` hears of each as soon as it is known."""
    heard = _Heard(said)
    while left := names[len(heard.results) :]:
        with _Worker(driver, left, offer) as worker:
            _listen(worker, left, patience, heard)
    return heard.device, heard.results


class _Heard:
    """What workers have said so far."""

    def __init__(self, said: Callable[[Result], None]) -> None:
        self.device: dict[str, Any] = {}
        self.results: list[Result] = []
        self._said = said

    def end(self, name: str, outcome: str, text: str, seconds: float = 0.0) -> None:
        """Keeps what became of a clause, and says it."""
        clause = CLAUSES[name]
        self.results.append(Result(name, clause.level, clause.says, outcome, text, seconds))
        self._said(self.results[-1])


def _listen(worker: _Worker, names: Sequence[str], patience: float, heard: _Heard) -> None:
    """Hears a worker until it has tried the clauses ``names``, or one of them ends it."""
    left, running = list(names), ""
    while left:
        limit = patience * _COMPILING.get(CLAUSES[running].level, 1.0) if running else patience
        line = worker.line(limit)
        if line is None:
            hung = worker.process.poll() is None
            text = f"no answer within {limit:g} s" if hung else worker.last_words()
            heard.end(running or left[0], "hung" if hung else "crashed", text, limit if hung else 0.0)
            return
        if "device" in line:
            heard.device = line["device"]
        elif "broken" in line:
            for name in left:
                heard.end(name, "broken", line["broken"])
            return
        elif "begins" in line:
            running = line["begins"]
        else:
            heard.end(line["ends"], line["outcome"], line["text"], line["seconds"])
            left, running = left[1:], ""
            if line["outcome"] == "broken":
                return


class _Worker:
    """A process that tries clauses."""

    def __init__(self, driver: str, names: Sequence[str], offer: Offer) -> None:
        root = str(Path(__file__).parent.parent)
        # Neither PyTorch nor the environment's start-up files are the worker's business.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "outboard_conformance.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",  # of what drivers print
            env=environment,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=each, daemon=True) for each in (self._read, self._collect)]
        for reader in self._readers:
            reader.start()
        asked = {
            "driver": driver,
            "clauses": list(names),
            "dialect": offer.dialect,
            "words": offer.words,
            "executables": [each | {"code": base64.b64encode(each["code"]).decode()} for each in offer.executables],
        }
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended: its last words say why

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.process.wait(5 if kind is None else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(1.0)  # a child that the driver left behind may keep them reading

    def line(self, seconds: float) -> dict[str, Any] | None:
        """The worker's next line; None if it has ended, or says nothing for so long."""
        text, deadline = None, time.monotonic() + seconds
        while text is None:
            # A child that the driver left behind may keep the lines open: then they end a while after the process.
            has_ended, left = self.process.poll() is not None, deadline - time.monotonic()
            try:
                text = self._lines.get(timeout=max(0.0, min(left, 0.5)))
            except queue.Empty:
                if has_ended or left <= 0:
                    return None
            else:
                if text is None:
                    self.process.wait()
                    return None
        found: dict[str, Any] = json.loads(text)
        return found

    def last_words(self) -> str:
        """How a worker ended that did not come to its end, with the last lines that it printed."""
        code, deadline = self.process.returncode, time.monotonic() + 1.0
        while self._readers[1].is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return "\n".join([f"the process ended: {how}", *(line.rstrip() for line in self._errors[-8:])])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _collect(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)
