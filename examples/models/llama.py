# SPDX-License-Identifier: Apache-2.0
"""Llama (Touvron et al., 2023): rotary positions, RMS normalisation, gated feed-forward, optional key-value cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes. The default is a model of 8 layers of width 512."""

    vocabulary: int = 8192
    positions: int = 1024
    width: int = 512
    layers: int = 8
    heads: int = 8
    key_value_heads: int = 8
    hidden: int = 1408
    rotary_base: float = 10000.0


#: Keys and values so far of one layer, each (N, key_value_heads, L, head width).
KeyValue = tuple[Tensor, Tensor]


class RMSNorm(nn.Module):
    """``x / rms(x) * weight`` over the last dimension, computed in float32."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * scale).to(x.dtype) * self.weight


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotates the two halves of the last dimension of x (N, heads, L, D) by angles given as (L, D / 2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.key_value_heads = config.heads, config.key_value_heads
        self.head_width = config.width // config.heads
        self.query = nn.Linear(config.width, config.heads * self.head_width, bias=False)
        self.key = nn.Linear(config.width, config.key_value_heads * self.head_width, bias=False)
        self.value = nn.Linear(config.width, config.key_value_heads * self.head_width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.head_width).transpose(1, 2)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, past: KeyValue | None) -> tuple[Tensor, KeyValue]:
        query = rotate(self.split(self.query(x), self.heads), cosine, sine)
        key = rotate(self.split(self.key(x), self.key_value_heads), cosine, sine)
        value = self.split(self.value(x), self.key_value_heads)
        if past is not None:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
        groups = self.heads // self.key_value_heads
        wide_key, wide_value = key, value
        if groups > 1:
            wide_key, wide_value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        mixed = F.scaled_dot_product_attention(query, wide_key, wide_value, is_causal=past is None)
        return self.output(mixed.transpose(1, 2).reshape(x.shape)), (key, value)


class Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = Attention(config)
        self.output_norm = RMSNorm(config.width)
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, past: KeyValue | None) -> tuple[Tensor, KeyValue]:
        mixed, present = self.attention(self.attention_norm(x), cosine, sine, past)
        x = x + mixed
        normed = self.output_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed)), present


class Llama(nn.Module):
    """Token ids (N, L) int64 to next-token logits (N, L, vocabulary), and the key-value cache.

    With ``past`` from an earlier call, ``tokens`` holds exactly one new token per row.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, config: LlamaConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or LlamaConfig()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        half = config.width // config.heads // 2
        frequency = config.rotary_base ** (-torch.arange(half).float() / half)
        angle = torch.outer(torch.arange(config.positions).float(), frequency)
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, past: list[KeyValue] | None = None) -> tuple[Tensor, list[KeyValue]]:
        start = 0 if past is None else past[0][0].shape[2]
        if past is not None and tokens.shape[1] != 1:
            raise ValueError(f"with a cache, give one new token per row, got {tokens.shape[1]}")
        cosine, sine = (table[start : start + tokens.shape[1]] for table in (self.cosine, self.sine))
        x = self.tokens(tokens)
        presents = []
        for index, layer in enumerate(self.layers):
            x, present = layer(x, cosine, sine, None if past is None else past[index])
            presents.append(present)
        return self.head(self.norm(x)), presents

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int) -> Tensor:
        """Appends ``count`` greedily chosen tokens to each row."""
        logits, past = self(tokens)
        for index in range(count):
            new = logits[:, -1:].argmax(-1)
            tokens = torch.cat((tokens, new), dim=1)
            if index + 1 < count:
                logits, past = self(new, past)
        return tokens
