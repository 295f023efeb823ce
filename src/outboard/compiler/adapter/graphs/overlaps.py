# SPDX-License-Identifier: Apache-2.0
"""Writes into a tensor of what is read from that same tensor.

Graphs are rewritten so that they write in place, and clones that seemed useless are dropped on the way. What is left
of ``x[1:] = x[:-1].clone()`` is a copy between two places of ``x`` that overlap. Inductor makes one loop of it, which
reads what it has written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._inductor import inductor_prims, ir, lowering
from torch._inductor.dependencies import Dep, extract_read_writes
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
    for key in lowering.inplace_foreach_ops:
        table[key] = _lists_reading_first(name, table[key])


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


def _lists_reading_first(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """As above, of operators on lists. Optimizers write each element where they read it: what they read stays in the
    loop that writes."""

    @functools.wraps(original)
    def lower(written: Any, *args: Any, **kwargs: Any) -> Any:
        device = written[0].get_device()
        if device is None or device.type != name:
            return original(written, *args, **kwargs)
        apart = [
            [_apart_if_elsewhere(*pair) for pair in zip(arg, written, strict=True)] if isinstance(arg, list) else arg
            for arg in args
        ]
        return original(written, *apart, **kwargs)

    return lower


def _apart_if_elsewhere(value: Any, written: Any) -> Any:
    """An operand of ``written``, in memory of its own if it is read from other places there than it is written to."""
    if not isinstance(value, ir.TensorBox):
        return value
    written.realize()
    buffer, own = written.get_name(), _reads(written)
    is_elsewhere = any(read.name == buffer and read not in own for read in _reads(value))
    return _apart(value, buffer) if is_elsewhere else value


def _reads(value: Any) -> Iterable[Dep]:
    return extract_read_writes(value.make_loader(), value.get_size()).reads


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
