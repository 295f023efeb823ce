# SPDX-License-Identifier: Apache-2.0
"""Attention: one operator on the device, the same taken apart (``SDPBackend.MATH``), and PyTorch's kernel for CPUs.

``python -m benchmarks.attention [--repeats N] [--only PATTERN]`` prints the least time of each, taking turns in one
process, the ratios of these, and the memory that the device takes at most.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from examples.measure import format_seconds, interleave, peak_of, synchronize, table

CPU = torch.device("cpu")
#: Calls in a timed run: one would mostly measure how long threads take to wake up.
CALLS = 4


@dataclass(frozen=True)
class Case:
    """Sizes of queries, and heads and number of keys."""

    batches: int
    heads: int
    queries: int
    width: int
    keys: int
    key_heads: int
    causal: bool = False
    padded: bool = False  #: a mask hides some keys of each batch
    dtype: torch.dtype = torch.float32

    def tensors(self, device: torch.device, gradients: bool) -> list[Tensor]:
        """Queries, keys and values, as a model's projections leave them."""
        sizes = [(self.heads, self.queries), (self.key_heads, self.keys), (self.key_heads, self.keys)]
        made = [torch.randn(self.batches, length, heads, self.width).transpose(1, 2) for heads, length in sizes]
        return [tensor.to(device, self.dtype).requires_grad_(gradients) for tensor in made]

    def call(self, device: torch.device, gradients: bool) -> Callable[[], None]:
        """A call, with the gradients of all three if asked for, which waits for the results."""
        query, key, value = self.tensors(device, gradients)
        slope = torch.randn_like(query)
        seen = torch.arange(self.keys) < self.keys - 5 * torch.arange(self.batches)[:, None, None, None]
        mask = seen.to(device) if self.padded else None

        def run() -> None:
            for _ in range(CALLS):
                out = functional.scaled_dot_product_attention(
                    query, key, value, mask, is_causal=self.causal, enable_gqa=self.heads != self.key_heads
                )
                if gradients:
                    torch.autograd.grad(out, (query, key, value), slope)
            synchronize(device)

        return run


CASES: dict[str, Case] = {
    "BERT 4x12x128": Case(4, 12, 128, 64, 128, 12),
    "BERT 4x12x128, mask": Case(4, 12, 128, 64, 128, 12, padded=True),
    "BERT 4x12x128, bfloat16": Case(4, 12, 128, 64, 128, 12, dtype=torch.bfloat16),
    "GPT-2 2x12x128": Case(2, 12, 128, 64, 128, 12, causal=True),
    "GPT-2 1x12x256": Case(1, 12, 256, 64, 256, 12, causal=True),
    "GPT-2 1x12x1024": Case(1, 12, 1024, 64, 1024, 12, causal=True),
    "Llama prefill 8x256, 2 key heads": Case(1, 8, 256, 64, 256, 2, causal=True),
    "8x256, 128 wide": Case(1, 8, 256, 128, 256, 8),
    "decode, 64 keys": Case(1, 8, 1, 64, 64, 8),
    "decode, 320 keys": Case(1, 8, 1, 64, 320, 8),
    "decode, 1024 keys": Case(1, 8, 1, 64, 1024, 8),
    "decode, 1024 keys, 2 key heads": Case(1, 8, 1, 64, 1024, 2),
}


def _apart(call: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            call()

    return run


def measure(case: Case, device: torch.device, gradients: bool, repeats: int) -> tuple[list[str], float]:
    """The cells of a row, and the ratio to the CPU."""
    with torch.set_grad_enabled(gradients):
        own = case.call(device, gradients)
        calls = {"device": own, "apart": _apart(own), "cpu": case.call(CPU, gradients)}
        before = {name: _rest_and(call) for name, call in calls.items()}
        timings = interleave(calls, repeats, warm_up=2, before=before)
        memory = [peak_of(calls[name]) for name in ("device", "apart")]
    least = {name: min(timing.seconds) / CALLS for name, timing in timings.items()}
    ratio = least["device"] / least["cpu"]
    cells = [format_seconds(seconds) for seconds in least.values()]
    cells += [f"{ratio:.2f}", f"{least['device'] / least['apart']:.2f}"]
    return [*cells, *(f"{size / 2**20:.1f} MiB" for size in memory)], ratio


def _rest_and(call: Callable[[], None]) -> Callable[[], None]:
    """OpenMP's threads come to rest, then caches and threads are made ready for a call."""

    def run() -> None:
        time.sleep(0.006)
        call()

    return run


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--only", default="*", help="cases whose names match a pattern")
    options = parser.parse_args()
    device = torch.accelerator.current_accelerator()
    assert device is not None
    rows, ratios = [], []
    for name, case in CASES.items():
        if not fnmatch.fnmatch(name, options.only):
            continue
        for gradients in (False, True) if case.queries > 1 else (False,):
            cells, ratio = measure(case, device, gradients, options.repeats)
            rows.append([f"{name}{', and gradients' if gradients else ''}", *cells])
            ratios.append(ratio)
    header = ["", "device", "apart", "CPU", "to CPU", "to apart", "device takes", "apart takes"]
    print(table(header, rows))
    print(f"geometric mean to CPU: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")


if __name__ == "__main__":
    main()
