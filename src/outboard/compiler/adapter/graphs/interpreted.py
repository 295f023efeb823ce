# SPDX-License-Identifier: Apache-2.0
"""Graphs for devices whose dialect nobody writes, and graphs of doubles for devices without: they run operator by
operator, each on the CPU and counted if it has to, but for what a graph compiler of the device takes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch._aot_autograd.utils import make_boxed_func

from outboard import patches

from ...target import target_of
from ..interface import device_name
from .partitions import indices_among, partition

_DOUBLES = frozenset({torch.float64, torch.complex128})


def interpret_without_dialect() -> None:
    """Has Inductor give such graphs back as they are, for all ways that lead to it."""
    feature = "graphs that no program can be made for run operator by operator"
    patches.apply(feature, {"torch._inductor.compile_fx._compile_fx_inner": _unless_compiled})


def _unless_compiled(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_graph(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        if _is_compiled(gm):
            return original(gm, *args, **kwargs)
        for index in indices_among(_values(gm)):
            gm = partition(gm, index) if target_of(index).compiler else gm
        return make_boxed_func(gm.forward)

    return compile_graph


def _is_compiled(gm: torch.fx.GraphModule) -> bool:
    """Whether programs can be made for all that a graph computes on devices of ours."""
    name = device_name()
    ours = (value for value in _values(gm) if value.device.type == name)
    needed = {(value.device.index or 0, value.dtype in _DOUBLES) for value in ours}
    targets = ((target_of(index), doubles) for index, doubles in needed)
    return all(target.has_dialect and (target.has_fp64 or not doubles) for target, doubles in targets)


def _values(gm: torch.fx.GraphModule) -> list[torch.Tensor]:
    return [value for node in gm.graph.nodes for value in _tensors(node.meta.get("val"))]


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [part for item in value for part in _tensors(item)] if isinstance(value, (list, tuple)) else []
