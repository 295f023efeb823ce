# SPDX-License-Identifier: Apache-2.0
"""Results in whole graphs that lie as rows of operators say, where PyTorch's shape functions and decompositions have
them lie otherwise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._inductor import decomposition as inductor_decompositions
from torch._prims_common import suggest_memory_format
from torch.utils import _pytree as pytree

from ...operators import facts
from ...operators.overloads import names_memory, overloads_of
from . import results


def described() -> Iterator[torch._ops.OpOverload]:
    """The overloads whose rows say how new results lie."""
    for name in facts.with_fact(lambda row: row.layout in (*results.OF_OPERANDS, *results.CONTIGUOUS)):
        packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
        yield from (overload for overload in overloads_of(packet) if not names_memory(overload))


def laid_out(overload: torch._ops.OpOverload, original: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition of an overload that copies results to where its row says that they lie, if they are not there."""

    @functools.wraps(original)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if result is NotImplemented:
            return result
        return pytree.tree_map_only(
            torch.Tensor, lambda made: _placed(facts.of(overload._schema.name), made, args), result
        )

    return decompose


def _placed(row: facts.Facts, result: torch.Tensor, args: Sequence[Any]) -> torch.Tensor:
    if row.layout in results.CONTIGUOUS:
        return result.contiguous()
    outer_to_inner = [*reversed(results.order_of_operands(row, result.shape, args))]
    back = [outer_to_inner.index(dim) for dim in range(result.dim())]
    return result.permute(outer_to_inner).contiguous().permute(back)


def _cat(tensors: list[torch.Tensor], dim: int = 0) -> Any:
    """Inductor's own leaves the only tensor that has elements as it lies, where ATen's lies as all tensors together
    suggest."""
    result = inductor_decompositions.cat(tensors, dim)
    if result is NotImplemented:
        return result
    suggested = {suggest_memory_format(tensor) for tensor in tensors}
    return result.contiguous(memory_format=suggested.pop() if len(suggested) == 1 else torch.contiguous_format)


#: Overload -> its decomposition, which may return NotImplemented.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {torch.ops.aten.cat.default: _cat}
