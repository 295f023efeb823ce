# SPDX-License-Identifier: Apache-2.0
"""Lists of tensors whose elements lie in another order of memory on one rank than on another."""

from __future__ import annotations

import torch
import torch.distributed as dist

COLUMNS = 3


def number(sender: int, receiver: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """What one rank has for another: no two elements that lie near each other are alike."""
    numbers = (torch.arange(97) * 7 + 31 * sender + 13 * receiver) % 97 - 40
    period = torch.complex(numbers.float(), -numbers.float()) if dtype.is_complex else numbers.to(dtype)
    return period.repeat(rows * COLUMNS // 97 + 1)[: rows * COLUMNS].view(rows, COLUMNS)


def by_columns(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, column after column in memory."""
    return tensor.t().contiguous().t()


def exchange_lists_in_any_order(device: str, rows: int, dtype: torch.dtype) -> None:
    """Every collective that takes or gives tensors of several ranks moves elements to where they belong."""
    me, ranks = dist.get_rank(), range(dist.get_world_size())

    def placed(tensor: torch.Tensor, turn: int) -> torch.Tensor:
        return by_columns(tensor.to(device)) if turn % 2 else tensor.to(device)

    def places(*lengths: int) -> list[torch.Tensor]:
        return [placed(torch.zeros(length, COLUMNS, dtype=dtype), me + i) for i, length in enumerate(lengths)]

    def same(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
        for each, (tensor, wanted) in enumerate(zip(actual, expected, strict=True)):
            assert torch.equal(tensor.cpu(), wanted), (each, tensor.cpu(), wanted)

    def sent(sender: int, receiver: int, length: int = rows) -> torch.Tensor:
        return number(sender, receiver, length, dtype)

    def summed(length: int) -> torch.Tensor:
        return torch.stack([sent(sender, me, length) for sender in ranks]).sum(0).to(dtype)

    even, uneven = [rows] * len(ranks), [rows + rank for rank in ranks]
    own = placed(sent(me, 0), me)
    gathered = [sent(sender, 0) for sender in ranks]
    same([own], [gathered[me]])
    for lengths in (even, uneven):
        received = places(*lengths)
        dist.all_gather(received, placed(sent(me, 0, lengths[me]), me))
        same(received, [sent(sender, 0, length) for sender, length in zip(ranks, lengths, strict=True)])
        for turn in (me, me + 1):
            result = placed(torch.zeros(lengths[me], COLUMNS, dtype=dtype), turn)
            dist.reduce_scatter(result, [placed(sent(me, target, lengths[target]), turn + target) for target in ranks])
            same([result], [summed(lengths[me])])
    lists = [places(rows, rows) for _ in ranks]
    dist.all_gather_coalesced(lists, [own, placed(sent(me, 1), me + 1)])
    for sender, received in zip(ranks, lists, strict=True):
        same(received, [sent(sender, 0), sent(sender, 1)])
    for root in (0, 1):
        received = places(*even) if me == root else []
        dist.gather(own, received if me == root else None, dst=root)
        same(received, gathered if me == root else [])
        result = places(rows)[0]
        dist.scatter(result, [placed(sent(root, i), i) for i in ranks] if me == root else None, src=root)
        same([result], [sent(root, me)])
    received = places(*(rows + sender + me for sender in ranks))
    dist.all_to_all(received, [placed(sent(me, i, rows + me + i), me + i) for i in ranks])
    same(received, [sent(sender, me, rows + sender + me) for sender in ranks])
    result = placed(torch.zeros(rows * len(ranks), COLUMNS, dtype=dtype), me)
    dist.all_to_all_single(result, placed(torch.cat([sent(me, i) for i in ranks]), me + 1))
    same([result], [torch.cat([sent(sender, me) for sender in ranks])])
