# SPDX-License-Identifier: Apache-2.0
"""The benchmark's models as ``outboard.simulate`` predicts them from three measurements, beside what they take.

``python -m benchmarks.predicted`` measures a copy, a product of matrices and a small operator on the device, makes a
``Chip`` of the three numbers, and prints each model's prediction, its time in ``torch.compile``, and the deviation.
With ``--processor-time`` all of it is in seconds of the process' threads, which other programs of the machine disturb
less; the device should have one core then, or the seconds of several add up.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import time
from collections.abc import Callable

import torch

import outboard
from benchmarks.engine import Way, Workload
from benchmarks.models import WORKLOADS, Generate
from examples.measure import synchronize

FLOAT32 = torch.float32
_SIZE = 1024  #: of the matrices that are multiplied
_COPIED = 1 << 24  #: elements
_SMALL = 1000  #: operators whose latency is measured together

Clock = Callable[[], float]


def best(call: Callable[[], object], device: torch.device, clock: Clock, repeats: int) -> float:
    """Seconds of the shortest of some runs after two."""
    shortest = float("inf")
    for turn in range(repeats + 2):
        begin = clock()
        call()
        synchronize(device)
        if turn > 1:
            shortest = min(shortest, clock() - begin)
    return shortest


def calibrated(device: torch.device, clock: Clock, repeats: int) -> outboard.Chip:
    """The device as three numbers."""
    a = torch.ones(_SIZE, _SIZE, device=device)
    source = torch.ones(_COPIED, device=device)
    target, small = torch.empty_like(source), torch.ones(8, device=device)

    def many() -> None:
        for _ in range(_SMALL):
            small.neg_()

    return outboard.Chip(
        f"{device}, measured",
        {"float32": 2 * _SIZE**3 / best(lambda: a @ a, device, clock, repeats)},
        bandwidth=2 * source.nbytes / best(lambda: target.copy_(source), device, clock, repeats),
        latency=best(many, device, clock, repeats) / _SMALL,
    )


def predicted(workload: Workload, chip: outboard.Chip) -> outboard.Simulation:
    """A workload on the chip, after a run that makes what the first one makes."""
    way = Way("meta", torch.device("meta"))
    run = (
        functools.partial(_tokens, workload, way) if isinstance(workload, Generate) else workload.job(way, FLOAT32).run
    )
    run()
    return outboard.simulate(run, [], chip=chip)


def _tokens(workload: Generate, way: Way) -> None:
    """What ``generate`` computes, without its choices, of which nobody knows the values."""
    model, prompt = workload.make(way, FLOAT32)
    with torch.no_grad():
        cache = model(prompt, use_cache=True, logits_to_keep=1).past_key_values
        for _ in range(workload.count - 1):
            model(prompt[:, :1], use_cache=True, past_key_values=cache)


def main() -> None:
    """Prints a row for each model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--device", default=torch._C._get_privateuse1_backend_name())
    parser.add_argument("--only", default="*", help="models by name, as in 'BERT*'")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--processor-time", action="store_true", help="seconds of the process' threads")
    options = parser.parse_args()
    device = torch.device(options.device)
    clock = time.process_time if options.processor_time else time.perf_counter
    chip = calibrated(device, clock, options.repeats)
    print(f"{chip.flops['float32'] / 1e9:.1f} GFLOP/s, {chip.bandwidth / 1e9:.2f} GB/s, {chip.latency * 1e6:.2f} us\n")
    print("| model | predicted | measured | deviation | steps |\n|---|---|---|---|---|", flush=True)
    for name, make in WORKLOADS.items():
        if not fnmatch.fnmatch(name, options.only):
            continue
        workload = make()
        simulation = predicted(workload, chip)
        job = workload.job(Way("compiled", device, compiled=True), FLOAT32)
        measured = best(job.run, device, clock, options.repeats)
        cells = (
            f"{simulation.seconds * 1e3:.1f} ms | {measured * 1e3:.1f} ms | {simulation.seconds / measured - 1:+.0%}"
        )
        print(f"| {name} | {cells} | {len(simulation.steps)} |", flush=True)
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
