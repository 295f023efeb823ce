# SPDX-License-Identifier: Apache-2.0
"""Where the time of an optimizer's step goes when nothing else is to be done: ``python -m benchmarks.step``.

Adam over 100 parameters of 256 x 256, and over 100 that fit into the caches, takes turns with replays of a captured
step, which are the launches alone, and with the fastest way to move as many bytes in place (``benchmarks/probes.py``).
What the calling thread does before its last launch is in time of the processor: other processes may want the cores.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.models import ADAM_STATE, optimizer_traffic
from benchmarks.probes import Probe
from benchmarks.roofline import FLOAT
from examples.measure import table

COUNT = 100
LARGE, SMALL = 256, 8
#: Seconds of looking for a faster way in each round.
SEARCH = 0.03


def make_step(size: int, device: torch.device, fused: bool) -> Callable[[], object]:
    """Updates so many square parameters. The first call compiles."""
    parameters = [torch.randn(size, size).to(device).requires_grad_() for _ in range(COUNT)]
    for parameter in parameters:
        parameter.grad = torch.randn(size, size).to(device)
    optimizer = torch.optim.Adam(parameters, **({"fused": True} if fused else {"foreach": True}))
    return optimizer.step


def timed(call: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds until the device is done, and of the calling thread's work until the call returns."""
    begin, began = time.perf_counter(), time.thread_time()
    call()
    submitted = time.thread_time() - began
    torch.accelerator.synchronize(device)
    return time.perf_counter() - begin, submitted


def measure(rounds: int, fused: bool) -> dict[str, list[float]]:
    """Seconds by row, one for each round."""
    device = torch.device(torch._C._get_privateuse1_backend_name())
    step, small = (make_step(size, device, fused) for size in (LARGE, SMALL))
    for call in (step, small, step, small):
        timed(call, device)
    graph = torch.accelerator.Graph()
    with graph:
        step()
    probe = Probe(optimizer_traffic(ADAM_STATE, FLOAT * COUNT * LARGE * LARGE), torch.get_num_threads())
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        whole, submitted = timed(step, device)
        replayed = timed(graph.replay, device)[0]
        timed(small, device)  # brings back what the large ones drove out of the caches
        rows = {
            "a step": whole,
            "its launches alone, replayed": replayed,
            "the calling thread": submitted,
            "the calling thread, small parameters": timed(small, device)[1],
            "moving the bytes, the least so far": probe.search(SEARCH),
        }
        for name, seconds in rows.items():
            found.setdefault(name, []).append(seconds)
    probe.close()
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--fused", action="store_true", help="the fused optimizer instead of operators on lists")
    options = parser.parse_args()
    found = measure(options.rounds, options.fused)
    rows = [
        (name, f"{1e3 * min(seconds):.3f}", f"{1e3 * statistics.median(seconds):.3f}")
        for name, seconds in found.items()
    ]
    print(table(("ms", "least", "median"), rows))


if __name__ == "__main__":
    main()
