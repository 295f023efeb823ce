# SPDX-License-Identifier: Apache-2.0
"""Views that leave gaps, of tensors that are written.

PyTorch's tracer makes a write into a view a new value of what is viewed. Of ``unfold`` whose windows leave gaps it
makes zeros of the gaps. A tensor with gaps becomes one without when it is written, whose memory ``as_strided`` then
takes for that of the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from outboard import patches

aten = torch.ops.aten

_BY_STRIDES = (aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default)


def register() -> None:
    """Has traces keep what lies between windows, and refuse to read memory that lies otherwise than the trace's."""
    place = "torch._subclasses.functional_tensor:FunctionalTensorMode.__torch_dispatch__"
    patches.apply("writes into views leave alone what lies between", {place: _with_gaps})


def _with_gaps(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.unfold.default and args[0].dim() and statically_known_true(args[2] < args[3]):
            with self:
                return unfolded(*args)
        if func in _BY_STRIDES:
            _refuse_moved(args[0])
        return original(self, func, types, args, kwargs)

    return dispatch


def unfolded(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """``x.unfold(dimension, size, step)`` of windows that leave gaps, by other views; ``x`` has a dimension."""
    dimension %= x.dim()
    length = x.shape[dimension]
    if length < size:
        return aten.unfold.default.decompose(x, dimension, size, step)
    count = (length - size) // step + 1
    if size == 1:
        return aten.slice(x, dimension, 0, length, step).unsqueeze(-1)
    if count * step <= length:
        windows = x.narrow(dimension, 0, count * step).unflatten(dimension, (count, step))
        return windows.narrow(dimension + 1, 0, size).movedim(dimension + 1, -1)
    sizes, strides = list(x.shape), list(x.stride())
    sizes[dimension] = count
    strides[dimension] *= step
    return x.as_strided([*sizes, size], [*strides, x.stride(dimension)], x.storage_offset())


def _refuse_moved(x: Any) -> None:
    """Raises RuntimeError for a tensor that has been written, and whose value now lies otherwise than it did."""
    if not x.is_base_tensor() or statically_known_true(x.numel() <= 1):
        return
    value = torch._from_functional_tensor(x.elem)
    if not statically_known_true(sym_eq(tuple(value.stride()), tuple(x.stride()))):
        raise RuntimeError(
            "torch.compile cannot read by as_strided what lies with gaps and has been written: do so outside of it"
        )
