# SPDX-License-Identifier: Apache-2.0
"""The habit of ``rbln-ccl``: torchrun gives all ranks one list of cards, each takes its own before it uses one.

Then collectives, and a layer in two parts as tensor parallelism has it: columns here, rows there, and a sum.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    cards = os.environ["RBLN_VISIBLE_DEVICES"].split(",")
    os.environ["RBLN_VISIBLE_DEVICES"] = cards[int(os.environ["LOCAL_RANK"])]
    dist.init_process_group(backend="rbln-ccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert torch.rbln.device_count() == 1
    assert dist.get_backend() == "rbln-ccl"

    row = torch.full((4,), float(rank), dtype=torch.float16, device="rbln")
    table = [torch.empty_like(row) for _ in range(size)]
    dist.all_gather(table, row)
    assert torch.stack(table).cpu().tolist() == [[float(other)] * 4 for other in range(size)]
    dist.all_reduce(row)
    assert row.tolist() == [size * (size - 1) / 2] * 4
    word = torch.full((3,), float(rank), device="rbln")
    dist.broadcast(word, src=1)
    assert word.tolist() == [1.0] * 3

    torch.manual_seed(0)
    first, second, batch = nn.Linear(8, 12, bias=False), nn.Linear(12, 5, bias=False), torch.randn(2, 8)
    expected = second(first(batch).relu()).detach()
    columns = first.weight.detach().chunk(size, 0)[rank].to("rbln")
    rows = second.weight.detach().chunk(size, 1)[rank].to("rbln")
    result = (batch.to("rbln") @ columns.t()).relu() @ rows.t()
    dist.all_reduce(result)
    torch.testing.assert_close(result.cpu(), expected)
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: done")


if __name__ == "__main__":
    main()
