# SPDX-License-Identifier: Apache-2.0
"""What operators of ``torch_npu`` compute, as documented: for each a call and its formula, to be computed in float64.

``python -m tests.profiles.npu_operators eager`` (or ``compiled``), under the profile ``npu``, compares each with its
formula, with its gradients and without CPU fallbacks. ``tests/profiles/test_npu_operators.py`` runs it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tests.profiles import npu_attention, npu_serving
from tests.profiles.npu_case import Case


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float, left_out: Tensor | None = None) -> Tensor:
    """Of tensors (batch, heads, sequence, size)."""
    if q.shape[1] != k.shape[1]:
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    if left_out is not None:
        scores = scores.masked_fill(left_out, -math.inf)
    return scores.softmax(-1) @ v


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat(
        (
            x[..., :half] * cos[..., :half] - x[..., half:] * sin[..., :half],
            x[..., half:] * cos[..., half:] + x[..., :half] * sin[..., half:],
        ),
        -1,
    )


def _rms(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    scale = 1 / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon)
    return x * scale * gamma, scale


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def _layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    scale = 1 / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + epsilon)
    return (x - mean) * scale * gamma + beta, mean, scale


def _group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
    parts = x.view(len(x), groups, -1)
    mean = parts.mean(-1, keepdim=True)
    parts = (parts - mean) / torch.sqrt(((parts - mean) ** 2).mean(-1, keepdim=True) + 1e-5)
    return parts.view(x.shape) * weight[:, None] + bias[:, None]


def _written(x: Tensor, places: Any, values: Tensor) -> Tensor:
    copy = x.clone()
    copy[places] = values
    return copy


def _scatter_update(x: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    copy = x.clone()
    for batch, begin in enumerate(indices.tolist()):
        copy[batch].narrow(axis, begin, updates.shape[axis]).copy_(updates[batch])
    return copy


def _sides(box: Tensor, centred: bool) -> tuple[Tensor, ...]:
    a, b, c, d = box
    return (a - c / 2, b - d / 2, a + c / 2, b + d / 2) if centred else (a, b, c, d)


def _pairwise(ours: Tensor, theirs: Tensor, centred: bool) -> dict[str, Tensor]:
    """Intersection over union, shares of hulls and distances of pairs of boxes (4, pairs)."""
    (a0, b0, a1, b1), (c0, d0, c1, d1) = _sides(ours, centred), _sides(theirs, centred)
    shared = (torch.minimum(a1, c1) - torch.maximum(a0, c0)).clamp(min=0)
    shared = shared * (torch.minimum(b1, d1) - torch.maximum(b0, d0)).clamp(min=0)
    joined = (a1 - a0) * (b1 - b0) + (c1 - c0) * (d1 - d0) - shared
    wide, high = torch.maximum(a1, c1) - torch.minimum(a0, c0), torch.maximum(b1, d1) - torch.minimum(b0, d0)
    apart = ((a0 + a1 - c0 - c1) ** 2 + (b0 + b1 - d0 - d1) ** 2) / 4
    angle = 4 / math.pi**2 * (torch.atan((c1 - c0) / (d1 - d0)) - torch.atan((a1 - a0) / (b1 - b0))) ** 2
    overlap = shared / joined
    return {
        "giou": overlap - (wide * high - joined) / (wide * high),
        "diou": overlap - apart / (wide**2 + high**2),
        "ciou": overlap - apart / (wide**2 + high**2) - angle * (angle / (1 - overlap + angle)).detach(),
    }


def _quantised(x: Tensor, low: int, high: int, dtype: torch.dtype) -> Tensor:
    return torch.round(x).clamp(low, high).to(dtype)


def _top_k_top_p(logits: Tensor, p: Tensor, k: Tensor) -> Tensor:
    result = torch.full_like(logits, -math.inf)
    for row, scores in enumerate(logits):
        order = scores.argsort(descending=True)[: int(k[row])]
        shares = scores[order].softmax(0)
        before = shares.cumsum(0) - shares
        kept = order[before < p[row]]
        result[row, kept] = scores[kept]
    return result


def _routed(x: Tensor, experts: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in the order of experts, where rows are numbered column by column; and each one's place."""
    flat = [
        (int(experts[row, column]), column * len(x) + row)
        for row in range(len(x))
        for column in range(experts.shape[1])
    ]
    flat.sort(key=lambda pair: pair[0])
    places = torch.empty(len(flat), dtype=torch.int32)
    for place, (_, row) in enumerate(flat):
        places[row] = place
    return torch.stack([x[row % len(x)] for _, row in flat]), places


def _permuted(tokens: Tensor, experts: Tensor) -> tuple[Tensor, Tensor]:
    order = sorted(range(experts.numel()), key=lambda i: int(experts.flatten()[i]))
    places = torch.empty(len(order), dtype=torch.int32)
    for place, i in enumerate(order):
        places[i] = place
    return tokens[[i // experts.shape[1] for i in order]], places


def _adam_w(p: Tensor, m: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    step = 0.1 / (torch.sqrt(v / (1 - 0.5 * 0.99)) + 1e-3) * m / (1 - 0.6 * 0.9)
    return p - step - 0.1 * 0.01 * p, m, v


def _adam(p: Tensor, m: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 0.1 * math.sqrt(1 - 0.5) / (1 - 0.6) * m / (torch.sqrt(v) + 1e-3), m, v


def _bert_adam(p: Tensor, m: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    g = g / 2
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 0.1 * (m / (torch.sqrt(v) + 1e-3) + 0.01 * p), m, v


def _routing_maps(dtype: torch.dtype) -> Iterator[Case]:
    """Rows to their experts and back, by maps of a dtype."""
    r = torch.randn
    tokens, shares = r(5, 6), r(5, 4)
    goes = torch.zeros(5, 4, dtype=torch.bool)
    for row, experts in enumerate(((0, 3), (1, 2), (0, 1), (2, 3), (1, 3))):
        goes[row, list(experts)] = True

    def mapped(x: Tensor, goes: Tensor, num_out_tokens: int, probs: Tensor | None = None) -> list[Tensor]:
        pairs = [(int(row), expert) for expert in range(4) for row in goes[:, expert].nonzero()]
        rows = torch.tensor([row for row, _ in pairs])
        taken = x.new_empty(0) if probs is None else torch.stack([probs[pair] for pair in pairs])
        return [x[rows], taken, torch.sort(rows, stable=True)[1].int()]

    def capped(x: Tensor, goes: Tensor, num_out_tokens: int, drop_and_pad: bool, probs: Tensor) -> list[Tensor]:
        pairs = []
        for expert in range(4):
            own = [row for row in range(5) if goes[row, expert]]
            others = [row for row in range(5) if not goes[row, expert]]
            pairs += [(row, expert) for row in (own + others)[: num_out_tokens // 4]]
        rows = torch.tensor([row for row, _ in pairs])
        return [x[rows], torch.stack([probs[pair] for pair in pairs]), rows.int()]

    name, where = "npu_moe_token_permute_with_routing_map", goes.to(dtype)
    yield Case(name, [tokens, where], mapped, {"num_out_tokens": 10})
    yield Case(name, [tokens, where], mapped, {"num_out_tokens": 10, "probs": shares})
    yield Case(name, [tokens, where], capped, {"num_out_tokens": 13, "probs": shares, "drop_and_pad": True})

    results, places = r(10, 6), mapped(tokens, goes, 10)[2]

    def summed(x: Tensor, places: Tensor, shape: list[int], probs: Any = None, **_: Any) -> Tensor:
        rows = []
        for row in range(5):
            experts = goes[row].nonzero().flatten().tolist()
            parts = [x[i] if i >= 0 else x[0] * 0 for i in places[row * 2 : row * 2 + 2].tolist()]
            weights = [1.0, 1.0] if probs is None else [probs[row, expert] for expert in experts]
            rows.append(parts[0] * weights[0] + parts[1] * weights[1])
        return torch.stack(rows)

    def added(x: Tensor, rows: Tensor, shape: list[int], probs: Any = None, **_: Any) -> Tensor:
        total = [x[0] * 0 for _ in range(5)]
        for i, row in enumerate(rows.tolist()):
            total[row] = total[row] + x[i] * (1 if probs is None else probs[row, i // 3])
        return torch.stack(total)

    name, unused = "npu_moe_token_unpermute_with_routing_map", places.clone()
    unused[3] = -1
    yield Case(name, [results, places, [5, 6]], summed)
    yield Case(name, [results, unused, [5, 6]], summed, {"probs": shares, "routing_map": where})
    rows = capped(tokens, goes, 13, True, shares)[2]
    yield Case(name, [r(12, 6), rows, [5, 6]], added, {"drop_and_pad": True})
    yield Case(name, [r(12, 6), rows, [5, 6]], added, {"drop_and_pad": True, "probs": shares})


def cases() -> Iterator[Case]:
    """All of them, on the CPU."""
    torch.manual_seed(0)
    r = torch.randn
    x, y, gamma, beta = r(4, 6, 32), r(4, 6, 32), r(32), r(32)

    for name in ("fast_gelu", "npu_fast_gelu"):
        yield Case(name, [x], lambda x: x * _sigmoid(1.702 * x))
    yield Case("npu_gelu", [x], _gelu)
    yield Case("npu_gelu", [x], lambda x, **_: _gelu_tanh(x), {"approximate": "tanh"})
    yield Case("npu_silu", [x], lambda x: x * _sigmoid(x))
    yield Case("npu_mish", [x], lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))))
    yield Case("npu_swiglu", [x], lambda x: x[..., :16] * _sigmoid(x[..., :16]) * x[..., 16:])
    yield Case("npu_swiglu", [x, 1], lambda x, _: x[:, :3] * _sigmoid(x[:, :3]) * x[:, 3:])
    yield Case("npu_geglu", [x], lambda x: (x[..., :16] * _gelu_tanh(x[..., 16:]), _gelu_tanh(x[..., 16:])))
    yield Case("npu_geglu", [x, -1, 0, True], lambda x, *_: (_gelu(x[..., :16]) * x[..., 16:], _gelu(x[..., :16])))
    yield Case("npu_gelu_mul", [x], lambda x: _gelu(x[..., :16]) * x[..., 16:])

    def clipped(x: Tensor, **_: Any) -> Tensor:
        a, b = x.flatten(1)[:, ::2].clamp(max=0.5), x.flatten(1)[:, 1::2].clamp(-0.5, 0.5)
        return (a * _sigmoid(1.702 * a) * (b + 1)).view(4, 3, 32)

    yield Case("npu_clipped_swiglu", [x], clipped, {"dim": 1, "limit": 0.5})

    sizes, kept = torch.tensor([2, 0, 3]), (torch.arange(8) < 5)[:, None]
    yield Case(
        "npu_clipped_swiglu",
        [r(8, 10)],
        lambda x, limit, interleaved, **_: torch.where(
            kept, (a := x[:, :5].clamp(max=limit)) * _sigmoid(1.702 * a) * (x[:, 5:].clamp(-limit, limit) + 1), 0.0
        ),
        {"group_index": sizes, "limit": 0.5, "interleaved": False},
    )

    yield Case("npu_rms_norm", [x, gamma, 1e-5], _rms)
    yield Case("npu_gemma_rms_norm", [x, gamma], lambda x, g: _rms(x, 1 + g))
    yield Case("npu_add_rms_norm", [x, y, gamma], lambda x, y, g: (*_rms(x + y, g), x + y))
    yield Case("npu_add_rms_norm_cast", [x, y, gamma], lambda x, y, g: (*_rms(x + y, g)[:1], *_rms(x + y, g), x + y))
    yield Case("npu_layer_norm_eval", [x, [32], gamma, beta], lambda x, _, g, b: _layer_norm(x, g, b, 1e-5)[0])
    yield Case(
        "npu_add_layer_norm",
        [x, y, gamma, beta, 1e-5, True],
        lambda x, y, g, b, *_: (*_layer_norm(x + y, g, b, 1e-5), x + y),
        gradients=False,
    )
    yield Case(
        "npu_deep_norm",
        [x, y, beta, gamma],
        lambda x, y, b, g: (*_layer_norm(0.3 * x + y, g, b, 1e-6)[1:], _layer_norm(0.3 * x + y, g, b, 1e-6)[0]),
        gradients=False,
    )
    weights = r(6), r(6)
    yield Case("npu_group_norm_silu", [x, *weights, 2], lambda *a: (n := _group_norm(*a)) * _sigmoid(n))
    yield Case(
        "npu_group_norm_swish",
        [x, 2, *weights, 1e-5, 0.7],
        lambda x, g, w, b, *_: (n := _group_norm(x, w, b, g)) * _sigmoid(0.7 * n),
    )

    q, k, v, cos, sin = r(2, 6, 4, 16), r(2, 6, 2, 16), r(2, 6, 2, 16), r(2, 6, 1, 16), r(2, 6, 1, 16)
    yield Case("npu_rotary_mul", [q, cos, sin], _turned)
    yield Case(
        "npu_rotary_mul",
        [q, cos, sin, "interleave"],
        lambda q, c, s, _: q * c + torch.stack((-q[..., 1::2], q[..., ::2]), -1).flatten(-2) * s,
    )
    yield Case("npu_rotary_mul", [q, cos, sin, "half", r(16, 16)], lambda q, c, s, _, m: q * c + q @ m * s)
    yield Case("npu_apply_rotary_pos_emb", [q, k, cos, sin], lambda q, k, c, s: (_turned(q, c, s), _turned(k, c, s)))
    yield Case(
        "npu_interleave_rope", [q, cos, sin], lambda q, c, s: _turned(torch.cat((q[..., ::2], q[..., 1::2]), -1), c, s)
    )
    cache, positions = r(9, 16), torch.tensor([3, 0, 8, 5])

    def mrope(positions: Tensor, q: Tensor, k: Tensor, cache: Tensor, size: int) -> tuple[Tensor, ...]:
        c, s = (torch.cat((part, part), -1)[:, None] for part in cache[positions].chunk(2, -1))
        return tuple(_turned(t.view(4, -1, size), c, s).view(t.shape) for t in (q, k))

    yield Case("npu_mrope", [positions, r(4, 64), r(4, 32), cache, 16], mrope)
    halves = [t.half() for t in (q, cos, sin)]
    yield Case("npu_rotary_mul", halves, _turned, gradients=False, tolerance=6e-4)

    def of_three(
        places: Tensor, q: Tensor, k: Tensor, cache: Tensor, size: int, mrope_section: list[int], **how: Any
    ) -> Any:
        first, second, _ = mrope_section
        if how["cache_mode"] == "interleave":
            follows = [i % 3 if i < 3 * second else 0 for i in range(8)]
        else:
            follows = [0 if i < first else 1 if i < first + second else 2 for i in range(8)]
        halves = [torch.stack([t[places[f], i] for i, f in enumerate(follows)], -1) for t in cache.chunk(2, -1)]
        c, s = (torch.cat((part, part), -1)[:, None] for part in halves)
        return tuple(_turned(t.view(4, -1, size), c, s).view(t.shape) for t in (q, k))

    for mode in ("default", "interleave"):
        yield Case(
            "npu_mrope",
            [torch.randint(0, 9, (3, 4)), r(4, 64), r(4, 32), cache, 16],
            of_three,
            {"mrope_section": [3, 2, 3], "cache_mode": mode},
        )

    bnsd = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    rows = [tensor.flatten(2) for tensor in (q, k, v)]
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    yield from npu_attention.cases(q, k, v)

    def shortened(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        result = torch.zeros_like(q)
        for i, (rows, columns) in enumerate(((6, 3), (2, 6))):
            result[i, :, :rows] = _attention(
                q[i : i + 1, :, :rows], k[i : i + 1, :, :columns], v[i : i + 1, :, :columns], 0.25
            )[0]
        return result

    yield Case(
        "npu_prompt_flash_attention",
        bnsd,
        shortened,
        {
            "num_heads": 4,
            "num_key_value_heads": 2,
            "scale_value": 0.25,
            "input_layout": "BNSD",
            "actual_seq_lengths": [6, 2],
            "actual_seq_lengths_kv": [3, 6],
        },
    )
    yield Case(
        "npu_prompt_flash_attention",
        rows,
        lambda q, k, v, **_: (
            _attention(_heads(q, 4), _heads(k, 2), _heads(v, 2), 1.0, causal).transpose(1, 2).flatten(2)
        ),
        {"num_heads": 4, "num_key_value_heads": 2, "atten_mask": causal},
    )
    blocks, table = (r(4, 3, 32), r(4, 3, 32)), torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)

    def paged(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        results = []
        for i, length in enumerate((5, 3)):
            keys, values = (_heads(t[table[i]].flatten(0, 1)[None, :length], 2) for t in (k, v))
            results.append(_attention(_heads(q[i : i + 1], 4), keys, values, 0.25).transpose(1, 2).flatten(2))
        return torch.cat(results)

    yield Case(
        "npu_incre_flash_attention",
        [r(2, 1, 64), *blocks],
        paged,
        {
            "num_heads": 4,
            "num_key_value_heads": 2,
            "scale_value": 0.25,
            "block_table": table,
            "block_size": 3,
            "actual_seq_lengths": [5, 3],
        },
    )
    yield Case(
        "npu_fused_infer_attention_score",
        [r(2, 1, 64), *blocks],
        paged,
        {
            "num_heads": 4,
            "num_key_value_heads": 2,
            "scale": 0.25,
            "block_table": table,
            "actual_seq_lengths_kv": [5, 3],
        },
    )

    def joined_rows(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        results = []
        for i, (begin, end, length) in enumerate(((0, 3, 5), (3, 5, 3))):
            keys, values = (_heads(t[table[i]].flatten(0, 1)[None, :length], 2) for t in (k, v))
            left_out = torch.ones(end - begin, length, dtype=torch.bool).triu(length - (end - begin) + 1)
            results.append(
                _attention(q[begin:end].transpose(0, 1)[None], keys, values, 0.25, left_out)[0].transpose(0, 1)
            )
        return torch.cat(results)

    yield Case(
        "npu_fused_infer_attention_score",
        [r(5, 4, 16), *blocks],
        joined_rows,
        {
            "num_heads": 4,
            "num_key_value_heads": 2,
            "scale": 0.25,
            "block_table": table,
            "actual_seq_lengths": [3, 5],
            "actual_seq_lengths_kv": [5, 3],
            "input_layout": "TND",
            "sparse_mode": 3,
            "atten_mask": causal,
        },
    )
    yield Case(
        "npu_fused_infer_attention_score_v2",
        bnsd,
        shortened,
        {
            "num_query_heads": 4,
            "num_key_value_heads": 2,
            "softmax_scale": 0.25,
            "input_layout": "BNSD",
            "actual_seq_qlen": [6, 2],
            "actual_seq_kvlen": [3, 6],
        },
    )
    yield Case(
        "npu_scaled_masked_softmax",
        [r(2, 3, 6, 6), causal, 0.5],
        lambda x, m, s: (x * s).masked_fill(m, -10000).softmax(-1),
    )
    first, second = (r(8), r(8)), (r(8, 4), r(8, 4))

    def joined(lse: list[Tensor], parts: list[Tensor], *_: Any) -> tuple[Tensor, Tensor]:
        total = torch.log(torch.exp(lse[0]) + torch.exp(lse[1]))
        return sum(p * torch.exp(s - total)[:, None] for p, s in zip(parts, lse, strict=True)), total

    yield Case("npu_attention_update", [list(first), list(second), 1], joined)
    parts = [_attention(*(t.transpose(1, 2) for t in (q, k[:, s], v[:, s])), 0.25) for s in (slice(4), slice(4, 6))]
    largest, totals = [], []
    for s in (slice(4), slice(4, 6)):
        scores = bnsd[0] @ bnsd[1][:, :, s].repeat_interleave(2, 1).transpose(-1, -2) * 0.25
        largest.append(scores.amax(-1, keepdim=True).expand(-1, -1, -1, 8))
        totals.append((scores - largest[-1][..., :1]).exp().sum(-1, keepdim=True).expand(-1, -1, -1, 8))
    sbh = [part.permute(2, 0, 1, 3).flatten(2) for part in parts]
    whole = _attention(*bnsd, 0.25).permute(2, 0, 1, 3).flatten(2).double()
    yield Case(
        "npu_ring_attention_update",
        [sbh[0], largest[0], totals[0], sbh[1], largest[1], totals[1]],
        lambda *_: whole,
        gradients=False,
    )

    a, w, b = r(6, 8), r(3, 8, 5), r(3, 5)
    yield Case("npu_linear", [a, r(5, 8), r(5)], lambda a, w, b: a @ w.T + b)
    yield Case("npu_bmmV2", [r(3, 6, 8), w, []], lambda a, w, _: a @ w)
    yield Case(
        "npu_transpose_batchmatmul",
        [r(6, 3, 8), w],
        lambda a, w, **_: (a.transpose(0, 1) @ w).transpose(0, 1),
        {"perm_x1": [1, 0, 2], "perm_y": [1, 0, 2]},
    )
    yield Case(
        "npu_grouped_matmul",
        [[a, r(2, 8)], [w[0], w[1]]],
        lambda a, w, bias: [p @ m + n for p, m, n in zip(a, w, bias, strict=True)],
        {"bias": [b[0], b[1]]},
        gradients=False,
    )
    ends = torch.tensor([2, 2, 6])
    grouped = lambda a, w: [a[:2] @ w[0], a[2:2] @ w[1], a[2:] @ w[2]]  # noqa: E731
    yield Case(
        "npu_grouped_matmul",
        [[a], [w]],
        lambda a, w, **_: grouped(a[0], w[0]),
        {"group_list": ends, "group_type": 0},
        whole=False,
    )
    yield Case(
        "npu_grouped_matmul",
        [[a], [w]],
        lambda a, w, bias, **_: torch.cat(grouped(a[0], w[0])) + bias[0][[0, 0, 2, 2, 2, 2]],
        {"bias": [b], "group_list": torch.tensor([2, 0, 4]), "group_type": 0, "group_list_type": 1, "split_item": 3},
        gradients=False,
        whole=False,
    )
    add = lambda t, a, c, _: t + torch.stack([a[:2].T @ c[:2], a[2:2].T @ c[2:2], a[2:].T @ c[2:]])  # noqa: E731
    yield Case("npu_grouped_matmul_add", [r(3, 8, 5), a, r(6, 5), ends], add, whole=False)
    two = r(8, 12), r(6, 8)
    yield Case(
        "npu_ffn", [a, *two, "swiglu"], lambda a, u, v, _: ((h := a @ u)[:, :6] * _sigmoid(h[:, :6]) * h[:, 6:]) @ v
    )
    yield Case(
        "npu_ffn",
        [a, r(3, 8, 7), r(3, 7, 8), "relu"],
        lambda a, u, v, _, **__: torch.cat(
            [F.relu(a[s] @ u[i]) @ v[i] for i, s in enumerate((slice(2), slice(2, 2), slice(2, 6)))]
        ),
        {"expert_tokens": [2, 0, 4]},
    )
    bytes_of_two = [torch.randint(-9, 9, shape, dtype=torch.int8) for shape in ((2, 8, 7), (2, 7, 8))]
    by, more = (torch.rand(2, 7), torch.rand(2, 8)), (r(2, 7), r(2, 8))

    def of_integers(x: Tensor, u: Tensor, v: Tensor, _: str, **k: Any) -> Tensor:
        u = (u + k["antiquant_offset1"][:, None]) * k["antiquant_scale1"][:, None]
        v = (v + k["antiquant_offset2"][:, None]) * k["antiquant_scale2"][:, None]
        return torch.cat([F.relu(x[s] @ u[i]) @ v[i] for i, s in enumerate((slice(4), slice(4, 6)))])

    yield Case(
        "npu_ffn",
        [a, *bytes_of_two, "relu"],
        of_integers,
        {
            "expert_tokens_index": [4, 6],
            "antiquant_scale1": by[0],
            "antiquant_scale2": by[1],
            "antiquant_offset1": more[0],
            "antiquant_offset2": more[1],
        },
    )
    bytes_, scales = torch.randint(-128, 127, (6, 8), dtype=torch.int8), (torch.rand(7) / 100, torch.rand(8) / 100)
    yield Case(
        "npu_ffn",
        [bytes_, bytes_of_two[0][0], bytes_of_two[1][0], "silu"],
        lambda x, u, v, _, scale, offset, **__: (
            _quantised(
                (h := (x.double() @ u.double()) * scales[0]) * _sigmoid(h) * scale + offset, -128, 127, torch.int8
            ).double()
            @ v.double()
            * scales[1]
        ),
        {
            "scale": torch.tensor([9.0]),
            "offset": torch.tensor([1.25]),  # where silu is nearly zero, no tie of the rounding
            "deq_scale1": scales[0],
            "deq_scale2": scales[1],
            "output_dtype": torch.float32,
        },
        gradients=False,
    )
    half = [r(6, 8).half(), r(6, 5).half()]
    yield Case(
        "npu_grouped_matmul_add",
        [r(16, 5), *half, torch.tensor([2, 6])],
        lambda y, x, w, _: y + torch.cat([x[:2].T @ w[:2], x[2:].T @ w[2:]]),
        gradients=False,
        whole=False,
    )
    image, kernel = r(2, 4, 7, 7), r(6, 2, 3, 3)
    for name in ("npu_convolution", "npu_conv2d"):
        yield Case(name, [image, kernel, r(6), [2, 1], [1, 0], [1, 1], 2], F.conv2d)
    yield Case("npu_conv3d", [r(1, 2, 5, 5, 5), r(3, 2, 2, 2, 2), None, [1] * 3, [0] * 3, [1] * 3, 1], F.conv3d)

    def transposed(x: Tensor, w: Tensor, b: Tensor, padding: Any, more: Any, stride: Any, *last: Any) -> Tensor:
        return F.conv_transpose2d(x, w, b, stride, padding, more, last[1], last[0])

    for name in ("npu_convolution_transpose", "npu_conv_transpose2d"):
        yield Case(name, [image, r(4, 3, 3, 3), r(6), [1, 1], [0, 1], [2, 2], [1, 1], 2], transposed)

    yield Case("npu_transpose", [x, [2, 0, 1]], lambda x, _: x.permute(2, 0, 1))
    yield Case("npu_broadcast", [r(6, 1), [4, 6, 3]], lambda x, s: x.expand(s))
    yield Case("npu_reshape", [x, [8, 96]], lambda x, s: x.reshape(s))
    yield Case("npu_slice", [x, [1, 2, 0], [2, 3, 5]], lambda x, *_: x[1:3, 2:5, :5])
    yield Case(
        "npu_confusion_transpose", [x, [0, 2, 1], [4, 192], True], lambda x, *_: x.transpose(1, 2).reshape(4, 192)
    )
    yield Case("npu_confusion_transpose", [x, [1, 0], [24, 32], False], lambda x, *_: x.reshape(24, 32).T)
    yield Case(
        "npu_stride_copy",
        [x, [3, 5], [7, 2], 4],
        lambda x, *_: x.flatten()[4 + torch.arange(3)[:, None] * 7 + torch.arange(5) * 2],
    )
    yield Case(
        "npu_pad",
        [a, [1, 0, 2, 3]],
        lambda a, _: torch.cat((a.new_zeros(1, 13), torch.cat((a.new_zeros(6, 2), a, a.new_zeros(6, 3)), 1))),
    )
    yield Case(
        "npu_one_hot",
        [torch.tensor([5, 3, 2, 1])],
        lambda x, depth: torch.eye(6, dtype=torch.float64)[x, :5],
        {"depth": 5},
    )
    yield Case(
        "npu_one_hot",
        [torch.tensor([[0, 2]]), 1, 3, 5.0, -1.0],
        lambda *_: torch.tensor([[[5.0, -1], [-1, -1], [-1, 5]]]).double(),
    )
    yield Case("npu_sort_v2", [x], lambda x: x.sort(-1).values)
    yield Case("npu_max", [x, 1], lambda x, d: ((m := x.max(d)).values, m.indices.int()))
    yield Case("npu_min", [x, -1, True], lambda x, d, keep: ((m := x.min(d, keep)).values, m.indices.int()))
    yield Case("npu_dtype_cast", [x, torch.float64], lambda x, _: x)
    yield Case("npu_format_cast", [x, 29], lambda x, _: x)
    places = torch.tensor([[1, 5], [0, 2], [3, 0]])
    yield Case("npu_scatter_nd_update", [x, places, r(3, 32)], lambda x, i, u: _written(x, (i[:, 0], i[:, 1]), u))
    yield Case("npu_scatter_nd_update", [x, places[:, :1], r(3, 6, 32)], lambda x, i, u: _written(x, i[:, 0], u))
    yield Case("npu_gather_sparse_index", [x, torch.tensor([[0, 3], [2, 2]])], lambda x, i: x[i])
    yield Case("scatter_update", [x, torch.tensor([0, 3, 1, 4]), r(4, 2, 32), -2], _scatter_update)
    begins, stops = torch.tensor([[0, 1, 2]]), torch.tensor([[1, 3, 3]])

    def filled(x: Tensor, begins: Tensor, stops: Tensor, value: Tensor, _: int) -> Tensor:
        copy = x.clone()
        for row in range(3):
            copy[row, begins[0, row] : stops[0, row]] = value[0]
        return copy

    yield Case("npu_masked_fill_range", [a, begins, stops, torch.tensor([7.0]), 1], filled, gradients=False)
    signs = torch.tensor([5, 4, 3, 2, 0, -1, -2, 4, 3, 2, 1, 0, -1, -2.0])
    yield Case(
        "npu_sign_bits_pack", [signs, 2], lambda *_: torch.tensor([[159], [15]], dtype=torch.uint8), gradients=False
    )
    bits = torch.tensor([159, 15], dtype=torch.uint8)
    yield Case(
        "npu_sign_bits_unpack",
        [bits, 1, torch.float32],
        lambda *_: torch.tensor([[1.0, 1, 1, 1, 1, -1, -1, 1, 1, 1, 1, 1, -1, -1, -1, -1]]).double(),
    )
    for name in ("npu_alloc_float_status", "npu_get_float_status", "npu_clear_float_status"):
        yield Case(name, [x], lambda _: torch.zeros(8).double(), gradients=False)

    corners = torch.tensor([[0, 0, 10, 10], [10, 10, 20, 20], [32, 32, 38, 42.0]])
    true = torch.tensor([[0, 0, 10, 20], [0, 10, 10, 20], [10, 10, 20, 20.0]])
    for name in ("npu_iou", "npu_ptiou"):
        yield Case(
            name,
            [corners, true],
            lambda *_: torch.tensor([[0.5, 0, 0], [0, 0, 0], [0, 1, 0]]).double(),
            gradients=False,
        )
    yield Case(
        "npu_iou",
        [corners, true, 1],
        lambda *_: torch.tensor([[0.5, 0, 0], [0, 0, 0], [0, 1, 0]]).double(),
        gradients=False,
    )
    pairs = (torch.rand(4, 10) + 0.5, torch.rand(4, 10) + 0.5)
    for kind in ("giou", "diou", "ciou"):
        yield Case(
            f"npu_{kind}", [*pairs, True, False], lambda a, b, *_, kind=kind: _pairwise(a, b, True)[kind][:, None]
        )
    anchors, wanted = torch.tensor([[1.0, 2, 3, 4], [3, 4, 5, 6]]), torch.tensor([[5.0, 6, 7, 8], [7, 8, 9, 6]])
    coded = torch.tensor([[4 / 0.3, 4 / 0.3, 0, 0], [4 / 0.3, 2 / 0.3, 0, math.log(1 / 3) / 0.2]]).double()
    yield Case(
        "npu_bounding_box_encode", [anchors, wanted, 0, 0, 0, 0, 0.1, 0.1, 0.2, 0.2], lambda *_: coded, gradients=False
    )
    crowd = torch.tensor([[0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30], [0, 0, 10, 9], [21, 21, 31, 31.0]])
    scores = torch.tensor([0.8, 0.9, 0.3, 0.7, 0.6])
    yield Case(
        "npu_nms_v4",
        [crowd, scores, 4, torch.tensor(0.5), torch.tensor(0.1), True],
        lambda *_: (torch.tensor([1, 4, 0, 0], dtype=torch.int32), torch.tensor(2, dtype=torch.int32)),
        gradients=False,
        whole=False,
    )
    images, shares = torch.stack((crowd, crowd.flip(0)))[:, :, None], torch.stack((scores, scores.flip(0)))[..., None]
    best = torch.stack((crowd[[1, 4]], crowd[[1, 4]]))
    yield Case(
        "npu_batch_nms",
        [images, shares, 0.4, 0.5, 3, 3],
        lambda *_: (
            F.pad(best, [0, 0, 0, 1]).double(),
            torch.tensor([[0.9, 0.6, 0], [0.9, 0.6, 0]]).double(),
            torch.zeros(2, 3).double(),
            torch.tensor([2, 2], dtype=torch.int32),
        ),
        gradients=False,
        whole=False,
    )
    with_scores = torch.cat((crowd, scores[:, None], torch.zeros(5, 2)), 1)
    yield Case(
        "npu_nms_with_mask",
        [with_scores, 0.5],
        lambda x, _: (x[:, :5], torch.arange(5, dtype=torch.int32), torch.tensor([1, 0, 1, 0, 0], dtype=torch.uint8)),
        gradients=False,
        whole=False,
    )

    scores = r(5, 8)

    def gated(x: Tensor, _: Any, k: int) -> tuple[Tensor, ...]:
        shares, experts = x.softmax(-1).topk(k)
        return shares, experts.int(), torch.arange(5 * k, dtype=torch.int32).view(k, 5).T

    yield Case("npu_moe_gating_top_k_softmax", [scores, None, 3], gated)
    yield Case(
        "npu_moe_gating_top_k_softmax_v2",
        [scores],
        lambda x, k, renorm: ((t := x.topk(k)).values.softmax(-1), t.indices.int()),
        {"k": 3, "renorm": 1},
    )
    biases = r(8)

    def grouped_choice(x: Tensor, k: int, bias: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        shares = _sigmoid(x)
        chosen = []
        for row in (shares + bias).view(5, 4, 2):
            best = row.sum(-1).topk(2).indices
            chosen.append(
                torch.stack([row[g] if g in best else torch.full_like(row[g], -math.inf) for g in range(4)])
                .flatten()
                .topk(k)
                .indices
            )
        experts = torch.stack(chosen)
        picked = shares.gather(-1, experts)
        return picked / picked.sum(-1, keepdim=True) * 2.5, experts.int()

    yield Case(
        "npu_moe_gating_top_k",
        [scores, 3],
        grouped_choice,
        {
            "bias": biases,
            "k_group": 2,
            "group_count": 4,
            "group_select_mode": 1,
            "norm_type": 1,
            "routed_scaling_factor": 2.5,
        },
    )
    experts = torch.tensor([[0, 4], [4, 3], [4, 2], [1, 1], [3, 0]])
    tokens, numbers = r(5, 6), torch.arange(10, dtype=torch.int32).view(2, 5).T.contiguous()
    moved, order = _routed(tokens, experts)
    yield Case(
        "npu_moe_init_routing",
        [tokens, numbers, experts.int(), 5],
        lambda x, _, e, __: (*_routed(x, e), e.flatten().sort().values),
    )
    yield Case(
        "npu_moe_compute_expert_tokens",
        [torch.tensor([0, 0, 0, 1, 1, 3], dtype=torch.int32), 4],
        lambda *_: torch.tensor([3, 5, 5, 6], dtype=torch.int32),
    )

    def finalized(
        rows: Tensor, one: Tensor, two: Tensor, bias: Tensor, scales: Tensor, places: Tensor, experts: Tensor, *_: Any
    ) -> Tensor:
        result = one + two
        for i in range(5):
            for j in range(2):
                added = scales[i, j] * (rows[places[i + j * 5]] + bias[experts[i, j]])
                result = torch.cat((result[:i], (result[i] + added)[None], result[i + 1 :]))
        return result

    yield Case("npu_moe_finalize_routing", [moved, r(5, 6), r(5, 6), r(5, 6), r(5, 2), order, experts.int()], finalized)
    yield Case("npu_moe_token_permute", [tokens, experts], _permuted)
    permuted, back = _permuted(tokens, experts)
    yield Case(
        "npu_moe_token_unpermute",
        [permuted, back, r(5, 2)],
        lambda t, i, p: (t[i.long()].view(5, 2, -1) * p[..., None]).sum(1),
    )
    for dtype in (torch.bool, torch.int8):
        yield from _routing_maps(dtype)
    counts = torch.tensor([[2, 0, 1], [1, 3, 2]], dtype=torch.int32)

    def regrouped(x: Tensor, counts: Tensor, per_token_scales: Tensor | None = None) -> list[Tensor]:
        begins, order = [0, *counts.flatten().cumsum(0).tolist()], []
        for expert in range(3):
            for rank in range(2):
                begin = begins[rank * 3 + expert]
                order += range(begin, begin + int(counts[rank, expert]))
        scales = torch.zeros(len(x)) if per_token_scales is None else per_token_scales[order]
        return [x[order], scales, torch.tensor(order, dtype=torch.int32), counts.sum(0)]

    yield Case("npu_moe_re_routing", [r(9, 4), counts], regrouped)
    yield Case("npu_moe_re_routing", [r(9, 4), counts.long()], regrouped, {"per_token_scales": r(9)})
    yield Case(
        "npu_top_k_top_p",
        [scores, torch.tensor([0.5, 0.9, 0.3, 1.0, 0.7]), torch.tensor([5, 8, 2, 3, 4], dtype=torch.int32)],
        _top_k_top_p,
        gradients=False,
    )

    scale, zero = torch.rand(32) + 0.1, torch.randint(-3, 3, (32,)).float()
    yield Case(
        "npu_quantize",
        [x, scale, zero, torch.qint8, 2],
        lambda x, s, z, *_: _quantised(x / s + z, -128, 127, torch.int8),
        gradients=False,
    )
    yield Case(
        "npu_quantize",
        [x, scale, None, torch.quint8, -1, False],
        lambda x, s, *_: _quantised(x * s, 0, 255, torch.uint8),
        gradients=False,
    )
    small = torch.randint(-128, 127, (6, 32), dtype=torch.int8)
    yield Case(
        "npu_anti_quant",
        [small, scale],
        lambda x, s, offset, **_: (x + offset) * s,
        {"offset": zero, "dst_dtype": torch.float32},
        gradients=False,
    )
    yield Case(
        "npu_dynamic_quant",
        [x],
        lambda x: (_quantised(x / (s := x.abs().amax(-1) / 127)[..., None], -128, 127, torch.int8), s),
        gradients=False,
    )

    def asymmetric(x: Tensor) -> tuple[Tensor, ...]:
        scale = (x.amax(-1) - x.amin(-1)) / 255
        offset = 127 - x.amax(-1) / scale
        return _quantised(x / scale[..., None] + offset[..., None], -128, 127, torch.int8), scale, offset

    yield Case("npu_dynamic_quant_asymmetric", [x], asymmetric, gradients=False)
    left, right = (
        torch.randint(-128, 127, (6, 32), dtype=torch.int8),
        torch.randint(-128, 127, (32, 8), dtype=torch.int8),
    )
    columns, by_row = torch.rand(8) / 1000, torch.rand(6)
    product = left.double() @ right.double()
    yield Case(
        "npu_quant_matmul",
        [left, right, columns],
        lambda a, b, s: _quantised(product * s, -128, 127, torch.int8),
        gradients=False,
    )
    yield Case(
        "npu_quant_matmul",
        [left, right, columns],
        lambda a, b, s, bias, pertoken_scale, **_: product * s * pertoken_scale[:, None] + bias,
        {"pertoken_scale": by_row, "bias": r(8), "output_dtype": torch.float32},
        gradients=False,
    )
    packed = torch.tensor([0.5, 0.25, 1, 2, 0.125, 0.75, 1.5, 3.0])
    numbers64 = packed.view(torch.int32).long()
    yield Case("npu_trans_quant_param", [packed], lambda _: numbers64, gradients=False)
    yield Case(
        "npu_quant_matmul",
        [left, right, numbers64],
        lambda *_, **__: product * packed,
        {"output_dtype": torch.float32},
        gradients=False,
    )
    yield Case(
        "npu_weight_quant_batchmatmul",
        [r(6, 32), right, torch.rand(2, 8), r(2, 8)],
        lambda x, w, s, o, **_: x @ ((w + o.repeat_interleave(16, 0)) * s.repeat_interleave(16, 0)),
        {"antiquant_group_size": 16},
        gradients=False,
    )

    target = torch.tensor([3, 0, 7, 2, -100])
    yield Case(
        "npu_cross_entropy_loss",
        [scores, target],
        lambda x, t: ((logs := x.log_softmax(-1))[torch.arange(4), t[:4]].neg().mean().view(1), logs),
    )
    yield Case(
        "npu_softmax_cross_entropy_with_logits",
        [scores, scores.softmax(-1)],
        lambda x, s: -(s * x.log_softmax(-1)).sum(-1),
    )

    def by_part(x: Tensor, w: Tensor, target: Tensor, first: int, last: int, logits: bool) -> list[Tensor]:
        scores = x @ w.T
        largest = scores.amax(-1)
        below, elsewhere = scores - largest[:, None], (target < first) | (target > last)
        places = torch.where(elsewhere, 0, target - first)
        predicted = torch.where(elsewhere, 0, below[torch.arange(len(x)), places.long()])
        bits = [*elsewhere.tolist(), *([True] * (-len(x) % 8))]
        packed = [sum(bit << j for j, bit in enumerate(bits[i : i + 8])) for i in range(0, len(bits), 8)]
        exact = [largest, below.exp().sum(-1), predicted, torch.tensor(packed, dtype=torch.uint8), places]
        return [*exact, scores if logits else scores[:0, 0]]

    x, w, classes = r(11, 6), r(9, 6), torch.randint(0, 30, (11,), dtype=torch.int32)
    yield Case("npu_fused_linear_online_max_sum", [x, w, classes, 10, 18, True], by_part)
    yield Case("npu_fused_linear_online_max_sum", [x, w, classes.long() % 9, 0, 8, False], by_part)
    yield Case(
        "npu_fused_linear_online_max_sum",
        [x.half(), w.half(), classes, 10, 18, True],
        by_part,
        gradients=False,
        tolerance=5e-3,
    )
    rows = r(5), torch.rand(5) + 1, r(5)
    yield Case(
        "npu_fused_cross_entropy_loss_with_max_sum", [*rows], lambda _, total, x: (torch.log(total) - x, x.new_empty(0))
    )
    yield Case(
        "npu_fused_cross_entropy_loss_with_max_sum",
        [*rows],
        lambda m, total, x, vocab_parallel_logits: (
            torch.log(total) - x,
            torch.exp(vocab_parallel_logits - m[:, None]) / total[:, None],
        ),
        {"vocab_parallel_logits": r(5, 8)},
    )

    def three() -> list[Tensor]:
        return [r(7), r(7), torch.rand(7)]

    yield from npu_serving.cases()
    g = r(7)
    yield Case(
        "npu_apply_adam",
        [0.6, 0.5, 0.1, 0.9, 0.99, 1e-3, g, False, False],
        lambda *a, out: _adam(*out, a[6]),
        {"out": three()},
        gradients=False,
    )
    yield Case(
        "npu_apply_adam_w",
        [0.6, 0.5, 0.1, 0.01, 0.9, 0.99, 1e-3, g, None, False, False],
        lambda *a, out: _adam_w(*out, a[7]),
        {"out": three()},
        gradients=False,
    )
    yield Case(
        "npu_bert_apply_adam",
        [0.1, 0.9, 0.99, 1e-3, g, 1.0, 2.0, 0.01],
        lambda *a, out: _bert_adam(*out, a[4]),
        {"out": three()},
        gradients=False,
    )


def _on_device(case: Case) -> tuple[list[Any], dict[str, Any]]:
    """Copies of the arguments on the device, of which numbers with a fraction take gradients if they have any."""

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to("npu", copy=True).requires_grad_(case.gradients and value.is_floating_point())

    return tree_map(move, (case.args, case.keywords))


def _exact(case: Case) -> tuple[list[Any], dict[str, Any]]:
    def widen(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return value.double().requires_grad_(case.gradients)

    return tree_map(widen, (case.args, case.keywords))


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _weighted_sum(results: list[Tensor]) -> Tensor:
    """A number that depends on each element of the results in another way."""
    parts = [result for result in results if result.requires_grad]
    return sum((part * torch.linspace(0.5, 1.5, part.numel()).to(part).view(part.shape)).sum() for part in parts)


def _gradients(total: Tensor, arguments: Any) -> list[Tensor]:
    """Gradients by all arguments that take any."""
    leaves = [leaf for leaf in _tensors(arguments) if leaf.requires_grad]
    return list(torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)) if leaves else []


def _compare(ours: list[Tensor], exact: list[Tensor], what: str, tolerance: float = 2e-5) -> None:
    assert len(ours) >= len(exact), what
    for one, other in zip(ours, exact, strict=False):
        one = one.detach().cpu()
        assert one.shape == other.shape, (what, one.shape, other.shape)
        assert one.is_floating_point() == other.is_floating_point(), (what, one.dtype, other.dtype)
        one, other = (one, other) if one.is_floating_point() else (one.long(), other.long())
        torch.testing.assert_close(
            one.double(), other.detach().double(), rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}"
        )


def _check(chosen: list[Case], arguments: list[Any], results: list[Any], how: str) -> None:
    """Compares results of calls with these arguments, and their gradients, with the cases' formulas."""
    exact = [_exact(case) for case in chosen]
    wanted = [_tensors(case.formula(*args, **keywords)) for case, (args, keywords) in zip(chosen, exact, strict=True)]
    ours = [_tensors(result)[: len(one)] for result, one in zip(results, wanted, strict=True)]
    for case, result, one in zip(chosen, ours, wanted, strict=True):
        _compare(result, one, f"{case.name} {how}", case.tolerance)
    places = [i for i, case in enumerate(chosen) if case.gradients]
    pairs = ([values[i] for i in places] for values in (ours, arguments, wanted, exact))
    our_results, our_arguments, exact_results, exact_arguments = pairs
    if not places:
        return
    found = _gradients(_weighted_sum(_tensors(our_results)), our_arguments)
    _compare(found, _gradients(_weighted_sum(_tensors(exact_results)), exact_arguments), f"gradients {how}")


def check_in_place() -> None:
    """Operators that change their first argument return it, with what the others compute."""
    import torch_npu

    x, values = torch.randn(4, 6, device="npu"), torch.randn(4, 6, device="npu")
    places, rows, starts = (
        torch.tensor([[1], [3]]).npu(),
        torch.randn(2, 6, device="npu"),
        torch.tensor([0, 2, 1, 4]).npu(),
    )
    ends = torch.tensor([2, 4]).npu()
    calls: dict[str, tuple[list[Any], Tensor]] = {
        "npu_silu_": ([], torch_npu.npu_silu(x)),
        "npu_scatter_nd_update_": ([places, rows], torch_npu.npu_scatter_nd_update(x, places, rows)),
        "scatter_update_": ([starts, values[:, :2], 1], torch_npu.scatter_update(x, starts, values[:, :2], 1)),
        "npu_format_cast_": ([29], x.clone()),
        "npu_dtype_cast_": ([values], values),
        "copy_memory_": ([values], values),
        "npu_view_copy": ([values, False], values),
        "one_": ([], torch.ones_like(x)),
    }
    for name, (arguments, wanted) in calls.items():
        for function in (getattr(torch_npu, name), getattr(torch.ops.npu, name)):
            changed = x.clone()
            assert function(changed, *arguments).data_ptr() == changed.data_ptr(), name
            torch.testing.assert_close(changed, wanted, msg=name)
    sums = torch.zeros(2, 6, 6, device="npu")
    wanted = torch_npu.npu_grouped_matmul_add(sums, x, values, ends)
    torch.testing.assert_close(torch_npu.npu_grouped_matmul_add_(sums, x, values, ends), wanted)
    torch.testing.assert_close(sums, wanted)
    assert torch_npu.npu_format_cast_(x, values) is x and torch.equal(x, values)
    for make in (torch_npu.empty_with_format, torch_npu.unsafe_empty_with_format):
        made = make([2, 3], dtype=torch.float16)
        assert made.shape == (2, 3) and made.is_npu and made.dtype == torch.float16
    torch.manual_seed(0)
    drawn = torch_npu.npu_sim_exponential_(x.clone(), 2.0)
    torch.manual_seed(0)
    assert torch.equal(drawn, x.clone().exponential_(2.0)) and torch_npu.npu_prefetch(x, None, 8) is None
    assert torch_npu.get_npu_format(x) == 2 and torch_npu.get_storage_size(x) == 24


def _ends(every: list[Case], name: str) -> list[Case]:
    """The first and the last case of an operator."""
    own = [case for case in every if case.name == name]
    return [own[0], own[-1]] if len(own) > 1 else own


def main(how: str, part: int = 0, parts: int = 1) -> None:
    """Checks every case eagerly, as a function and as ``torch.ops.npu``; or each one's first and last, compiled.

    Args:
        part: which of so many parts of the operators are called.
    """
    import torch_npu

    every = list(cases())
    if how == "eager":
        names = set(sorted({case.name for case in every})[part::parts])
        for case in (case for case in every if case.name in names):
            for function in (getattr(torch_npu, case.name), getattr(torch.ops.npu, case.name)):
                args, keywords = arguments = _on_device(case)
                _check([case], [arguments], [function(*args, **keywords)], f"by {function}")
        if part == parts - 1:
            check_in_place()
            npu_serving.check_in_place(lambda function: function)
            npu_serving.check_draws()
    else:
        whole = [case for case in every if case.whole]
        names = list(dict.fromkeys(case.name for case in whole))[part::parts]
        chosen = [case for name in names for case in _ends(whole, name)]
        arguments = [_on_device(case) for case in chosen]

        @torch.compile(fullgraph=True)
        def compiled(arguments: list[Any]) -> list[Any]:
            return [getattr(torch_npu, case.name)(*a, **k) for case, (a, k) in zip(chosen, arguments, strict=True)]

        _check(chosen, arguments, compiled(arguments), "compiled")
        if part == parts - 1:
            npu_serving.check_in_place(torch.compile(fullgraph=True))
    assert not torch.npu.fallbacks(), torch.npu.fallbacks()


if __name__ == "__main__":
    main(sys.argv[1])
