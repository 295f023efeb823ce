# SPDX-License-Identifier: Apache-2.0
"""Activation functions, alone and as gates."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def fast_gelu(input: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(1.702 * x)``, an approximation of GELU."""
    return input * torch.sigmoid(1.702 * input)


def npu_fast_gelu(input: torch.Tensor) -> torch.Tensor:
    """:func:`fast_gelu`."""
    return fast_gelu(input)


def npu_gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """GELU, exact or by ``tanh``."""
    return F.gelu(input, approximate=approximate)


def npu_silu(input: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(x)``."""
    return F.silu(input)


def npu_silu_(input: torch.Tensor) -> torch.Tensor:
    """:func:`npu_silu` in place."""
    return F.silu(input, inplace=True)


def npu_mish(input: torch.Tensor) -> torch.Tensor:
    """``x * tanh(softplus(x))``."""
    return F.mish(input)


def npu_swiglu(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """SiLU of the first half of ``dim``, times the second half."""
    gate, value = input.chunk(2, dim)
    return F.silu(gate) * value


def npu_geglu(
    input: torch.Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """One half of ``dim`` times the GELU of the other, and that GELU.

    Args:
        approximate: 1 for GELU by ``tanh``, 0 for the exact one.
        activate_left: whether the first half is activated; if not, the second.
    """
    left, right = input.chunk(2, dim)
    value, gate = (right, left) if activate_left else (left, right)
    activated = F.gelu(gate, approximate="tanh" if approximate else "none")
    return value * activated, activated


def npu_gelu_mul(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """GELU of the first half of the last dimension, times the second half."""
    gate, value = input.chunk(2, -1)
    return F.gelu(gate, approximate=approximate) * value


def npu_clipped_swiglu(
    x: torch.Tensor,
    *,
    group_index: torch.Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> torch.Tensor:
    """``a * sigmoid(alpha * a) * (b + bias)``, with ``a`` at most ``limit`` and ``b`` within it on both sides.

    Args:
        interleaved: whether ``a`` and ``b`` are the even and the odd positions of ``dim`` and what follows it, taken as
            one dimension; if not, its halves.
        group_index: the sizes of groups of rows, which the dimensions before ``dim`` are. Those behind the last are
            zero.
    """
    dim = dim % x.dim()
    shape = [*x.shape]
    shape[dim] //= 2
    flat, shape_before = x.flatten(dim), x.shape[:dim]
    gate, value = (flat[..., ::2], flat[..., 1::2]) if interleaved else flat.chunk(2, -1)
    gate, value = gate.clamp(max=limit), value.clamp(-limit, limit)
    result = gate * torch.sigmoid(alpha * gate) * (value + bias)
    if group_index is not None:
        rows = torch.arange(shape_before.numel(), device=x.device).view(*shape_before, 1)
        result = result.masked_fill(rows >= group_index.sum(), 0)
    return result.view(shape)
