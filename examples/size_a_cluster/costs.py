# SPDX-License-Identifier: Apache-2.0
"""What a collective costs: the alpha-beta model of its algorithm, fitted to measurements or filled from data sheets.

A collective of ``size`` bytes between ``n`` ranks takes ``alpha * steps(n) + beta * size * share(n)`` seconds:
``steps`` messages that wait for each other, and ``share`` of the bytes over the link that is used most. Which algorithm
runs is known (gloo's, on which the device's backend builds between machines, and, of the same form, NCCL's rings), so
``alpha`` (seconds a message) and ``beta`` (seconds a byte) are all that is to be found. See Hockney (1994) for the
model, and Thakur, Rabenseifner and Gropp (2005) for the collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """How a collective is done: messages one after the other, and the share of its bytes on the busiest link."""

    name: str
    steps: Callable[[int], float]
    share: Callable[[int], float]


def _rounds(ranks: int) -> float:
    return float(math.ceil(math.log2(ranks)))


#: By collective. ``size`` is that of the whole tensor: what each rank has of an ``all_reduce`` and gets by an
#: ``all_gather``, and what each puts into a ``reduce_scatter``.
ALGORITHMS: dict[str, Algorithm] = {
    "all_reduce": Algorithm("ring", lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
    "all_gather": Algorithm("ring", lambda n: n - 1, lambda n: (n - 1) / n),
    "reduce_scatter": Algorithm("each to each", lambda n: n - 1, lambda n: (n - 1) / n),
    # Who has the tensor sends it to all of its children at once, over one link: the deepest gets it last of all.
    "broadcast": Algorithm("binomial tree", _rounds, lambda n: _rounds(n) * (_rounds(n) + 1) / 2),
    "send_recv": Algorithm("one message", lambda n: 1, lambda n: 1),
}


@dataclass(frozen=True)
class Sample:
    """One measurement: ``size`` bytes between ``ranks`` ranks took ``seconds``."""

    ranks: int
    size: int
    seconds: float


@dataclass(frozen=True)
class Link:
    """What a message costs: ``alpha`` seconds each, ``beta`` seconds a byte."""

    alpha: float
    beta: float

    def time(self, collective: str, ranks: int, size: float) -> float:
        """Seconds of a collective of ``size`` bytes between ``ranks`` ranks; 0 for one rank.

        Raises KeyError for a collective that is not in ``ALGORITHMS``.
        """
        algorithm = ALGORITHMS[collective]
        if ranks < 2:
            return 0.0
        return self.alpha * algorithm.steps(ranks) + self.beta * size * algorithm.share(ranks)


def fit(collective: str, samples: Iterable[Sample]) -> Link:
    """The link that explains samples of one collective best: least squares of the relative error, neither negative.

    Raises ValueError without two samples that tell messages from bytes.
    """
    algorithm = ALGORITHMS[collective]
    rows = [
        (algorithm.steps(s.ranks) / s.seconds, algorithm.share(s.ranks) * s.size / s.seconds)
        for s in samples
        if s.ranks > 1
    ]
    aa = sum(a * a for a, _ in rows)
    ab = sum(a * b for a, b in rows)
    bb = sum(b * b for _, b in rows)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-9 * aa * bb:
        raise ValueError(f"{collective}: samples of several sizes are needed to tell messages from bytes")
    sum_a, sum_b = sum(a for a, _ in rows), sum(b for _, b in rows)
    alpha = (bb * sum_a - ab * sum_b) / determinant
    beta = (aa * sum_b - ab * sum_a) / determinant
    if alpha < 0:
        return Link(0.0, sum_b / bb)
    return Link(sum_a / aa, 0.0) if beta < 0 else Link(alpha, beta)


def errors(collective: str, link: Link, samples: Iterable[Sample]) -> list[float]:
    """Of each sample, (prediction - measurement) / measurement."""
    return [link.time(collective, s.ranks, s.size) / s.seconds - 1 for s in samples]


@dataclass(frozen=True)
class Device:
    """A device and the machine around it, as data sheets have them.

    Attributes:
        flops: peak of dense products of bfloat16 with float32 sums, FLOP/s.
        bandwidth: of its memory, bytes/s.
        memory: bytes.
        per_machine: devices of a machine that are joined by ``inside``.
        inside: a message between two devices of a machine; bandwidth is that of one direction.
        outside: a message between machines, for each device.
        source: the data sheet.

    Latencies are in no data sheet: ``inside.alpha`` and ``outside.alpha`` are assumptions.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    per_machine: int
    inside: Link
    outside: Link
    source: str


#: Assumed seconds of a message inside a machine, and between machines.
INSIDE_LATENCY = 3e-6
OUTSIDE_LATENCY = 8e-6


def _device(
    name: str, tflops: float, terabytes: float, gigabytes: float, inside: float, outside: float, source: str
) -> Device:
    """From a data sheet's units: TFLOP/s, TB/s, GB, and GB/s of one direction inside and outside a machine of eight."""
    links = Link(INSIDE_LATENCY, 1e-9 / inside), Link(OUTSIDE_LATENCY, 1e-9 / outside)
    return Device(name, tflops * 1e12, terabytes * 1e12, gigabytes * 1e9, 8, *links, source)


#: By a short name. Eight devices with a network card each, of the speed that the vendor's own reference machine has.
DEVICES: dict[str, Device] = {
    "a100": _device(
        "A100 80GB SXM", 312, 2.039, 80, 300, 25, "NVIDIA A100 data sheet (NVLink 600 GB/s both ways); DGX A100: HDR"
    ),
    "h100": _device(
        "H100 SXM", 989.4, 3.35, 80, 450, 50, "NVIDIA H100 data sheet (NVLink 900 GB/s both ways); DGX H100: NDR"
    ),
    "h200": _device(
        "H200 SXM", 989.4, 4.8, 141, 450, 50, "NVIDIA H200 data sheet (NVLink 900 GB/s both ways); DGX H200: NDR"
    ),
    "mi300x": _device(
        "MI300X", 1307.4, 5.3, 192, 448, 50, "AMD MI300X data sheet (7 links of 128 GB/s both ways); 400 Gb/s each"
    ),
}


@dataclass(frozen=True)
class Cluster:
    """``count`` devices in machines of ``device.per_machine``, of which products reach ``efficiency`` of the peak."""

    device: Device
    count: int
    efficiency: float = 0.5

    def collective(self, name: str, ranks: int, size: float, stride: int = 1) -> float:
        """Seconds of a collective between ``ranks`` devices that are ``stride`` apart.

        Groups that reach beyond a machine do it in two levels: inside, then between machines, where each device sends
        its own part, so that all network cards of a machine work. Broadcasts and single messages take the slower link.
        """
        device = self.device
        inside = max(1, min(ranks, device.per_machine // stride))
        machines = math.ceil(ranks / inside)
        if machines == 1:
            return device.inside.time(name, ranks, size)
        if name in ("broadcast", "send_recv"):
            return device.outside.time(name, ranks, size)
        near = device.inside.time(name, inside, size)
        return near + device.outside.time(name, machines, size / inside)


def mean_error(parts: Sequence[float]) -> float:
    """Mean of absolute values; 0 of nothing."""
    return sum(abs(part) for part in parts) / len(parts) if parts else 0.0
