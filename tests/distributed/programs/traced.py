# SPDX-License-Identifier: Apache-2.0
"""Steps of training under the profiler: gradients are exchanged while the device computes others."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile

from benchmarks.data_parallel import hidden, spans
from tests.distributed.ranks import device_type, run_checks

DEVICE = device_type()
LAYERS, WIDTH, STEPS = 8, 512, 5


def traced_steps(folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(DEVICE), bucket_cap_mb=1, gradient_as_bucket_view=True)
    batch = torch.randn(512, WIDTH, device=DEVICE)

    def step() -> None:
        model(batch).square().mean().backward()

    for _ in range(3):
        step()
    torch.accelerator.synchronize()
    dist.barrier()
    with profile() as profiled:
        for _ in range(STEPS):
            step()
        torch.accelerator.synchronize()
    path = folder / "trace.json"
    profiled.export_chrome_trace(str(path))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def check_overlap() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = traced_steps(Path(folder))
    collectives, kernels = spans(trace)
    assert len(collectives) >= STEPS * LAYERS // 2, len(collectives)
    for one, following in zip(collectives, collectives[1:], strict=False):
        assert one[1] <= following[0] + 1e-3  # microseconds; one row
    rows = {True: set(), False: set()}
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            rows[event["name"] == f"{dist.get_backend()}:all_reduce"].add(event["tid"])
    assert len(rows[True]) == 1 and not rows[True] & rows[False]
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert "collectives" in names
    share = hidden(collectives, kernels)
    print(f"{len(collectives)} collectives, {share:.0%} of their time beside kernels")
    assert share > 0


if __name__ == "__main__":
    run_checks(globals())
