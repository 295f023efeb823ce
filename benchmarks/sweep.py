# SPDX-License-Identifier: Apache-2.0
"""Operators that models use beside the benchmarked ones, each timed next to CPU eager in one process.

``python -m benchmarks.sweep --match conv`` prints a table: milliseconds on the device and on the CPU, medians of
interleaved runs, and their ratio, the worst first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from examples.measure import synchronize
from examples.variant import CPU

#: A function of tensors, and the tensors.
Case = tuple[Callable[..., Any], list[Tensor]]


def _convolution(
    shape: tuple[int, ...], kernel: int, groups: int, stride: int = 1, last: bool = False
) -> Iterator[tuple[str, Case]]:
    """A convolution of as many channels as its input, and its gradients."""
    layout = torch.channels_last if last else torch.contiguous_format
    source = torch.randn(shape).to(memory_format=layout)
    weight = torch.randn(shape[1], shape[1] // groups, kernel, kernel).to(memory_format=layout)

    def forward(x: Tensor, w: Tensor) -> Tensor:
        return functional.conv2d(x, w, None, stride, kernel // 2, groups=groups)

    def backward(mask: list[bool]) -> Callable[..., Any]:
        def run(grad: Tensor, x: Tensor, w: Tensor) -> Any:
            pads = [kernel // 2] * 2
            return torch.ops.aten.convolution_backward(
                grad, x, w, None, [stride] * 2, pads, [1, 1], False, [0, 0], groups, mask
            )

        return run

    grad = torch.randn_like(forward(source, weight))
    layout_name = ", channels last" if last else ""
    dims = "x".join(map(str, shape))
    name = f"conv {kernel}x{kernel}/{stride}, {dims}, {groups} groups{layout_name}"
    yield name, (forward, [source, weight])
    yield f"{name}: gradient of input", (backward([True, False, False]), [grad, source, weight])
    yield f"{name}: gradient of weight", (backward([False, True, False]), [grad, source, weight])


def _convolutions() -> Iterator[tuple[str, Case]]:
    for last in (False, True):
        yield from _convolution((8, 384, 14, 14), 3, 384, last=last)
        yield from _convolution((8, 96, 112, 112), 3, 96, stride=2, last=last)
        yield from _convolution((4, 96, 56, 56), 7, 96, last=last)
        yield from _convolution((8, 960, 7, 7), 5, 960, last=last)
        yield from _convolution((4, 128, 56, 56), 3, 32, last=last)


FAMILIES: dict[str, Callable[[], Iterator[tuple[str, Case]]]] = {"convolutions": _convolutions}


def measure(case: Case, device: torch.device, seconds: float) -> tuple[float, float]:
    """Seconds a call takes on the device and on the CPU: medians of runs that take turns for so long."""
    function, inputs = case
    on_device = [x.to(device) for x in inputs]
    times: dict[torch.device, list[float]] = {device: [], CPU: []}
    end = time.perf_counter() + seconds
    with torch.no_grad():
        for tensors in (on_device, inputs):
            for _ in range(2):
                function(*tensors)
        synchronize(device)
        while time.perf_counter() < end or len(times[CPU]) < 3:
            for place, tensors in ((device, on_device), (CPU, inputs)):
                began = time.perf_counter()
                function(*tensors)
                synchronize(place)
                times[place].append(time.perf_counter() - began)
    return statistics.median(times[device]), statistics.median(times[CPU])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--match", default="", help="only cases with this in their name, or family")
    parser.add_argument("--device", type=torch.device, default="ocl")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each case")
    options = parser.parse_args()
    rows = []
    for family, cases in FAMILIES.items():
        for name, case in cases():
            if options.match in f"{family}: {name}":
                ours, theirs = measure(case, options.device, options.seconds)
                rows.append((ours / theirs, ours, theirs, name))
    for ratio, ours, theirs, name in sorted(rows, reverse=True):
        print(f"{ratio:8.2f} {1e3 * ours:10.3f} ms {1e3 * theirs:10.3f} ms  {name}")


if __name__ == "__main__":
    main()
