# SPDX-License-Identifier: Apache-2.0
"""The parent: gives programs to a process of the driver's, and goes on behind one that ends it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from tools.programs.judge import WAYS, Finding, judge
from tools.programs.registry import all_programs

ROOT = Path(__file__).parents[2]
#: What is judged: a driver's name, and what else its processes are told.
DRIVERS = {
    "host": {"OUTBOARD_DRIVER": "host"},
    "sim": {"OUTBOARD_DRIVER": "sim"},
    "graphs": {"OUTBOARD_DRIVER": "sim", "OUTBOARD_SIM_COMPILER": "1"},
    "cuda": {"OUTBOARD_DRIVER": "host", "OUTBOARD_HOST_DIALECT": "cuda"},
}
#: Programs for one process, in which what they leave behind grows.
BATCH = 60
#: Seconds that one program may take.
LIMIT = 300
_MARK = "\x1e"

Run = tuple[str, str]


def runs(match: str, ways: tuple[str, ...], share: float = 1.0, seed: int = 0) -> list[Run]:
    """Programs and ways that match, or a part of them that the seed chooses."""
    found = [
        (each.name, way)
        for each in all_programs().values()
        for way in ways
        if re.search(match, each.name) and (way == "eager" or each.can_be_compiled)
    ]
    return found if share >= 1 else random.Random(seed).sample(found, round(len(found) * share))


def judge_all(wanted: list[Run], driver: str) -> Iterator[tuple[Run, list[Finding]]]:
    """Findings of each program, in processes of a driver."""
    left = list(wanted)
    while left:
        batch = left[:BATCH]
        process = _start(batch, driver)
        done = 0
        for found in _heard(process):
            yield batch[done], found
            done += 1
        left = left[done:]
        if done < len(batch):
            run = left.pop(0)
            yield run, [Finding(*run, "crash", f"exit code {process.wait()}")]


def _start(batch: list[Run], driver: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tools.programs", "--here", json.dumps(batch)]
    environment = {**os.environ, **DRIVERS[driver]}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def _heard(process: subprocess.Popen[str]) -> Iterator[list[Finding]]:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if line.startswith(_MARK):
                yield [Finding(*each) for each in json.loads(line[1:])]
    process.wait()


def _here(batch: list[Run]) -> None:
    """Judges programs in this process; a line of JSON for each."""
    import faulthandler

    device = torch.accelerator.current_accelerator()
    if device is None:
        raise SystemExit("there is no device to judge; run `outboard doctor`")
    programs, out = all_programs(), sys.stdout
    for name, way in batch:
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        found = judge(programs[name], way, device.type)
        fields = [(each.program, each.way, each.kind, each.text) for each in found]
        print(_MARK + json.dumps(fields), file=out, flush=True)
        faulthandler.cancel_dump_traceback_later()


def main(arguments: list[str]) -> int:
    """Judges; exit code 1 if anything is found."""
    parser = argparse.ArgumentParser(prog="python -m tools.programs", description=__doc__)
    parser.add_argument("--driver", choices=DRIVERS, nargs="*", default=[*DRIVERS], help="whose devices")
    parser.add_argument(
        "--way", choices=WAYS, nargs="*", default=[*WAYS], help="called as it is, or through the compiler"
    )
    parser.add_argument("--match", default="", help="programs whose names this expression is found in")
    parser.add_argument("--list", action="store_true", help="names of the programs")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        _here([(name, way) for name, way in json.loads(options.here)])
        return 0
    wanted = runs(options.match, tuple(options.way))
    if options.list:
        print("\n".join(f"{name} ({way})" for name, way in wanted))
        return 0
    count = 0
    for driver in options.driver:
        for _, found in judge_all(wanted, driver):
            count += len(found)
            with contextlib.suppress(BrokenPipeError):
                print("".join(f"{driver}: {each}\n" for each in found), end="", flush=True)
    print(f"{len(wanted)} programs on {', '.join(options.driver)}: {count} differences")
    return 1 if count else 0
