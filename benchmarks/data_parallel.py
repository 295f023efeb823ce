# SPDX-License-Identifier: Apache-2.0
"""Training steps by DistributedDataParallel, each process with a core of its own, beside one process with one core.

``python -m benchmarks.data_parallel [RANKS]`` prints a table. ``alone`` is a step of one process; ``together`` one of
all of them, each with as many samples; ``apart`` the same without an exchange of gradients (``no_sync``), in turns with
it. Efficiency is alone / together; the exposed part of a step is what takes longer together than apart.
"""

from __future__ import annotations

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


def measure() -> Times:
    """The steps of this process, by itself or as one of several."""
    take_core(int(os.environ.get("RANK", "0")))
    together = "RANK" in os.environ
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    if together:
        dist.init_process_group()
    found: Times = {}
    for name, (make, optimizer) in MODELS.items():
        torch.manual_seed(0)
        made: Any = (Parallel if together else Variant)(*make(), accelerator, make_optimizer=optimizer)
        calls = {"together": made.step, "apart": made.step_apart} if together else {"alone": made.step}
        timings = interleave(calls, REPEATS, WARM_UP)
        found[name] = {kind: timing.seconds for kind, timing in timings.items()}
        del made
        torch.accelerator.empty_cache()
    if together:
        dist.destroy_process_group()
    return found


def run(ranks: int) -> Times:
    """What the first of so many processes measures."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable]
        if ranks > 1:
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        file = Path(folder) / "times"
        environment = os.environ | {"OUTBOARD_BENCH_TIMES": str(file), "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "-m", "benchmarks.data_parallel"], env=environment, check=True)
        times: Times = json.loads(file.read_text())
        return times


def main() -> None:
    """Measures one process before and after all of them, since a machine's speed changes."""
    file = os.environ.get("OUTBOARD_BENCH_TIMES")
    if file is not None:
        found = measure()
        if os.environ.get("RANK", "0") == "0":
            Path(file).write_text(json.dumps(found))
        return
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
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
