# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks whose devices differ: two ranks have the simulator's, the first of which uses its second device, one
has those of another driver with collectives, and one none. Which, the test sets."""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist

from tests.distributed.programs.driver_collectives import submitted
from tests.distributed.programs.faults import refused
from tests.distributed.ranks import JOIN_SECONDS, device_type


def ones(index: int) -> torch.Tensor:
    return torch.ones(3, device=f"{device_type()}:{index}")


def main(rank: int) -> None:
    dist.init_process_group(timeout=datetime.timedelta(seconds=JOIN_SECONDS))
    for ranks, by_driver in (((0, 1, 2, 3), 0), ((0, 1), 1), ((0, 2), 0), ((1, 3), 0)):
        group, before = dist.new_group(list(ranks)), submitted()
        if rank in ranks:
            tensor = ones(1 if rank == 0 else 0)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [len(ranks)] * 3, (ranks, tensor.tolist())
            assert submitted() - before == by_driver, ranks
        if rank == 0 and by_driver:
            refused(ValueError, ["a group for each device"], lambda g=group: dist.all_reduce(ones(0), group=g))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(os.environ["RANK"]))
