# SPDX-License-Identifier: Apache-2.0
"""Which keys take part in attention, and what is added to their scores, as the extension's arguments say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

#: How ``sparse_mode`` reads a mask: as it is (twice), causal from the top left, causal to the bottom right, a band
#: along the diagonal to the bottom right, as it is, causal to the bottom right but for the first keys.
_AS_IS, _ALL, _TOP_LEFT, _BOTTOM_RIGHT, _BAND, _PREFIX, _PACKED_PREFIX = range(7)
#: Of sequences one after the other, causal all but one, which is a band: the last one, the first one.
_BAND_LAST, _BAND_FIRST = 7, 8


@dataclass(frozen=True)
class Mask:
    """What is added to the scaled products of queries and keys, and what is left out.

    Attributes:
        added: added to the scaled products, or None.
        left_out: true where attention is left out, or None: then everything takes part, whatever the mode.
        sparse_mode: see ``_AS_IS`` and the following.
        before: with a band, how many keys before the diagonal take part; ``after`` the same behind it.
        prefix: with ``_PACKED_PREFIX``, how many of each batch's first keys take part.
        key_lengths: how many of each batch's keys count, or None for all.
        cut: whether ``left_out`` is for the longest sequence, and others take its top left.
    """

    added: torch.Tensor | None = None
    left_out: torch.Tensor | None = None
    sparse_mode: int = _AS_IS
    before: int = 0
    after: int = 0
    prefix: Sequence[int] | None = None
    key_lengths: Sequence[int] | None = None
    cut: bool = False

    def of_sequence(self, index: int, count: int) -> Mask:
        """The mask of one of several sequences that lie one after the other."""
        if self.sparse_mode == _BAND_LAST:
            return replace(self, sparse_mode=_BAND if index == count - 1 else _BOTTOM_RIGHT)
        if self.sparse_mode == _BAND_FIRST:
            return replace(self, sparse_mode=_BAND if index == 0 else _TOP_LEFT)
        prefix = None if self.prefix is None else self.prefix[index : index + 1]
        return replace(self, prefix=prefix, cut=True)

    def bias(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
        """What ``scaled_dot_product_attention`` takes as its mask: None, booleans (true: takes part) or numbers.

        Args:
            q: (batch, heads, sequence, size), as ``k``.
        """
        left_out = self._pattern(q, k)
        if self.key_lengths is not None:
            ends = torch.tensor(list(self.key_lengths), device=q.device).view(-1, 1, 1, 1)
            beyond = torch.arange(k.shape[-2], device=q.device) >= ends
            left_out = beyond if left_out is None else left_out | beyond
        if left_out is None:
            return self.added
        if self.added is None:
            return ~left_out
        return self.added.masked_fill(left_out, float("-inf"))

    def _pattern(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
        if self.left_out is None:
            return None
        rows, columns = q.shape[-2], k.shape[-2]
        if self.sparse_mode in (_AS_IS, _ALL, _PREFIX):
            mask = self.left_out.bool()
            mask = mask[..., :rows, :columns] if self.cut else mask
            return mask[:, None] if mask.dim() == 3 else mask
        # How far each key is behind the diagonal, which ends at the bottom right.
        ahead = torch.arange(columns, device=q.device) - torch.arange(rows, device=q.device)[:, None]
        if self.sparse_mode == _TOP_LEFT:
            return ahead > 0
        ahead = ahead - (columns - rows)
        if self.sparse_mode == _BAND:
            return (ahead > self.after) | (ahead < -self.before)
        if self.prefix is None:
            return ahead > 0
        first = torch.tensor(list(self.prefix), device=q.device).view(-1, 1, 1, 1)
        return (ahead > 0) & (torch.arange(columns, device=q.device) >= first)


def mask_of(
    operator: str,
    added: torch.Tensor | None,
    left_out: torch.Tensor | None,
    sparse_mode: int,
    before: int,
    after: int,
    prefix: Sequence[int] | None = None,
) -> Mask:
    """The mask that an operator's arguments describe.

    Raises:
        ValueError: for an unknown ``sparse_mode``, and one with a ``prefix`` that is missing.
    """
    if not _AS_IS <= sparse_mode <= _BAND_FIRST:
        raise ValueError(f"{operator}: sparse_mode is from {_AS_IS} to {_BAND_FIRST}, not {sparse_mode}")
    if sparse_mode == _PACKED_PREFIX and prefix is None:
        raise ValueError(f"{operator}: a sparse_mode of {sparse_mode} needs a prefix")
    used = prefix if sparse_mode == _PACKED_PREFIX else None
    return Mask(added, left_out, sparse_mode, before, after, used)
