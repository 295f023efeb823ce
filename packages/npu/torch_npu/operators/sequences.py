# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values in the extension's layouts, as tensors (batch, heads, sequence, size) and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

#: Where batch, sequence and head are, by layout, as a permutation to (batch, head, sequence, size), and its inverse.
_FOUR_DIMENSIONS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3)}
#: Heads and sizes in one dimension.
_THREE_DIMENSIONS = ("BSH", "SBH")
#: Sequences of several lengths one after the other, (all positions, heads, size).
VARYING = "TND"


@dataclass(frozen=True)
class Layout:
    """How a tensor holds sequences.

    Attributes:
        name: its letters, the extension's.
        ends: with TND, where each sequence ends; zeros behind the last.
    """

    name: str
    ends: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.name == VARYING and self.ends is None:
            raise ValueError("the layout TND needs where sequences of queries and of keys end")
        if self.name not in (*_FOUR_DIMENSIONS, *_THREE_DIMENSIONS, VARYING):
            raise NotImplementedError(f"the layout {self.name!r} of attention is not there")

    def head_size(self, tensor: torch.Tensor, heads: int) -> int:
        """The size of a head, of a tensor with so many."""
        return tensor.shape[-1] // heads if self.name in _THREE_DIMENSIONS else tensor.shape[-1]

    def split(self, tensor: torch.Tensor, size: int) -> list[torch.Tensor]:
        """The sequences, each (batch, heads, sequence, size): all in one, or with TND one by one."""
        if self.name == VARYING:
            return [tensor[begin:end].transpose(0, 1)[None] for begin, end in self._spans()]
        if self.name in _FOUR_DIMENSIONS:
            return [tensor.permute(_FOUR_DIMENSIONS[self.name])]
        tensor = tensor.transpose(0, 1) if self.name == "SBH" else tensor
        return [tensor.unflatten(-1, (-1, size)).transpose(1, 2)]

    def join(self, parts: Sequence[torch.Tensor], positions: int) -> torch.Tensor:
        """The inverse of :meth:`split`. With TND there are zeros up to so many positions."""
        if self.name == VARYING:
            joined = torch.cat([part[0].transpose(0, 1) for part in parts])
            missing = positions - len(joined)
            return F.pad(joined, (0, 0, 0, 0, 0, missing)) if missing else joined
        (part,) = parts
        if self.name in _FOUR_DIMENSIONS:
            return part.permute(_FOUR_DIMENSIONS[self.name])
        joined = part.transpose(1, 2).flatten(2)
        return joined.transpose(0, 1) if self.name == "SBH" else joined

    def _spans(self) -> list[tuple[int, int]]:
        ends = list(self.ends or ())
        while ends and ends[-1] == 0:
            ends.pop()
        return list(itertools.pairwise((0, *ends)))
