# SPDX-License-Identifier: Apache-2.0
"""Would two devices be faster as one? Operators on a device, and what halving them over two would take.

``OUTBOARD_NUM_DEVICES=2 python -m benchmarks.joined`` splits the processor into two devices. A logical device of two
has half of the result's columns computed on each. For that the second one needs what they are computed from, other than
weights, and its half of the result comes back, since the next operator of an eager program may want all of it. Both are
measured alone, so that the sum is what two devices that disturb each other in nothing would take.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

#: Rows, what is summed over, columns.
PRODUCTS = ((1, 4096, 4096), (64, 1024, 1024), (512, 512, 512), (1024, 1024, 1024))
#: Rows, columns.
ACTIVATIONS = ((64, 4096), (1024, 4096))
#: The fastest of so many counts: others use the processor, too.
ROUNDS = 50


def _seconds(function: Callable[[], object], devices: list[torch.device]) -> float:
    """How long a call takes, until all of the devices have done it."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        function()
        for device in devices:
            torch.accelerator.synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times)


def _devices() -> list[torch.device]:
    name = torch.accelerator.current_accelerator()
    if name is None or torch.accelerator.device_count() < 2:
        raise SystemExit("there is one device: OUTBOARD_NUM_DEVICES=2 makes two of a processor")
    return [torch.device(name.type, index) for index in (0, 1)]


def measure(
    function: Callable[[torch.Tensor], torch.Tensor], whole: torch.Tensor, half: torch.Tensor, moved: torch.Tensor
) -> str:
    """The table's cells for a function of a tensor, of half of it, and with what the second device needs for that."""
    devices = _devices()
    ours = function(half)
    theirs = ours.to(devices[1])

    def move() -> torch.Tensor:
        moved.to(devices[1])
        return torch.cat((ours, theirs.to(devices[0])), 1)

    times = [_seconds(work, devices) for work in (lambda: function(whole), lambda: function(half), move)]
    cells = " | ".join(f"{1e6 * seconds:.0f} us" for seconds in times)
    return f"{cells} | {times[0] / (times[1] + times[2]):.2f} times as fast |"


def main() -> None:
    """Prints a row for each operator."""
    first, _ = _devices()
    print("| operator | one device | half of it | moving | two as one, at best |")
    print("|---|---:|---:|---:|---:|")
    for rows, summed, columns in PRODUCTS:
        left, right = torch.randn(rows, summed, device=first), torch.randn(summed, columns, device=first)
        half = right[:, : columns // 2].contiguous()
        cells = measure(lambda side, left=left: left @ side, right, half, left)
        print(f"| product, {rows} x {summed} x {columns} | {cells}")
    for rows, columns in ACTIVATIONS:
        whole = torch.randn(rows, columns, device=first)
        half = whole[:, : columns // 2].contiguous()
        print(f"| GELU, {rows} x {columns} | {measure(torch.nn.functional.gelu, whole, half, half)}")


if __name__ == "__main__":
    main()
