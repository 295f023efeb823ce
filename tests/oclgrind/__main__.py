# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.oclgrind [--only FAMILY]``: every family of kernels for GPUs on Oclgrind, and three seeded faults
that it has to find. Ends with 1 if a kernel does something wrong, or a seeded fault is missed."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

# Tensors need a device, and its OpenCL would get in the way of Oclgrind's.
os.environ["OUTBOARD_DRIVER"] = "sim"

import torch  # noqa: E402

from outboard.compiler import kernels  # noqa: E402
from outboard.compiler.dialects.c import groups  # noqa: E402
from outboard.compiler.operators.overloads import find_overload  # noqa: E402
from outboard.compiler.plans import plan as p  # noqa: E402
from tests.lowering import compiling_for, plan_of_call, plan_of_operator, tensors_in  # noqa: E402
from tools.opencl_runtime import install_debian  # noqa: E402

from . import families  # noqa: E402
from .plans import PlanRun  # noqa: E402
from .simulator import LIBRARY, Findings, Simulator  # noqa: E402

TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 5e-2}


class Checker:
    """Lowers operators for a GPU and runs them on Oclgrind."""

    def __init__(self) -> None:
        self.simulator = Simulator()
        #: The lowerings of compiler/kernels that wrote a kernel which ran.
        self.used: set[kernels.Lowering] = set()

    def run(
        self, op: str, arguments: tuple[Any, ...], edit: Callable[[str], str] = lambda text: text
    ) -> tuple[Findings, int, list[torch.Tensor]]:
        """What Oclgrind found, how many kernels ran, and the results of an operator by itself."""
        return self._run(plan_of_operator(op, arguments, families.GPU), arguments, edit)

    def run_call(self, op: str, arguments: tuple[Any, ...]) -> tuple[Findings, int, list[torch.Tensor]]:
        """The same of an operator as a call in a graph, by a kernel of ``compiler/kernels``."""
        return self._run(plan_of_call(op, arguments, families.GPU), arguments)

    def _run(
        self, plan: p.Plan, arguments: tuple[Any, ...], edit: Callable[[str], str] = lambda text: text
    ) -> tuple[Findings, int, list[torch.Tensor]]:
        run = PlanRun(plan, list(tensors_in(arguments)), self.simulator, edit)
        results = run.run()
        return self.simulator.findings(), run.launches, results

    def watched(self, lowering: kernels.Lowering) -> kernels.Lowering:
        """The lowering, which is noted when it serves a call."""

        def lower(*arguments: Any) -> bool:
            served = lowering(*arguments)
            if served:
                self.used.add(lowering)
            return served

        return lower


def wrong_results(op: str, arguments: tuple[Any, ...], results: list[torch.Tensor]) -> str:
    """How the results differ from the CPU's, or nothing."""
    try:
        expected = list(tensors_in(find_overload(op)(*arguments)))[: families.COMPARED.get(op)]
        for ours, theirs in zip(results, expected, strict=False):
            tolerance = TOLERANCE.get(theirs.dtype, 1e-3)
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return str(error)
    return ""


# ---- faults that are seeded ----


def reads_beside(text: str) -> str:
    """A pointwise program that reads behind its input."""
    return _replaced(text, "*(p0 + (xindexi))", "*(p0 + (xindexi) + n0)")


def writes_beside(text: str) -> str:
    """A pointwise program that writes behind its result."""
    return _replaced(text, "(p1 + (xindexi_from)) =", "(p1 + (n0 + xindexi_from)) =")


def lacks_a_barrier(text: str) -> str:
    """A reduction whose work-items do not wait for each other before they read what others wrote."""
    return _replaced(text, groups.BARRIER, "")


def _replaced(text: str, part: str, by: str) -> str:
    if part not in text:
        raise ValueError(f"{part!r} is not in the program:\n{text}")
    return text.replace(part, by)


#: What is done to a program, and which of the counts of Findings it must raise.
SEEDED: list[tuple[Callable[[str], str], str, str, tuple[Any, ...]]] = [
    (reads_beside, "invalid_reads", "aten::neg", (torch.ones(100),)),
    (writes_beside, "invalid_writes", "aten::neg", (torch.ones(100),)),
    (lacks_a_barrier, "races", "aten::sum.dim_IntList", (torch.ones(3, 700), [1])),
]


def check_seeded(checker: Checker) -> bool:
    """Whether each of the seeded faults is found, and the programs without them are right."""
    found = 0
    for edit, count, op, arguments in SEEDED:
        clean = checker.run(op, arguments)[0]
        seeded = checker.run(op, arguments, edit)[0]
        number = getattr(seeded, count)
        found += number > 0 and not clean
        print(f"seeded: {edit.__name__} in {op}: {number} {count.replace('_', ' ')}, {len(clean.text)} without it")
    print(f"{found} of {len(SEEDED)} seeded faults found")
    return found == len(SEEDED)


# ---- the families ----


@dataclasses.dataclass
class Totals:
    """Sums over all programs."""

    programs: int = 0
    launches: int = 0
    invalid: int = 0
    races: int = 0
    bad: int = 0  #: programs with a finding, a wrong result or without a kernel

    def __str__(self) -> str:
        return (
            f"{self.programs} programs, {self.launches} launches: {self.invalid} invalid accesses, {self.races} races, "
            f"{self.bad} programs that are not right"
        )


def check_program(checker: Checker, family: str, op: str, arguments: tuple[Any, ...], totals: Totals) -> None:
    """Runs one program, adds to the totals, and prints a line, with all that Oclgrind said."""
    run = checker.run_call if family == families.CALLS else checker.run
    findings, launches, results = run(op, arguments)
    wrong = wrong_results(op, arguments, results)
    invalid = findings.invalid_reads + findings.invalid_writes
    totals.programs += 1
    totals.launches += launches
    totals.invalid += invalid
    totals.races += findings.races
    totals.bad += bool(findings) or bool(wrong) or not launches
    print(f"  {op}: {launches} launches, {invalid} invalid accesses, {findings.races} races", flush=True)
    if findings or wrong:
        print(f"{findings.text}\n{wrong}")


def check_families(checker: Checker, only: str) -> bool:
    """Whether all programs of the families whose names contain ``only`` are right, and none has been left out."""
    totals = Totals()
    lowerings = {name: checker.watched(lowering) for name, lowering in kernels.LOWERINGS.items()}
    with mock.patch.dict(kernels.LOWERINGS, lowerings):
        for family, programs in (families.generated() | families.handwritten() | families.calls()).items():
            if only not in family:
                continue
            print(family)
            for op, arguments in programs:
                check_program(checker, family, op, arguments, totals)
    print(totals)
    left_out = sorted(name for name, lowering in kernels.LOWERINGS.items() if lowering not in checker.used)
    left_out = [name for name in left_out if _is_there(name)]
    if left_out and not only:
        print(f"of these no kernel ran: {', '.join(left_out)}")
        return False
    return totals.bad == 0


def _is_there(name: str) -> bool:
    """Whether an operator is declared: those of a library are by the library."""
    return bool(torch._C._jit_get_schemas_for_operator(name if "::" in name else f"aten::{name}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the families whose names contain this")
    options = parser.parse_args()
    if not Path(LIBRARY).exists() and not install_debian(["oclgrind"]):
        parser.error("Oclgrind is not there; install it with: sudo apt-get install oclgrind")
    torch.manual_seed(0)
    checker = Checker()
    with compiling_for(families.GPU):
        right = [check_seeded(checker), check_families(checker, options.only)]
    checker.simulator.close()
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
