# SPDX-License-Identifier: Apache-2.0
"""Part e: what the device counted during the run."""

from __future__ import annotations

import torch

from examples.demo.context import Context
from examples.measure import table
from outboard.cli.inspection import format_bytes


def run(context: Context) -> None:
    """Prints operators run, plans compiled, cache hits, CPU fallbacks by name and the peak of device memory."""
    module = context.module
    if module is None:
        print(f"  {context.device} keeps no counters")
        return
    stats = module.compile_stats()
    fallbacks = context.fallbacks()
    peak = sum(module.memory_stats(index)["allocated.peak"] for index in range(module.device_count()))
    rows = [
        ["calls that asked for a plan", str(stats["hits"] + stats["misses"])],
        ["  found in memory (cache hits)", str(stats["hits"])],
        ["  found on disk (disk hits)", str(stats["disk_hits"])],
        ["plans compiled", str(stats["compiled"])],
        ["seconds spent compiling", f"{stats['compile_seconds']:.1f}"],
        ["device programs built", str(stats["programs_built"])],
        ["device programs loaded from disk", str(stats["programs_loaded"])],
        ["CPU fallbacks", str(sum(fallbacks.values()))],
        *([f"  {name}", str(count)] for name, count in sorted(fallbacks.items())),
        ["device memory peak", format_bytes(peak)],
    ]
    print(table(["counter", "value"], rows))
    print(f"  torch {torch.__version__}, device {context.device}")


def compiled(context: Context) -> int:
    """Plans and device programs made in this process because no cache had them."""
    if context.module is None:
        return 0
    stats = context.module.compile_stats()
    return int(stats["compiled"] + stats["programs_built"])
