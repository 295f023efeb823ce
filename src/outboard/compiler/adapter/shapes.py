# SPDX-License-Identifier: Apache-2.0
"""What tracing is told of results on our device, where PyTorch's shape functions know only other devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch.fx.operator_schemas import normalize_function
from torch.utils import _pytree as pytree

from . import results

aten = torch.ops.aten

#: ``mode`` of an embedding bag.
_SUM, _MAX = 0, 2


def register(name: str) -> None:
    """Has fake tensors of the device ``name`` lie, and be as long, as its results do."""
    table = fake_impls.op_implementations_dict
    for overload in (aten.convolution.default, aten.convolution_backward.default):
        table[overload] = _on(name, table[overload], _laid_out(table[overload]))
    for overload in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default):
        table[overload] = _on(name, table.get(overload), _embedding_bag)


def _on(name: str, elsewhere: Callable[..., Any] | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` for calls with a tensor on the device, ``elsewhere`` for others."""

    def run(mode: Any, overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if any(x.device.type == name for x in tensors):
            return function(mode, overload, *args, **kwargs)
        return NotImplemented if elsewhere is None else elsewhere(mode, overload, *args, **kwargs)

    return run


def _laid_out(original: Callable[..., Any]) -> Callable[..., Any]:
    """The shape function of a convolution or its gradient, with results in the memory format of the operands."""

    @functools.wraps(original)
    def run(mode: Any, overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        with mode:
            made: Any = original(mode, overload, *args, **kwargs)
            if overload is aten.convolution.default:
                return results.like_channels(made, *args[:2])
            first, second, bias = made
            return results.like_channels(first, *args[1:3]), results.like_channels(second, *args[1:3]), bias

    return run


def _embedding_bag(mode: Any, overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The results that the CPU's kernel has, which carries it out here."""
    normalized = normalize_function(overload, args, kwargs, normalize_to_only_use_kwargs=True)
    assert normalized is not None
    given: Any = normalized.kwargs
    weight, indices, offsets = given["weight"], given["indices"], given["offsets"]
    scale = given["per_sample_weights"]
    bags = offsets.size(0) - int(given["include_last_offset"])
    is_direct = (
        given["mode"] == _SUM
        and weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and weight.stride(1) == 1
        and (scale is None or scale.stride(0) == 1)
        and given["padding_idx"] < 0
    )
    with mode:
        return (
            weight.new_empty(bags, weight.size(1)),
            offsets.new_empty(0 if is_direct else indices.size(0)),
            offsets.new_empty(bags),
            offsets.new_empty(bags, weight.size(1)) if given["mode"] == _MAX else offsets.new_empty(bags),
        )
