# SPDX-License-Identifier: Apache-2.0
"""Rotary position embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def npu_rotary_mul(
    input: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    """``input * r1 + rotated(input) * r2``, rounded once: rotary position embedding with cosines and sines.

    Args:
        rotary_mode: ``"half"`` pairs the two halves of the last dimension, ``"interleave"`` its neighbours.
        rotate: a matrix that rotates, in place of ``rotary_mode``.

    Raises:
        ValueError: for another mode.
    """
    wide = torch.promote_types(input.dtype, torch.float32)
    turned = _rotated(input, rotary_mode) if rotate is None else input @ rotate
    return (input.to(wide) * r1.to(wide) + turned.to(wide) * r2.to(wide)).to(input.dtype)


def npu_apply_rotary_pos_emb(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: str = "BSND",
    rotary_mode: str = "half",
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`npu_rotary_mul` of queries and keys. Where ``cos`` has a smaller last dimension, the rest stays as it is.

    Cosines and sines have the layout of the query, with one head. The arguments stay as they are.
    """
    size = cos.shape[-1]

    def apply(tensor: torch.Tensor) -> torch.Tensor:
        turned = npu_rotary_mul(tensor[..., :size], cos, sin, rotary_mode)
        return turned if size == tensor.shape[-1] else torch.cat((turned, tensor[..., size:]), -1)

    return apply(query), apply(key)


def npu_interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """:func:`npu_rotary_mul` by halves, after the even positions of the last dimension were put before the odd ones."""
    return npu_rotary_mul(torch.cat((x[..., ::2], x[..., 1::2]), -1), cos, sin)


def npu_mrope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    *,
    mrope_section: Sequence[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary position embedding of queries and keys (tokens, heads * head_size) with cosines and sines from a cache.

    Args:
        positions: (tokens,), or (3, tokens) for positions in time, height and width.
        cos_sin_cache: (positions, size): cosines in the first half, sines in the second.
        mrope_section: how many of the cosines follow each of the three positions.
        cache_mode: ``"default"`` if those of a position are in a row; ``"interleave"`` if the first
            ``3 * mrope_section[1]`` cosines follow time, height, width and time again, and the others time.

    Raises:
        RuntimeError: for another ``cache_mode``.
    """
    if cache_mode not in (None, "default", "interleave"):
        raise RuntimeError(f"npu_mrope: cache_mode is 'default' or 'interleave', not {cache_mode!r}")
    cos, sin = cos_sin_cache[positions].chunk(2, -1)
    if positions.dim() == 2:
        sections = list(mrope_section or ())
        column = torch.arange(cos.shape[-1], device=cos.device)
        if cache_mode == "interleave":
            follows = torch.where(column < 3 * sections[1], column % 3, 0)
        else:
            follows = (column >= sections[0]).long() + (column >= sections[0] + sections[1])
        cos, sin = (values.gather(0, follows.expand(1, *values.shape[1:]))[0] for values in (cos, sin))
    mode = rotary_mode or "half"
    cos, sin = (
        (torch.cat((values, values), -1) if mode == "half" else values.repeat_interleave(2, -1))[:, None]
        for values in (cos, sin)
    )

    def apply(tensor: torch.Tensor) -> torch.Tensor:
        heads = tensor.view(len(tensor), -1, head_size)
        return npu_apply_rotary_pos_emb(heads, heads[:, :0], cos, sin, rotary_mode=mode)[0].view(tensor.shape)

    return apply(query), apply(key)


def _rotated(input: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "half":
        first, second = input.chunk(2, -1)
        return torch.cat((-second, first), -1)
    if mode == "interleave":
        return torch.stack((-input[..., 1::2], input[..., ::2]), -1).flatten(-2)
    if mode == "quarter":
        first, second, third, fourth = input.chunk(4, -1)
        return torch.cat((-second, first, -fourth, third), -1)
    raise ValueError(f"rotary_mode is 'half', 'interleave' or 'quarter', not {mode!r}")
