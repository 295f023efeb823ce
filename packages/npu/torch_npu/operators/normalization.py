# SPDX-License-Identifier: Apache-2.0
"""Normalisations, alone and after an addition. They compute in float32, and results have the dtype of the input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F


def npu_rms_norm(input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalises over the dimensions of ``gamma``: the result and the reciprocal root mean square, in float32."""
    values, scale = _root_mean_square(input, gamma.dim(), epsilon)
    return (values * gamma.float()).to(input.dtype), scale


def npu_gemma_rms_norm(
    input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`npu_rms_norm` with ``1 + gamma`` for ``gamma``."""
    values, scale = _root_mean_square(input, gamma.dim(), epsilon)
    return (values * (1 + gamma.float())).to(input.dtype), scale


def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`npu_rms_norm` of ``x1 + x2``, and that sum."""
    total = x1 + x2
    return *npu_rms_norm(total, gamma, epsilon), total


def npu_add_rms_norm_cast(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-06
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`npu_add_rms_norm`, with its result in float32 before it."""
    result, scale, total = npu_add_rms_norm(x1, x2, gamma, epsilon)
    return result.float(), result, scale, total


def npu_layer_norm_eval(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-05,
) -> torch.Tensor:
    """``torch.nn.functional.layer_norm``."""
    return F.layer_norm(input, list(normalized_shape), weight, bias, eps)


def npu_add_layer_norm(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float = 1e-05,
    additional_output: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layer normalisation of ``x1 + x2``: the result, mean and reciprocal deviation in float32, and the sum.

    The sum is empty without ``additional_output``.
    """
    total = x1 + x2
    result, mean, deviation = _layer_norm(total, gamma, beta, epsilon)
    return result, mean, deviation, total if additional_output else total.new_empty(0)


def npu_deep_norm(
    x: torch.Tensor,
    gx: torch.Tensor,
    beta: torch.Tensor,
    gamma: torch.Tensor,
    alpha: float = 0.3,
    epsilon: float = 1e-06,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layer normalisation of ``alpha * x + gx``: mean and reciprocal deviation in float32, and the result."""
    result, mean, deviation = _layer_norm(alpha * x + gx, gamma, beta, epsilon)
    return mean, deviation, result


def npu_group_norm_silu(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, group: int, eps: float = 0.00001
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """SiLU of a group normalisation, and the groups' means and reciprocal deviations: (batch, group)."""
    result, mean, deviation = _group_norm(input, weight, bias, group, eps)
    return F.silu(result), mean, deviation


def npu_group_norm_swish(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float | None = 1e-5,
    swish_scale: float | None = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``y * sigmoid(swish_scale * y)`` of a group normalisation, and the groups' means and reciprocal deviations."""
    result, mean, deviation = _group_norm(input, weight, bias, num_groups, 1e-5 if eps is None else eps)
    return result * torch.sigmoid((1.0 if swish_scale is None else swish_scale) * result), mean, deviation


def _root_mean_square(input: torch.Tensor, dims: int, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The input over its root mean square along the last ``dims`` dimensions, and one over that; both in float32."""
    values = input.float()
    scale = torch.rsqrt(values.square().mean(tuple(range(-dims, 0)), keepdim=True) + epsilon)
    return values * scale, scale


def _layer_norm(
    input: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.native_layer_norm(input, gamma.shape, gamma, beta, epsilon)


def _group_norm(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, groups: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, channels = input.shape[:2]
    return torch.native_group_norm(
        input, weight, bias, batch, channels, input[0, 0].numel() if batch and channels else 0, groups, eps
    )
