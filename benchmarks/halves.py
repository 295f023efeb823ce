# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions of halves beside those of float32 and the CPU's of bfloat16, on one core.

``python -m benchmarks.halves [--only PATTERN]``. Rates are of the best of several runs, by the time that the process
spent on the processor: other work on the machine disturbs it least.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import time
from collections.abc import Callable

CORE = 1
# Before PyTorch and OpenCL count the cores.
os.sched_setaffinity(0, {CORE % (os.cpu_count() or 1)})
os.environ["POCL_MAX_PTHREAD_COUNT"] = "1"

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

from examples.measure import synchronize, table  # noqa: E402

RUNS = 5
SECONDS = 0.06  # for one run

#: (rows, inputs, outputs) of linear layers: BERT, Llama (prefill and decoding), small batches.
LAYERS = [
    (512, 768, 768), (512, 768, 3072), (512, 3072, 768), (256, 512, 1536), (256, 512, 512),
    (1, 512, 1536), (1, 2048, 8192), (16, 768, 3072),
]  # fmt: skip
#: (inputs, outputs, size of the image, size of the kernel, stride), of ResNet-50, with four images.
CONVOLUTIONS = [
    (64, 64, 56, 3, 1),
    (256, 64, 56, 1, 1),
    (256, 256, 14, 3, 1),
    (1024, 256, 14, 1, 1),
    (128, 128, 56, 3, 2),
]
IMAGES = 4

#: Makes operands of a dtype on a device, and returns what computes with them.
Make = Callable[[torch.dtype, torch.device], Callable[[], object]]


def linear(rows: int, inputs: int, outputs: int) -> Make:
    """A linear layer without bias, forward."""

    def make(dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
        x, weight = _random(dtype, device, rows, inputs), _random(dtype, device, outputs, inputs)
        return lambda: functional.linear(x, weight)

    return make


def linear_backward(rows: int, inputs: int, outputs: int) -> Make:
    """The gradients of input and weight of a linear layer."""

    def make(dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
        x, weight = _random(dtype, device, rows, inputs), _random(dtype, device, outputs, inputs)
        gradient = _random(dtype, device, rows, outputs)
        return lambda: (gradient @ weight, gradient.mT @ x)

    return make


def convolution(inputs: int, outputs: int, size: int, kernel: int, stride: int) -> Make:
    """A convolution without bias, forward."""

    def make(dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
        x = _random(dtype, device, IMAGES, inputs, size, size)
        weight = _random(dtype, device, outputs, inputs, kernel, kernel)
        return lambda: functional.conv2d(x, weight, stride=stride, padding=kernel // 2)

    return make


def convolution_backward(inputs: int, outputs: int, size: int, kernel: int, stride: int) -> Make:
    """The gradients of input and weight of a convolution."""

    def make(dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
        x = _random(dtype, device, IMAGES, inputs, size, size)
        weight = _random(dtype, device, outputs, inputs, kernel, kernel)
        gradient = _random(dtype, device, IMAGES, outputs, size // stride, size // stride)
        padding, ones = [kernel // 2] * 2, [1, 1]
        options = (None, [stride] * 2, padding, ones, False, [0, 0], 1, [True, True, False])
        return lambda: torch.ops.aten.convolution_backward(gradient, x, weight, *options)

    return make


def _random(dtype: torch.dtype, device: torch.device, *size: int) -> Tensor:
    return torch.randn(size).to(device, dtype)


def cases() -> dict[str, tuple[float, Make]]:
    """By name, the number of operations and what makes the case."""
    found: dict[str, tuple[float, Make]] = {}
    for layer in LAYERS:
        name, flops = "x".join(map(str, layer)), 2.0 * layer[0] * layer[1] * layer[2]
        found[f"linear {name}"] = flops, linear(*layer)
        if layer[0] > 1:
            found[f"linear {name}, gradients"] = 2 * flops, linear_backward(*layer)
    for inputs, outputs, size, kernel, stride in CONVOLUTIONS:
        name = f"convolution {kernel}x{kernel}/{stride}, {inputs} to {outputs}, {size}x{size}"
        flops = 2.0 * IMAGES * inputs * outputs * (kernel * size // stride) ** 2
        found[name] = flops, convolution(inputs, outputs, size, kernel, stride)
        found[f"{name}, gradients"] = 2 * flops, convolution_backward(inputs, outputs, size, kernel, stride)
    return found


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Time on the processor for one call, the least of several runs."""
    for _ in range(2):
        run()
    synchronize(device)
    least = float("inf")
    for _ in range(RUNS):
        count, start = 0, time.process_time()
        while time.process_time() - start < SECONDS:
            for _ in range(2):
                run()
            synchronize(device)
            count += 2
        least = min(least, (time.process_time() - start) / count)
    return least


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="*", help="cases whose names match a pattern")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    device, cpu = torch.accelerator.current_accelerator(), torch.device("cpu")
    assert device is not None
    ways = [(torch.float32, device), (torch.bfloat16, device), (torch.float16, device), (torch.bfloat16, cpu)]
    rows = []
    for name, (flops, make) in cases().items():
        if fnmatch.fnmatch(name, only):
            rates = [flops / seconds(make(dtype, where), where) / 1e9 for dtype, where in ways]
            rows.append([name, *(f"{rate:.0f}" for rate in rates), f"{rates[1] / rates[3]:.2f}"])
    print(table(["GFLOP/s", "float32", "bfloat16", "float16", "CPU bfloat16", "to CPU"], rows))


if __name__ == "__main__":
    main()
