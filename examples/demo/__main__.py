# SPDX-License-Identifier: Apache-2.0
"""Runs the demo: devices, semantic search, training, ResNet-50, counters. Exit code 1 if any check fails."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

import torch

from examples.demo import devices, digits, report, resnet, search
from examples.demo.context import Context

PARTS = {
    "devices": ("the devices found", devices.run),
    "search": ("semantic search with a real model", search.run),
    "digits": ("training on real data", digits.run),
    "resnet": ("ResNet-50, inference and training", resnet.run),
    "report": ("what the device counted", report.run),
}


def default_device() -> str:
    """The device that Outboard registered, under whatever name the profile gave it."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        raise SystemExit("no device is available; `python -m outboard.cli doctor` says why and what to do")
    return accelerator.type


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--device", help="where to run (default: Outboard's device); cpu works too")
    parser.add_argument("--short", action="store_true", help="smaller sizes, fewer repeats")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="run only these")
    parser.add_argument("--query", default="How does an operation on a tensor reach the hardware?")
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder for pictures")
    parser.add_argument("--cpu-inductor", action="store_true", help="compare ResNet-50 with CPU Inductor, too (slow)")
    parser.add_argument("--expect-warm", action="store_true", help="fail if any plan had to be compiled")
    options = parser.parse_args()
    device = torch.device(options.device or default_device())
    context = Context(device, options.short, options.output, options.query, options.cpu_inductor)
    start = time.perf_counter()
    for name in options.parts:
        title, run = PARTS[name]
        print(f"\n== {title} ==", flush=True)
        try:
            run(context)
        except Exception as error:  # noqa: BLE001 - the other parts are worth seeing all the same
            traceback.print_exc()
            context.failures.append(f"{title}: {type(error).__name__}: {error}")
    if options.expect_warm:
        context.check("plans and programs compiled in a warm run", report.compiled(context), 0)
    print(f"\nfinished in {time.perf_counter() - start:.1f} s")
    for failure in context.failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if context.failures else 0


if __name__ == "__main__":
    sys.exit(main())
