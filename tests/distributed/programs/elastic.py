# SPDX-License-Identifier: Apache-2.0
"""Training that torchrun starts again: in the first run a worker is killed, in the next all go on from a checkpoint.

Arguments: the folder for checkpoints, and the step before which the worker is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def main() -> None:
    folder, fatal_step = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group()
    device = torch.accelerator.current_accelerator()
    assert device is not None and dist.get_backend() == dist.Backend.default_device_backend_map[device.type]
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 3).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    checkpoint = folder / "last.pt"
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        first = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    data = torch.randn(STEPS, dist.get_world_size(), 4, 8, generator=torch.Generator().manual_seed(1))
    for step in range(first, STEPS):
        if step == fatal_step and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(data[step, dist.get_rank()].to(device)).square().mean().backward()
        optimizer.step()
        if dist.get_rank() == 0:
            state = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, folder / "next.pt")
            (folder / "next.pt").rename(checkpoint)
    if dist.get_rank() == 0:
        torch.save({"first": first, "weight": model.module.weight.detach().cpu()}, folder / "result.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
