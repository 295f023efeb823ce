# SPDX-License-Identifier: Apache-2.0
"""Time of ``all_reduce`` between processes of this machine, on the device and of CPU tensors over gloo, in turns.

``python -m benchmarks.collectives [RANKS]`` prints a table: medians in microseconds, and their ratio.
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


def measure() -> None:
    """What each rank does."""
    torch.set_num_threads(1)
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    device = accelerator.type
    dist.init_process_group(f"cpu:gloo,{device}:{dist.Backend.default_device_backend_map[device]}")
    for size, repeats in SIZES.items():
        rounds = [[median_time(where, size, repeats) for where in ("cpu", device)] for _ in range(ROUNDS)]
        gloo, ours = (statistics.median(column) * 1e6 for column in zip(*rounds, strict=True))
        if dist.get_rank() == 0:
            print(f"| {size:,} | {gloo:,.0f} us | {ours:,.0f} us | {ours / gloo:.2f} |", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Starts the ranks."""
    if "RANK" in os.environ:
        return measure()
    ranks = sys.argv[1] if len(sys.argv) > 1 else "2"
    print(f"| Bytes | gloo | {torch.accelerator.current_accelerator()} | ratio |\n|---|---|---|---|", flush=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    subprocess.run([*launcher, "-m", "benchmarks.collectives"], check=True)
    return None


if __name__ == "__main__":
    main()
