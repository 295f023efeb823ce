# SPDX-License-Identifier: Apache-2.0
"""The benchmark table: models, single operators, matrix products, start-up, against CPU eager and CPU Inductor.

Everything is measured in one process, taking turns, with as many CPU threads everywhere, and each result is compared
with float64. Tables go to the terminal, and with a chart to ``out/``. Exit code 1 if a result is wrong or a way failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import chart, micro, models, overhead, startup
from benchmarks.engine import Runner, Workload
from benchmarks.results import Results
from benchmarks.roofline import Roofs
from benchmarks.targets import targets

WORKLOADS: dict[str, dict[str, Callable[[], Workload]]] = {
    "models": models.WORKLOADS,
    "micro": micro.MICROS,
    "gemm": micro.GEMMS,
}
STARTUP, OVERHEAD = "startup", "overhead"
SECTIONS = (*WORKLOADS, OVERHEAD, STARTUP)

#: What ``--quick`` leaves out: what takes minutes to compile or to measure.
SLOW = (
    "* step, *",
    "* generate, *",
    "gemm:* 512x768x30522",
    "gemm:* 256x768x50257",
    f"overhead:{overhead.DECODE}",
    "startup:*",
)


def options_from(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line. Wrong usage exits with code 2."""
    parser = argparse.ArgumentParser(prog="outboard bench", description=__doc__)
    parser.add_argument("--list", action="store_true", help="list sections and workloads, measure nothing")
    parser.add_argument("--device", help="default: Outboard's device")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="workloads by name, as in 'BERT*'")
    parser.add_argument("--quick", action="store_true", help="fewer repeats; no training, generation, start-up")
    parser.add_argument("--repeats", type=int, help="timed runs of a model; operators get more (default 7, quick 3)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of PyTorch and of an OpenCL CPU device")
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder for bench.json, bench.md, bench.png")
    options = parser.parse_args(arguments)
    if not any(selected(section, names, options) for section, names in names_by_section().items()):
        parser.error("no workload is selected; --list shows the names")
    if options.repeats is None:
        options.repeats = 3 if options.quick else 7
    if options.repeats < 1 or options.threads < 1:
        parser.error("--repeats and --threads must be at least 1")
    return options


def names_by_section() -> dict[str, list[str]]:
    """All workloads."""
    known = {section: list(makers) for section, makers in WORKLOADS.items()}
    return known | {OVERHEAD: [overhead.DECODE, overhead.CHAIN], STARTUP: list(startup.JOBS)}


def selected(section: str, names: Sequence[str], options: argparse.Namespace) -> list[str]:
    """The names of a section that the options ask for."""
    if section not in options.sections:
        return []
    chosen = [name for name in names if options.only is None or _matches(section, name, options.only)]
    return [name for name in chosen if not (options.quick and _matches(section, name, SLOW))]


def _matches(section: str, name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns for text in (name, f"{section}:{name}"))


def describe_machine(device: torch.device) -> dict[str, str]:
    """What the numbers depend on."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        names = (line.split(":")[1].strip() for line in information.read_text().splitlines() if "model name" in line)
        cpu = next(names, cpu)
    machine = {
        "CPU": f"{cpu}, {os.cpu_count()} logical CPUs",
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "device": device.type,
        "load average at the start": f"{os.getloadavg()[0]:.2f}",
    }
    if device.type != "cpu":
        properties = torch.get_device_module(device).get_device_properties(0)
        machine["device"] += f", {properties.name}, {properties.compute_units} compute units"
        machine["driver"] = f"{properties.driver}, {properties.driver_version}"
    return machine


def measure_workloads(results: Results, runner: Runner, options: argparse.Namespace) -> None:
    """Runs the selected models and operators."""
    results.rows = runner.rows
    for section, makers in WORKLOADS.items():
        names = selected(section, list(makers), options)
        for name in names:
            torch.manual_seed(0)
            runner.measure(section, makers[name]())
        if names:
            results.show(section)


def measure_startup(results: Results, device: torch.device, options: argparse.Namespace) -> None:
    """Runs the selected start-up jobs. One that fails is recorded, the others go on."""
    for job in selected(STARTUP, list(startup.JOBS), options):
        print(f"  start-up: {job}", flush=True)
        try:
            results.startup[job] = startup.measure(job, device.type)
        except RuntimeError as error:
            results.failures.append(f"start-up FAILED: {error}")
            print(f"FAILED {error}", file=sys.stderr, flush=True)
    if results.startup:
        results.show("start-up")


def measure_overhead(results: Results, device: torch.device, options: argparse.Namespace) -> None:
    """Times what launching costs, on a device that has launches."""
    if device.type == "cpu":
        return
    names = selected(OVERHEAD, [overhead.DECODE, overhead.CHAIN], options)
    if overhead.DECODE in names:
        print(f"  {overhead.DECODE}: decoding steps", flush=True)
        results.decode = overhead.measure_decode(device, options.repeats)
        results.show("decoding steps")
    if overhead.CHAIN in names:
        results.chain = overhead.measure_chain(device, options.repeats)
        results.show("small kernels")


def use_threads(threads: int, arguments: Sequence[str]) -> None:
    """Gives CPU devices as many threads as PyTorch gets.

    PoCL reads its number once, when it is loaded, which has happened: so the process starts itself again if the number
    is not the machine's.
    """
    names = ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT", "OMP_NUM_THREADS")  # the second is PoCL's new name
    if os.cpu_count() != threads and any(os.environ.get(name) != str(threads) for name in names):
        os.environ |= dict.fromkeys(names, str(threads))
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.bench", *arguments])
    torch.set_num_threads(threads)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns the exit code."""
    options = options_from(arguments)
    if options.list:
        for section, names in names_by_section().items():
            for name in selected(section, names, options):
                print(f"{section}: {name}")
        return 0
    use_threads(options.threads, sys.argv[1:] if arguments is None else arguments)
    device = torch.device(options.device) if options.device else torch.accelerator.current_accelerator()
    if device is None or (device.type != "cpu" and not torch.accelerator.is_available()):
        raise SystemExit("no device is available; `outboard doctor` says why and what to do")
    results = Results(describe_machine(device))
    for name, value in results.machine.items():
        print(f"{name}: {value}")
    start = time.perf_counter()
    runner = Runner(device, options.repeats, Roofs(device))
    try:
        measure_workloads(results, runner, options)
        measure_overhead(results, device, options)
        measure_startup(results, device, options)
    finally:
        # After an interruption, too: half an hour of measurements is worth keeping.
        _finish(results, runner, options, time.perf_counter() - start)
    return 1 if results.bad() else 0


def _finish(results: Results, runner: Runner, options: argparse.Namespace, seconds: float) -> None:
    results.machine["duration"] = f"{seconds:.0f} s"
    # Well above the number of threads, it means that others used the machine, too, and that the figures are noise.
    results.machine["load average at the end"] = f"{os.getloadavg()[1]:.2f}"
    results.roofs = runner.roofs.numbers()
    results.targets = targets(results.rows, runner.device.type, results.startup, results.decode)
    results.write(options.output)
    if results.targets:
        results.show("targets")
    files = ["bench.json", "bench.md"]
    if results.rows:
        title = "\n".join(f"{name}: {results.machine[name]}" for name in ("CPU", "device"))
        chart.draw(results.rows, title, options.output / "bench.png")
        files.append("bench.png")
    print(f"\n{seconds:.0f} s; written to {options.output}: {', '.join(files)}")
    for line in results.bad():
        print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
