# SPDX-License-Identifier: Apache-2.0
"""Operators of our own behind nonzero and multinomial (``data_dependent_shapes.cpp`` and ``sampling.cpp`` in
``csrc/torch/operators``): shapes, and what they do where the device has no compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...kernels.compaction import BLOCK

_LIBRARY = torch.library.Library("outboard", "IMPL")


def coordinates(places: Tensor, like: Tensor) -> Tensor:
    """Places in row-major order as indices into each dimension of ``like``: int64, [dimensions, places]."""
    columns: list[Tensor] = []
    for size in reversed(like.shape[1:]):
        columns.insert(0, places % size)
        places = places // size
    return torch.stack([places, *columns])


def problem_of_weights(weights: Tensor) -> Tensor:
    """What is wrong with weights to draw by: 0 nothing, 1 one is infinite, NaN or negative, 2 a row has none."""
    valid = (weights.amax() < torch.inf) & (weights.amin() >= 0)
    empty = (weights.amax(-1) == 0).any()
    return torch.where(valid, empty.to(torch.int64) * 2, 1)


#: What of these is made of PyTorch's operators.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.outboard.coordinates.default: coordinates,
    torch.ops.outboard.problem_of_weights.default: problem_of_weights,
}


def _shape_of_running_counts(mask: Tensor) -> Tensor:
    return mask.new_empty(((mask.numel() + BLOCK - 1) // BLOCK,), dtype=torch.int64)


def _running_counts(mask: Tensor) -> Tensor:
    ends = torch.arange(1, (mask.numel() + BLOCK - 1) // BLOCK + 1) * BLOCK
    return mask.cumsum(0)[ends.clamp(max=mask.numel()) - 1]


_LIBRARY.impl("running_counts", _shape_of_running_counts, "Meta")
_LIBRARY.impl("running_counts", _running_counts, "CPU")
_LIBRARY.impl("compact", lambda mask, counts, like: torch.empty_like(like), "Meta")
_LIBRARY.impl("compact", lambda mask, counts, like: mask.nonzero().view(-1), "CPU")
_LIBRARY.impl("coordinates", coordinates, "CPU")
_LIBRARY.impl("problem_of_weights", problem_of_weights, "CPU")
