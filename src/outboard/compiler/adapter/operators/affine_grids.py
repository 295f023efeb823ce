# SPDX-License-Identifier: Apache-2.0
"""The gradient of ``affine_grid``, which ATen composes of a tensor that it fills as it is made: no trace can follow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decompositions

_BASES: dict[int, Callable[..., Tensor]] = {
    4: decompositions._make_base_grid_4d,
    5: decompositions._make_base_grid_5d,
}


@functools.cache
def register(name: str) -> None:
    """Has traces of the device ``name`` take it from here, once."""
    overload: Any = torch.ops.aten.affine_grid_generator_backward.default
    key = DispatchKey.CompositeImplicitAutograd

    @overload.py_impl(key)  # type: ignore[untyped-decorator]
    def trace(grad: Tensor, size: Any, align_corners: bool) -> Any:
        if grad.device.type != name:
            return overload._op_dk(key, grad, size, align_corners)
        return _gradient(grad, size, align_corners)


def _gradient(grad: Tensor, size: Any, align_corners: bool) -> Tensor:
    """Of matrices (n, dims, dims + 1), where ``grad`` is that of a grid for images of ``size``."""
    base = _BASES[len(size)](grad, *size[2:], align_corners=align_corners)
    points = base.reshape(-1, base.shape[-1])
    return (points.mT @ grad.reshape(size[0], -1, grad.shape[-1])).mT
