# SPDX-License-Identifier: Apache-2.0
"""What operators for serving compute, as documented: caches in blocks, choices of tokens, weights by row.

See :mod:`tests.profiles.npu_operators`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tests.profiles.npu_case import Case


def cases() -> Iterator[Case]:
    """All of them, on the CPU."""
    yield from _caches()
    yield from _samples()
    yield from _weights_by_row()
    yield from _lists()


def _tiled(cache: Tensor, tile: int) -> Tensor:
    """(blocks, block_size, heads, size) as (blocks, heads * size / tile, block_size, tile)."""
    return cache.flatten(2).unflatten(-1, (-1, tile)).transpose(1, 2).contiguous()


def _written(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor, **_: Any) -> list[Tensor]:
    results = []
    for rows, cache in ((key, keys), (value, values)):
        cache = cache.clone()
        for row, slot in zip(rows, slots.tolist(), strict=True):
            if slot >= 0:
                cache[slot // 3, slot % 3] = row
        results.append(cache)
    return results


def _read(
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    lengths: list[int],
    key: Tensor,
    value: Tensor,
    offsets: list[int],
) -> list[Tensor]:
    results = []
    for rows, cache in ((key, keys), (value, values)):
        rows, row = rows.clone(), 0
        for sequence, length in enumerate(lengths):
            for i in range(length):
                column = offsets[sequence] // 3 + i // 3
                block = int(table[sequence, column]) if column < table.shape[1] else -1
                rows[row] = cache[block, i % 3] if 0 <= block < len(cache) else 0
                row += 1
        results.append(rows)
    return results


def _caches() -> Iterator[Case]:
    r = torch.randn
    key, value = r(5, 2, 8), r(5, 2, 4)
    caches = r(4, 3, 2, 8), r(4, 3, 2, 4)
    tiles = [_tiled(cache, 4) for cache in caches]
    for slots in ([7, 0, 11, 3, 4], [7, -1, 0, -1, 4], [-1] * 5):
        for dtype in (torch.int32, torch.int64):
            places = torch.tensor(slots, dtype=dtype)
            yield Case(
                "npu_scatter_pa_kv_cache_functional",
                [key, value, *caches, places],
                _written,
                {"cache_mode": "Norm"},
                gradients=False,
            )
        yield Case(
            "npu_scatter_pa_kv_cache_functional",
            [key, value, *tiles, places],
            lambda *a, **_: [_tiled(cache, 4) for cache in _written(*a[:2], *(c.double() for c in caches), a[4])],
            gradients=False,
        )
    table = torch.tensor([[2, 0], [1, 9], [3, 3]], dtype=torch.int32)
    rows = r(14, 2, 8), r(14, 2, 4)
    for lengths, offsets in (([5, 1, 3], None), ([2, 0, 6], [0, 1, 4])):
        for added in (False, True):
            ends = [sum(lengths[:i]) for i in range(4)]
            yield Case(
                "npu_gather_pa_kv_cache_functional",
                [*caches, table, torch.tensor(ends if added else lengths, dtype=torch.int32), *rows],
                lambda k, v, t, _, key, value, lengths=lengths, offsets=offsets, **__: _read(
                    k, v, t, lengths, key, value, offsets or [0] * 3
                ),
                {
                    "is_seq_lens_cumsum": added,
                    "seq_offset": None if offsets is None else torch.tensor(offsets, dtype=torch.int32),
                },
                gradients=False,
            )
    yield Case(
        "npu_gather_pa_kv_cache_functional",
        [*tiles, table, torch.tensor([5, 1, 3], dtype=torch.int32), *(t.flatten(1) for t in rows)],
        lambda *a: [
            t.flatten(1)
            for t in _read(*(c.double() for c in caches), table, [5, 1, 3], *(t.double() for t in rows), [0] * 3)
        ],
        gradients=False,
    )


def _chosen(
    scores: Tensor, k: Tensor, p: Tensor, q: Tensor | None, least: Tensor | None, limit: int, are_shares: bool
) -> list[Tensor]:
    """Tokens and scores, row by row."""
    tokens, left = [], torch.full_like(scores, 0.0 if are_shares else -math.inf)
    for row, values in enumerate(scores):
        by_k, by_p = 1 <= int(k[row]) <= limit, float(p[row])
        order = values.argsort(descending=True, stable=True)[: int(k[row]) if by_k else len(values)]
        shares = values[order] if are_shares else values[order].softmax(0)
        if by_p < 1:
            before = shares.cumsum(0) - shares
            order = order[:1] if by_p <= 0 else order[before <= by_p]
        shares = values[order] if are_shares else values[order].softmax(0)
        if least is not None and float(least[row]) > 0:
            order = order[:1] if float(least[row]) >= 1 else order[shares >= shares[0] * least[row]]
        shares = values[order] if are_shares else values[order].softmax(0)
        if q is not None:
            weights = q[row, : len(order)] if by_k or by_p < 1 else q[row, order]
            shares = shares / (weights + 1e-8)
        tokens.append(order[shares.argmax()])
        left[row, order] = values[order]
    return [torch.stack(tokens), left]


def _samples() -> Iterator[Case]:
    scores, q = torch.randn(6, 40), torch.rand(6, 40) + 0.01
    k = torch.tensor([5, 40, 0, 1, 99, 12], dtype=torch.int32)
    for p in ([0.5, 0.9, 0.3, 1.0, 0.7, 0.8], [1.0, 1.2, 0.0, -1.0, 1.0, 0.05]):
        for weights in (None, q):
            for least in (None, torch.tensor([0.1, 0.5, 0.0, 1.0, -1.0, 0.9])):
                for values in (scores, scores.softmax(-1)):
                    yield Case(
                        "npu_top_k_top_p_sample",
                        [values, k, torch.tensor(p), weights],
                        lambda s, k, p, q, min_ps, input_is_logits, **_: _chosen(
                            s, k, p, q, min_ps, 40, not input_is_logits
                        ),
                        {"is_need_logits": True, "min_ps": least, "input_is_logits": values is scores},
                        gradients=False,
                    )
    yield Case(
        "npu_top_k_top_p_sample",
        [scores, k, torch.ones(6), q],
        lambda s, k, p, _, **__: _chosen(s, k, p, None, None, 8, False)[0],
        {"ks_max": 5, "post_sample": "None"},
        gradients=False,
    )


def _weights_by_row() -> Iterator[Case]:
    r = torch.randn
    rows, x, indices = r(4, 20), r(4, 8), torch.tensor([1, -1, 0, 1], dtype=torch.int32)

    def formula(y: Tensor, x: Tensor, b: Tensor, indices: Tensor, a: Tensor | None, layer: int, *more: Any) -> Tensor:
        scale, begin, size = more or (1e-3, 0, y.shape[1])
        results = []
        for i, index in enumerate(indices.tolist()):
            added = x[i] if a is None else a[index, layer] @ x[i]
            added = b[index, layer] @ added * scale * (index >= 0)
            results.append(y[i] + torch.nn.functional.pad(added, (begin, y.shape[1] - begin - size)))
        return torch.stack(results)

    yield Case("npu_batch_gather_matmul", [rows, x, r(2, 3, 20, 8), indices, None, 2], formula)
    yield Case("npu_batch_gather_matmul", [rows, x, r(2, 3, 12, 5), indices, r(2, 3, 5, 8), 1, 0.5, 4, 12], formula)


def _lists() -> Iterator[Case]:
    r = torch.randn
    tensors = [r(3, 7, 4) for _ in range(3)]
    indices = torch.tensor([0, 6, 3], dtype=torch.int32)

    def formula(tensors: list[Tensor], indices: Tensor, updates: Tensor, mask: Any = None, *how: Any) -> list[Tensor]:
        results = [tensor.clone() for tensor in tensors]
        for i, begin in enumerate(indices.tolist()):
            if mask is None or mask[i]:
                axis = how[1] if how else -2
                results[i].narrow(axis, begin, updates.shape[1:][axis]).copy_(updates[i])
        return results

    yield Case("npu_scatter_list", [tensors, indices, r(3, 3, 1, 4)], formula)
    mask = torch.tensor([1, 0, 1], dtype=torch.uint8)
    turned = [t.transpose(1, 2) for t in tensors]
    yield Case("npu_scatter_list", [turned, indices // 2, r(3, 3, 4, 4), mask, "update", -1], formula)


def check_in_place(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Operators that change their arguments change them to what the others return, run by ``wrap(function)``."""
    import torch_npu

    names = ("npu_scatter_pa_kv_cache", "npu_gather_pa_kv_cache")
    found = [case for case in cases() if case.name.removesuffix("_functional") in names]
    for case in (found[0], found[-1], found[2]):
        name = case.name.removesuffix("_functional")
        args, changed = ([a.npu() for a in case.args] for _ in range(2))
        wanted = getattr(torch_npu, case.name)(*args, **case.keywords)
        assert wrap(getattr(torch_npu, name))(*changed, **case.keywords) is None
        places = slice(2, 4) if "scatter" in name else slice(4, 6)
        for one, other in zip(changed[places], wanted, strict=True):
            assert torch.equal(one, other), name
    rows, slots = torch.randn(3, 2, 8, device="npu"), torch.tensor([7, 0, 11]).npu()
    cache = torch.zeros(4, 3, 2, 8, device="npu")
    assert torch.equal(wrap(torch_npu.npu_scatter_pa_cache)(rows, slots, key_cache=cache).flatten(0, 1)[slots], rows)
    assert torch.equal(cache.flatten(0, 1)[slots], rows)

    sums, tensors = torch.zeros(4, 6, device="npu"), [torch.zeros(3, 7, device="npu")]
    weights = sums, torch.ones(4, 5, device="npu"), torch.ones(1, 1, 6, 5, device="npu"), torch.zeros(4).int().npu()
    wrap(torch_npu.npu_batch_gather_matmul_)(*weights, scale=2.0)
    wrap(torch_npu.npu_scatter_list_)(tensors, torch.tensor([2]).npu(), torch.ones(1, 1, 7, device="npu"))
    assert bool((sums == 10).all()) and tensors[0].sum(1).tolist() == [0, 0, 7]

    def state(*shape: int) -> list[Tensor]:
        return [torch.full(shape, 9, device="npu") for _ in range(4)]

    step = wrap(torch_npu.npu_advance_step_flashattn)
    tables = torch.tensor([[1, 2], [3, 4], [5, 6]]).npu()
    tokens, positions, lengths, slots = state(3)
    lengths.copy_(torch.tensor([3, 5, 8]))
    step(tokens, torch.tensor([[70], [71]]).npu(), positions, lengths, slots, tables, 3, 2, 4)
    assert tokens.tolist() == [70, 71, 0] and positions.tolist() == [3, 5, 0]
    assert lengths.tolist() == [4, 6, 8] and slots.tolist() == [1 * 4 + 3, 4 * 4 + 1, -1]
    tokens, positions, lengths, slots = state(3, 2)
    positions.copy_(torch.tensor([[0, 1], [2, 3], [4, 5]]))
    drawn, guesses, right = torch.tensor([[70, 80], [71, -1], [72, 82]]), torch.tensor([[1], [2], [3]]), [1, 0, 1]
    step(
        tokens,
        drawn.npu(),
        positions,
        lengths,
        slots,
        tables,
        3,
        3,
        4,
        spec_token=guesses.npu(),
        accepted_num=torch.tensor(right).npu(),
    )
    assert tokens.tolist() == [[80, 1], [71, 2], [82, 3]] and positions.tolist() == [[2, 3], [3, 4], [6, 7]]
    assert lengths.tolist() == [[3, 4], [4, 5], [7, 8]]
    assert slots.tolist() == [[1 * 4 + 2, 1 * 4 + 3], [3 * 4 + 3, 4 * 4 + 0], [6 * 4 + 2, 6 * 4 + 3]]


def check_draws() -> None:
    """Tokens that are drawn are out of the choice, by a generator, as often as their shares say."""
    import torch_npu

    scores = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(4000, -1).npu()
    k, p = torch.full((4000,), 3).int().npu(), torch.ones(4000, device="npu")

    def draw() -> Tensor:
        generator = torch.Generator("npu").manual_seed(5)
        return torch_npu.npu_top_k_top_p_sample(scores, k, p, post_sample="multiNomial", generator=generator)[0].cpu()

    tokens = draw()
    assert torch.equal(tokens, draw())
    shares = torch.bincount(tokens, minlength=4) / len(tokens)
    torch.testing.assert_close(shares, torch.tensor([2.0, 1.0, 0.0, -math.inf]).softmax(0), rtol=0, atol=0.03)
