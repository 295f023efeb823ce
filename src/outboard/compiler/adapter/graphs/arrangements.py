# SPDX-License-Identifier: Apache-2.0
"""Which inputs of a graph overlap.

PyTorch traces a graph that writes its inputs for the overlaps that these have in the first call. It checks at most some
of them before it calls the graph again, and does not have them in the key under which its cache keeps the graph.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, fx
from torch._C._dynamo.guards import compute_overlapping_tensors

from outboard import patches

from ..interface import device_name

_KEY = "torch._functorch._aot_autograd.autograd_cache.autograd_cache_key"

_address: Callable[[Tensor], int] = vars(torch._C)["_storage_address"]

#: By storage that several inputs share: their numbers, and where each begins.
Arrangement = tuple[tuple[tuple[int, Any], ...], ...]


def check_overlaps() -> None:
    """Has graphs on the device run only for inputs that overlap as those did that they were made for."""
    patches.apply(
        "graphs that write inputs are for those that overlap in the same way",
        {"torch._inductor.compile_fx.compile_fx": _for_overlaps, _KEY: _with_places},
    )


def _with_places(original: Callable[..., Any]) -> Callable[..., Any]:
    """A graph is kept by what its inputs share, too."""

    @functools.wraps(original)
    def key(mod: Any, example_inputs: Sequence[Any], *others: Any, **named: Any) -> Any:
        found, lines = original(mod, example_inputs, *others, **named)
        if places := _shared(_tensors(example_inputs)):
            found += hashlib.sha256(repr(places).encode()).hexdigest()
        return found, lines

    return key


def _for_overlaps(original: Callable[..., Any]) -> Callable[..., Any]:
    """What is called with other overlaps runs operator by operator."""

    @functools.wraps(original)
    def compile_fx(model_: Any, example_inputs_: Sequence[Any], *others: Any, **named: Any) -> Any:
        inputs = Inputs.of(model_.graph) if isinstance(model_, fx.GraphModule) else None
        # With settings of its own, PyTorch's function calls itself.
        if inputs is None or len(others) > 1 or named.get("config_patches"):
            return original(model_, example_inputs_, *others, **named)
        check = Check(inputs, inputs.arrangement(example_inputs_))
        graph = copy.deepcopy(model_.graph)
        compiled = original(model_, example_inputs_, *others, **named)
        return checked(compiled, check, lambda: fx.GraphModule(model_, graph).forward)

    return compile_fx


def checked(
    compiled: Callable[..., Any], check: Check, one_by_one: Callable[[], Callable[..., Any]]
) -> Callable[..., Any]:
    """A compiled graph for inputs that ``check`` finds to fit; ``one_by_one`` makes what others are given to."""
    make = functools.cache(one_by_one)

    @functools.wraps(compiled)
    def call(*values: Any) -> Any:
        return compiled(*values) if check(values) else make()(*values)

    return call


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a graph that writes some of them, by their numbers."""

    tensors: tuple[int, ...]
    written: frozenset[int]
    #: Those whose place in their storage is a symbol. Where these overlap, PyTorch checks that they still do.
    movable: frozenset[int]
    #: Whether one that is written shares its storage with another, in the call for which the graph was traced.
    shares: bool

    @classmethod
    def of(cls, graph: fx.Graph) -> Inputs | None:
        """Those of a graph of Dynamo's; None if it writes none on the device, or has no other that might overlap it."""
        values = [node.meta.get("example_value") for node in graph.find_nodes(op="placeholder")]
        tensors = _tensors(values)
        written = frozenset(number for number, value in tensors.items() if value._version)
        if len(tensors) < 2 or not any(tensors[number].device.type == device_name() for number in written):
            return None
        movable = frozenset(n for n, value in tensors.items() if not isinstance(value.storage_offset(), int))
        shares = any(number in written for group in _shared(tensors) for number, _ in group)
        return cls(tuple(tensors), written, movable, shares)

    def arrangement(self, values: Sequence[Any]) -> Arrangement:
        """How the inputs of a call overlap that a graph depends on."""
        tensors = {number: values[number] for number in self.tensors}
        found = []
        for group in _shared(tensors):
            numbers = [number for number, _ in group]
            overlap = not self.written.isdisjoint(numbers) and compute_overlapping_tensors(
                [tensors[number] for number in numbers], symbolic=False
            )
            if overlap:
                found.append(tuple((number, None if number in self.movable else place) for number, place in group))
        return tuple(found)


class Check:
    """Whether the inputs of a call overlap as those that a graph was made for."""

    def __init__(self, inputs: Inputs, arrangement: Arrangement = ()) -> None:
        self._inputs, self._arrangement = inputs, arrangement
        self._tensors = itemgetter(*inputs.tensors)
        self._fitting: tuple[Any, ...] = ()  #: where tensors lay that share storages, and fitted

    def __call__(self, values: Sequence[Any]) -> bool:
        tensors = self._tensors(values)
        storages = tuple(map(_address, tensors))
        if len(set(storages)) == len(storages):
            return not self._arrangement
        places = (storages, tuple(map(Tensor.storage_offset, tensors)), tuple(each.shape for each in tensors))
        if places != self._fitting:
            if self._inputs.arrangement(values) != self._arrangement:
                return False
            self._fitting = places
        return True


def _tensors(values: Sequence[Any]) -> dict[int, Tensor]:
    """Tensors in memory among values, by number."""
    return {
        number: value
        for number, value in enumerate(values)
        if isinstance(value, Tensor) and value.layout is torch.strided and torch._C._has_storage(value)
    }


def _shared(tensors: dict[int, Tensor]) -> Arrangement:
    """The tensors that share a storage with others."""
    groups: dict[int, list[tuple[int, Any]]] = {}
    for number, value in tensors.items():
        groups.setdefault(value.untyped_storage()._cdata, []).append((number, value.storage_offset()))
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)
