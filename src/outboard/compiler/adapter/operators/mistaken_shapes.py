# SPDX-License-Identifier: Apache-2.0
"""About which calls PyTorch's shape functions are wrong: they refuse what the CPU's kernels compute, or say that
results have other dtypes or lie otherwise. Rows of ``operators/facts.py`` name these functions, which take the
arguments of a call.
"""

from __future__ import annotations

from typing import Any

import torch


def always(*_: Any, **__: Any) -> bool:
    """Those of operators whose results no shape function describes."""
    return True


def nothing(x: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Those on tensors without elements."""
    return x.numel() == 0


def mean_of_nothing(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, *_: Any, **__: Any
) -> bool:
    """Those of gradients of losses that are a mean over no elements, by whose number they divide."""
    return reduction == 1 and (x.numel() == 0 or target.numel() == 0)


def half(x: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Those in float16."""
    return x.dtype == torch.float16


def weight_of_other_dtype(x: torch.Tensor, weight: torch.Tensor | None, *_: Any, **__: Any) -> bool:
    """Those whose weights are of another dtype than what they weigh."""
    return weight is not None and weight.dtype != x.dtype


def condition_of_bytes(condition: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Those of ``where`` by bytes, not truth values."""
    return condition.dtype == torch.uint8


def target_of_one(x: torch.Tensor, target: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Those about one sample, whose target has no dimension."""
    return target.dim() == 0


def target_of_other_dtype(x: torch.Tensor, target: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Those whose target is of another dtype than what is held against it."""
    return target.dtype != x.dtype
