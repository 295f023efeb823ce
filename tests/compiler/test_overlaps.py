# SPDX-License-Identifier: Apache-2.0
"""Graphs that write into a tensor what they read from it: elements are read before they are overwritten."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


def places(x: Tensor, first: int) -> Tensor:
    return torch.arange(first, first + len(x) - 1, device=x.device)


def overwrite_pairs(x: Tensor) -> None:
    pairs = x.view(x.shape[0] // 2, 2, -1)
    pairs.copy_(pairs.flip(1))


def overwrite_added(x: Tensor) -> None:
    index = torch.arange(len(x) - 1, -1, -1, device=x.device)[:, None].expand_as(x)
    x.scatter_add_(0, index, x.flip(1).view(-1).view_as(x))


def overwrite_within(x: Tensor) -> None:
    inner = x + 1
    inner[1:] = inner[:-1].clone()
    x.copy_(inner.t())


WRITES: dict[str, Callable[[Tensor], object]] = {
    "down": lambda x: x[:-1].copy_(x[1:].clone()),
    "up": lambda x: x[1:].copy_(x[:-1].clone()),
    "strided": lambda x: x.as_strided((len(x) - 1, len(x)), (len(x), 1), len(x)).copy_(x[:-1].clone()),
    "scattered": lambda x: x.copy_(torch.slice_scatter(x, x[:-1], 0, 1)),
    "at places": lambda x: x.index_put_((places(x, 1),), x[:-1].clone()),
    "from places": lambda x: x.index_put_((places(x, 0),), x[1:].clone()),
    "pairs": overwrite_pairs,
    "added": overwrite_added,
    "inside": overwrite_within,
    "lists": lambda x: torch._foreach_add_([x], [x.flip(0)]),
    "lists, computed": lambda x: torch._foreach_add_([x], [x.t() * 2 + 1], alpha=3),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_is_overwritten_is_read_first(write: str, device: str) -> None:
    torch._dynamo.reset()
    size = 600  # rows enough for several threads
    x = torch.arange(float(size * size)).view(size, size)
    moved = x.to(device)
    WRITES[write](x)
    torch.compile(WRITES[write])(moved)
    assert torch.equal(moved.cpu(), x)


def test_a_kernel_overwrites_nothing_that_it_reads_elsewhere(device: str) -> None:
    def write(x: Tensor, y: Tensor) -> None:
        x[x > 3] = 1
        y.t().sub_(x + 1)

    torch._dynamo.reset()
    size = 600
    whole = torch.arange(float((size + 2) * size)).view(size + 2, size) % 11
    there = whole.to(device)
    write(whole[:-2], whole[2:])
    torch.compile(write)(there[:-2], there[2:])
    assert torch.equal(there.cpu(), whole)
