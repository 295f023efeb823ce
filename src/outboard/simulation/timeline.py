# SPDX-License-Identifier: Apache-2.0
"""The time that a function's steps take on a chip: ``outboard.simulate``."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from outboard.reporting import quantities
from outboard.simulation import page
from outboard.simulation.chip import Chip
from outboard.simulation.recording import Record, record
from outboard.simulation.steps import Step, fuse

#: Rows of operators that a simulation prints.
_ROWS = 8


@dataclass(frozen=True)
class Timed:
    """A step with its ``begin`` and ``end`` in seconds, and what ``bound`` it: "arithmetic", "memory", "latency" or a
    copy's "transfer"."""

    step: Step
    begin: float
    end: float
    bound: str

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


class Timeline:
    """What a chip did, and when.

    Attributes:
        chip: whose numbers it went by.
        steps: :class:`Timed`, in the order in which they were asked for.
        memory: seconds, and bytes in use from then on.
    """

    def __init__(self, chip: Chip, steps: Sequence[Timed], memory: Sequence[tuple[float, int]]) -> None:
        self.chip = chip
        self.steps = tuple(steps)
        self.memory = tuple(memory)

    @property
    def seconds(self) -> float:
        """From the beginning of the first step to the end of the last."""
        return max((one.end for one in self.steps), default=0.0)

    @property
    def flops(self) -> int:
        """Operations of all products."""
        return sum(one.step.flops for one in self.steps)

    @property
    def moved(self) -> int:
        """Bytes that go between memory and arithmetic."""
        return sum(one.step.moved for one in self.steps if one.step.engine == "compute")

    @property
    def peak_memory(self) -> int:
        """Bytes in use at most."""
        return max((level for _, level in self.memory), default=0)

    @property
    def fits(self) -> bool:
        """Whether the chip's memory is enough."""
        return self.peak_memory <= self.chip.memory

    @property
    def utilisation(self) -> dict[str, float]:
        """Parts of the time, from 0 to 1, in which the chip's "arithmetic" and its "memory" would do what was done at
        their full rates."""
        whole = self.seconds or 1.0
        products = sum(one.step.flops / self.chip.peak(one.step.dtype) for one in self.steps)
        return {"arithmetic": products / whole, "memory": self.moved / self.chip.bandwidth / whole}

    def busy(self, engine: str = "compute") -> float:
        """Seconds in which an engine worked: "compute", "upload", "download", "link" or "host"."""
        return sum(one.seconds for one in self.steps if one.step.engine == engine)

    def by_operators(self) -> list[tuple[str, int, float]]:
        """Steps of the same operators: their names, how many there were, and their seconds, the costliest first."""
        counts: collections.Counter[str] = collections.Counter()
        seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
        for one in self.steps:
            counts[one.step.name] += 1
            seconds[one.step.name] += one.seconds
        return sorted(((name, counts[name], seconds[name]) for name in counts), key=lambda one: -one[2])

    def save(self, path: str | Path) -> None:
        """Writes a page: times by operators, a timeline of the engines, and memory over time, in one HTML file."""
        Path(path).write_text(page.render(self), encoding="utf-8")

    def __str__(self) -> str:
        return self.report()

    def report(self) -> str:
        """Times, bytes and the costliest steps in a few lines."""
        need = quantities.size(self.peak_memory)
        room = "" if self.fits else f", more than its {quantities.size(self.chip.memory)}"
        lines = [
            f"{self.chip.name}: {quantities.seconds(self.seconds)} in {len(self.steps)} steps; "
            f"{self.flops / 1e9:.4g} GFLOP, {quantities.size(self.moved)} moved, at most {need} in use{room}"
        ]
        for name, count, seconds in self.by_operators()[:_ROWS]:
            lines.append(
                f"{count:>6} x {quantities.seconds(seconds):>9} {quantities.percent(seconds, self.seconds):>7}  {name}"
            )
        return "\n".join(lines)


class Simulation(Timeline):
    """A function on a chip.

    A step takes what the slower of arithmetic and memory takes, and the chip's latency (Williams, Waterman, Patterson:
    Roofline, 2009). Products count as arithmetic, everything else as memory. Copies from the host, collectives and
    what the host computes run beside the other steps, and a step begins when its operands are there. Caches are not
    modelled, so that memory that is used twice counts twice; nor is the host's own time.
    """

    def __init__(self, recorded: Record, chip: Chip, fused: bool) -> None:
        self._recorded, self._fused = recorded, fused
        steps = _schedule(fuse(recorded, chip.has, fused), chip)
        super().__init__(chip, steps, _levels(self.resident, steps))

    def on(self, chip: Chip) -> Simulation:
        """The same function on another chip, which does not call it again."""
        return Simulation(self._recorded, chip, self._fused)

    @property
    def resident(self) -> int:
        """Bytes that are there before: parameters, inputs and the like."""
        return sum(self._recorded.sizes[number] for number in self._recorded.given)

    @property
    def on_host(self) -> dict[str, int]:
        """How often the host computed each operator that the chip lacks."""
        return dict(
            collections.Counter(name for one in self.steps if one.step.engine == "host" for name in one.step.operators)
        )

    def report(self) -> str:
        """As of a :class:`Timeline`, and what the host computed."""
        if not self.on_host:
            return super().report()
        lacking = ", ".join(f"{name} ({count})" for name, count in sorted(self.on_host.items()))
        return f"{super().report()}\n  on the host: {lacking}"


def simulate(function: Callable[..., Any], inputs: Sequence[Any], *, chip: Chip, fused: bool = True) -> Simulation:
    """How long a function takes on a chip that need not be there, of tensors that need no memory.

    The function is called once, with tensors of PyTorch's device ``meta``, which have sizes and no data. Inputs on
    other devices are taken for such. A module's parameters are, too, if it is the function; what else the function uses
    has to be made on ``meta`` (``with torch.device("meta"): model = ...``), as it would be made on the device. A
    function that trains is one that calls ``backward()`` and ``optimizer.step()``; it leaves gradients on ``meta``.
    Tensors on the CPU that it moves to ``meta`` are copies from the host. What is read on the host, as by ``item()``,
    has no value: such calls raise PyTorch's errors.

    Args:
        function: what is run, or a module.
        inputs: its arguments.
        chip: what it runs on.
        fused: as ``torch.compile`` fuses operators. If not, each is a step of its own, as in calls without it.
    """
    arguments = [tree_map(_without_data, value) for value in inputs]
    if isinstance(function, torch.nn.Module):
        function = _on_meta(function)
    return Simulation(record(function, arguments), chip, fused)


def _without_data(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.is_meta:
        return value
    return torch.empty_strided(
        value.size(), value.stride(), dtype=value.dtype, device="meta", requires_grad=value.requires_grad
    )


def _on_meta(module: torch.nn.Module) -> Callable[..., Any]:
    tensors = {name: _without_data(value) for name, value in (*module.named_parameters(), *module.named_buffers())}
    return lambda *arguments: torch.func.functional_call(module, tensors, arguments)


def _schedule(steps: Sequence[Step], chip: Chip) -> tuple[Timed, ...]:
    """Each engine takes its steps in order, each when the steps that it needs are done."""
    free: collections.defaultdict[str, float] = collections.defaultdict(float)
    timed: list[Timed] = []
    for step in steps:
        seconds = _duration(step, chip)
        begin = max([free[step.engine], *(timed[place].end for place in step.needs)])
        free[step.engine] = begin + seconds
        timed.append(Timed(step, begin, begin + seconds, bound_of(step, chip)))
    return tuple(timed)


def _levels(before: int, steps: Sequence[Timed]) -> list[tuple[float, int]]:
    """The memory in use after each change; what is made at a moment is there before what is freed then goes."""
    changes = [(0.0, before)]
    changes += [(one.begin, one.step.makes) for one in steps]
    changes += [(one.end, -one.step.frees) for one in steps]
    changes.sort(key=lambda one: (one[0], one[1] < 0))
    return list(zip((moment for moment, _ in changes), itertools.accumulate(size for _, size in changes), strict=True))


def _duration(step: Step, chip: Chip) -> float:
    """Seconds of a step."""
    if step.engine == "upload":
        return chip.host_latency + step.written / chip.host_bandwidth
    if step.engine == "host":  # operands go there, results come back
        return 2 * chip.host_latency + step.moved / chip.host_bandwidth
    if step.engine == "link":
        return _collective(step, chip)
    return chip.latency + max(_arithmetic(step, chip), step.moved / chip.bandwidth)


def _arithmetic(step: Step, chip: Chip) -> float:
    """Seconds that a step's products take alone."""
    return step.flops / (chip.peak(step.dtype) * chip.reached(step.operators))


def bound_of(step: Step, chip: Chip) -> str:
    """What most of a step's time is: "arithmetic", "memory", "latency", or a copy's "transfer"."""
    if step.engine != "compute":
        return "transfer"
    arithmetic, memory = _arithmetic(step, chip), step.moved / chip.bandwidth
    if chip.latency > max(arithmetic, memory):
        return "latency"
    return "arithmetic" if arithmetic > memory else "memory"


def _collective(step: Step, chip: Chip) -> float:
    """On a ring each device sends all of the whole but its own part, twice where it reduces and hands out."""
    passes = 2 if any("all_reduce" in name for name in step.operators) else 1
    messages = passes * (chip.devices - 1)
    return messages * (chip.link_latency + max(step.read, step.written) / chip.devices / chip.link_bandwidth)
