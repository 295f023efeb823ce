# SPDX-License-Identifier: Apache-2.0
"""A child of the command: judges groups of programs, one line of JSON for each group on standard output."""

from __future__ import annotations

import json
import logging
import random
import sys
import warnings
from dataclasses import replace

import torch

from tools.fuzz_aliases.generate import Scope, draw, without_writes
from tools.fuzz_aliases.judge import EXCEPTION, TRACING, Finding, is_tracing, judge, judge_writes, shrink
from tools.fuzz_aliases.program import Program

#: Every fourth group is judged with gradients.
WITH_GRADIENT = 4
#: In every eighth group, the first inputs do not overlap, as the others may.
APART_FIRST = 8
#: Every fourth group has sizes that divide by different numbers.
OF_ANY_SIZE = 4
#: Every third group finds the graphs that are kept of other sizes.
ANEW = 3


def group_of(seed: int, count: int) -> list[Program]:
    """The programs of a group, which become one graph: those drawn that are defined and exact for all its sizes."""
    drawn = [draw(seed * 1000 + i, gradient=seed % WITH_GRADIENT == 0) for i in range(count)]
    return [program for program in drawn if all(Scope(program, n).run(program.lines) for n in sizes_of(seed))]


def sizes_of(seed: int) -> list[int]:
    """Sizes of inputs, all even; the last is large enough for several threads. In most groups they leave the same
    remainders, so that one graph serves them all."""
    chance, step = random.Random(seed), 2 if seed % OF_ANY_SIZE == 1 else 12
    small = (10 + step * chance.randint(1, 72 // step) for _ in range(2))
    return [10, *small, 10 + step * chance.randint(288 // step, 588 // step)]


def judge_group(programs: list[Program], seed: int, device: str) -> list[Finding]:
    """The findings of one group, made small."""
    findings = []
    ways = {"anew": seed % ANEW == 0, "apart_first": seed % APART_FIRST == 2}
    for finding in judge(programs, sizes_of(seed), device, **ways) if programs else []:
        is_alone = finding.kind == EXCEPTION
        alone = [finding] if is_alone else judge([finding.program], (finding.n,), device, is_alone=True)
        if alone and alone[0].kind != "eager" and is_tracing(alone[0]):
            findings.append(replace(alone[0], kind=TRACING))
            continue
        among = replace(finding, kind=f"{finding.kind}, among others")
        findings.append(shrink(alone[0], device) if alone else among)
    for program in programs[:1]:
        findings += judge_writes(without_writes(program), sizes_of(seed)[0], device) if program.gradient else []
    return findings


def main() -> None:
    """Judges the groups whose seeds are arguments, after the number of programs in each."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch._dynamo.config.recompile_limit = 64  # noqa: SLF001 - its public name is this
    device = torch._C._get_privateuse1_backend_name()  # noqa: SLF001 - the name has no other door
    count, *seeds = map(int, sys.argv[1:])
    for seed in seeds:
        print(json.dumps({"begin": seed}), flush=True)
        programs = group_of(seed, count)
        found = judge_group(programs, seed, device)
        findings = [{"program": f.program.json(), "n": f.n, "kind": f.kind, "text": f.text} for f in found]
        print(json.dumps({"end": seed, "programs": len(programs), "findings": findings}), flush=True)


if __name__ == "__main__":
    main()
