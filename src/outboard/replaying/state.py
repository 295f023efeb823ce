# SPDX-License-Identifier: Apache-2.0
"""Whether Python objects are still what they were: what a replay, which runs no Python, has to know before.

All that can be reached from some objects through attributes, dictionaries, lists, tuples and sets is compared by
identity, and tensors by where their elements are. New elements of a tensor on the device are no change: a replay reads
them.
"""

from __future__ import annotations

import enum
import logging
import types
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from outboard import _C

Container: TypeAlias = dict[Any, Any] | Collection[Any]

#: Most objects to be watched: to compare them takes some hundred microseconds.
MOST_VALUES = 1 << 15

# What holds nothing that could change, or what belongs to the program and not to these objects.
_CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum, type),
    *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType, types.GenericAlias),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.Generator, logging.Logger),
)


class State:
    """The values within reach of some objects, as they are now.

    Args:
        roots: the objects.
        ignored: objects that are not looked into.
    """

    def __init__(self, roots: Iterable[object], ignored: Iterable[object] = ()) -> None:
        self._kinds: dict[int, str] = {}  #: what an object is whose values a container, by ``id``, holds
        self._containers: list[Container] = []
        self._tensors: list[Tensor] = []
        self._is_whole = self._visit(list(roots), {id(value) for value in ignored})
        self._watch = None if self.obstacle() else _C.Watch(self._containers, self._tensors)

    def _visit(self, found: list[object], seen: set[int]) -> bool:
        """Looks into all objects that can be reached, if they are not too many. Returns whether that was so."""
        while found and len(seen) <= MOST_VALUES:
            value = found.pop()
            if isinstance(value, _CONSTANTS) or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, Tensor):
                self._tensors.append(value)
            if isinstance(value, types.MethodType):
                found.append(value.__self__)
            for held in _containers(value):
                self._containers.append(held)
                self._kinds[id(held)] = type(value).__name__
                found.extend(held.values() if isinstance(held, dict) else held)
        return not found

    def obstacle(self) -> str:
        """Why these objects cannot be watched, or ''."""
        if not self._is_whole:
            return f"more than {MOST_VALUES} Python objects are within its reach"
        for tensor in self._tensors:
            if type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout != torch.strided:
                return f"it uses a tensor of type {type(tensor).__name__}, {tensor.layout}"
            if tensor.device.type == "cpu" and tensor.is_inference():
                return "it uses a CPU tensor made in inference mode, whose changes are not counted"
        return ""

    def is_unchanged(self) -> bool:
        """Whether all values are the very same objects, and all tensors where they were."""
        return self._watch is not None and self._watch.is_unchanged()

    def change(self) -> str:
        """What is not as it was, or ''."""
        if self._watch is None or self._watch.is_unchanged():
            return ""
        changed = self._watch.changed()
        if changed is None:
            return "it changes where the elements of a tensor are"
        held, before = changed
        values = held.values() if isinstance(held, dict) else held
        for place, (old, new) in enumerate(zip(before, values, strict=False)):
            if old is not new:
                name = repr(list(held)[place]) if isinstance(held, dict) else f"value {place}"
                return f"it changes {name} of a {self._kinds[id(held)]}"
        return f"it changes how many values a {self._kinds[id(held)]} holds"


def _containers(value: object) -> list[Container]:
    """What holds the values of an object: itself, its attributes."""
    found: list[Container] = []
    if isinstance(value, (dict, list, tuple, set, frozenset, deque)):
        found.append(value)
    if hasattr(value, "__dict__"):
        found.append(vars(value))
    return found
