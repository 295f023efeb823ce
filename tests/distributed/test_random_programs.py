# SPDX-License-Identifier: Apache-2.0
"""Random programs of collectives against their definition, and whether the judge finds what is wrong."""

from __future__ import annotations

import datetime
import os
from subprocess import CompletedProcess

import pytest
from processes import run_program

from tests.conftest import FULL
from tools.fuzz_collectives.generate import draw
from tools.fuzz_collectives.ordering import Renew, Wait, ordered
from tools.fuzz_collectives.program import Call, Program, Step, from_json
from tools.fuzz_collectives.shrink import shrink


def judge(*arguments: str) -> CompletedProcess[str]:
    return run_program(["-m", "tools.fuzz_collectives", *arguments], timeout=300)


def test_random_programs() -> None:
    """``OUTBOARD_FUZZ_SEED`` draws others. With OUTBOARD_TEST_FULL they change each day, and are more."""
    seed = os.environ.get("OUTBOARD_FUZZ_SEED", str(datetime.date.today().toordinal()) if FULL else "12")
    size = ["--operations", "20000"] if FULL else ["--operations", "200", "--batch", "2"]
    run = judge("--seed", seed, *size, "--transport", "shared,sockets,staged,driver", "--trials", "60")
    print(run.stdout)
    assert run.returncode == 0, f"OUTBOARD_FUZZ_SEED={seed}\n{run.stdout}\n{run.stderr}"


ANOTHER_FAULT = pytest.mark.full("another fault, found in the same way")


@pytest.mark.parametrize(
    ("fault", "kind", "told", "most"),
    [
        ("memory-order", "all_gather", "difference", 2),
        pytest.param("no-order", "all_reduce", "difference", 3, marks=ANOTHER_FAULT),
        pytest.param("past-the-end", "broadcast", "difference", 2, marks=ANOTHER_FAULT),
        ("absent", "scatter", "DistBackendError", 40),
    ],
)
def test_faults_are_found_and_made_small(fault: str, kind: str, told: str, most: int) -> None:
    trials = ["--patience", "3", "--trials", "0"] if fault == "absent" else ["--trials", "25", "--length", "12"]
    run = judge("--fault", fault, "--transport", "shared", "--ranks", "2", "--times", "1", "--most", "1",
                "--batch", "3", "--match", kind, "--seed", "1", *trials)  # fmt: skip
    steps = [line for line in run.stdout.splitlines() if line[:4] == "    " and ": " in line]
    assert run.returncode == 1, run.stdout + run.stderr
    assert told in run.stdout and f"--fault {fault}" in run.stdout, run.stdout
    assert any(f": {kind}(" in step for step in steps) and len(steps) <= most, run.stdout


def test_a_program_is_the_same_wherever_it_is_drawn() -> None:
    program = draw(7, 3, 40)
    assert from_json(program.to_json()) == program == draw(7, 3, 40)
    assert ordered(program) == ordered(from_json(program.to_json()))
    assert draw(8, 3, 40) != program


def steps(*kinds: str, group: tuple[int, ...] = (0, 1)) -> Program:
    """A program in which each step takes the tensor of the first, and none waits."""
    later = [kind not in ("add", "copy") for kind in kinds]
    each = [Step(i, kind, group, source="0.in", later=later[i]) for i, kind in enumerate(kinds)]
    return Program(0, 2, tuple(each))


def shown(program: Program) -> list[str]:
    """The names of what is done before the end."""
    actions = ordered(program)[0]
    return [each.step.kind if isinstance(each, Call) else type(each).__name__ for each in actions]


def test_only_collectives_of_one_group_need_no_wait() -> None:
    assert shown(steps("all_reduce", "all_reduce"))[:2] == ["all_reduce", "all_reduce"]
    assert shown(steps("all_reduce", "add"))[:3] == ["all_reduce", "Wait", "add"]
    assert shown(steps("all_reduce", "isend_irecv"))[:3] == ["all_reduce", "Wait", "isend_irecv"]
    both = steps("all_reduce", "all_reduce").steps
    other = Program(0, 2, (both[0], Step(1, "all_reduce", (1, 0), source="0.in", later=True)))
    assert shown(other)[:3] == ["all_reduce", "Wait", "all_reduce"]


def test_numbers_are_new_before_they_are_inexact() -> None:
    program = steps(*["all_reduce"] * 12)
    halves = program.with_steps([Step(s.number, s.kind, s.group, "bfloat16", source=s.source) for s in program.steps])
    assert sum(isinstance(action, Renew) for action in ordered(halves)[0]) == 1
    assert not any(isinstance(action, Renew | Wait) for action in ordered(program)[0][:12])


def test_what_does_not_matter_is_left_out() -> None:
    program = draw(3, 2, 30)
    wanted = program.steps[10].kind
    small = shrink(program, lambda candidate: any(step.kind == wanted for step in candidate.steps), 1000)
    assert [step.kind for step in small.steps] == [wanted]
    assert small.steps[0].layouts == ("rows",) and not small.steps[0].later
