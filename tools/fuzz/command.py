# SPDX-License-Identifier: Apache-2.0
"""The parent: hands seeds to worker processes, outlives their crashes and hangs, collects and reports."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tools.fuzz.known import Defect, defect_of

ROOT = Path(__file__).parents[2]
#: Programs for one process: enough that its start does not matter, few enough that what grows in it does not either.
BATCH = 200


@dataclass
class Worker:
    """A running child. ``seeds`` are those it has not finished, ``at`` is the line it runs."""

    process: subprocess.Popen[bytes]
    pipe: int
    log: IO[bytes]
    seeds: list[int]
    salt: int
    at: dict[str, Any] = field(default_factory=dict)
    program: list[str] = field(default_factory=list)
    heard: float = 0.0
    received: bytes = b""


@dataclass
class Totals:
    """What all workers did."""

    operators: int = 0
    programs: int = 0
    raised: int = 0
    names: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    statistics: Counter[str] = field(default_factory=Counter)
    complaints: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    known: Counter[Defect] = field(default_factory=Counter)

    def add(self, message: dict[str, Any]) -> None:
        """Takes in a message of a worker about a finished program or its end, and shows what is new in it."""
        for name in ("fallbacks", "statistics"):
            getattr(self, name).update(message.get(name, {}))
        result = message.get("result")
        if result is None:
            return
        self.programs += 1
        self.operators += result["operators"]
        self.raised += result["raised"]
        self.names.update(result["names"])
        self.dtypes.update(result["dtypes"])
        for finding in result["findings"]:
            self.find(finding | {"seed": result["seed"]})

    def find(self, finding: dict[str, Any]) -> None:
        """Counts a finding that is a known defect, and keeps and shows any other."""
        defect = defect_of(finding)
        if defect is not None:
            self.known[defect] += 1
            return
        self.findings.append(finding)
        show(finding)


def start(options: dict[str, Any], seeds: list[int], salt: int, driver: str | None) -> Worker:
    """Starts a child that runs the programs of ``seeds``, or replays ``options["programs"]``. With another ``salt``
    they change other state."""
    reader, writer = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `finish`
    environment = dict(os.environ)
    environment["PYTHONPATH"] = f"{environment.get('PYTHONPATH', '')}:{ROOT}".lstrip(":")
    if driver:
        environment["OUTBOARD_DRIVER"] = driver
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.fuzz.worker", str(writer)],
        stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[writer], env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(writer)
    assert process.stdin
    with contextlib.suppress(BrokenPipeError), process.stdin as given:
        given.write(json.dumps(options | {"seeds": seeds, "salt": salt}).encode())
    return Worker(process, reader, log, seeds[:], salt, heard=time.monotonic())


def listen(worker: Worker, data: bytes) -> Iterator[dict[str, Any]]:
    """Messages in what came through the pipe; those about progress are kept in ``worker``."""
    worker.heard = time.monotonic()
    *texts, worker.received = (worker.received + data).split(b"\n")
    for text in texts:
        message = json.loads(text)
        if "at" in message:
            if message["at"] != worker.at.get("at"):
                worker.program = []
            worker.at = message
            worker.program.append(message["line"])
            continue
        if "result" in message:
            worker.seeds.remove(message["result"]["seed"])
        yield message


def finish(worker: Worker, totals: Totals, hung: bool) -> dict[str, Any] | None:
    """Collects a child that has ended; a finding if it did not end as it should. Its seed is not run again."""
    if hung:
        os.killpg(worker.process.pid, signal.SIGKILL)
    code = worker.process.wait()
    os.close(worker.pipe)
    with worker.log as log:
        log.seek(0)
        printed = log.read().decode(errors="replace")
    totals.complaints.update(re.findall(r"the compiler failed on (\S+)", printed))
    if code == 0:
        return None
    seed = worker.at.get("at", worker.seeds[0] if worker.seeds else -1)
    with contextlib.suppress(ValueError):
        worker.seeds.remove(seed)
    what = "not finished in time" if hung else (signal.Signals(-code).name if code < 0 else f"exit code {code}")
    return {
        "seed": seed, "kind": "crash", "operator": "", "line": worker.at.get("line", ""),
        "text": f"{what}: {printed[-1500:]}", "lines": worker.program,
    }  # fmt: skip


def _batches(seed: int, size: int, salts: int) -> Iterator[tuple[list[int], int]]:
    """Seeds for a process, and a salt. Each batch is run with every salt, by processes of their own, so that what one
    leaves on disk is used by another under other state."""
    for begin in itertools.count(seed * 100_000, size):
        for salt in range(salts):
            yield list(range(begin, begin + size)), salt


def run(options: dict[str, Any], arguments: argparse.Namespace) -> Totals:
    """Runs programs until the number of operators is reached, or the given programs are done."""
    totals = Totals()
    selector = selectors.DefaultSelector()
    running: dict[int, Worker] = {}
    begin = shown = time.monotonic()

    def launch(seeds: list[int], salt: int) -> None:
        worker = start(options, seeds, salt, arguments.driver)
        running[worker.pipe] = worker
        selector.register(worker.pipe, selectors.EVENT_READ)

    def end(worker: Worker, hung: bool) -> None:
        selector.unregister(worker.pipe)
        del running[worker.pipe]
        finding = finish(worker, totals, hung)
        if finding:
            totals.find(finding)
        if worker.seeds and finding and totals.operators < arguments.operators:
            launch(worker.seeds, worker.salt)
        elif totals.operators < arguments.operators and not options["programs"]:
            launch(*next(following))

    salts = 2 if arguments.states else 1
    share = max(1, min(BATCH, arguments.operators // 40 // arguments.jobs // salts))
    following = _batches(arguments.seed, share, salts)
    if options["programs"]:
        launch(list(range(len(options["programs"]))), 0)
    else:
        for _ in range(arguments.jobs):
            launch(*next(following))
    while running:
        for key, _ in selector.select(1.0):
            worker = running[key.fd]
            data = os.read(key.fd, 1 << 16)
            for message in listen(worker, data):
                totals.add(message)
            if not data:
                end(worker, hung=False)
        for worker in list(running.values()):
            if time.monotonic() - worker.heard > arguments.timeout:
                end(worker, hung=True)
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            rate = totals.operators / (shown - begin)
            print(f"{totals.operators} operators, {len(totals.findings)} findings, {rate:.0f} operators/s", flush=True)
    return totals


def show(finding: dict[str, Any]) -> None:
    """Prints one finding in a few lines."""
    print(f"\n{finding['kind']} in {finding['operator'] or '?'} (seed {finding['seed']}): {finding['text']}")
    lines = finding["lines"] if len(finding["lines"]) <= 8 else [finding["line"]]
    print("".join(f"    {line}\n" for line in lines), end="", flush=True)


def processor_seconds() -> float:
    """Processor time of the workers that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return max(used.ru_utime + used.ru_stime, 0.01)


def summary(totals: Totals, seconds: float, arguments: argparse.Namespace) -> None:
    """Prints what ran and what was found."""
    found = Counter(f"{finding['operator']} {finding['kind']}" for finding in totals.findings)
    for name, count in found.most_common():
        print(f"  {count:>4} {name}")
    for defect, count in totals.known.most_common():
        print(f"  {count:>4} {defect.operator} {defect.kind}, a known open defect: {defect.reason}")
    host = ", ".join(f"{name} {count}" for name, count in totals.fallbacks.most_common(20))
    print(f"on the CPU: {sum(totals.fallbacks.values())} calls ({host})")
    if totals.complaints:
        print(f"the compiler complained: {dict(totals.complaints)}")
    print(f"dtypes: {', '.join(sorted(totals.dtypes))}")
    print(
        f"{totals.operators} operators ({len(totals.names)} different) in {totals.programs} programs, "
        f"mode {arguments.mode}, driver {arguments.driver or 'default'}, seed {arguments.seed}: "
        f"{len(totals.findings)} differences, {sum(totals.known.values())} known, "
        f"{totals.raised} refused on both sides, "
        f"{totals.operators / seconds:.0f} operators/s, {totals.operators / processor_seconds():.0f} per second of "
        f"processor time, {totals.statistics['misses']} kinds of calls"
    )


def parse(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--operators", type=int, default=2000, help="run until so many operators have run")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("OUTBOARD_FUZZ_SEED", "0")))
    parser.add_argument("--mode", choices=("eager", "compiled"), default="eager")
    parser.add_argument("--driver", help="value of OUTBOARD_DRIVER for the workers")
    parser.add_argument(
        "--epoch", type=int, default=0, help="another epoch draws other kinds of calls, which have to be compiled"
    )
    parser.add_argument("--variants", type=int, default=4, help="kinds of calls per operator and epoch")
    parser.add_argument("--match", default="", help="only operators whose name contains this")
    parser.add_argument("--invalid", type=float, default=0.0, help="share of calls that are drawn to be refused")
    parser.add_argument("--states", type=float, default=0.08, help="share of lines that change state of PyTorch's")
    parser.add_argument("--sizes", type=float, default=0.3, help="share of compiled programs called for several sizes")
    parser.add_argument("--ways", type=float, default=0.1, help="share of kinds of calls that are not called as usual")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--timeout", type=float, default=180, help="seconds of silence after which a worker is killed")
    parser.add_argument("--replay", type=Path, help="run the programs in this file instead: one JSON object a line")
    parser.add_argument("--save", type=Path, help="append findings to this file")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Returns 0 if nothing differs but what is a known open defect."""
    arguments = parse(given)
    programs = [json.loads(line) for line in arguments.replay.read_text().splitlines()] if arguments.replay else []
    names = ("epoch", "variants", "match", "mode", "invalid", "states", "sizes", "ways")
    options = {name: getattr(arguments, name) for name in names} | {"programs": programs}
    begin = time.monotonic()
    totals = run(options, arguments)
    summary(totals, time.monotonic() - begin, arguments)
    if arguments.save:
        with arguments.save.open("a") as file:
            for finding in totals.findings:
                print(json.dumps(finding), file=file)
    if not arguments.driver and not totals.statistics["misses"] + totals.statistics["hits"]:
        print("no operator was compiled: the device was not tested")
        return 2
    return 1 if totals.findings else 0
