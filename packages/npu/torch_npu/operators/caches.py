# SPDX-License-Identifier: Apache-2.0
"""Keys and values that are kept in blocks, which a table names for each sequence: written, read, and where to go on.

A cache has the shape (blocks, block_size, heads, size), or in tiles (blocks, heads * size / tile, block_size, tile).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


def npu_scatter_pa_cache(
    key: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    key_cache: torch.Tensor,
) -> torch.Tensor:
    """Writes rows (tokens, heads, size) into the cache, each to the slot that ``slot_mapping`` names.

    Args:
        slot_mapping: (tokens,): a block's number times the block's size, and the place in the block. Rows with a
            negative slot are left out.
        key_cache: (blocks, block_size, heads, size).

    Raises:
        NotImplementedError: for compressed sequences.
    """
    _refuse_compression("npu_scatter_pa_cache", compress_lens, compress_seq_offsets, seq_lens)
    return _write(key_cache, key, slot_mapping, tiled=False)


def npu_scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Writes keys and values (tokens, heads, size) into caches, each to the slot that ``slot_mapping`` names.

    Args:
        slot_mapping: see :func:`npu_scatter_pa_cache`.
        cache_mode: ``"PA_NZ"`` for caches in tiles, ``"Norm"`` or None for others.

    Raises:
        NotImplementedError: for compressed sequences.
        ValueError: for another mode.
    """
    _refuse_compression("npu_scatter_pa_kv_cache", compress_lens, compress_seq_offsets, seq_lens)
    if cache_mode not in (None, "Norm", "PA_NZ"):
        raise ValueError(f"cache_mode is 'PA_NZ', 'Norm' or None, not {cache_mode!r}")
    for cache, rows in ((key_cache, key), (value_cache, value)):
        _write(cache, rows, slot_mapping, tiled=cache_mode == "PA_NZ")


def npu_scatter_pa_kv_cache_functional(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    compress_lens: torch.Tensor | None = None,
    compress_seq_offsets: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`npu_scatter_pa_kv_cache` into copies of the caches."""
    caches = key_cache.clone(), value_cache.clone()
    npu_scatter_pa_kv_cache(
        key,
        value,
        *caches,
        slot_mapping,
        compress_lens=compress_lens,
        compress_seq_offsets=compress_seq_offsets,
        seq_lens=seq_lens,
        cache_mode=cache_mode,
    )
    return caches


def npu_gather_pa_kv_cache(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    seq_offset: torch.Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> None:
    """Reads keys and values of the sequences one after the other into ``key`` and ``value`` (tokens, heads, size).

    What a sequence has no block for is zero. Rows behind the last sequence stay as they are.

    Args:
        block_tables: (sequences, blocks), the numbers of each sequence's blocks.
        seq_lens: (sequences,), how many rows are read of each; or (sequences + 1,), where each begins and ends.
        key: as many rows as are read; (tokens, heads * size) will do for a cache in tiles.
        seq_offset: (sequences,), from where on each is read: the block with that row is the first.
        is_seq_lens_cumsum: whether ``seq_lens`` says where sequences begin and end.
    """
    ends = seq_lens[1:] if is_seq_lens_cumsum else seq_lens.cumsum(0)
    for cache, rows in ((key_cache, key), (value_cache, value)):
        rows.copy_(_read(cache, rows, _Reading(block_tables, ends, seq_offset)))


def npu_gather_pa_kv_cache_functional(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    seq_offset: torch.Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`npu_gather_pa_kv_cache` into copies of ``key`` and ``value``."""
    copies = key.clone(), value.clone()
    npu_gather_pa_kv_cache(
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        *copies,
        seq_offset=seq_offset,
        is_seq_lens_cumsum=is_seq_lens_cumsum,
    )
    return copies


def npu_advance_step_flashattn(
    input_tokens: torch.Tensor,
    sampled_token_ids: torch.Tensor,
    input_positions: torch.Tensor,
    seq_lens: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_tables: torch.Tensor,
    num_seqs: int,
    num_queries: int,
    block_size: int,
    *,
    spec_token: torch.Tensor | None = None,
    accepted_num: torch.Tensor | None = None,
) -> None:
    """Moves sequences on by the tokens that were sampled: changes the first, third, fourth and fifth argument.

    This is vLLM's step: a slot is ``block_tables[sequence, position // block_size] * block_size + position %
    block_size``.

    Args:
        input_tokens: (sequences,); with ``spec_token`` (sequences, 1 + guesses), as the next four.
        sampled_token_ids: (queries, 1); where fewer guesses were right than there are, -1 fills the row.
        num_queries: how many sequences go on. Those behind them get token 0, position 0 and slot -1.
        spec_token: (sequences, guesses), the next guesses.
        accepted_num: (sequences,), how many of the last guesses were right.

    Raises:
        ValueError: if ``num_queries`` is more than ``num_seqs``, or not equal to it with ``spec_token``, or one of
            ``spec_token`` and ``accepted_num`` is missing.
    """
    if (spec_token is None) != (accepted_num is None):
        raise ValueError("npu_advance_step_flashattn takes both spec_token and accepted_num, or neither")
    if num_queries > num_seqs or (spec_token is not None and num_queries != num_seqs):
        raise ValueError(f"{num_queries} queries do not go with {num_seqs} sequences")
    if spec_token is None or accepted_num is None:
        going_on = slice(num_queries)
        tokens, positions = sampled_token_ids.flatten(), seq_lens[:num_queries].clone()
        for tensor, padding in ((input_tokens, 0), (input_positions, 0), (slot_mapping, -1)):
            tensor[num_queries:num_seqs] = padding
    else:
        going_on = slice(num_seqs)
        last = ((sampled_token_ids < 0).cumsum(1) == 0).sum(1, keepdim=True) - 1
        tokens = torch.cat((sampled_token_ids.gather(1, last), spec_token), 1)
        positions = input_positions + 1 + accepted_num[:, None]
    blocks = positions // block_size
    tables = block_tables[going_on].gather(1, blocks.view(len(blocks), -1)).view(blocks.shape)
    input_tokens[going_on] = tokens
    input_positions[going_on] = positions
    seq_lens[going_on] = positions + 1
    slot_mapping[going_on] = tables * block_size + positions % block_size


@dataclass(frozen=True)
class _Reading:
    """What is read of a cache: see :func:`npu_gather_pa_kv_cache`. ``ends`` says where sequences end."""

    tables: torch.Tensor
    ends: torch.Tensor
    offsets: torch.Tensor | None

    def places(self, count: int, block_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of ``count`` rows: the block or -1, the place in it, and whether the row belongs to a sequence."""
        rows = torch.arange(count, device=self.ends.device, dtype=self.ends.dtype)
        sequence = torch.searchsorted(self.ends, rows, right=True)
        belongs = sequence < len(self.ends)
        sequence = sequence.clamp(max=len(self.ends) - 1)
        begins = torch.cat((self.ends.new_zeros(1), self.ends[:-1]))
        within = rows - begins[sequence]
        column = within // block_size
        if self.offsets is not None:
            column = column + self.offsets[sequence] // block_size
        width = self.tables.shape[1]
        block = self.tables[sequence, column.clamp(max=width - 1)].masked_fill(column >= width, -1)
        return block, within % block_size, belongs


def _read(cache: torch.Tensor, rows: torch.Tensor, reading: _Reading) -> torch.Tensor:
    tiled = cache.shape[2:] != rows.shape[1:]
    block, place, belongs = reading.places(len(rows), cache.shape[2 if tiled else 1])
    found = (block >= 0) & (block < len(cache))
    block = block.clamp(0, len(cache) - 1)
    read = cache[block, :, place].view(rows.shape) if tiled else cache[block, place]
    shape = [-1] + [1] * (rows.dim() - 1)
    return torch.where(belongs.view(shape), read.masked_fill(~found.view(shape), 0), rows)


def _write(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, tiled: bool) -> torch.Tensor:
    """A row with a negative slot becomes one with any other, which is then written twice; or what is there already."""
    valid = slots >= 0
    chosen = torch.where(valid, torch.arange(len(slots), device=slots.device), valid.int().argmax())
    slots = slots[chosen].clamp(min=0).long()
    size = cache.shape[2 if tiled else 1]
    places = (slots // size, slice(None), slots % size) if tiled else (slots // size, slots % size)
    there = cache[places]
    cache[places] = torch.where(valid.any(), rows[chosen].view(there.shape), there)
    return cache


def _refuse_compression(operator: str, *arguments: torch.Tensor | None) -> None:
    if any(argument is not None for argument in arguments):
        raise NotImplementedError(f"{operator}: compress_lens, compress_seq_offsets and seq_lens are not there")
