# SPDX-License-Identifier: Apache-2.0
"""What ``npu_fusion_attention`` and its gradients compute, as documented, see :mod:`tests.profiles.npu_operators`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.profiles.npu_case import Case


def fused(
    q: Tensor, k: Tensor, v: Tensor, scale: float, left_out: Tensor | None = None, pse: Tensor | None = None
) -> list[Tensor]:
    """Attention (batch, heads, sequence, size), its rows' maxima and the sums of their exponentials (..., 8)."""
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    scores = (q @ k.transpose(-1, -2) + (0 if pse is None else pse)) * scale
    if left_out is not None:
        scores = scores.masked_fill(left_out, -math.inf)
    largest = scores.amax(-1, keepdim=True)
    total = (scores - largest).exp().sum(-1, keepdim=True)
    return [scores.softmax(-1) @ v, *(part.detach().expand(-1, -1, -1, 8) for part in (largest, total))]


def fused_each(
    q: Tensor, k: Tensor, v: Tensor, spans: list[tuple[slice, slice]], left_out: list[Any], interleaved: bool
) -> list[Tensor]:
    """:func:`fused` of sequences one after the other, (all positions, heads, size); zeros behind the last."""
    columns: list[list[Tensor]] = [[], [], []]
    for (rows, keys), mask in zip(spans, left_out, strict=True):
        parts = [part[None].transpose(1, 2) for part in (q[rows], k[keys], v[keys])]
        for column, part in zip(columns, fused(*parts, 0.25, mask), strict=True):
            column.append(part[0].transpose(0, 1))
    behind = len(q) - spans[-1][0].stop
    results = []
    for i, column in enumerate(columns):
        together = torch.cat(column)
        if i and not interleaved:  # each sequence's heads one after the other
            together = torch.cat([part.transpose(0, 1).reshape(-1, 8) for part in column]).view(together.shape)
        results.append(torch.cat((together, together.new_zeros(behind, *together.shape[1:]))))
    return results


def cases(q: Tensor, k: Tensor, v: Tensor) -> Iterator[Case]:
    """All of them, with queries (2, 6, 4, 16), and keys and values (2, 6, 2, 16)."""
    yield from _masked(*(tensor.transpose(1, 2) for tensor in (q, k, v)))
    yield from _versions(*(tensor.transpose(1, 2) for tensor in (q, k, v)))
    yield from _in_rows(*(tensor.flatten(2) for tensor in (q, k, v)))
    yield from _varying(*(tensor.flatten(0, 1) for tensor in (q, k, v)))
    yield from _gradients(*(tensor.transpose(1, 2) for tensor in (q, k, v)))


#: What says of a mask that it is causal or a band, whatever the sequences' lengths.
_COMPRESSED = torch.ones(8, 8, dtype=torch.bool).triu(1)
_CAUSAL = torch.ones(6, 6, dtype=torch.bool).triu(1)


def _versions(q: Tensor, k: Tensor, v: Tensor) -> Iterator[Case]:
    """The second version and the third, in BNSD and, of two sequences, TND."""
    pse = torch.randn(2, 4, 6, 6)
    for kind, factor in ((1, 1), (0, 4)):
        yield Case(
            "npu_fusion_attention_v2",
            [q, k, v, 4, "BNSD"],
            lambda q, k, v, *_, pse, factor=factor, **__: fused(q, k, v, 0.25, _CAUSAL, pse * factor),
            {"scale": 0.25, "pse": pse, "pse_type": kind, "atten_mask": _CAUSAL},
        )

    def roped(q: Tensor, k: Tensor, v: Tensor, *_: Any, query_rope: Tensor, key_rope: Tensor, **__: Any) -> Any:
        return fused(torch.cat((q, query_rope), -1), torch.cat((k, key_rope), -1), v, 0.25)

    yield Case(
        "npu_fusion_attention_v2",
        [q, k, v, 4, "BNSD"],
        roped,
        {"scale": 0.25, "query_rope": torch.randn(2, 4, 6, 8), "key_rope": torch.randn(2, 2, 6, 8)},
    )
    zeros = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    rows = [part.transpose(1, 2).flatten(0, 1) for part in (q, k, v)]
    spans = [(slice(0, 6), slice(0, 6)), (slice(6, 12), slice(6, 12))]
    ends = torch.tensor([6, 12])
    yield Case(
        "npu_fusion_attention_v3",
        [*rows, 4, "TND"],
        lambda q, k, v, *_, **__: [*fused_each(q, k, v, spans, [None, None], True), torch.empty(0), *zeros],
        {"scale": 0.25, "actual_seq_qlen": ends, "actual_seq_kvlen": ends, "softmax_layout": "TND"},
        whole=False,
    )


def _masked(q: Tensor, k: Tensor, v: Tensor) -> Iterator[Case]:
    i, random = torch.arange(6), torch.rand(2, 1, 6, 6) < 0.3
    band, first = i - i[:, None], torch.tensor([2, 4]).view(2, 1, 1, 1)
    masks: list[tuple[dict[str, Any], Tensor | None]] = [
        ({}, None),
        ({"sparse_mode": 3, "pre_tockens": 1}, None),
        ({"sparse_mode": 1, "atten_mask": random}, random),
        ({"atten_mask": random.to(torch.uint8)}, random),
        ({"sparse_mode": 2, "atten_mask": _COMPRESSED}, _CAUSAL),
        ({"sparse_mode": 4, "pre_tockens": 2, "next_tockens": 1, "atten_mask": _COMPRESSED}, (band < -2) | (band > 1)),
        ({"sparse_mode": 6, "prefix": [2, 4], "atten_mask": _COMPRESSED}, _CAUSAL & (i >= first)),
    ]
    for keywords, left_out in masks:
        yield Case(
            "npu_fusion_attention",
            [q, k, v, 4, "BNSD"],
            lambda q, k, v, *_, left_out=left_out, **__: fused(q, k, v, 0.25, left_out),
            {"scale": 0.25, **keywords},
        )
    yield Case(
        "npu_fusion_attention",
        [q[:, :, :3], k, v, 4, "BNSD"],
        lambda q, k, v, *_, **__: fused(q, k, v, 0.25, torch.ones(3, 6, dtype=torch.bool).triu(4)),
        {"scale": 0.25, "sparse_mode": 3, "atten_mask": _COMPRESSED},
    )

    def biased(q: Tensor, k: Tensor, v: Tensor, _: int, __: str, pse: Tensor, **___: Any) -> list[Tensor]:
        result, *statistics = fused(*(t.transpose(1, 2) for t in (q, k, v)), 0.25, None, pse)
        return [result.transpose(1, 2), *statistics]

    bsnd = [t.transpose(1, 2) for t in (q, k, v)]
    yield Case("npu_fusion_attention", [*bsnd, 4, "BSND", torch.randn(1, 4, 6, 6)], biased, {"scale": 0.25})


def _in_rows(q: Tensor, k: Tensor, v: Tensor) -> Iterator[Case]:
    def formula(q: Tensor, k: Tensor, v: Tensor, _: int, layout: str, **__: Any) -> list[Tensor]:
        turned = layout == "SBH"
        parts = [t.transpose(0, 1) if turned else t for t in (q, k, v)]
        heads = [t.unflatten(-1, (-1, 16)).transpose(1, 2) for t in parts]
        result, *statistics = fused(*heads, 0.25, _CAUSAL)
        result = result.transpose(1, 2).flatten(2)
        return [result.transpose(0, 1) if turned else result, *statistics]

    keywords = {"scale": 0.25, "sparse_mode": 3, "atten_mask": _COMPRESSED}
    yield Case("npu_fusion_attention", [q, k, v, 4, "BSH"], formula, keywords)
    yield Case("npu_fusion_attention", [*(t.transpose(0, 1) for t in (q, k, v)), 4, "SBH"], formula, keywords)
    for dtype in (torch.float16, torch.bfloat16):
        halves = [t.to(dtype) for t in (q, k, v)]
        yield Case("npu_fusion_attention", [*halves, 4, "BSH"], formula, keywords, gradients=False, tolerance=3e-2)


#: Two sequences of queries and of keys, the positions behind which take no part.
_SPANS = [(slice(2), slice(4)), (slice(2, 6), slice(4, 10))]
_BOTTOM_RIGHT = [torch.ones(2, 4, dtype=torch.bool).triu(3), torch.ones(4, 6, dtype=torch.bool).triu(3)]
_TOP_LEFT = [torch.ones(2, 4, dtype=torch.bool).triu(1), torch.ones(4, 6, dtype=torch.bool).triu(1)]


def _varying(q: Tensor, k: Tensor, v: Tensor) -> Iterator[Case]:
    masks: list[tuple[dict[str, Any], list[Any]]] = [
        ({}, [None, None]),
        ({"softmax_layout": "TND"}, [None, None]),
        ({"atten_mask": _COMPRESSED}, _TOP_LEFT),
        ({"sparse_mode": 3, "atten_mask": _COMPRESSED}, _BOTTOM_RIGHT),
        (
            {"sparse_mode": 7, "atten_mask": _COMPRESSED, "pre_tockens": 6, "next_tockens": -2},
            [_BOTTOM_RIGHT[0], torch.ones(4, 6, dtype=torch.bool).triu(1)],
        ),
        (
            {"sparse_mode": 8, "atten_mask": _COMPRESSED, "pre_tockens": 4, "next_tockens": 1},
            [torch.zeros(2, 4, dtype=torch.bool), _TOP_LEFT[1]],
        ),
    ]
    for keywords, left_out in masks:
        yield Case(
            "npu_fusion_attention",
            [q, k, v, 4, "TND"],
            lambda q, k, v, *_, left_out=left_out, softmax_layout="", **__: fused_each(
                q, k, v, _SPANS, left_out, softmax_layout == "TND"
            ),
            {"scale": 0.25, "actual_seq_qlen": [2, 6, 0, 0], "actual_seq_kvlen": [4, 10, 0, 0], **keywords},
        )

    def gradients(q: Tensor, k: Tensor, v: Tensor, dy: Tensor, *_: Any, **__: Any) -> Any:
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        return torch.autograd.grad(fused_each(*leaves, _SPANS, _BOTTOM_RIGHT, True)[0], leaves, dy)

    result, largest, total = fused_each(q, k, v, _SPANS, _BOTTOM_RIGHT, False)
    yield Case(
        "npu_fusion_attention_grad",
        [q, k, v, torch.randn(12, 4, 16), 4, "TND"],
        gradients,
        {
            "softmax_max": largest,
            "softmax_sum": total,
            "attention_in": result,
            "scale_value": 0.25,
            "actual_seq_qlen": [2, 6],
            "actual_seq_kvlen": [4, 10],
            "sparse_mode": 3,
            "atten_mask": _COMPRESSED,
        },
        gradients=False,
    )


def _gradients(q: Tensor, k: Tensor, v: Tensor) -> Iterator[Case]:
    """Also those by a part of the keys, given what attention to all of them gave, as ring attention takes them."""
    dy, pse = torch.randn(2, 4, 6, 16), torch.randn(1, 4, 6, 6)
    result, largest, total = fused(q, k, v, 0.25, _CAUSAL, pse)
    given = {"softmax_max": largest, "softmax_sum": total, "attention_in": result, "scale_value": 0.25}
    for part in (slice(0, 6), slice(3, 6)):

        def formula(q: Tensor, _: Tensor, __: Tensor, dy: Tensor, *___: Any, part: slice = part, **____: Any) -> Any:
            inside = torch.zeros(6, dtype=torch.bool)
            inside[part] = True
            leaves = [t.double().requires_grad_() for t in (q, k, v, pse)]
            of_q, of_k, of_v, of_pse = leaves
            # What is not of the part gives the query no gradient.
            all_k, all_v = (t.repeat_interleave(2, 1) for t in (of_k, of_v))
            scores = (of_q @ all_k.transpose(-1, -2) + of_pse) * 0.25
            scores = torch.where(inside, scores, scores.detach()).masked_fill(_CAUSAL, -math.inf)
            found = torch.autograd.grad(scores.softmax(-1) @ all_v, leaves, dy)
            return [found[0], found[1][:, :, part], found[2][:, :, part], found[3][..., part]]

        yield Case(
            "npu_fusion_attention_grad",
            [q, k[:, :, part], v[:, :, part], dy, 4, "BNSD"],
            formula,
            {"pse": pse[..., part], "atten_mask": _CAUSAL[:, part], **given},
            gradients=False,
        )
