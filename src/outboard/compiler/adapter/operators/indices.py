# SPDX-License-Identifier: Apache-2.0
"""Indices that a graph computes, as ``torch.arange`` does, are checked as those that it loads.

Inductor makes them part of an access, whose bounds it cannot prove where sizes are unknown or the program is wrong: a
check beside the access could report it, but not keep it inside the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
from torch._inductor.virtualized import V

from outboard import patches


def register(name: str) -> None:
    """For graphs on the device."""

    def checked(original: Callable[..., Any]) -> Callable[..., Any]:
        def indirect_indexing(self: Any, index: Any, size: Any, check: bool = True, wrap_neg: bool = True) -> Any:
            if not check or name not in V.graph.device_types or _is_inside(self, index, size, wrap_neg):
                return original(self, index, size, check, wrap_neg)
            return self.fallback("indirect_indexing", (index, size, check, wrap_neg), {}).value

        return indirect_indexing

    place = "torch._inductor.index_propagation:IndexPropagation.indirect_indexing"
    patches.apply("indices that graphs compute are inside", {place: checked})


def _is_inside(known: Any, index: Any, size: Any, wraps: bool) -> bool:
    """Whether an index needs no check here: it is loaded, which has one of its own, or is provably inside."""
    if not getattr(index, "is_symbolic", False):
        return True
    place = sympy.sympify(index.value.expr)
    least = -size if wraps else 0
    return bool(known.statically_true(least <= place) and known.statically_true(place < size))
