# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers whose ``_foreach_*`` operators run together, one by one, and on the CPU, taking turns.

``python -m benchmarks.optimizers [--repeats N] [--only NAME]``: parameters of BERT-base's layers, and 60 small ones.
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Callable
from typing import Any

import torch

from examples.measure import format_seconds, interleave, synchronize, table
from outboard import _C

PARAMETERS = {
    "BERT-base": [(768, 768)] * 48 + [(768,)] * 96 + [(3072, 768)] * 12 + [(768, 3072)] * 12,
    "small": [(64, 64), (64,)] * 30,
}
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    **{
        each.__name__: (each, {})
        for each in (
            torch.optim.RAdam,
            torch.optim.NAdam,
            torch.optim.RMSprop,
            torch.optim.Adamax,
            torch.optim.Adadelta,
        )
    },
    "AdamW, foreach": (torch.optim.AdamW, {"foreach": True}),
    "AdamW, fused": (torch.optim.AdamW, {"fused": True}),
    "SGD, foreach": (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    "SGD, fused": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
}


def step_of(
    make: Callable[..., torch.optim.Optimizer], device: torch.device, shapes: list[tuple[int, ...]], **options: Any
) -> Callable[[], None]:
    """A step on parameters of these shapes, which waits for its end."""
    parameters = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = make(parameters, lr=1e-4, **options)

    def step() -> None:
        optimizer.step()
        synchronize(device)

    return step


def one_by_one(step: Callable[[], None]) -> Callable[[], None]:
    """The same step, its operators not written down."""
    scope = _C.foreach_begin, _C.foreach_end

    def apart() -> None:
        _C.foreach_begin = _C.foreach_end = lambda: None
        try:
            step()
        finally:
            _C.foreach_begin, _C.foreach_end = scope

    return apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="*", help="optimizers, as a pattern")
    options = parser.parse_args()
    device = torch.accelerator.current_accelerator()
    assert device is not None
    rows = []
    for kind, shapes in PARAMETERS.items():
        for name, (make, settings) in OPTIMIZERS.items():
            if not fnmatch.fnmatch(name, options.only):
                continue
            calls = {
                "together": step_of(make, device, shapes, **settings),
                "one by one": one_by_one(step_of(make, device, shapes, **settings)),
                "CPU": step_of(make, torch.device("cpu"), shapes, **settings),
            }
            medians = [timing.median for timing in interleave(calls, options.repeats, warm_up=3).values()]
            ratios = [f"{other / medians[0]:.2f}" for other in medians[1:]]
            rows.append([f"{name}, {kind}", *map(format_seconds, medians), *ratios])
    print(table(["", "together", "one by one", "CPU", "one by one / together", "CPU / together"], rows))


if __name__ == "__main__":
    main()
