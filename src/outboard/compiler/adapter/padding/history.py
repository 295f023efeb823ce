# SPDX-License-Identifier: Apache-2.0
"""What varies from call to call: the sizes in which alone a call differs from an earlier one of its kind, and strides
of tensors with gaps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch

from outboard._C import SignedCall

from ...operators.overloads import find_overload

#: Kinds of calls, and calls of a kind, that are remembered.
MOST_KINDS, MOST_CALLS = 4096, 16

#: A leaf of a call, by its number, and one of its dimensions.
Place: TypeAlias = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class _Call:
    sizes: dict[Place, int]
    strides: tuple[tuple[int, ...], ...]


@dataclasses.dataclass
class _Kind:
    calls: list[_Call] = dataclasses.field(default_factory=list)
    varying: set[Place] = dataclasses.field(default_factory=set)


_kinds: dict[Any, _Kind] = {}


def varying(call: SignedCall) -> tuple[frozenset[Place], bool]:
    """The dimensions of a call's tensors that vary, and whether their strides do where sizes do not, as far as is
    known; remembers the call. Parameters vary from layer to layer, but not from call to call: calls with others are of
    another kind."""
    name, this = _described(call)
    kind = _kinds.setdefault(name, _Kind())
    for earlier in kind.calls:
        differing = {place for place, size in this.sizes.items() if earlier.sizes[place] != size}
        if len({(earlier.sizes[place], this.sizes[place]) for place in differing}) == 1:
            kind.varying |= differing
    strides = any(earlier.sizes == this.sizes and earlier.strides != this.strides for earlier in kind.calls)
    if this not in kind.calls:
        kind.calls.append(this)
        del kind.calls[:-MOST_CALLS]
    if len(_kinds) > MOST_KINDS:
        del _kinds[next(iter(_kinds))]
    return frozenset(kind.varying), strides


def _described(call: SignedCall) -> tuple[Any, _Call]:
    names = [argument.name for argument in find_overload(call.op)._schema.arguments]
    arguments = dict(zip(names, call.args, strict=False)) | call.kwargs
    leaves = {(leaf.argument, leaf.item): number for number, leaf in enumerate(call.leaves)}
    kind: list[Any] = [call.op, call.device]
    sizes: dict[Place, int] = {}
    strides: list[tuple[int, ...]] = []
    for name, item, value in _items(arguments):
        number = leaves.get((name, item))
        if number is None:
            kind.append((name, item, None if isinstance(value, torch.Tensor) else repr(value)))
        elif not isinstance(value, torch.Tensor):
            kind.append(call.leaves[number].kind)
        elif _is_parameter(value):
            kind.append((value.dtype, value.shape))
        else:
            kind.append((value.dtype, value.dim()))
            sizes |= {(number, dim): size for dim, size in enumerate(value.shape)}
            strides.append(value.stride())
    return tuple(kind), _Call(sizes, tuple(strides))


def _items(arguments: dict[str, Any]) -> Iterator[tuple[str, int, Any]]:
    for name, value in arguments.items():
        if isinstance(value, (list, tuple)):
            yield from ((name, number, item) for number, item in enumerate(value))
        else:
            yield name, -1, value


def _is_parameter(value: torch.Tensor) -> bool:
    base = value._base
    return isinstance(value if base is None else base, torch.nn.Parameter)
