# SPDX-License-Identifier: Apache-2.0
"""What packed weights gain: the linear layers of the models compiled with and without ``freezing``, taking turns.

``python -m benchmarks.frozen [--repeats N] [--dtype NAME]``. Times are minima, in microseconds per product; the ratio
is the median over rounds of that of two runs which follow each other: what else the machine does disturbs it least.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.apart import Apart
from benchmarks.micro import GEMM_SHAPES
from benchmarks.roofline import FLOAT, LARGEST
from examples.measure import interleave, synchronize, table

#: (rows, inputs, outputs): those of the models, and batches between decoding and training.
SHAPES = [
    *dict.fromkeys(shape for shapes in GEMM_SHAPES.values() for shape in shapes),
    *((rows, 768, 3072) for rows in (8, 16, 32, 64, 128)),
]


class Layers(nn.Module):
    """Linear layers of one size, each with weights of its own, of one input."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs) for _ in range(count))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [layer(x) for layer in self.layers]


def calls(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, dict[str, Callable[[], object]]]:
    """The number of products in a run, and runs without and with freezing."""
    most = LARGEST // (FLOAT * inputs * outputs)
    count = max(1, min(round(2e8 / (2 * rows * inputs * outputs)), most, 16))
    layers = Layers(count, inputs, outputs).eval().to(device, dtype)
    x = torch.randn(rows, inputs, device=device, dtype=dtype)

    def run(function: Callable[[Tensor], object]) -> None:
        with torch.no_grad():
            function(x)
        synchronize(device)

    torch._dynamo.reset()
    made: dict[str, Callable[[], object]] = {}
    for way in ("plain", "frozen"):
        made[way] = partial(run, torch.compile(Apart(layers, way)))
        with torch._inductor.config.patch(freezing=way == "frozen"):
            made[way]()
    return count, made


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--dtype", default="float32", help="of weights and inputs, such as bfloat16")
    options = parser.parse_args()
    repeats, dtype = options.repeats, getattr(torch, options.dtype)
    rows = []
    for shape in SHAPES:
        count, made = calls(*shape, dtype, torch.accelerator.current_accelerator())
        timings = interleave(made, repeats, warm_up=3)
        plain, frozen = (timings[name].seconds for name in ("plain", "frozen"))
        ratio = statistics.median(b / a for a, b in zip(plain, frozen, strict=True))
        best = [f"{1e6 * min(seconds) / count:.0f}" for seconds in (plain, frozen)]
        rows.append(["x".join(map(str, shape)), *best, f"{ratio:.2f}"])
    print(table(["rows x inputs x outputs", "plain, us", "frozen, us", "frozen / plain"], rows))


if __name__ == "__main__":
    main()
