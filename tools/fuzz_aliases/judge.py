# SPDX-License-Identifier: Apache-2.0
"""Compiles programs, many in one graph, and compares what they leave with eager on the CPU and on the device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.fuzz_aliases.generate import LARGEST
from tools.fuzz_aliases.program import Outcome, Program, define, gradients, run

#: The kind of what PyTorch's tracing does wrong on the CPU, too.
TRACING = "tracing"
#: The kind of a program that by itself cannot be compiled.
EXCEPTION = "exception"
#: The kind of gradients that what was written before the backward pass has changed.
WRITTEN = "written before the backward pass"
#: What autograd says of such writes.
REFUSAL = "modified by an inplace operation"


@dataclass(frozen=True)
class Finding:
    """A program that leaves something else than it should, with inputs of size ``n``."""

    program: Program
    n: int
    kind: str
    text: str


def judge(
    programs: Sequence[Program],
    sizes: Sequence[int],
    device: str,
    is_alone: bool = False,
    anew: bool = False,
    apart_first: bool = False,
) -> list[Finding]:
    """Runs programs compiled as one graph, for the sizes in order, and eager; at last, or first, with inputs that do
    not overlap. Those that differ are run once more alone, so that a finding says what one program does; ``is_alone``
    says that they are. ``anew`` has Dynamo forget everything before each call, so that kept graphs of others are
    found, as by another process."""
    torch._dynamo.reset()  # noqa: SLF001 - each graph is compiled on its own
    function = define(programs)
    compiled = torch.compile(function, dynamic=True)
    findings: list[Finding] = []
    calls = [(n, False) for n in sizes]
    calls.insert(0 if apart_first else len(calls), (sizes[0], True))
    for n, apart in calls:
        if anew:
            torch._dynamo.reset()  # noqa: SLF001 - the compiled function stays, and is traced again
        expected, eager = (run(programs, function, n, place, apart) for place in ("cpu", device))
        try:
            with _quiet():
                found = run(programs, compiled, n, device, apart)
            torch.accelerator.synchronize()
        except Exception as error:  # noqa: BLE001 - reported
            text = f"{type(error).__name__}: {str(error)[:500]}"
            return [*findings, *_narrowed(programs, device, n, text, is_alone)]
        for place, program in enumerate(programs):
            if not _is_exact(expected.results[place]):
                continue
            for kind, other in (("eager", eager), ("compiled", found)):
                text = _difference(place, other, expected)
                if text and not any(each.program is program for each in findings):
                    findings.append(Finding(program, n, kind, text))
    return findings


def _narrowed(programs: Sequence[Program], device: str, n: int, text: str, is_alone: bool) -> list[Finding]:
    """Which of several programs cannot be compiled: one, or all of them together."""
    if is_alone:
        return [Finding(programs[0], n, EXCEPTION, text)]
    alone = [finding for program in programs for finding in judge([program], (n,), device, is_alone=True)]
    return alone or [Finding(programs[0], n, "exception together", text)]


def _is_exact(values: Sequence[Tensor]) -> bool:
    return all(float(x.abs().max()) < LARGEST for x in values if x.numel() and x.is_floating_point())


def _difference(place: int, found: Outcome, expected: Outcome) -> str:
    for what, ours, theirs in (
        ("value", found.results, expected.results),
        ("value after what was returned has been written to", found.shared, expected.shared),
    ):
        if len(ours[place]) != len(theirs[place]):
            return f"{len(ours[place])} tensors for {len(theirs[place])}"
        for number, (one, other) in enumerate(zip(ours[place], theirs[place], strict=True)):
            if one.shape != other.shape or one.dtype != other.dtype:
                return f"tensor {number}: {one.dtype} {list(one.shape)} for {other.dtype} {list(other.shape)}"
            if not torch.equal(one, other):
                where = (one != other).nonzero()
                first = tuple(where[0].tolist())
                return (
                    f"{what} {number}: {len(where)} of {one.numel()} elements, the first at {list(first)}: "
                    f"{one[first].item()} for {other[first].item()}"
                )
    return ""


def judge_writes(program: Program, n: int, device: str) -> list[Finding]:
    """Runs a program with gradients compiled, and writes to one of its inputs or results before the backward pass:
    autograd has to refuse that, or the gradients are those without the write."""
    try:
        changed = _changed_by_writes(program, n, device, "inductor")
    except RuntimeError as error:
        return [Finding(program, n, EXCEPTION, f"{type(error).__name__}: {str(error)[:500]}")]
    if not changed:
        return []
    ours = sorted(changed - _changed_by_writes(program, n, "cpu", "aot_eager"))
    text = f"gradients change where input or result {ours or changed} is written before the backward pass"
    return [Finding(program, n, WRITTEN if ours else TRACING, text)]


def _changed_by_writes(program: Program, n: int, device: str, backend: str) -> set[int]:
    """Which inputs and results change gradients if they are written before the backward pass, in a compiled program."""
    torch._dynamo.reset()  # noqa: SLF001 - as above
    function, changed = define([program]), set()
    expected = gradients(program, function, n, "cpu", None)
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for target in range(len(program.inputs(n, "cpu")[0]) + len(program.returned)):
        try:
            with _quiet():
                found = gradients(program, compiled, n, device, target)
        except RuntimeError as error:
            if REFUSAL not in str(error):
                raise
            continue
        if not all(map(torch.equal, found, expected)):
            changed.add(target)
    return changed


def is_tracing(finding: Finding) -> bool:
    """Whether the program is refused, or differs, already when PyTorch traces it for the CPU with no compiler."""
    torch._dynamo.reset()  # noqa: SLF001 - as above
    function = define([finding.program])
    expected = run([finding.program], function, finding.n, "cpu")
    try:
        with _quiet():
            traced = torch.compile(function, backend="aot_eager", dynamic=True)
            found = run([finding.program], traced, finding.n, "cpu")
    except Exception:  # noqa: BLE001 - that it fails is the answer
        return True
    return bool(_difference(0, found, expected))


def shrink(finding: Finding, device: str) -> Finding:
    """The finding for a program with fewer lines and results, and a smaller size, if it has one."""
    best = finding
    for n in (6, 10):
        best = _if_found(best.program, n, best, device) if n < best.n else best
    tried = True
    while tried:
        tried = False
        for place in reversed(range(len(best.program.lines))):
            smaller = _if_found(best.program.without(place), best.n, best, device)
            if smaller is not best:
                best, tried = smaller, True
                break
    return best


def _if_found(program: Program, n: int, finding: Finding, device: str) -> Finding:
    """The finding of that kind that a program has; else the given one."""
    from tools.fuzz_aliases.generate import runs

    if not runs(program):
        return finding
    again = judge([program], (n,), device, is_alone=True)
    return again[0] if again and again[0].kind == finding.kind else finding


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What compilers say of programs that nobody would write goes nowhere."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield
