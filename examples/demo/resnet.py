# SPDX-License-Identifier: Apache-2.0
"""Part d: ResNet-50, forward and one training step, eager and compiled, against the CPU."""

from __future__ import annotations

import time

import torch

from examples.demo.context import Context
from examples.measure import Timing, interleave, table
from examples.models import resnet50
from examples.variant import Reference, ways

#: What times are compared with.
BASES = ("CPU eager", "CPU compiled")


def timing_rows(job: str, timings: dict[str, Timing]) -> list[list[str]]:
    """One row for each way to run ``job``, with its time relative to the CPU's, eager and, if measured, compiled."""
    yardsticks = [timings[name].median for name in BASES if name in timings]
    return [
        [job, name, str(timing), *(f"{timing.median / yardstick:.2f}" for yardstick in yardsticks)]
        for name, timing in timings.items()
    ]


def run(context: Context) -> None:
    """Compares eager and compiled results with the CPU's in float64, then times all ways in turns."""
    before = context.fallbacks()
    torch.manual_seed(0)
    size, repeats = (96, 2) if context.short else (224, 5)
    images, labels = torch.randn(4, 3, size, size), torch.randint(1000, (4,))
    model = resnet50()
    variants = ways(model, images, labels, context.device, context.cpu_compiled)
    print(f"  images 4x3x{size}x{size}; {torch.get_num_threads()} CPU threads; errors are against float64 on the CPU")
    reference = Reference(model, images, labels)
    for name, variant in variants.items():
        start = time.perf_counter()
        reference.compare(context.check, name, variant)
        print(f"  {name}: first forward and training step took {time.perf_counter() - start:.1f} s", flush=True)
    rows = timing_rows("forward", interleave({name: each.forward for name, each in variants.items()}, repeats))
    rows += timing_rows("training", interleave({name: each.step for name, each in variants.items()}, repeats))
    print(table(["job", "where", "median", *(f"x {name}" for name in BASES if name in variants)], rows))
    context.print_fallbacks("ResNet-50", before)
