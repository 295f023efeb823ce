# SPDX-License-Identifier: Apache-2.0
"""Writes into a tensor of what is read from that same tensor.

Graphs are rewritten so that they write in place, and clones that seemed useless are dropped on the way. What is left
of ``x[1:] = x[:-1].clone()`` is a copy between two places of ``x`` that overlap. Inductor makes one loop of it, which
reads what it has written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import inductor_prims, ir, lowering
from torch.utils import _pytree as pytree

from ...operators.overloads import overloads_of

aten = torch.ops.aten

#: Operators that write into their first argument what their lowering reads from others, element by element.
_WRITING = (
    aten.copy_,
    aten.index_put_,
    inductor_prims._unsafe_index_put_,
    aten.scatter_,
    aten.scatter_add_,
    aten.scatter_reduce_,
)


def register(name: str) -> None:
    """Has operators that write on the device of that name read first what they would overwrite."""
    table: Any = lowering.lowerings
    for operator in _WRITING:
        overloads = overloads_of(operator) if hasattr(operator, "overloads") else ()
        for key in (operator, *overloads):
            if key in table:
                table[key] = _reading_first(name, table[key])


def _reading_first(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def lower(written: Any, *args: Any, **kwargs: Any) -> Any:
        device = written.get_device()
        if device is None or device.type != name:
            return original(written, *args, **kwargs)
        written.realize()
        buffer = written.get_name()
        args, kwargs = pytree.tree_map(lambda value: _apart(value, buffer), (args, kwargs))
        return original(written, *args, **kwargs)

    return lower


def _apart(value: Any, buffer: str) -> Any:
    """An argument of a lowering, in memory of its own if it is still read from ``buffer``. The scheduler joins the
    copy to the write where each element goes to its own place."""
    if not isinstance(value, ir.TensorBox):
        return value
    inner = value.data
    while isinstance(inner, (ir.BaseView, ir.MutableBox)):
        inner = inner.unwrap_view() if isinstance(inner, ir.BaseView) else inner.data
    is_stored = isinstance(inner, ir.Buffer)
    read = inner.get_name() == buffer if is_stored else buffer in inner.get_read_names()
    if not read:
        return value
    copy: Any = lowering.clone(value) if is_stored or isinstance(value.data, ir.BaseView) else value
    copy.realize()
    return copy
