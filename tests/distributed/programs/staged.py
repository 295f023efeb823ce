# SPDX-License-Identifier: Apache-2.0
"""Long tensors go in parts: results are those of whole ones, and copies run beside the exchange. Some of the tensors
have no even number of parts, or another order of dimensions."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import profile

from benchmarks.data_parallel import hidden, spans
from tests.distributed.ranks import device_type, run_checks

DEVICE = device_type()
COUNT = (5 << 20) // 4 * 3 + 7  # float32 elements of nearly 16 MiB: parts of which each has 4 MiB at most


def value(rank: int, count: int = COUNT, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    numbers = torch.arange(count, dtype=torch.int64) * (rank + 3) % 1009 - 500
    return torch.complex(numbers.float(), -numbers.float()) if dtype.is_complex else numbers.to(dtype)


def values(count: int = COUNT, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [value(rank, count, dtype) for rank in range(dist.get_world_size())]


def check_all_reduce() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype, count in ((torch.float32, COUNT), (torch.complex64, COUNT), (torch.int64, COUNT)):
        own = value(rank, count, dtype).to(DEVICE)
        work = dist.all_reduce(own, async_op=True)
        doubled_before = value(rank, 5).to(DEVICE) * 2  # the current stream goes on
        work.wait()
        after = own + 1  # behind the copies back
        wanted = torch.stack(values(count, dtype)).sum(0)
        assert torch.equal(own.cpu(), wanted) and torch.equal(after.cpu(), wanted + 1)
        assert torch.equal(doubled_before.cpu(), value(rank, 5) * 2)
    mean = value(rank, COUNT).to(DEVICE)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert torch.equal(mean.cpu(), torch.stack(values()).sum(0) / size)
    turned = value(rank, 2048 * 1024).view(2048, 1024).to(DEVICE).t()
    dist.all_reduce(turned)
    assert torch.equal(turned.cpu(), torch.stack(values(2048 * 1024)).sum(0).view(2048, 1024).t())


def check_broadcast_and_reduce() -> None:
    rank = dist.get_rank()
    own = value(rank).to(DEVICE)
    dist.broadcast(own, 1)
    assert torch.equal(own.cpu(), value(1))
    own = value(rank).to(DEVICE)
    dist.reduce(own, 1)
    if rank == 1:
        assert torch.equal(own.cpu(), torch.stack(values()).sum(0))


def check_gather_and_scatter() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.empty(size * COUNT, device=DEVICE)
    dist.all_gather_into_tensor(whole, value(rank).to(DEVICE))
    assert torch.equal(whole.cpu(), torch.cat(values()))
    part = torch.empty(COUNT, device=DEVICE)
    dist.reduce_scatter_tensor(part, value(rank, size * COUNT).to(DEVICE))
    assert torch.equal(part.cpu(), torch.stack(values(size * COUNT)).sum(0).view(size, COUNT)[rank])


def check_copies_run_beside_the_exchange() -> None:
    own = value(dist.get_rank()).to(DEVICE)
    properties = torch.get_device_module(DEVICE).get_device_properties()
    with profile() as profiled:
        for _ in range(5):
            dist.all_reduce(own)
        torch.accelerator.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
    collectives, _ = spans(trace)
    by_driver = os.environ.get("OUTBOARD_DRIVER") == "sim"  # which has collectives of its own: nothing is staged
    assert len(collectives) == 5 * (1 if by_driver else 4), len(collectives)
    copies = [
        (event["ts"], event["ts"] + event["dur"]) for event in trace["traceEvents"] if event.get("cat") == "gpu_memcpy"
    ]
    if not properties.host_accessible and not by_driver:
        assert len(copies) > len(collectives)
        share = hidden(copies, collectives)
        print(f"{share:.0%} of the time of copies beside the exchange")
        assert share > 0


if __name__ == "__main__":
    run_checks(globals())
