# SPDX-License-Identifier: Apache-2.0
"""What grows as work grows: an operator's cost with the number of cached plans, compile time with the number of layers,
device memory of compiled models against eager ones.

Tables go to the terminal, and with a chart to ``out/scaling.*``. Counts of plans, layers and bytes are the same on any
machine; times need a quiet one. Each new plan costs a compilation unless ``OUTBOARD_CACHE_DIR`` has it.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch._inductor.config
import torch._inductor.utils
from torch import Tensor, nn

from benchmarks.bench import describe_machine
from benchmarks.results import TARGET_HEADER, Target
from examples.measure import format_seconds, peak_of, seconds_of, table
from examples.models import GPT2, Bert, BertConfig, GPT2Config, resnet50
from examples.variant import Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CALLS = 2000  #: per measurement of an operator
TURNS = 256  #: plans used in turns

OPERATORS = (
    torch.add, torch.mul, torch.maximum, torch.minimum, torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge,
    torch.logical_and, torch.logical_or, torch.logical_xor,
)  # fmt: skip
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
)  # fmt: skip
SHAPES = ((3, 4), (1, 4), (3, 1), (1, 1), (4,))


@dataclass(frozen=True)
class Plans:
    """Cost of an operator with so many plans cached: ``same``, called again and again; ``turns``, each of the last
    :data:`TURNS` plans in turn. Seconds per call, finished."""

    plans: int
    same: float
    turns: float


@dataclass(frozen=True)
class Depth:
    """First call of a compiled transformer without any cache. ``processor`` is the time of all threads: what else runs
    on the machine changes it less than ``seconds``. ``text`` is the length of what Inductor wrote, plans included;
    ``programs`` were built for it."""

    layers: int
    seconds: float
    processor: float
    text: int
    programs: int


@dataclass(frozen=True)
class Memory:
    """Peak bytes beyond what is there before, of one call in steady state."""

    model: str
    eager: int
    compiled: int


@dataclass
class Scaling:
    """What was measured."""

    machine: dict[str, str]
    plans: list[Plans] = field(default_factory=list)
    depths: list[Depth] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    def targets(self) -> list[Target]:
        """What was aimed at, as far as it was measured."""
        found = []
        if len(self.plans) > 1:
            first, last = self.plans[0], self.plans[-1]
            where = f"{last.plans} plans against {first.plans}"
            found.append(Target("growth of an operator's cost", last.same / first.same, 1.15, where))
        if len(self.depths) > 2:
            where = f"{self.depths[-1].layers} layers, last slope over mean slope"
            found.append(Target("growth of compile time beyond linear", _bend(self.depths), 1.3, where))
        found += [
            Target("memory of a compiled call over eager's", each.compiled / each.eager, 1.0, each.model)
            for each in self.memory
        ]
        return found

    def tables(self) -> dict[str, tuple[list[str], list[list[str]]]]:
        """All tables as text, by title."""
        plans = [[str(p.plans), format_seconds(p.same), format_seconds(p.turns)] for p in self.plans]
        depths = [
            [str(d.layers), format_seconds(d.seconds), format_seconds(d.processor), str(d.text), str(d.programs)]
            for d in self.depths
        ]
        memory = [[m.model, _mib(m.eager), _mib(m.compiled), f"{m.compiled / m.eager:.2f}"] for m in self.memory]
        return {
            "operators": (["cached plans", "same plan", "plans in turns"], plans),
            "compilation": (["layers", "first call", "processor", "bytes written", "programs built"], depths),
            "memory": (["model", "eager, MiB", "compiled, MiB", "ratio"], memory),
            "targets": (TARGET_HEADER, [target.cells() for target in self.targets()]),
        }

    def write(self, folder: Path) -> None:
        """Writes ``scaling.json`` and ``scaling.png``."""
        folder.mkdir(parents=True, exist_ok=True)
        known = asdict(self) | {"targets": [asdict(target) | {"met": target.met} for target in self.targets()]}
        (folder / "scaling.json").write_text(json.dumps(known, indent=1) + "\n")
        draw(self, folder / "scaling.png")


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"


def _bend(depths: Sequence[Depth]) -> float:
    """Processor time per layer between the last two depths, over that between the first and the last."""
    first, before, last = depths[0], depths[-2], depths[-1]
    mean = (last.processor - first.processor) / (last.layers - first.layers)
    return (last.processor - before.processor) / (last.layers - before.layers) / mean


def draw(scaling: Scaling, path: Path) -> None:
    """Writes a PNG with a panel for each kind of growth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    figure.suptitle(f"{scaling.machine['CPU']}; device: {scaling.machine['device']}", fontsize=8)
    plans, depths, memory = figure.subplots(1, 3)
    counts = [each.plans for each in scaling.plans]
    plans.plot(counts, [each.same * 1e6 for each in scaling.plans], "o-", label="same plan")
    plans.plot(counts, [each.turns * 1e6 for each in scaling.plans], "s-", label="plans in turns")
    plans.set_xscale("log")
    _describe(plans, "cached plans", "microseconds per operator")
    layers = [each.layers for each in scaling.depths]
    depths.plot(layers, [each.seconds for each in scaling.depths], "o-", label="first call")
    depths.plot(layers, [each.processor for each in scaling.depths], "s-", label="processor time")
    _describe(depths, "layers", "seconds")
    places = range(len(scaling.memory))
    memory.bar([i - 0.2 for i in places], [each.eager / 2**20 for each in scaling.memory], 0.4, label="eager")
    memory.bar([i + 0.2 for i in places], [each.compiled / 2**20 for each in scaling.memory], 0.4, label="compiled")
    memory.set_xticks(places, [each.model for each in scaling.memory], fontsize=6, rotation=20)
    _describe(memory, "", "peak MiB of one call")
    figure.savefig(path, dpi=130)


def _describe(axis: Axes, x: str, y: str) -> None:
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.set_ylim(bottom=0)
    axis.tick_params(labelsize=7)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize=7)


# ---- operators ----


def measure_plans(device: torch.device, most: int) -> Iterator[Plans]:
    """An operator's cost with 1, 10, ... plans, up to ``most``. Raises ValueError if there are not so many kinds of
    calls."""
    module = torch.get_device_module(device)
    x, y = (torch.ones(16, device=device) for _ in range(2))
    module.reset_compile_stats()
    calls: list[Callable[[], object]] = [lambda: torch.add(x, y)]
    calls[0]()
    base = module.compile_stats()["plans"]
    kinds = _kinds(device)
    for count in [10**power for power in range(len(str(most)))]:
        while module.compile_stats()["plans"] - base + 1 < count:
            call = next(kinds, None)
            if call is None:
                raise ValueError(f"there are not {count} kinds of calls")
            call()
            calls.append(call)
        yield Plans(count, _cost(calls[:1]), _cost(calls[-TURNS:]))


def _kinds(device: torch.device) -> Iterator[Callable[[], object]]:
    """Calls of different signatures."""
    for left, right in itertools.product(DTYPES, DTYPES):
        for a, b in itertools.product(SHAPES, SHAPES):
            tensors = torch.ones(a, dtype=left, device=device), torch.ones(b, dtype=right, device=device)
            for operator in OPERATORS:
                yield lambda operator=operator, tensors=tensors: operator(*tensors)  # type: ignore[misc]


def _cost(calls: Sequence[Callable[[], object]]) -> float:
    def run() -> None:
        for call in itertools.islice(itertools.cycle(calls), CALLS):
            call()

    run()
    # The least: what others do on the machine comes and goes between two numbers of plans.
    return min(seconds_of(run) for _ in range(15)) / CALLS


# ---- compile time ----


def measure_depth(device: torch.device, layers: int) -> Depth:
    """Compiles a narrow transformer of so many layers, without Inductor's cache."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = BertConfig(vocabulary=100, positions=32, width=64, layers=layers, heads=4, hidden=128)
    model = Bert(config).to(device).eval()
    tokens = torch.randint(100, (1, 16), device=device)
    module = torch.get_device_module(device)
    before = module.compile_stats()
    with torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        start, used = time.perf_counter(), time.process_time()
        _, texts = torch._inductor.utils.run_and_get_code(torch.compile(model), tokens)
        torch.accelerator.synchronize()
        seconds, processor = time.perf_counter() - start, time.process_time() - used
    after = module.compile_stats()
    programs = sum(after[name] - before[name] for name in ("programs_built", "programs_loaded"))
    return Depth(layers, seconds, processor, sum(map(len, texts)), int(programs))


# ---- memory ----


def _models() -> dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]]:
    def bert() -> tuple[nn.Module, Tensor, Tensor]:
        config = BertConfig(vocabulary=8192, layers=4)
        return Bert(config), torch.randint(8192, (4, 128)), torch.randint(8192, (4, 128))

    def gpt2() -> tuple[nn.Module, Tensor, Tensor]:
        config = GPT2Config(vocabulary=8192, positions=256, width=512, layers=6, heads=8)
        return GPT2(config), torch.randint(8192, (2, 256)), torch.randint(8192, (2, 256))

    def resnet() -> tuple[nn.Module, Tensor, Tensor]:
        return resnet50(), torch.randn(2, 3, 224, 224), torch.randint(1000, (2,))

    return {"BERT, 4 layers, 4x128": bert, "GPT-2, 6 layers, 2x256": gpt2, "ResNet-50, 2": resnet}


def measure_memory(
    device: torch.device, make: Callable[[], tuple[nn.Module, Tensor, Tensor]], name: str
) -> list[Memory]:
    """Peaks of a forward pass and of a training step."""
    found: dict[str, dict[bool, int]] = {"forward": {}, "step": {}}
    for compiled in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        variant = Variant(*make(), device, compiled)
        for kind, call in (("forward", variant.forward), ("step", variant.step)):
            found[kind][compiled] = peak_of(call)
        del variant, call
        gc.collect()
    return [Memory(f"{name}, {kind}", peaks[False], peaks[True]) for kind, peaks in found.items()]


# ---- the command ----


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes. Exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--plans", type=int, default=1000, help="most cached plans (10000 takes long the first time)")
    parser.add_argument("--layers", type=int, nargs="*", default=[2, 4, 8, 16, 32, 48], help="depths of transformers")
    parser.add_argument("--models", nargs="*", choices=list(_models()), default=list(_models()), help="for memory")
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder for scaling.json and scaling.png")
    options = parser.parse_args(arguments)
    device = torch.accelerator.current_accelerator()
    if device is None or not torch.accelerator.is_available():
        raise SystemExit("no device is available; `outboard doctor` says why and what to do")
    scaling = Scaling(describe_machine(device))
    for name in options.models:
        scaling.memory += measure_memory(device, _models()[name], name)
    if options.layers:
        measure_depth(device, 1)  # imports, and programs that all depths share
    scaling.depths += [measure_depth(device, layers) for layers in sorted(options.layers)]
    if options.plans > 0:
        scaling.plans += measure_plans(device, options.plans)
    scaling.machine["load average at the end"] = f"{os.getloadavg()[1]:.2f}"
    scaling.write(options.output)
    for title, (header, rows) in scaling.tables().items():
        if rows:
            print(f"\n{title}\n{table(header, rows)}")
    print(f"\nwritten to {options.output}: scaling.json, scaling.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
