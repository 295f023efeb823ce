# SPDX-License-Identifier: Apache-2.0
"""The command: draws programs, has ranks run them, makes those small that fail, and tells what was found."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tools.fuzz_collectives import launch, transports
from tools.fuzz_collectives.faults import FAULTS
from tools.fuzz_collectives.generate import draw
from tools.fuzz_collectives.kinds import KINDS
from tools.fuzz_collectives.known import defect_of
from tools.fuzz_collectives.launch import Conditions, Outcome
from tools.fuzz_collectives.program import Program, from_json
from tools.fuzz_collectives.shrink import shrink


@dataclass
class Finding:
    """A program that failed, as small as it could be made, and how."""

    program: Program
    conditions: Conditions
    outcome: Outcome
    repeats: bool


@dataclass
class Totals:
    """What ran under some conditions, by transport and number of ranks."""

    programs: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    known: Counter[str] = field(default_factory=Counter)

    def count(self, programs: list[Program], conditions: Conditions) -> None:
        """Counts what all ranks have done."""
        self.programs += len(programs)
        for program in programs:
            kinds = [step.kind for step in program.steps if not KINDS[step.kind].is_local]
            self.operations[f"{conditions.transport}, {conditions.ranks} ranks"] += len(kinds)
            self.kinds.update(kinds)


def _batches(arguments: argparse.Namespace) -> Iterator[tuple[Conditions, list[Program]]]:
    """Programs for one group of ranks after the other: each seed is a program of another number."""
    seed = arguments.seed * 100_000
    while True:
        for ranks in arguments.ranks:
            for transport in arguments.transport:
                conditions = Conditions(transport, ranks, arguments.patience, arguments.fault)
                seeds = range(seed, seed + arguments.batch)
                nones = transport not in transports.WITHOUT_NONES
                options = (ranks, arguments.length, arguments.match, arguments.long, nones)
                yield conditions, [draw(each, *options) for each in seeds]
                seed += arguments.batch


def _kept(arguments: argparse.Namespace) -> Iterator[tuple[Conditions, list[Program]]]:
    """Programs that were given, each under every transport that was asked for."""
    path = Path(arguments.replay)
    lines = [arguments.replay] if arguments.replay.startswith("{") else path.read_text().splitlines()
    for line in lines:
        program = from_json(line)
        for transport in arguments.transport:
            yield Conditions(transport, program.ranks, arguments.patience, arguments.fault), [program] * arguments.times


def run(arguments: argparse.Namespace) -> Totals:
    """Runs programs until there were enough operations, the time is over, or the given ones are done."""
    totals, begin = Totals(), time.monotonic()
    for conditions, programs in _kept(arguments) if arguments.replay else _batches(arguments):
        while programs and len(totals.findings) < arguments.most:
            outcome = launch.run(programs, conditions)
            totals.count(programs[: outcome.finished], conditions)
            if not outcome.kind:
                break
            _found(totals, programs[outcome.program], conditions, outcome, arguments)
            programs = [] if arguments.replay else programs[outcome.program + 1 :]
        done = sum(totals.operations.values())
        is_enough = done >= arguments.operations or time.monotonic() - begin > arguments.seconds
        if len(totals.findings) >= arguments.most or (is_enough and not arguments.replay):
            break
    return totals


def _found(
    totals: Totals, program: Program, conditions: Conditions, outcome: Outcome, arguments: argparse.Namespace
) -> None:
    """Makes a program that failed small, and tells of it."""
    print(f"\n{outcome.kind} with {conditions.transport}, {conditions.ranks} ranks, program {program.seed}", flush=True)
    finding = Finding(program, conditions, outcome, repeats=False)
    quicker = replace(conditions, patience=min(conditions.patience, 4.0), grace=0.0)

    def fails(candidate: Program) -> bool:
        return launch.run([candidate] * arguments.times, quicker).kind == outcome.kind

    if fails(program):
        small = shrink(program, fails, arguments.trials)
        again = launch.run([small] * arguments.times, replace(conditions, patience=quicker.patience))
        finding = Finding(small, conditions, again if again.kind else outcome, repeats=bool(again.kind))
    if defect := defect_of(finding.program, conditions.transport, finding.outcome.kind):
        totals.known[defect] += 1
        return
    totals.findings.append(finding)
    show(finding, arguments)


def show(finding: Finding, arguments: argparse.Namespace) -> None:
    """Prints one finding in a few lines."""
    for step in finding.program.steps:
        print(f"    {step.text()}")
    print("\n".join(f"  {text}" for text in finding.outcome.texts if text))
    text = finding.program.to_json()
    command = (
        f"python -m tools.fuzz_collectives --transport {finding.conditions.transport} --replay {shlex.quote(text)}"
    )
    command += f" --fault {finding.conditions.fault}" if finding.conditions.fault else ""
    print(f"  repeat it with{'' if finding.repeats else ' (it did not repeat at once)'}: {command}", flush=True)
    if arguments.save:
        with arguments.save.open("a") as file:
            print(text, file=file)


def summary(totals: Totals, seconds: float, arguments: argparse.Namespace) -> None:
    """Prints what ran and what was found."""
    for conditions, count in sorted(totals.operations.items()):
        print(f"  {count:>6} {conditions}")
    for reason, count in totals.known.most_common():
        print(f"  {count:>6} times a known defect: {reason}")
    print(
        f"{sum(totals.operations.values())} collectives and messages ({len(totals.kinds)} kinds) in {totals.programs} "
        f"programs, seed {arguments.seed}, {seconds:.0f} s: {len(totals.findings)} findings"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_collectives", description=__doc__)
    parser.add_argument("--operations", type=int, default=2000, help="collectives and messages, after which it ends")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="time after which no other ranks are started"
    )
    parser.add_argument("--seed", type=int, default=int(os.environ.get("OUTBOARD_FUZZ_SEED", "0")))
    parser.add_argument("--ranks", type=_numbers, default=[2, 3, 4], help="numbers of ranks, as 2,3,4")
    parser.add_argument(
        "--transport", type=_transports, default=transports.USUAL, help=", ".join(transports.TRANSPORTS)
    )
    parser.add_argument("--match", default="", help="only collectives whose names contain this")
    parser.add_argument("--length", type=int, default=40, help="steps of a program")
    parser.add_argument("--batch", type=int, default=10, help="programs for one group of processes")
    parser.add_argument("--long", type=float, default=0.01, help="share of steps whose tensors go in parts")
    parser.add_argument("--patience", type=float, default=60, help="seconds that a rank waits for others")
    parser.add_argument("--trials", type=int, default=120, help="runs at most to make a program small")
    parser.add_argument("--times", type=int, default=3, help="how often each of these, and a given program, is run")
    parser.add_argument("--most", type=int, default=20, help="findings after which it ends")
    parser.add_argument("--fault", default="", choices=["", *FAULTS], help="a fault to seed, which has to be found")
    parser.add_argument(
        "--replay", default="", help="programs to run instead: one as it was printed, or a file of them"
    )
    parser.add_argument("--save", type=Path, help="append findings to this file")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _transports(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in transports.TRANSPORTS:
            raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(transports.TRANSPORTS)}")
    return names


def main(given: list[str] | None = None) -> int:
    """Returns 0 if nothing was found but what is a known open defect."""
    arguments = _parser().parse_args(given)
    begin = time.monotonic()
    totals = run(arguments)
    summary(totals, time.monotonic() - begin, arguments)
    return 1 if totals.findings else 0
