# SPDX-License-Identifier: Apache-2.0
"""``scatter_add`` and ``index_put(accumulate=True)``, where ``index_add`` and the gradients of indexing end, as calls
of the kernel whose work-items own what they add to. Where vectors are explicit, an atomic addition takes as long as
many others, and longer where several meet. The kernel's sums have one order, too: that of the sources.

And ``scatter`` of a number into a constant, as in ``one_hot``, as the comparison of each place with the index. So does
PyTorch, which drops an index that is outside, and rounds the numbers to the default dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._inductor import ir, lowering
from torch._inductor.fx_passes import joint_graph
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, Match, register_graph_pattern
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import ops

from outboard import patches

from ...kernels.common import ELEMENT_TYPES
from ...loops.nest import GATHER_ERROR
from ...target import target_of
from ..overrides import EIGHTHS

aten = torch.ops.aten
_INDICES = (torch.int64, torch.int32)
#: Operators whose gradients scatter with indices that were checked before.
_CHECKED_BEFORE = (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)


def add_in_order(name: str) -> None:
    """Has graphs on devices of this name add so."""

    def is_ours(x: Any) -> bool:
        device = x.get_device()
        ours = device is not None and device.type == name and x.get_dtype() in ELEMENT_TYPES
        return ours and target_of(device.index or 0).tuning.vectors

    def scattering(original: Callable[..., Any]) -> Callable[..., Any]:
        def choose(
            op_overload: Any,
            self: Any,
            dim: int,
            index: Any,
            src: Any,
            *,
            reduce: Any = None,
            include_self: bool = True,
        ) -> Any:
            adds = reduce == "sum" and isinstance(src, ir.TensorBox)
            if not adds or not (is_ours(self) or self.get_dtype() in EIGHTHS):
                return original(op_overload, self, dim, index, src, reduce=reduce, include_self=include_self)
            ir.ScatterFallback(op_overload, self, dim, index, src, reduce=reduce, include_self=include_self)
            return self

        return choose

    def putting(original: Callable[..., Any]) -> Callable[..., Any]:
        def choose(
            self: Any, indices: Any, values: Any, accumulate: bool, check: bool, may_realize: bool = False
        ) -> Any:
            whole = accumulate and is_ours(self) and _add_rows(self, indices, values)
            return self if whole else original(self, indices, values, accumulate, check, may_realize)

        return choose

    places = {"scatter_fallback": scattering, "index_put_impl_": putting}
    patches.apply(
        "scatters add in order", {f"torch._inductor.lowering.{place}": change for place, change in places.items()}
    )


def _add_rows(x: Any, indices: Any, values: Any) -> bool:
    """Adds ``values`` to the rows of a dense tensor that integers at neighbouring dimensions tell; says whether it is
    such a case."""
    at = [i for i, index in enumerate(indices) if index is not None]
    if not at or at != list(range(at[0], at[-1] + 1)) or any(indices[i].get_dtype() not in _INDICES for i in at):
        return False
    if any(indices[i].get_device() != x.get_device() for i in at):
        return False
    x.realize()
    if not ir.is_contiguous_storage_and_layout(x):
        return False
    module: Any = lowering
    sizes = x.get_size()
    before, indexed, behind = sizes[: at[0]], sizes[at[0] : at[-1] + 1], sizes[at[-1] + 1 :]
    broadcast = module.broadcast_tensors(*(indices[i] for i in at))
    shape = [sympy_product(before), broadcast[0].get_numel(), sympy_product(behind)]
    rows = module.expand(module.view(_row_numbers(broadcast, indexed), [1, shape[1], 1]), shape)
    values = module.expand(module.to_dtype(values, x.get_dtype()), [*before, *broadcast[0].get_size(), *behind])
    target = module.view(x, [shape[0], sympy_product(indexed), shape[2]])
    two = aten.scatter_reduce_.two
    ir.ScatterFallback(two, target, 1, rows, module.view(values, shape), reduce="sum", include_self=True)
    return True


def _row_numbers(indices: list[Any], sizes: list[Any]) -> Any:
    """The numbers of the rows that indices into dimensions of these sizes tell; -1 for a wrong one."""
    loaders = [index.make_loader() for index in indices]

    def inner(position: Any) -> Any:
        number: Any = ops.constant(0, torch.int64)
        right: Any = ops.constant(True, torch.bool)
        for load, length in zip(loaders, sizes, strict=True):
            index, size = ops.to_dtype(load(position), torch.int64), ops.index_expr(length, torch.int64)
            zero = ops.constant(0, torch.int64)
            index = ops.where(ops.lt(index, zero), ops.add(index, size), index)
            right = ops.and_(right, ops.and_(ops.ge(index, zero), ops.lt(index, size)))
            number = ops.add(ops.mul(number, size), index)
        return ops.where(right, number, ops.constant(-1, torch.int64))

    return ir.Pointwise.create(
        device=indices[0].get_device(), dtype=torch.int64, inner_fn=inner, ranges=indices[0].get_size()
    )


def compare_with_indices(name: str) -> None:
    """Has graphs on devices of this name make a constant with a number scattered into it so."""
    constant = CallFunction(aten.full, KeywordArg("shape"), KeywordArg("fill"), dtype=KeywordArg("dtype"))
    scatter = CallFunction(aten.scatter.value, constant, KeywordArg("dim"), KeywordArg("index"), KeywordArg("value"))

    def is_ours(match: Match) -> bool:
        node, index = match.output_node(), match.kwargs["index"].meta["val"]
        sizes, dim = node.meta["val"].shape, match.kwargs["dim"]
        rows = [size for d, size in enumerate(sizes) if d != dim % len(sizes)] if len(sizes) == index.dim() else None
        others = [size for d, size in enumerate(index.shape) if d != dim % len(sizes)]
        return index.device.type == name and index.size(dim) == 1 and rows == others

    def compare(match: Match, shape: Any, fill: Any, dtype: torch.dtype, dim: int, index: Any, value: Any) -> None:
        is_checked = match.output_node().meta.get("original_aten") in _CHECKED_BEFORE

        def compared(shape: list[int], fill: Any, index: Tensor, value: Any) -> Tensor:
            if not is_checked:
                aten._assert_async.msg(((index >= 0) & (index < shape[dim])).all(), GATHER_ERROR)
            sizes = [-1 if d == dim % len(shape) else 1 for d in range(len(shape))]
            places = torch.arange(shape[dim], device=index.device).view(sizes)
            scattered, filled = (torch.full([], each, dtype=dtype, device=index.device) for each in (value, fill))
            return torch.where(index == places, scattered, filled)

        match.replace_by_example(compared, [shape, fill, index, value])

    register_graph_pattern(scatter, is_ours, pass_dict=joint_graph.patterns, prepend=True)(compare)
