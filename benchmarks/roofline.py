# SPDX-License-Identifier: Apache-2.0
"""What the machine can do at best, measured in the same run, and the floor that this puts under a workload.

The floor is a lower bound, not a goal that every workload can reach: it counts each byte that must be moved and each
operation that must be computed once, and nothing else. How long moving takes depends on where the bytes are: this is
the cache-aware roofline (A. Ilic, F. Pratas, L. Sousa, "Cache-aware Roofline model: Upgrading the loft", 2014). It is
measured with the very amounts that a workload reads and writes, because they decide what stays in the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.probes import Probe, Traffic
from examples.measure import interleave, synchronize
from examples.variant import CPU

MEBI = 1 << 20
# More than any cache holds: what moves more takes longer in proportion.
LARGEST = 192 * MEBI
FLOAT = 4
#: Seconds for which each amount is tried at a time.
SEARCH = 0.04


@dataclass(frozen=True)
class Phase:
    """Bytes to move and floating-point operations to compute; both can happen at the same time."""

    traffic: Traffic = Traffic()
    flops: float = 0

    def in_memory(self) -> Phase:
        """Traffic of the same kind, so much of it that no cache helps."""
        return Phase(self.traffic.scaled(LARGEST / self.traffic.bytes))


def best_seconds(call: Callable[[], object], device: torch.device, repeats: int = 15) -> float:
    """The shortest of some runs in seconds, waiting for the device each time."""

    def run() -> None:
        call()
        synchronize(device)

    return min(interleave({"": run}, repeats, warm_up=2)[""].seconds)


@dataclass
class Roofs:
    """How fast the CPU and the device move memory and multiply matrices.

    A device that is the same CPU shares one roof with it, the higher of the two measured.
    """

    device: torch.device
    #: Seconds of the fastest way to move something, by device, and what that way is.
    moves: dict[str, dict[Traffic, tuple[float, str]]] = field(default_factory=dict)
    #: Floating-point operations per second by device and library.
    gemm_rates: dict[str, dict[str, float]] = field(default_factory=dict)

    def measure(self, device: torch.device, phases: Sequence[Phase]) -> None:
        """Measures what the phases need, again if it is known: the best ever seen counts.

        A roof measured once, while the machine was busy with something else, would be too low for the whole run.
        """
        with self.searching([device], phases) as search:
            search()
        if any(phase.flops for phase in phases):
            for each in self._same_hardware(device):
                rates = self.gemm_rates.setdefault(each.type, {})
                for name, rate in _gemm_rates(each).items():
                    rates[name] = max(rates.get(name, 0.0), rate)

    @contextmanager
    def searching(self, devices: Sequence[torch.device], phases: Sequence[Phase]) -> Iterator[Callable[[], None]]:
        """A function that looks for the fastest way to move what the phases move, a little further at each call."""
        amounts = {_measured(phase.traffic) for phase in phases if phase.traffic.bytes}
        hardware = {each for device in devices for each in self._same_hardware(device)}
        probes = {traffic: Probe(traffic, torch.get_num_threads()) for traffic in amounts if CPU in hardware}
        moves = [(each, traffic, call) for each in hardware for traffic in amounts for call in _moves(each, traffic)]

        def search() -> None:
            for traffic, probe in probes.items():
                self._found(CPU, traffic, probe.search(SEARCH), probe.describe())
            for each, traffic, (name, call) in moves:
                self._found(each, traffic, best_seconds(call, each, repeats=3), name)

        try:
            yield search
        finally:
            for probe in probes.values():
                probe.close()

    def _found(self, device: torch.device, traffic: Traffic, seconds: float, name: str) -> None:
        known = self.moves.setdefault(device.type, {})
        if traffic not in known or seconds < known[traffic][0]:
            known[traffic] = seconds, name

    def floor(self, device: torch.device, phases: Sequence[Phase]) -> float:
        """Seconds below which the phases, measured before, cannot be done one after the other."""
        return sum(self._phase(device, phase) for phase in phases)

    def memory_floor(self, device: torch.device, phases: Sequence[Phase]) -> float:
        """Seconds that the bytes of the phases take at the bandwidth of memory, were there no caches."""
        shares = ((phase.traffic.bytes, phase.in_memory().traffic) for phase in phases)
        return sum(self.moving(device, traffic) * size / traffic.bytes for size, traffic in shares)

    def _phase(self, device: torch.device, phase: Phase) -> float:
        moving = self.moving(device, phase.traffic) if phase.traffic.bytes else 0.0
        return max(moving, phase.flops / self.gemm_rate(device) if phase.flops else 0.0)

    def moving(self, device: torch.device, traffic: Traffic) -> float:
        """Seconds of the fastest way to move something, measured before."""
        measured = _measured(traffic)
        known = [self.moves.get(each.type, {}) for each in self._same_hardware(device)]
        seconds = min(moves[measured][0] for moves in known if measured in moves)
        return seconds * max(1.0, traffic.bytes / measured.bytes)

    def gemm_rate(self, device: torch.device) -> float:
        """Floating-point operations per second of the best library on the best shape."""
        return max(rate for each in self._same_hardware(device) for rate in self.gemm_rates[each.type].values())

    def numbers(self) -> dict[str, object]:
        """The roofs for programs."""
        moves = {
            device: {
                str(traffic): {"seconds": seconds, "bytes per second": traffic.bytes / seconds, "way": way}
                for traffic, (seconds, way) in found.items()
            }
            for device, found in self.moves.items()
        }
        return {"moves": moves, "gemm": self.gemm_rates}

    def _same_hardware(self, device: torch.device) -> list[torch.device]:
        if self.device.type == "cpu":
            return [CPU]
        shared = torch.get_device_module(self.device).get_device_properties(0).type == "cpu"
        return [CPU, self.device] if shared else [device]


def _measured(traffic: Traffic) -> Traffic:
    """What is measured in place of something: no more than it takes to see the bandwidth of memory."""
    return traffic.scaled(min(1.0, LARGEST / traffic.bytes))


def _moves(device: torch.device, traffic: Traffic) -> list[tuple[str, Callable[[], Tensor]]]:
    """PyTorch's ways to move as much on a device, with names: a copy, a sum; elsewhere than on a CPU also a copy of as
    many bytes in all, for want of anything closer."""
    name = f"{device.type} copy"
    if traffic.reads == traffic.writes and not traffic.in_place and not traffic.row:
        source, target = (torch.ones(int(traffic.reads) // FLOAT, device=device) for _ in range(2))
        return [(name, lambda: target.copy_(source))]
    if not traffic.writes:
        read = torch.ones(int(traffic.reads) // FLOAT, device=device)
        return [(f"{device.type} sum", read.sum)]
    if device == CPU or torch.get_device_module(device).get_device_properties(0).type == "cpu":
        return []
    half, other = (torch.ones(int(traffic.bytes) // (2 * FLOAT), device=device) for _ in range(2))
    return [(name, lambda: other.copy_(half))]


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
