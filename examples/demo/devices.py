# SPDX-License-Identifier: Apache-2.0
"""Part a: the devices found."""

from __future__ import annotations

import torch

from examples.demo.context import Context
from examples.measure import table
from outboard.cli.inspection import format_bytes


def run(context: Context) -> None:
    """Prints driver, name, memory and compute units of every device."""
    name = context.device.type
    if name == "cpu":
        print(f"  the CPU itself, {torch.get_num_threads()} threads")
        return
    module = getattr(torch, name)
    rows = []
    for index in range(module.device_count()):
        properties = module.get_device_properties(index)
        rows.append(
            [
                f"{name}:{index}",
                str(properties.driver),
                str(properties.name),
                format_bytes(properties.total_memory),
                str(properties.compute_units),
            ]
        )
    print(table(["device", "driver", "name", "memory", "compute units"], rows))
