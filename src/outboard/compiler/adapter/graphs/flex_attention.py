# SPDX-License-Identifier: Apache-2.0
"""``torch.nn.attention.flex_attention`` on the device: PyTorch asks whether it knows the device, and Inductor has
templates for those that it knows. Here the attention is taken apart into products and pointwise operators before
autograd sees it, eager and in whole graphs. So scores take memory, (batch, heads, queries, keys) of them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DispatchKey
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

from outboard import patches


def install() -> None:
    """Has ``flex_attention`` take tensors of the device."""
    name = torch._C._get_privateuse1_backend_name()

    def allowing(original: Callable[..., None]) -> Callable[..., None]:
        def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
            if query.device.type != name:
                original(query, key, value)

        return validate

    place = "torch.nn.attention.flex_attention._validate_device"
    if not patches.apply("flex_attention takes tensors of the device", {place: allowing}):
        return
    module = importlib.import_module("torch._higher_order_ops.flex_attention")  # the package has the operator so called
    operator: Any = module.flex_attention

    def dense(*args: Any, **kwargs: Any) -> Any:
        with _without_vmap():
            return module.math_attention(*args, **kwargs)

    def attend(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (dense if query.device.type == name else with_autograd)(query, *args, **kwargs)

    def trace(mode: ProxyTorchDispatchMode, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if query.device.type != name:
            return into_graph(mode, query, *args, **kwargs)
        with mode:  # of inference mode, in which autograd is not asked
            return dense(query, *args, **kwargs)

    with_autograd = operator.py_kernels[DispatchKey.Autograd]
    into_graph = operator.python_key_table[ProxyTorchDispatchMode]
    operator.py_kernels[DispatchKey.Autograd] = attend
    operator.python_key_table[ProxyTorchDispatchMode] = trace
    operator._dispatch_cache.clear()


@contextlib.contextmanager
def _without_vmap() -> Iterator[None]:
    """Has functions of one score get tensors that broadcast, since vmap cannot be traced below autograd."""
    module: Any = importlib.import_module("torch.nn.attention.flex_attention")
    original = module._vmap_for_bhqkv
    module._vmap_for_bhqkv = _by_broadcasting
    try:
        yield
    finally:
        module._vmap_for_bhqkv = original


def _by_broadcasting(function: Callable[..., Any], prefix: Any, suffix: Any = ()) -> Callable[..., Any]:
    """``function(score, b, h, q_idx, kv_idx, others...)`` of numbers, for all scores, of shape (b, h, q, kv), and for
    places of one dimension each; for masks, whose ``prefix`` is empty, without scores."""

    def call(*args: Any) -> Any:
        scores, places, others = args[: len(prefix)], args[len(prefix) : len(prefix) + 4], args[len(prefix) + 4 :]
        shapes = ((-1, 1, 1, 1), (-1, 1, 1), (-1, 1), (-1,))
        placed = [place.view(shape) for place, shape in zip(places, shapes, strict=True)]
        return function(*scores, *placed, *others)

    return call
