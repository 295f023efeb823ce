# SPDX-License-Identifier: Apache-2.0
"""Kernels of our own against the driver's library (oneDNN, of the host driver) in models: each compiled with all values
of ``OUTBOARD_LIBRARY``, taking turns in one process.

``python -m benchmarks.libraries [--repeats N] [--only NAME]``. ``first`` is the first call, with what the caches have.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.apart import Apart
from benchmarks.models import Example, bert, resnet
from examples.measure import format_seconds, interleave, synchronize, table
from examples.variant import Variant

LIBRARIES = ("dialect", "driver", "auto")
MODELS: dict[str, tuple[Callable[[], Example], torch.dtype]] = {
    "BERT-base forward 4x128, float32": (lambda: bert(4, 128), torch.float32),
    "BERT-base forward 4x128, bfloat16": (lambda: bert(4, 128), torch.bfloat16),
    "ResNet-50 forward 4, float32": (lambda: resnet(4), torch.float32),
    "ResNet-50 forward 4, bfloat16": (lambda: resnet(4), torch.bfloat16),
}


def measure(example: Example, dtype: torch.dtype, repeats: int) -> list[list[str]]:
    """A row for each library: first call, least, median, and the median over rounds of the ratio to our own kernels."""
    device = torch.accelerator.current_accelerator()
    assert device is not None
    calls: dict[str, Callable[[], object]] = {}
    first: dict[str, float] = {}
    torch._dynamo.reset()
    for library in LIBRARIES:
        os.environ["OUTBOARD_LIBRARY"] = library
        variant = Variant(*example, device, dtype=dtype)
        model = torch.compile(Apart(variant.model.eval(), library))
        calls[library] = _call(model, variant.inputs, device)
        start = time.perf_counter()
        with torch._inductor.config.patch(force_disable_caches=True):  # their keys do not know the library
            calls[library]()
        first[library] = time.perf_counter() - start
    timings = interleave(calls, repeats, warm_up=1)
    own = timings[LIBRARIES[0]].seconds
    rows = []
    for library, timing in timings.items():
        ratio = statistics.median(b / a for a, b in zip(own, timing.seconds, strict=True))
        seconds = (first[library], min(timing.seconds), timing.median)
        rows.append([library, *map(format_seconds, seconds), f"{ratio:.2f}"])
    return rows


def _call(function: Callable[[Tensor], object], x: Tensor, device: torch.device) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            function(x)
        synchronize(device)

    return run


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="*", help="models whose names match a pattern")
    options = parser.parse_args()
    rows = []
    for name, (make, dtype) in MODELS.items():
        if fnmatch.fnmatch(name, options.only):
            rows += [[f"{name}: {row[0]}", *row[1:]] for row in measure(make(), dtype, options.repeats)]
    print(table(["model: library", "first", "least", "median", "to dialect"], rows))


if __name__ == "__main__":
    main()
