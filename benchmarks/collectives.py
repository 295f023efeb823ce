# SPDX-License-Identifier: Apache-2.0
"""Time of ``all_reduce`` and of a message between processes of one machine: on the device, and CPU tensors over gloo.

``python -m benchmarks.collectives [RANKS]`` prints a table: medians in microseconds, and their ratio. A message is that
between the first two ranks, half of the time there and back.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist

#: Bytes of a tensor, and how often it is reduced in a round.
SIZES = {4 << 10: 300, 1 << 20: 100, 64 << 20: 7}
ROUNDS = 3


def median_time(device: str, size: int, repeats: int) -> float:
    """Median time in seconds of one ``all_reduce`` of ``size`` bytes of float32; checks the last result."""
    for _ in range(2):
        dist.all_reduce(torch.ones(size // 4, device=device))
    tensor = torch.ones(size // 4, device=device)
    dist.all_reduce(tensor)
    assert tensor[0].item() == tensor[-1].item() == dist.get_world_size()
    tensor.zero_()
    torch.accelerator.synchronize()
    dist.barrier()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def message_time(device: str, size: int, repeats: int) -> float:
    """Median time in seconds of one message of ``size`` bytes, half of there and back between ranks 0 and 1; 0 on other
    ranks."""
    rank = dist.get_rank()
    tensor = torch.full((size // 4,), float(rank), device=device)
    times = []
    dist.barrier()
    for _ in range(repeats if rank < 2 else 0):
        begin = time.perf_counter()
        for turn in (0, 1):
            dist.send(tensor, 1 - rank) if rank == turn else dist.recv(tensor, 1 - rank)
        times.append((time.perf_counter() - begin) / 2)
    assert rank > 1 or tensor[0].item() == tensor[-1].item() == 0
    return statistics.median(times) if times else 0.0


def measure() -> None:
    """What each rank does."""
    torch.set_num_threads(1)
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    device = accelerator.type
    dist.init_process_group(f"cpu:gloo,{device}:{dist.Backend.default_device_backend_map[device]}")
    for name, time_of in {"all_reduce": median_time, "message": message_time}.items():
        for size, repeats in SIZES.items():
            rounds = [[time_of(where, size, repeats) for where in ("cpu", device)] for _ in range(ROUNDS)]
            gloo, ours = (statistics.median(column) * 1e6 for column in zip(*rounds, strict=True))
            if dist.get_rank() == 0:
                print(f"| {name} | {size:,} | {gloo:,.0f} us | {ours:,.0f} us | {ours / gloo:.2f} |", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Starts the ranks."""
    if "RANK" in os.environ:
        return measure()
    ranks = sys.argv[1] if len(sys.argv) > 1 else "2"
    print(
        f"| What | Bytes | gloo | {torch.accelerator.current_accelerator()} | ratio |\n|---|---|---|---|---|",
        flush=True,
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    subprocess.run([*launcher, "-m", "benchmarks.collectives"], check=True)
    return None


if __name__ == "__main__":
    main()
