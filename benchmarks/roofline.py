# SPDX-License-Identifier: Apache-2.0
"""What the machine can do at best, measured in the same run, and the floor that this puts under a workload.

The floor is a lower bound, not a goal that every workload can reach: it counts each byte that must be moved and each
operation that must be computed once, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from examples.measure import interleave, synchronize
from examples.variant import CPU

MEBI = 1 << 20
# More than any cache holds: larger workloads see the same bandwidth.
LARGEST = 192 * MEBI
FLOAT = 4


@dataclass(frozen=True)
class Phase:
    """Bytes to move and floating-point operations to compute; both can happen at the same time."""

    bytes: float = 0
    flops: float = 0


def best_seconds(call: Callable[[], object], device: torch.device, repeats: int = 15) -> float:
    """The shortest of some runs in seconds, waiting for the device each time."""

    def run() -> None:
        call()
        synchronize(device)

    return min(interleave({"": run}, repeats, warm_up=2)[""].seconds)


@dataclass
class Roofs:
    """Bandwidth and GEMM rate of the CPU and of the device.

    A device that is the same CPU shares one roof with it, the higher of the two measured.
    """

    device: torch.device
    #: Bytes per second by device and by mebibytes moved, as measured so far.
    bandwidths: dict[str, dict[int, float]] = field(default_factory=dict)
    #: Floating-point operations per second by device and library.
    gemm_rates: dict[str, dict[str, float]] = field(default_factory=dict)

    def measure(self, device: torch.device, phases: Sequence[Phase]) -> None:
        """Measures what the phases need, again if it is known: the best ever seen counts.

        A roof measured once, while the machine was busy with something else, would be too low for the whole run.
        """
        for each in self._same_hardware(device):
            for size in {_rounded(phase.bytes) for phase in phases if phase.bytes}:
                known = self.bandwidths.setdefault(each.type, {})
                known[size] = max(known.get(size, 0.0), _bandwidth(each, size * MEBI))
            if any(phase.flops for phase in phases):
                rates = self.gemm_rates.setdefault(each.type, {})
                for name, rate in _gemm_rates(each).items():
                    rates[name] = max(rates.get(name, 0.0), rate)

    def floor(self, device: torch.device, phases: Sequence[Phase]) -> float:
        """Seconds below which the phases, measured before, cannot be done one after the other."""
        return sum(self._phase(device, phase) for phase in phases)

    def _phase(self, device: torch.device, phase: Phase) -> float:
        moving = phase.bytes / self.bandwidth(device, phase.bytes) if phase.bytes else 0.0
        return max(moving, phase.flops / self.gemm_rate(device) if phase.flops else 0.0)

    def bandwidth(self, device: torch.device, size: float) -> float:
        """Bytes per second of the best copy or add that moves ``size`` bytes in all."""
        return max(self.bandwidths[each.type][_rounded(size)] for each in self._same_hardware(device))

    def gemm_rate(self, device: torch.device) -> float:
        """Floating-point operations per second of the best library on the best shape."""
        return max(rate for each in self._same_hardware(device) for rate in self.gemm_rates[each.type].values())

    def _same_hardware(self, device: torch.device) -> list[torch.device]:
        if self.device.type == "cpu":
            return [CPU]
        shared = torch.get_device_module(self.device).get_device_properties(0).type == "cpu"
        return [CPU, self.device] if shared else [device]


def _rounded(size: float) -> int:
    """Mebibytes to measure with, for ``size`` bytes."""
    return max(1, round(min(size, LARGEST) / MEBI))


def _bandwidth(device: torch.device, size: int) -> float:
    source, target = (torch.ones(size // (2 * FLOAT), device=device) for _ in range(2))
    copy = best_seconds(lambda: target.copy_(source), device)
    left, right, total = (torch.ones(size // (3 * FLOAT), device=device) for _ in range(3))
    add = best_seconds(lambda: torch.add(left, right, out=total), device)
    return size / min(copy, add)


def _gemm_rates(device: torch.device) -> dict[str, float]:
    """Rates of the libraries: matrix products as models have them, and a convolution."""
    x, weight = torch.randn(512, 768, device=device), torch.randn(3072, 768, device=device)
    square = torch.randn(1024, 1024, device=device)
    images, filters = torch.randn(8, 64, 56, 56, device=device), torch.randn(64, 64, 3, 3, device=device)
    calls: dict[str, tuple[float, Callable[[], Tensor]]] = {
        "mm 1024^3": (2 * 1024**3, lambda: square @ square),
        "linear 512x768x3072": (2 * 512 * 768 * 3072, lambda: functional.linear(x, weight)),
        "conv 8x64x56x56 3x3": (2 * 8 * 64 * 64 * 9 * 56 * 56, lambda: functional.conv2d(images, filters, padding=1)),
    }
    if device == CPU and torch.backends.mkldnn.is_available():
        calls["oneDNN linear 512x768x3072"] = (2 * 512 * 768 * 3072, lambda: onednn_linear(x, weight))
        calls["oneDNN linear 1024^3"] = (2 * 1024**3, lambda: onednn_linear(square, square))
    return {name: flops / best_seconds(call, device) for name, (flops, call) in calls.items()}


def onednn_linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T`` by oneDNN, which lives in the same wheel but which eager PyTorch does not choose."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return result
