# SPDX-License-Identifier: Apache-2.0
"""The parent: hands groups of programs to child processes, outlives their crashes and hangs, and reports."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.fuzz_aliases.judge import TRACING
from tools.fuzz_aliases.program import from_json

ROOT = Path(__file__).parents[2]
#: Groups for one process: its start does not matter then, nor what grows in it.
BATCH = 40


def judged(
    seeds: Sequence[int], count: int, driver: str | None, patience: float
) -> Iterator[tuple[int, int, list[Any]]]:
    """Seeds of groups, how many programs ran, and their findings. A child that does not end well is a finding."""
    environment = os.environ | ({"OUTBOARD_DRIVER": driver} if driver else {})
    remaining = list(seeds)
    while remaining:
        batch = remaining[:BATCH]
        command = [sys.executable, "-m", "tools.fuzz_aliases.worker", str(count), *map(str, batch)]
        with tempfile.TemporaryFile() as log:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, env=environment, text=True)
            assert child.stdout is not None
            at = batch[0]
            for line in child.stdout:
                message = json.loads(line)
                at = message.get("begin", at)
                if "end" in message:
                    remaining.remove(message["end"])
                    yield message["end"], message["programs"], message["findings"]
            try:
                code = child.wait(patience)
            except subprocess.TimeoutExpired:
                child.kill()
                code = child.wait()
            if code:
                log.seek(0)
                text = f"exit code {code}: {log.read().decode(errors='replace')[-1500:]}"
                remaining.remove(at)
                yield at, 0, [{"kind": "crash", "text": text, "n": 0, "program": None}]


def show(seed: int, finding: dict[str, Any]) -> None:
    """Prints one finding."""
    print(f"\n{finding['kind']} (group {seed}, size {finding['n']}): {finding['text']}")
    if finding["program"] is not None:
        program = from_json(finding["program"])
        print(f"# {program.dtype}, {', '.join(program.layouts)}\n{program.text()}", flush=True)


def parse(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_aliases", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000, help="run so many programs")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("OUTBOARD_FUZZ_SEED", "0")))
    parser.add_argument("--together", type=int, default=16, help="programs in one graph")
    parser.add_argument("--driver", help="value of OUTBOARD_DRIVER")
    parser.add_argument("--patience", type=float, default=600, help="seconds that a process may take to end")
    parser.add_argument("--save", type=Path, help="append findings to this file: one JSON object a line")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Returns 0 if nothing differs."""
    arguments = parse(given)
    groups = max(arguments.programs // arguments.together, 1)
    first = arguments.seed * 100_000
    begin, programs, findings, traced = time.monotonic(), 0, 0, 0
    seeds = range(first, first + groups)
    for seed, count, found in judged(seeds, arguments.together, arguments.driver, arguments.patience):
        programs += count
        for finding in found:
            is_traced = finding["kind"] == TRACING
            traced, findings = traced + is_traced, findings + (not is_traced)
            if not is_traced:
                show(seed, finding)
            if arguments.save:
                with arguments.save.open("a") as file:
                    print(json.dumps(finding | {"seed": seed}), file=file)
    seconds = time.monotonic() - begin
    print(
        f"{programs} programs, each at 4 sizes, compiled, eager and on the CPU, {arguments.together} in a graph, "
        f"driver {arguments.driver or 'default'}, seed {arguments.seed}: {findings} differences, "
        f"{traced} that PyTorch's tracing makes on the CPU, too, {seconds:.0f} s"
    )
    return 1 if findings else 0
