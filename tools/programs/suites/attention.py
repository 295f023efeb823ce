# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention in its variants, and flex attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tools.programs.given import randn, refused
from tools.programs.registry import Wrap, program


def _three(device: str, heads: int = 2, grad: bool = False) -> list[Tensor]:
    return [randn(device, 2, heads, 6, 8, grad=grad) for _ in range(3)]


@program(terms=1000)
def scaled_products(device: str, wrap: Wrap) -> Any:
    q, k, v = inputs = _three(device, grad=True)
    mask = (torch.arange(36).reshape(6, 6) % 3 != 0).to(device)
    bias = randn(device, 6, 6)

    def variants(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        a = F.scaled_dot_product_attention
        return [
            a(q, k, v),
            a(q, k, v, is_causal=True),
            a(q, k, v, mask),
            a(q, k, v, bias),
            a(q, k, v, scale=0.3),
            a(q[:, :, :2], k, v),
            a(q, k[:, :1], v[:, :1], enable_gqa=True),
            a(q[0], k[0], v[0]),
            a(q, k, v[..., :4]),
        ]

    results = wrap(variants)(q, k, v)
    return results, torch.autograd.grad([r.sum() for r in results], inputs)


@program(terms=1000)
def masked_rows(device: str) -> Any:
    q, k, v = _three(device)
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    return (
        F.scaled_dot_product_attention(q, k, v, mask.to(device)),
        F.scaled_dot_product_attention(q[:, :, :0], k, v),
        F.scaled_dot_product_attention(q, k, v, causal_lower_right(6, 6)),
    )


@program(terms=1000)
def chosen_kernels(device: str) -> Any:
    q, k, v = _three(device)
    with sdpa_kernel([SDPBackend.MATH]):
        math = F.scaled_dot_product_attention(q, k, v)
    return math, torch.backends.cuda.math_sdp_enabled()


@program()
def attention_refused(device: str) -> Any:
    q, k, v = _three(device)
    a = F.scaled_dot_product_attention
    return (
        refused(lambda: a(q, k[..., :4], v)),
        refused(lambda: a(q, k, v[:, :, :3])),
        refused(lambda: a(q, k, v, torch.ones(5, 5, device=device))),
        refused(lambda: a(q, k.double(), v)),
        refused(lambda: a(q, k, v, torch.ones(6, 6, device=device), is_causal=True)),
        refused(lambda: a(q.long(), k.long(), v.long())),
        refused(lambda: a(q[0, 0, 0], k, v)),
        refused(lambda: a(q, k[:, :1], v[:, :1].expand(2, 2, 6, 8)[:, :1], dropout_p=-1.0)),
        refused(lambda: a(q, k, v, torch.ones(6, 6, dtype=torch.int32, device=device))),
    )


@program(terms=1000)
def flexible(device: str, wrap: Wrap) -> Any:
    q, k, v = _three(device)
    causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, device=device)
    attention = wrap(flex_attention)
    return (
        attention(q, k, v),
        attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1),
        attention(q, k, v, block_mask=causal),
        attention(q, k, v, return_lse=True),
    )


@program(terms=2000)
def encoder_of_users(device: str, wrap: Wrap) -> Any:
    torch.manual_seed(9)
    w = [torch.randn(8, 24).to(device).requires_grad_(), torch.randn(8, 8).to(device).requires_grad_()]

    def block(x: Tensor) -> Tensor:
        q, k, v = (x @ w[0]).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 5, 8)
        return F.layer_norm(x + y @ w[1], (8,))

    out = wrap(block)(randn(device, 2, 5, 8))
    (out * torch.arange(80).cos().view(2, 5, 8).to(device)).sum().backward()
    return out, [x.grad for x in w]


@program(terms=1000)
def half_precision(device: str) -> Any:
    return [
        F.scaled_dot_product_attention(*(x.to(t) for x in _three(device)), is_causal=True)
        for t in (torch.bfloat16, torch.float16)
    ]
