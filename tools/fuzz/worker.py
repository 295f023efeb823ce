# SPDX-License-Identifier: Apache-2.0
"""The process that runs programs. It says what it does on a pipe, so that its death or silence can be attributed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from tools.fuzz import autocast, compiled, sides, sizes, state, ways
from tools.fuzz.generate import Generator, Refused
from tools.fuzz.invalid import INVALID
from tools.fuzz.operators import OPERATORS
from tools.fuzz.program import is_leaf, is_state, namespace, references, tensors
from tools.fuzz.shrink import alone, shrink

Announce = Callable[[str], None]
#: As often one process has a kind of call refused that always is. The compiler looks at each again.
_REFUSALS = 2


@dataclass
class Result:
    """What came of one program: ``operators`` is the number that ran, ``names`` which, ``findings`` what was wrong."""

    seed: int
    mode: str = "eager"
    operators: int = 0
    seconds: float = 0.0
    names: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    raised: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Memory:
    """What a process remembers of one program for the next ones: the kinds of findings shrunk before, and of kinds of
    calls how often they were refused and whether they ever ran."""

    found: set[tuple[str, str]] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)
    ran: set[str] = field(default_factory=set)

    def is_refused(self, kind: str) -> bool:
        """Whether there is nothing new in calls of a kind: PyTorch refuses all of them, which has been compared."""
        return self.refused[kind] >= _REFUSALS and kind not in self.ran


class _Stop(Exception):
    """The program cannot go on: the two sides are not of the same form any more."""


class Program:
    """Draws and runs one program, line by line."""

    def __init__(self, seed: int, options: dict[str, Any], device: str, announce: Announce, memory: Memory) -> None:
        self.result = Result(seed)
        self.sides = sides.Sides(device, announce)
        self._device, self._announce, self._memory = device, announce, memory
        self._operator = self._kind = ""
        self._dtypes: set[str] = set()
        self._changes = random.Random(f"state {seed} {options['salt']}")
        self._states, self._ways = options["states"], options["ways"]
        self.generator = Generator(seed, options["epoch"], self._emit, self.sides.cpu, options["variants"])
        self._share = options["invalid"]
        self._names, self._invalid = (
            sorted(name for name in table if options["match"] in name) for table in (OPERATORS, INVALID)
        )

    def run(self) -> Result:
        """Runs the whole program."""
        start = time.monotonic()
        for _ in range(self.generator.free.randint(20, 60)):
            if self._changes.random() < self._states:
                self._emit(state.draw(self._changes))
            try:
                self._draw()
            except Refused:
                continue
            except _Stop:
                break
        self.result.seconds = time.monotonic() - start
        self.result.dtypes = sorted(self._dtypes)
        return self.result

    def _draw(self) -> None:
        refused = not self._names or (self._share > 0 and self.generator.free.random() < self._share)
        self._operator = self.generator.free.choice(self._invalid if refused else self._names)
        self._kind = f"{self.generator.begin(self._operator)} {self.sides.cpu['STATE']}"
        if self._memory.is_refused(self._kind):
            raise Refused
        line = (INVALID if refused else OPERATORS)[self._operator](self.generator)
        name, value = self._emit((ways.refused if refused else ways.wrapped)(self.generator, line, self._ways))
        self._memory.ran.add(self._kind)
        self.result.names.append(self._operator)
        self.generator.add(name, value)

    def _emit(self, line: str) -> tuple[str, Any]:
        name = f"v{len(self.sides.lines)}"
        value, finding, error = self.sides.step(line)
        self.result.operators += not is_leaf(line) and not is_state(line)
        self._dtypes |= {str(x.dtype).removeprefix("torch.") for x in tensors(value)}
        self.result.raised += error is not None
        if finding:
            self._report(finding)
            if finding.kind not in ("value", "strides", "host"):
                raise _Stop
        if error is not None:
            self._memory.refused[self._kind] += 1
            raise Refused
        return name, value

    def _report(self, finding: sides.Finding) -> None:
        entry: dict[str, Any] = asdict(finding) | {"operator": self._operator, "lines": self.sides.lines[:]}
        if (self._operator, finding.kind) not in self._memory.found:
            self._memory.found.add((self._operator, finding.kind))
            entry["lines"] = shortest(self.sides, finding, self._device, self._announce)
        self.result.findings.append(entry)


def shortest(found: sides.Sides, finding: sides.Finding, device: str, announce: Announce) -> list[str]:
    """The finding's program, shrunk."""

    def fails(lines: list[str]) -> bool:
        try:
            again = sides.run(lines, device, announce)
        except Exception:  # noqa: BLE001 - a candidate that makes no sense is not a failure of the device
            return False
        return again is not None and again.kind == finding.kind and again.line == lines[-1]

    single = alone(finding.line, found.operands, [line for line in found.lines if is_state(line)])
    for lines in (single, found.lines[:]):
        if fails(lines):
            return shrink(lines, fails)
    return found.lines[:]


class Graph:
    """Draws one program on the CPU alone, then compiles and runs it as a whole on the device."""

    def __init__(self, seed: int, options: dict[str, Any], device: str, announce: Announce) -> None:
        self.result = Result(seed, mode="compiled")
        self._lines: list[str] = []
        self._values: dict[str, Any] = namespace("cpu")
        self._rounded: set[str] = set()
        self._names = sorted(name for name in OPERATORS if not options["match"] or options["match"] in name)
        self._device, self._announce, self._states = device, announce, 3 * options["states"]
        self._is_dynamic = random.Random(f"sizes {seed}").random() < options["sizes"]
        self.generator = Generator(seed, options["epoch"], self._emit, self._values, 1 << 30)

    def run(self) -> Result:
        """Draws, runs and compares the program."""
        start = time.monotonic()
        if self.generator.free.random() < self._states:
            self._emit(state.draw(self.generator.free, state.OF_GRAPHS))
        if self._is_dynamic:
            self._emit(sizes.draw(self.generator.free))
        for _ in range(compiled.length(self.generator)):
            with contextlib.suppress(Refused):
                self._draw()
        self._lines = sizes.fitting(self._lines)
        self._announce("; ".join(self._lines))
        finding = compiled.run(self._lines, self._device) if self.result.operators else None
        if finding:
            lines = compiled.shrink(self._lines, finding, self._device)
            operator = finding.line.split("(")[0] if finding.kind != "exception" else "graph"
            self.result.findings.append(asdict(finding) | {"operator": operator, "lines": lines, "mode": "compiled"})
        self.result.seconds = time.monotonic() - start
        return self.result

    def _draw(self) -> None:
        operator = self.generator.free.choice(self._names)
        self.generator.begin(operator)
        line = OPERATORS[operator](self.generator)
        before = compiled.stable(line, self._rounded, self._values)
        if before is None:
            raise Refused
        if before != [line]:
            for name, text in zip((x for x in references(line) if x in self._rounded), before, strict=True):
                line = re.sub(rf"\b{name}\b", self._emit(text)[0], line)
        if self._is_dynamic:
            line = sizes.symbolic(line, self._values, self.generator.free)
        name, value = self._emit(line)
        self.result.names.append(operator)
        self.result.operators += 1
        self.generator.add(name, value)

    def _emit(self, line: str) -> tuple[str, Any]:
        try:
            value = state.evaluate(line, self._values)
        except Exception as error:
            raise Refused from error
        name = f"v{len(self._lines)}"
        self._lines.append(line)
        self._values[name] = value
        if compiled.is_rounded(line, self._rounded, value):
            self._rounded |= {name, *(references(line) if re.search(r"[a-z0-9]_\(", line) else ())}
        self.result.dtypes = sorted(
            {*self.result.dtypes, *(str(x.dtype).removeprefix("torch.") for x in tensors(value))}
        )
        return name, value


def replay(index: int, program: dict[str, Any], device: str, announce: Announce) -> Result:
    """Runs a kept program, whose lines and operator are in ``program``."""
    calls = [line for line in program["lines"] if not is_leaf(line) and not is_state(line)]
    result = Result(index, operators=len(calls), names=[program["operator"]])
    if program.get("mode") == "compiled":
        announce("; ".join(program["lines"]))
        finding = compiled.run(program["lines"], device)
    else:
        finding = sides.run(program["lines"], device, announce)
    if finding:
        of_it = {name: program[name] for name in ("operator", "lines", "mode") if name in program}
        result.findings.append(asdict(finding) | of_it)
    return result


def main(options: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Runs the programs of ``options["seeds"]`` and says what came of each."""
    import outboard  # noqa: F401 - opens the device

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lists = autocast.as_cuda()  # noqa: F841 - they hold as long as this does
    device = torch.accelerator.current_accelerator()
    assert device is not None, "there is no device; run `outboard doctor`"
    memory = Memory()
    announce = lambda seed: lambda line: say({"at": seed, "line": line})  # noqa: E731
    for seed in options["seeds"]:
        if options["programs"]:
            say({"result": asdict(replay(seed, options["programs"][seed], device.type, announce(seed)))})
            continue
        if options["mode"] == "compiled":
            say({"result": asdict(Graph(seed, options, device.type, announce(seed)).run())})
            continue
        program = Program(seed, options, device.type, announce(seed), memory)
        say({"result": asdict(program.run())})
    module = torch.get_device_module(device.type)
    say({"fallbacks": module.fallbacks(), "statistics": module.compile_stats()})


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as pipe:
        main(json.load(sys.stdin), lambda message: print(json.dumps(message), file=pipe))
