# SPDX-License-Identifier: Apache-2.0
"""What sub-groups are worth to kernels for SIMT devices: ``python -m benchmarks.sub_groups``.

Each operator's kernels are printed for the device as it is, taken for a GPU, and as if it had no sub-groups. Both take
turns; the table has the least times, and the median of the ratios of two runs that followed each other. What is true of
a processor that is taken for a GPU need not be true of a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from examples.measure import table
from outboard import _C
from outboard.compiler.adapter import kernel
from outboard.compiler.adapter.lowering import lower_operator
from outboard.compiler.plans.schema import serialize
from outboard.compiler.target import Target, target_of

#: Operator, shape of its first argument, other arguments.
CASES: dict[str, tuple[str, tuple[int, int], tuple[Any, ...]]] = {
    "sum of rows": ("aten::sum.dim_IntList", (16384, 64), ([1],)),
    "argmax of rows": ("aten::argmax", (16384, 64), (1,)),
    "softmax": ("aten::_softmax", (16384, 64), (1, False)),
    "softmax, long rows": ("aten::_softmax", (4096, 1024), (1, False)),
    "variance, long rows": ("aten::var_mean.correction", (4096, 1024), ([1],)),
    "sum of everything": ("aten::sum", (4096, 1024), ()),
    "cumsum": ("aten::cumsum", (512, 8192), (1,)),
}


def prepare(target: Target, name: str) -> Callable[[], float]:
    """A function that runs a case with kernels for ``target`` and returns its milliseconds; it has run before."""
    op, shape, arguments = CASES[name]
    x = torch.randn(shape, device=torch._C._get_privateuse1_backend_name())
    with mock.patch.object(kernel, "target_of", lambda index: target):
        plan = lower_operator(_C.signed_call(op, (x, *arguments), {}, False), target).plan
    loaded = _C.Plan(serialize(plan), 0)

    def run() -> float:
        begin = time.perf_counter()
        loaded.run([x])
        torch.accelerator.synchronize()
        return (time.perf_counter() - begin) * 1e3

    for _ in range(2):
        run()
    return run


def measure(real: Target, rounds: int) -> list[list[str]]:
    """The rows of the table."""
    gpu = dataclasses.replace(real, type="gpu", vector_width=1)
    rows = []
    for name, (_, shape, _) in CASES.items():
        runs = [prepare(dataclasses.replace(gpu, sub_group_size=size), name) for size in (1, real.sub_group_size)]
        times = [[run() for run in runs] for _ in range(rounds)]
        tree, sub_groups = (min(column) for column in zip(*times, strict=True))
        ratio = statistics.median(second / first for first, second in times)
        sizes = " x ".join(map(str, shape))
        rows.append([f"{name} {sizes}", f"{tree:.2f}", f"{sub_groups:.2f}", f"{ratio:.2f}"])
    return rows


def main() -> None:
    """Prints the table, or what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    real = target_of(0)
    if real.sub_group_size == 1:
        raise SystemExit("The device has no sub-groups that can shuffle. Intel's OpenCL runtime for CPUs has.")
    print(f"sub-groups of {real.sub_group_size}, milliseconds")
    print(table(["", "local memory", "sub-groups", "ratio"], measure(real, arguments.rounds)))


if __name__ == "__main__":
    main()
