# SPDX-License-Identifier: Apache-2.0
"""Sequences one behind the other, (places of all, ...), and padded ones, (sequences, places, ...): how PyTorch goes
from one to the other for jagged tensors. ``offsets`` has where each begins and the last ends, int64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _only(offsets: list[Tensor]) -> Tensor:
    if len(offsets) != 1:
        raise NotImplementedError("sequences of sequences")
    return offsets[0]


def _along(marks: Tensor, like: Tensor) -> Tensor:
    return marks.view([*marks.shape, *[1] * (like.dim() - marks.dim())])


def _padded(values: Tensor, offsets: list[Tensor], most: list[int], padding_value: float = 0.0) -> Tensor:
    starts = _only(offsets)
    rows = starts[:-1, None] + torch.arange(most[0], device=values.device)
    is_there = rows < starts[1:, None]
    if values.shape[0] == 0:
        return torch.full([*rows.shape, *values.shape[1:]], padding_value, dtype=values.dtype, device=values.device)
    picked = values[torch.where(is_there, rows, 0)]
    return torch.where(_along(is_there, picked), picked, padding_value).to(values.dtype)


def _packed(dense: Tensor, offsets: list[Tensor], total: int | None = None) -> Tensor:
    starts = _only(offsets)
    if total is None:
        raise NotImplementedError("the size of the result is not given")
    rows = torch.arange(total, device=dense.device)
    if dense.shape[0] == 0 or dense.shape[1] == 0:
        return torch.zeros([total, *dense.shape[2:]], dtype=dense.dtype, device=dense.device)
    sequence = (torch.searchsorted(starts, rows, right=True) - 1).clamp(0, dense.shape[0] - 1)
    place = rows - starts[sequence]
    is_there = (place >= 0) & (place < dense.shape[1]) & (rows < starts[-1])
    picked = dense[sequence, torch.where(is_there, place, 0)]
    return torch.where(_along(is_there, picked), picked, 0).to(dense.dtype)


#: Operator -> what it computes.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._jagged_to_padded_dense_forward.default: _padded,
    aten._padded_dense_to_jagged_forward.default: _packed,
}
