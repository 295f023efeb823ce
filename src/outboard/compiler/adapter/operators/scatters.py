# SPDX-License-Identifier: Apache-2.0
"""``scatter_add`` and ``index_put(accumulate=True)``, where ``index_add`` and the gradients of indexing end, as calls
of the kernel whose work-items own what they add to. Where vectors are explicit, an atomic addition takes as long as
many others, and longer where several meet. The kernel's sums have one order, too: that of the sources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import ops

from outboard import patches

from ...kernels.common import ELEMENT_TYPES
from ...target import target_of
from ..overrides import EIGHTHS

_INDICES = (torch.int64, torch.int32)


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
    two = torch.ops.aten.scatter_reduce_.two
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
