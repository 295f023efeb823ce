# SPDX-License-Identifier: Apache-2.0
"""Where each nanosecond of an eager call goes that finds its plan: ``python -m benchmarks.hit``.

Parts are timed alone, from C++, on an addition of two vectors of 16 floats; what is left between a part and what
contains it is a row of its own. The device comes to rest between series of 256 calls, so that the launch queue never
fills; one call before each series wakes the queue's thread. No row includes the kernel.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from examples.measure import table
from outboard import _C

CALLS = 256


def python_call(call: Callable[[], object], device: torch.device, bursts: int) -> float:
    """Nanoseconds of one call from Python, the loop taken off: the median over the series."""
    costs = []
    for _ in range(bursts):
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        call()  # wakes the thread behind the launch queue
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        middle = time.perf_counter_ns()
        for _ in range(CALLS):
            pass
        costs.append((2 * middle - begin - time.perf_counter_ns()) / CALLS)
    return statistics.median(costs)


def measure(bursts: int) -> tuple[list[tuple[str, float]], float, float]:
    """The rows, the sum of them, and what the same call costs on the CPU, kernel included."""
    device = torch.device(torch._C._get_privateuse1_backend_name())
    a, b, host_a, host_b = (torch.ones(16, device=where) for where in (device, device, "cpu", "cpu"))
    costs = _C.hit_costs(a, b, bursts)
    whole = python_call(lambda: torch.add(a, b), device, bursts)
    peer = python_call(lambda: torch.add(host_a, host_b), torch.device("cpu"), bursts)
    parts = {
        "the device of the arguments": costs["device"],
        "signature: layouts, dtypes, bindings": costs["signature"],
        "signature -> entry (hash, thread's table)": costs["lookup"],
        "sizes and scalars to symbols, guards": costs["symbols"],
        "plan: memory taken and given back, arguments, queue": costs["plan"],
    }
    inside = costs["kernel"] - sum(parts.values())
    rows = [
        *parts.items(),
        ("results as tensors, and their end", inside),
        ("PyTorch's dispatcher, autograd's layer", costs["call"] - costs["kernel"]),
        ("Python: arguments, the result's object", whole - costs["call"]),
    ]
    return rows, whole, peer


def main() -> None:
    """Prints the table; with ``--output`` also writes it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hit", description=__doc__)
    parser.add_argument("--bursts", type=int, default=400, help="series of 256 calls; medians are shown")
    parser.add_argument("--output", type=Path, help="a file for the figures, as JSON")
    options = parser.parse_args()
    rows, whole, peer = measure(options.bursts)
    lines = [(name, f"{cost:.0f}", f"{100 * cost / whole:.0f} %") for name, cost in rows]
    lines.append(("torch.add from Python, submitted", f"{whole:.0f}", "100 %"))
    lines.append(("the same on the CPU, computed", f"{peer:.0f}", f"{100 * peer / whole:.0f} %"))
    print(table(("part", "ns", "share"), lines))
    if options.output is not None:
        options.output.write_text(json.dumps({"parts": dict(rows), "whole": whole, "cpu": peer}, indent=2) + "\n")


if __name__ == "__main__":
    main()
