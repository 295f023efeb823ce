# SPDX-License-Identifier: Apache-2.0
"""Executables that several plans share, found by the text of their graph: in memory, and on disk."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from outboard.compilers import Executable, Operand

from ...plans import cache
from ...target import Target

#: Executables that are kept in memory: a process without a cache on disk makes none twice while it needs no more.
MOST = 256
_SCRATCH = struct.Struct("<Q")
_kept: dict[bytes, Executable] = {}


def found_or_made(
    graph: torch.fx.Graph, operands: Sequence[Operand], target: Target, make: Callable[[], Executable]
) -> Executable:
    """The executable of a graph whose sizes are numbers; ``make``, what it raises included, where there is none."""
    key = target.key_of(b"executable " + text_of(graph, operands).encode())
    executable = _kept.pop(key, None) or _on_disk(key)
    if executable is None:
        executable = make()
        cache.store(key, False, _SCRATCH.pack(executable.scratch) + executable.code)
    _kept[key] = executable  # as the one used last
    if len(_kept) > MOST:
        del _kept[next(iter(_kept))]
    return executable


def _on_disk(key: bytes) -> Executable | None:
    for kept in cache.load(key)[1]:
        return Executable(kept[_SCRATCH.size :], *_SCRATCH.unpack_from(kept))
    return None


def text_of(graph: torch.fx.Graph, operands: Sequence[Operand]) -> str:
    """All that decides what a compiler makes of a graph. Nodes have numbers in it, as their names do not matter."""
    numbers = {node: f"%{number}" for number, node in enumerate(graph.nodes)}
    lines = []
    for node in graph.nodes:
        target = "" if node.op in ("placeholder", "output") else node.target
        call = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: numbers[each])
        values = [*map(_value, pytree.tree_leaves(node.meta.get("val")))]
        lines.append(f"{node.op} {target} {call!r} {values}")
    return "\n".join([*lines, *map(repr, operands)])


def _value(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{value.dtype} {[*value.shape]} {[*value.stride()]}"
