# SPDX-License-Identifier: Apache-2.0
"""Numbers as integers with scales."""

from __future__ import annotations

import torch


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The nearest integers (ties to even) within a dtype's range, or the numbers in a dtype of floating point."""
    if dtype.is_floating_point:
        return values.to(dtype)
    limits = torch.iinfo(dtype)
    return values.round().clamp(limits.min, limits.max).to(dtype)


def unpacked(scale: torch.Tensor) -> torch.Tensor:
    """Scales in float32, which in int64 have been packed by ``npu_trans_quant_param``."""
    return scale.int().view(torch.float32) if scale.dtype == torch.int64 else scale.float()
