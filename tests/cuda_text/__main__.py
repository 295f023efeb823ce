# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.cuda_text [--only FAMILY ...]``: every family of kernels for GPUs, in CUDA C++ as NVRTC would get
it, compiled by Clang and run on the processor, work-item by work-item. First it has to see three faults that are
seeded. Ends with 1 if it does not, if a result is not the CPU's, or if something was written beside a buffer."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

# Tensors need a device, and nothing runs on it.
os.environ["OUTBOARD_DRIVER"] = "sim"

import torch  # noqa: E402

from tests.lowering import NVIDIA, compiling_for, plan_of_call, plan_of_operator, tensors_in  # noqa: E402
from tests.oclgrind import families  # noqa: E402
from tests.oclgrind.__main__ import lacks_a_barrier, writes_beside, wrong_results  # noqa: E402
from tests.oclgrind.plans import PlanRun  # noqa: E402

from .machine import Machine  # noqa: E402


def forgets_a_lane(text: str) -> str:
    """A reduction whose items read their own value where they ought to read another's."""
    if "__shfl_sync(ob_active(), value, lane)" not in text:
        raise ValueError("the program shuffles in another way")
    return text.replace("__shfl_sync(ob_active(), value, lane)", "__shfl_sync(ob_active(), value, (int)ob_thread())")


#: What is done to a program of an operator, by which it goes wrong.
_ROWS = ("aten::sum.dim_IntList", (torch.ones(3, 7000), [1]))
SEEDED: list[tuple[Callable[[str], str], str, tuple[Any, ...]]] = [
    (writes_beside, "aten::neg", (torch.ones(100),)),
    (lacks_a_barrier, *_ROWS),
    (forgets_a_lane, *_ROWS),
]


def check_seeded(machine: Machine) -> bool:
    """Whether each of the seeded faults is seen, and the programs without them are right."""
    seen = 0
    for edit, op, arguments in SEEDED:
        wrong = []
        for change in (str, edit):
            before = machine.written_beside
            run = PlanRun(plan_of_operator(op, arguments, NVIDIA), list(tensors_in(arguments)), machine, change)  # type: ignore[arg-type]
            wrong.append(bool(wrong_results(op, arguments, run.run())) or machine.written_beside > before)
        seen += wrong == [False, True]
    machine.written_beside = 0
    print(f"{seen} of {len(SEEDED)} seeded faults seen")
    return seen == len(SEEDED)


@dataclasses.dataclass
class Totals:
    """Sums over all programs."""

    programs: int = 0
    launches: int = 0
    bad: int = 0  #: with a wrong result, or without a kernel


def check_program(machine: Machine, family: str, op: str, arguments: tuple[Any, ...], totals: Totals) -> None:
    """Runs one program, adds to the totals, and prints a line."""
    plan_of = plan_of_call if family == families.CALLS else plan_of_operator
    run = PlanRun(plan_of(op, arguments, NVIDIA), list(tensors_in(arguments)), machine)  # type: ignore[arg-type]
    wrong = wrong_results(op, arguments, run.run())
    totals.programs += 1
    totals.launches += run.launches
    totals.bad += bool(wrong) or not run.launches
    print(f"  {op}: {run.launches} launches", flush=True)
    if wrong:
        print(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="the families whose names contain one of these")
    options = parser.parse_args()
    torch.manual_seed(0)
    machine, totals = Machine(), Totals()
    with compiling_for(NVIDIA):
        sees = check_seeded(machine)
        for family, programs in (families.generated() | families.handwritten() | families.calls()).items():
            if not any(part in family for part in options.only):
                continue
            print(family)
            for op, arguments in programs:
                check_program(machine, family, op, arguments, totals)
    print(
        f"{totals.programs} programs in CUDA C++, {totals.launches} launches: {totals.bad} that are not right, "
        f"{machine.written_beside} buffers beside which something was written"
    )
    return 1 if not sees or totals.bad or machine.written_beside or not totals.programs else 0


if __name__ == "__main__":
    sys.exit(main())
