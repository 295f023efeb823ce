# SPDX-License-Identifier: Apache-2.0
"""Graphs that are given tensors whose memory holds the conjugates or the negatives of their numbers.

Such a tensor is ``x.conj()`` or ``x.conj().imag``: a bit says that it is still to be changed. PyTorch's tracer takes it
for its numbers; kernels read memory.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from outboard import patches


def register(name: str) -> None:
    """Has graphs on the device of that name compute with the numbers of such tensors."""
    place = "torch._inductor.output_code:CompiledFxGraph.post_compile"
    patches.apply("graphs see conjugates and negatives that are pending", {place: functools.partial(_seeing, name)})


def _seeing(name: str, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def post_compile(self: Any, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:
        original(self, example_inputs, constants, graph_kwargs)
        if name in self.device_types and self.current_callable is not None:
            self.current_callable = _Plain(self.current_callable, name, self.mutated_input_idxs)

    return post_compile


class _Plain:
    """Runs a graph, which empties the list of its inputs, on tensors without such bits. Which inputs are tensors its
    first call says: the examples that it was compiled with have no bits, and those of a graph from PyTorch's cache may
    be of another graph."""

    def __init__(self, call: Callable[[list[Any]], Any], name: str, written: Sequence[int]) -> None:
        self._call, self._name, self._written = call, name, frozenset(written)
        self._floats: list[int] = []
        self._numbers: list[int] | None = None  #: the complex ones
        self._some_floats: Callable[[list[Any]], Any] = lambda _: ()

    def __call__(self, inputs: list[Any]) -> Any:
        if self._numbers is None:
            self._look(inputs)
        pending = [n for n in self._numbers or () if inputs[n].is_conj() or inputs[n].is_neg()]
        if any(map(Tensor.is_neg, self._some_floats(inputs))):  # in C, as there may be hundreds
            pending += [n for n in self._floats if inputs[n].is_neg()]
        return self._run(inputs, pending) if pending else self._call(inputs)

    def _look(self, inputs: list[Any]) -> None:
        tensors = {n: v for n, v in enumerate(inputs) if isinstance(v, Tensor) and v.device.type == self._name}
        self._floats = [n for n, value in tensors.items() if value.is_floating_point()]
        if self._floats:
            self._some_floats = operator.itemgetter(*self._floats, self._floats[0])
        self._numbers = [n for n, value in tensors.items() if value.is_complex()]

    def _run(self, inputs: list[Any], pending: list[int]) -> Any:
        given = {n: inputs[n] for n in pending if n in self._written}
        for n in pending:
            inputs[n] = plain(inputs[n])
        made = {n: inputs[n] for n in given}
        results = self._call(inputs)
        for n, tensor in given.items():
            tensor.copy_(made[n])
        return results


def plain(x: Tensor) -> Tensor:
    """A tensor in memory of its own that holds its numbers, and lies as it did, gaps and elements that share memory
    included."""
    is_conjugate, is_negative = x.is_conj(), x.is_neg()
    memory = x.conj() if is_conjugate else x
    memory = torch._neg_view(memory) if is_negative else memory
    reach = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    flat = memory.as_strided((reach,), (1,)).clone()
    if is_conjugate:
        flat.imag.neg_()
    if is_negative:
        (torch.view_as_real(flat) if flat.is_complex() else flat).neg_()
    return flat.as_strided(x.shape, x.stride(), 0)
