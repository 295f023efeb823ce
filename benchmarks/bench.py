# SPDX-License-Identifier: Apache-2.0
"""The benchmark table: eager latency, models, start-up. Exit code 1 if a result is wrong.

Everything is measured against CPU eager and CPU Inductor in the same run, taking turns. Results go to the terminal and,
as JSON and Markdown, to ``out/``.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import latency, models, startup
from examples.measure import Timing, format_seconds, table

SECTIONS = ("latency", "models", "startup")


@dataclass
class Results:
    """What was measured: tables of text for people, numbers for programs, and failed checks."""

    machine: dict[str, str]
    tables: dict[str, tuple[list[str], list[list[str]]]] = field(default_factory=dict)
    seconds: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, title: str, header: list[str], rows: list[list[str]]) -> None:
        self.tables[title] = (header, rows)
        print(f"\n{title}\n{table(header, rows)}", flush=True)

    def check(self, what: str, value: float, limit: float) -> None:
        """Records a value that is above its limit or not a number."""
        if not value <= limit:
            self.failures.append(f"{what}: {value:.3g}, must be <= {limit:.3g}")
            print(f"WRONG {self.failures[-1]}", flush=True)

    def write(self, folder: Path) -> None:
        """Writes ``bench.json`` and ``bench.md``."""
        folder.mkdir(parents=True, exist_ok=True)
        numbers = {"machine": self.machine, "seconds": self.seconds, "failures": self.failures}
        (folder / "bench.json").write_text(json.dumps(numbers, indent=1) + "\n")
        lines = ["# Benchmark", "", *(f"- {name}: {value}" for name, value in self.machine.items())]
        for title, (header, rows) in self.tables.items():
            lines += ["", f"## {title}", "", _markdown_row(header), _markdown_row(["---"] * len(header))]
            lines += map(_markdown_row, rows)
        lines += ["", "## Wrong results", "", *(f"- {failure}" for failure in self.failures or ["none"])]
        (folder / "bench.md").write_text("\n".join(lines) + "\n")


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def describe_machine(device: torch.device) -> dict[str, str]:
    """What the numbers depend on."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        names = (line.split(":")[1].strip() for line in information.read_text().splitlines() if "model name" in line)
        cpu = next(names, cpu)
    module = getattr(torch, device.type)
    hardware = module.get_device_name() if hasattr(module, "get_device_name") else "the CPU itself"
    return {
        "CPU": cpu,
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "device": f"{device.type}, {hardware}",
    }


def bench_latency(results: Results, device: torch.device, repeats: int) -> None:
    measured = latency.measure(device, rounds=4 * repeats)
    rows = []
    for job, timings in measured.items():
        base = timings["CPU eager"].median
        rows += [[job, way, str(timing), f"{timing.median / base:.2f}"] for way, timing in timings.items()]
    title = f"Latency of torch.add on {latency.ELEMENTS} floats, per operator"
    results.add(title, ["job", "where", "median", "x CPU eager"], rows)
    results.seconds["latency"] = _numbers(measured)


def bench_models(results: Results, device: torch.device, repeats: int) -> None:
    rows = []
    results.seconds["models"] = {}
    for name in models.MODELS:
        for job, timings in models.measure(name, device, repeats, results.check):
            eager, inductor = timings["CPU eager"].median, timings["CPU compiled"].median
            for way, timing in timings.items():
                ratios = [f"{timing.median / eager:.2f}", f"{timing.median / inductor:.2f}"]
                rows.append([job, way, str(timing), *ratios])
                print("  " + "  ".join(rows[-1]), flush=True)
            results.seconds["models"] |= _numbers({job: timings})
        torch._dynamo.reset()
    header = ["job", "where", "median", "x CPU eager", "x CPU Inductor"]
    results.add("Models, float32, batch 4 (224 x 224 images; 128 tokens)", header, rows)


def bench_startup(results: Results, device: torch.device, repeats: int) -> None:
    measured = startup.measure(device.type, warm_repeats=min(repeats, 3))
    rows = [
        [job, way, format_seconds(statistics.median(seconds))]
        for job, ways in measured.items()
        for way, seconds in ways.items()
    ]
    results.add("Start of a process to its first result", ["job", "where", "median"], rows)
    results.seconds["startup"] = measured


def _numbers(timings: dict[str, dict[str, Timing]]) -> dict[str, dict[str, list[float]]]:
    return {job: {way: asdict(timing)["seconds"] for way, timing in ways.items()} for job, ways in timings.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    parser.add_argument("--device", help="default: Outboard's device")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of PyTorch")
    parser.add_argument("--output", type=Path, default=Path("out"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device) if options.device else torch.accelerator.current_accelerator()
    if device is None or (device.type != "cpu" and not torch.accelerator.is_available()):
        raise SystemExit("no device is available; `outboard doctor` says why and what to do")
    results = Results(describe_machine(device))
    for name, value in results.machine.items():
        print(f"{name}: {value}")
    runs = {"latency": bench_latency, "models": bench_models, "startup": bench_startup}
    for section in options.sections:
        runs[section](results, device, options.repeats)
    results.write(options.output)
    print(f"\nwritten to {options.output / 'bench.json'} and {options.output / 'bench.md'}")
    for failure in results.failures:
        print(f"WRONG: {failure}", file=sys.stderr)
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
