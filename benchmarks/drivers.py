# SPDX-License-Identifier: Apache-2.0
"""Models on several drivers' devices and on PyTorch's CPU, taking turns in one process: which driver is best here.

``OUTBOARD_DRIVER=opencl,host python -m benchmarks.drivers [--repeats N] [--only PATTERN] [--compiled]``. ``first`` is
the first call, compilation included, with what the caches have; ``ratio`` the median over rounds of the time beside
that of the first driver. Results are compared with the CPU's.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.models import Example, adamw, bert, gpt2_small, resnet
from examples.measure import format_seconds, interleave, table
from examples.variant import CPU, MakeOptimizer, Variant, sgd

TOLERANCE = 1e-2  # of losses of untrained models, in float32

#: Whether it trains, the model, and its optimizer.
Case = tuple[bool, Callable[[], Example], MakeOptimizer]
CASES: dict[str, Case] = {
    "ResNet-50 forward, 4": (False, functools.partial(resnet, 4), sgd),
    "ResNet-50 SGD step, 2": (True, functools.partial(resnet, 2), sgd),
    "BERT-base forward, 4x128": (False, functools.partial(bert, 4, 128), sgd),
    "BERT-base AdamW step, 4x128": (True, functools.partial(bert, 4, 128), adamw),
    "GPT-2-small AdamW step, 2x128": (True, functools.partial(gpt2_small, 2, 128), adamw),
}


def measure(case: Case, devices: dict[str, torch.device], compiled: bool, repeats: int) -> list[list[str]]:
    """A row for each device: its name, the first call, the median, and its ratio to the first device."""
    trains, make, make_optimizer = case
    example = make()
    calls: dict[str, Callable[[], torch.Tensor]] = {}
    first: dict[str, float] = {}
    results: dict[str, torch.Tensor] = {}
    for name, device in devices.items():
        torch._dynamo.reset()
        variant = Variant(*example, device, compiled, make_optimizer=make_optimizer)
        calls[name] = variant.step if trains else variant.forward
        begin = time.perf_counter()
        results[name] = calls[name]().cpu()
        first[name] = time.perf_counter() - begin
    for result in results.values():
        torch.testing.assert_close(result, results["cpu"], rtol=TOLERANCE, atol=TOLERANCE)
    timings = interleave(calls, repeats)
    own = next(iter(timings.values())).seconds
    rows = []
    for name, timing in timings.items():
        ratio = statistics.median(b / a for a, b in zip(own, timing.seconds, strict=True))
        rows.append([name, format_seconds(first[name]), format_seconds(timing.median), f"{ratio:.2f}"])
    return rows


def name_of(properties: Any) -> str:
    """The driver, and of one that drives several makers' runtimes (OpenCL), the runtime."""
    driver, runtime = str(properties.driver), str(properties.driver_version).partition(",")[0]
    return f"{driver}, {runtime.partition(' OpenCL')[0]}" if driver == "opencl" else driver


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="*", help="cases whose names match a pattern")
    parser.add_argument("--compiled", action="store_true", help="through torch.compile")
    options = parser.parse_args()
    kind = torch._C._get_privateuse1_backend_name()
    devices: dict[str, torch.device] = {}
    for index in range(torch.accelerator.device_count()):
        properties = getattr(torch, kind).get_device_properties(index)
        devices.setdefault(name_of(properties), torch.device(kind, index))
    devices["cpu"] = CPU
    torch.manual_seed(0)
    rows = []
    for name, case in CASES.items():
        if fnmatch.fnmatch(name, options.only):
            rows += [
                [f"{name}: {row[0]}", *row[1:]] for row in measure(case, devices, options.compiled, options.repeats)
            ]
    print(table(["model: driver", "first", "median", "ratio"], rows))


if __name__ == "__main__":
    main()
