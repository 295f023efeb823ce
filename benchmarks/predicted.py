# SPDX-License-Identifier: Apache-2.0
"""The benchmark's models as ``outboard.simulate`` predicts them from few measurements, beside what they take.

``python -m benchmarks.predicted`` measures a copy, the products of a linear layer and its gradients, the
convolutions of four bottlenecks, their gradients and a small operator on the device, makes a ``Chip`` of the numbers,
and prints each model's prediction, its time in ``torch.compile``, and the deviation. With ``--processor-time`` all of
it is in seconds of the process' threads, which other programs of the machine disturb less; the device should have one
core then, or the seconds of several add up.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

import outboard
from benchmarks.engine import Way, Workload
from benchmarks.models import WORKLOADS, Generate
from examples.measure import synchronize

FLOAT32 = torch.float32
_COPIED = 1 << 24  #: elements
_SMALL = 1000  #: operators whose latency is measured together
_BOTTLENECKS = ((64, 56), (128, 28), (256, 14), (512, 7))  #: channels within, and the side of their four images
_ROWS, _WIDE = 512, 3072  #: of a linear layer's input, and its results

_LEAST = 2.0  #: seconds of runs of one measurement

Clock = Callable[[], float]


def best(call: Callable[[], object], device: torch.device, clock: Clock, repeats: int) -> float:
    """Seconds of the shortest of some runs after two, which take two seconds or more: what is done once beside them,
    such as a race of kernels, is over by then."""
    taken: list[float] = []
    while len(taken) < repeats + 2 or sum(taken) < _LEAST:
        begin = clock()
        call()
        synchronize(device)
        taken.append(clock() - begin)
    return min(taken[2:])


def calibrated(device: torch.device, clock: Clock, repeats: int) -> outboard.Chip:
    """The device as few numbers."""
    source = torch.ones(_COPIED, device=device)
    target, small = torch.empty_like(source), torch.ones(8, device=device)

    def many() -> None:
        for _ in range(_SMALL):
            small.neg_()

    layers = [
        (torch.ones(4, x, side, side, device=device), torch.ones(y, x, window, window, device=device), window // 2)
        for inner, side in _BOTTLENECKS
        for x, y, window in ((4 * inner, inner, 1), (inner, inner, 3), (inner, 4 * inner, 1))
    ]
    ys = [torch.ones(4, weight.shape[0], *x.shape[2:], device=device) for x, weight, _ in layers]

    def convolve() -> None:
        for x, weight, padding in layers:
            F.conv2d(x, weight, padding=padding)

    def convolve_back() -> None:
        for y, (x, weight, padding) in zip(ys, layers, strict=True):
            torch.ops.aten.convolution_backward(
                y, x, weight, None, [1, 1], [padding] * 2, [1, 1], False, [0, 0], 1, [True, True, False]
            )

    rows, results = torch.ones(_ROWS, _WIDE // 4, device=device), torch.ones(_ROWS, _WIDE, device=device)
    layer = torch.ones(_WIDE, _WIDE // 4, device=device)

    def linear() -> None:
        """A layer, the gradient of its input, and that of its weight."""
        for one, other in ((rows, layer.t()), (results, layer), (results.t(), rows)):
            one @ other

    seconds = functools.partial(best, device=device, clock=clock, repeats=repeats)
    flops = 6 * rows.numel() * _WIDE / seconds(linear)
    convolutions = sum(8 * x.shape[-1] ** 2 * weight.numel() for x, weight, _ in layers) / flops  # seconds, as products
    return outboard.Chip(
        f"{device}, measured",
        {"float32": flops},
        bandwidth=2 * source.nbytes / seconds(lambda: target.copy_(source)),
        latency=seconds(many) / _SMALL,
        efficiency={
            "aten::convolution": convolutions / seconds(convolve),
            "aten::convolution_backward": 2 * convolutions / seconds(convolve_back),
        },
    )


def predicted(workload: Workload, chip: outboard.Chip) -> outboard.Simulation:
    """A workload on the chip, after a run that makes what the first one makes."""
    way = Way("meta", torch.device("meta"))
    run = (
        functools.partial(_tokens, workload, way) if isinstance(workload, Generate) else workload.job(way, FLOAT32).run
    )
    run()
    return outboard.simulate(run, [], chip=chip)


def _tokens(workload: Generate, way: Way) -> None:
    """What ``generate`` computes, without its choices, of which nobody knows the values."""
    model, prompt = workload.make(way, FLOAT32)
    with torch.no_grad():
        cache = model(prompt, use_cache=True, logits_to_keep=1).past_key_values
        for _ in range(workload.count - 1):
            model(prompt[:, :1], use_cache=True, past_key_values=cache)


def main() -> None:
    """Prints a row for each model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--device", default=torch._C._get_privateuse1_backend_name())
    parser.add_argument("--only", default="*", help="models by name, as in 'BERT*'")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--processor-time", action="store_true", help="seconds of the process' threads")
    options = parser.parse_args()
    device = torch.device(options.device)
    clock = time.process_time if options.processor_time else time.perf_counter
    chip = calibrated(device, clock, options.repeats)
    forward, backward = chip.efficiency.values()
    print(
        f"{chip.flops['float32'] / 1e9:.1f} GFLOP/s of linear layers and their gradients, of which convolutions reach "
        f"{forward:.0%}, their gradients {backward:.0%}, {chip.bandwidth / 1e9:.2f} GB/s, "
        f"{chip.latency * 1e6:.2f} us\n"
    )
    print("| model | predicted | measured | deviation | steps |\n|---|---|---|---|---|", flush=True)
    for name, make in WORKLOADS.items():
        if not fnmatch.fnmatch(name, options.only):
            continue
        workload = make()
        simulation = predicted(workload, chip)
        job = workload.job(Way("compiled", device, compiled=True), FLOAT32)
        measured = best(job.run, device, clock, options.repeats)
        cells = (
            f"{simulation.seconds * 1e3:.1f} ms | {measured * 1e3:.1f} ms | {simulation.seconds / measured - 1:+.0%}"
        )
        print(f"| {name} | {cells} | {len(simulation.steps)} |", flush=True)
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
