# SPDX-License-Identifier: Apache-2.0
"""Training steps by DistributedDataParallel, each process with a core of its own, beside one process with one core.

``python -m benchmarks.data_parallel [RANKS]`` prints a table. ``alone`` is a step of one process; ``together`` one of
all of them, each with as many samples; ``apart`` the same without an exchange of gradients (``no_sync``), in turns with
it. Efficiency is alone / together; the exposed part of a step is what takes longer together than apart.

``python -m benchmarks.data_parallel [RANKS] --trace FILE`` writes what the first process did in one step of the first
model, for <https://ui.perfetto.dev>, and prints how much of its collectives lies beside kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile

from benchmarks.models import adamw, bert, resnet
from examples.measure import format_seconds, interleave, table
from examples.variant import MakeOptimizer, Variant, sgd

#: A model, and how it is trained. Batches are of one process.
MODELS: dict[str, tuple[Callable[[], Any], MakeOptimizer]] = {
    "ResNet-50 SGD step, 2": (lambda: resnet(2), sgd),
    "BERT-base AdamW step, 2x128": (lambda: bert(2, 128), adamw),
}
REPEATS, WARM_UP = 7, 3

#: Seconds of each kind of step, by model.
Times = dict[str, dict[str, list[float]]]


class Parallel(Variant):
    """A model that ranks train together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parallel = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.call = self.parallel

    def step_apart(self) -> None:
        """A step that exchanges nothing."""
        with self.parallel.no_sync():
            self.step()


def take_core(rank: int) -> None:
    """Leaves this process the core of its number. To be called before the device is used."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)


def prepare(name: str, kind: type[Variant]) -> Any:
    """A model on the device, ready for steps."""
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    torch.manual_seed(0)
    make, optimizer = MODELS[name]
    return kind(*make(), accelerator, make_optimizer=optimizer)


def measure() -> Times:
    """The steps of this process, by itself or as one of several."""
    take_core(int(os.environ.get("RANK", "0")))
    together = "RANK" in os.environ
    if together:
        dist.init_process_group()
    found: Times = {}
    for name in MODELS:
        made = prepare(name, Parallel if together else Variant)
        calls = {"together": made.step, "apart": made.step_apart} if together else {"alone": made.step}
        timings = interleave(calls, REPEATS, WARM_UP)
        found[name] = {kind: timing.seconds for kind, timing in timings.items()}
        del made
        torch.accelerator.empty_cache()
    if together:
        dist.destroy_process_group()
    return found


#: A span of a trace: begin and end, in microseconds.
Span = tuple[float, float]


def spans(trace: dict[str, Any]) -> tuple[list[Span], list[Span]]:
    """Of a chrome trace, the collectives and the kernels of the device, each in the order of time."""
    events = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    backend = dist.Backend.default_device_backend_map[torch._C._get_privateuse1_backend_name()]
    found: tuple[list[Span], list[Span]] = ([], [])
    for event in sorted(events, key=lambda event: float(event["ts"])):
        is_kernel = not event["name"].startswith(f"{backend}:")
        found[is_kernel].append((event["ts"], event["ts"] + event["dur"]))
    return found


def hidden(collectives: list[Span], kernels: list[Span]) -> float:
    """How much of the time of collectives is one in which kernels run, too: 0 to 1. Kernels are those of one stream."""
    both = sum(
        max(0.0, min(end, other_end) - max(begin, other_begin))
        for begin, end in collectives
        for other_begin, other_end in kernels
    )
    return both / sum(end - begin for begin, end in collectives)


def trace(path: str) -> None:
    """Writes one step of the first model, as the first process did it."""
    take_core(int(os.environ["RANK"]))
    dist.init_process_group()
    made = prepare(next(iter(MODELS)), Parallel)
    for _ in range(WARM_UP):
        made.step()
    torch.accelerator.synchronize()
    dist.barrier()
    with profile() as profiled:
        made.step()
        torch.accelerator.synchronize()
    if dist.get_rank() == 0:
        profiled.export_chrome_trace(path)
        found = spans(json.loads(Path(path).read_text()))
        milliseconds = sum(end - begin for begin, end in found[0]) / 1000
        print(f"{len(found[0])} collectives, {milliseconds:.1f} ms, {hidden(*found):.0%} of it beside kernels: {path}")
    dist.destroy_process_group()


def start(ranks: int, *arguments: str, **environment: str) -> None:
    """Runs this program as so many processes."""
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "benchmarks.data_parallel", *arguments]
    subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment, check=True)


def run(ranks: int) -> Times:
    """What the first of so many processes measures."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times"
        start(ranks, OUTBOARD_BENCH_TIMES=str(file))
        times: Times = json.loads(file.read_text())
        return times


def main() -> None:
    """Measures one process before and after all of them, since a machine's speed changes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", nargs="?", type=int, default=2)
    parser.add_argument("--trace", metavar="FILE")
    asked = parser.parse_args()
    file = os.environ.get("OUTBOARD_BENCH_TIMES")
    if file is not None:
        found = measure()
        if os.environ.get("RANK", "0") == "0":
            Path(file).write_text(json.dumps(found))
        return
    if asked.trace is not None:
        trace(asked.trace) if "RANK" in os.environ else start(asked.ranks, "--trace", asked.trace)
        return
    ranks = asked.ranks
    before, together, after = run(1), run(ranks), run(1)
    rows = []
    for name in MODELS:
        alone = statistics.median(before[name]["alone"] + after[name]["alone"])
        step, apart = (statistics.median(together[name][kind]) for kind in ("together", "apart"))
        parts = [f"{alone / step:.2f}", f"{max(0.0, 1 - apart / step):.0%}"]
        rows.append([name, *map(format_seconds, (alone, step, apart)), *parts])
    print(table([f"{ranks} processes", "alone", "together", "apart", "efficiency", "exposed"], rows))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
