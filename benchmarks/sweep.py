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


def _selection() -> Iterator[tuple[str, Case]]:
    for shape, k in (((1000, 1000), 5), ((16, 128256), 50), ((1, 128256), 50), ((64, 4096), 1024)):
        rows = "x".join(map(str, shape))
        yield f"topk({k}) of {rows}", (lambda x, k=k: torch.topk(x, k), [torch.randn(shape)])
    yield "topk(50) of 16x128256, bfloat16", (lambda x: torch.topk(x, 50), [torch.randn(16, 128256).bfloat16()])
    yield "kthvalue(10) of 1000x1000", (lambda x: torch.kthvalue(x, 10), [torch.randn(1000, 1000)])
    yield "median of 1000x1000, along rows", (lambda x: torch.median(x, 1), [torch.randn(1000, 1000)])
    yield "median of 1 M", (torch.median, [torch.randn(1 << 20)])


def _scattering() -> Iterator[tuple[str, Case]]:
    index, source = torch.randint(1000, (20000,)), torch.randn(20000, 64)
    for reduce in ("prod", "mean", "amax", "amin"):

        def run(x: Tensor, index: Tensor, source: Tensor, reduce: str = reduce) -> Tensor:
            return torch.index_reduce(x, 0, index, source, reduce)

        yield f"index_reduce {reduce}, 20000x64 onto 1000 rows", (run, [torch.randn(1000, 64), index, source])
    few, many = torch.randint(10, (100000,)), torch.randn(100000, 64)
    added = [torch.randn(10, 64), few, many]
    yield "index_add of 100000x64 onto 10 rows", (lambda x, i, s: torch.index_add(x, 0, i, s), added)
    yield (
        "index_add of 100000 onto 10",
        (
            lambda x, i, s: torch.index_add(x, 0, i, s),
            [torch.randn(10), few, many[:, 0].contiguous()],
        ),
    )
    wide = [torch.randn(10, 64), few[:, None].expand(-1, 64).contiguous(), many]
    yield "scatter_add of 100000x64 onto 10 rows", (lambda x, i, s: torch.scatter_add(x, 0, i, s), wide)
    spread = [torch.randn(1000, 64), index, source]
    yield (
        "scatter_add of 20000x64 onto 1000 rows",
        (lambda x, i, s: torch.scatter_add(x, 0, i[:, None].expand(-1, 64), s), spread),  # a copy would be contiguous
    )


def _elements() -> Iterator[tuple[str, Case]]:
    million, small = 1 << 20, (128, 784)
    pair = [torch.randn(million) * 10, torch.randn(million)]
    yield "floor_divide, 1 M", (torch.floor_divide, pair)
    yield "remainder, 1 M", (torch.remainder, pair)
    yield "fmod, 1 M", (torch.fmod, pair)
    image = torch.randn(4, 64, 64, 64)
    for factor in (2, 1.5):
        yield (
            f"bilinear x{factor}, 4x64x64x64",
            (
                lambda x, factor=factor: functional.interpolate(x, scale_factor=factor, mode="bilinear"),
                [image],
            ),
        )
    for name, function in {
        "log1p": torch.log1p,
        "tanh": torch.tanh,
        "softplus": functional.softplus,
        "roll": lambda x: torch.roll(x, 3, 1),
        "roll of all": lambda x: torch.roll(x, 3),
        "roll of rows": lambda x: torch.roll(x, 3, 0),
    }.items():
        yield f"{name}, 128x784", (function, [torch.rand(small)])


FAMILIES: dict[str, Callable[[], Iterator[tuple[str, Case]]]] = {
    "convolutions": _convolutions,
    "selection": _selection,
    "scattering": _scattering,
    "elements": _elements,
}


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
