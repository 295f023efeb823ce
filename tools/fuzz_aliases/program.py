# SPDX-License-Identifier: Apache-2.0
"""A program: the memory of its inputs, its lines, and what it returns; and what it gives for inputs of some size."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

#: Ways for inputs to lie in one piece of memory, for an even size ``n``: how large that is, and the inputs.
LAYOUTS: dict[str, tuple[Callable[[int], tuple[int, ...]], Callable[[Tensor, int], list[Tensor]]]] = {
    "dense": (lambda n: (n, n), lambda x, n: [x]),
    "turned": (lambda n: (n, n), lambda x, n: [x.t()]),
    "inner": (lambda n: (n + 3, n + 2), lambda x, n: [x[1:-2, 2:]]),
    "gaps": (lambda n: (n, 2 * n), lambda x, n: [x[:, ::2]]),
    "row": (lambda n: (n,), lambda x, n: [x]),
    "cube": (lambda n: (4, n, n), lambda x, n: [x]),
    "overlapping": (lambda n: (n + 2, n), lambda x, n: [x[:n], x[2:]]),
    "side by side": (lambda n: (2 * n, n), lambda x, n: [x[:n], x[n:]]),
    "one twice": (lambda n: (n, n), lambda x, n: [x, x]),
    "row of it": (lambda n: (n, n), lambda x, n: [x, x[1]]),
}


@dataclass(frozen=True)
class Program:
    """``lines`` use the inputs ``v0``, ``v1``, ... and define more; ``returned`` are some of all these."""

    dtype: str
    layouts: tuple[str, ...]
    lines: tuple[str, ...]
    returned: tuple[str, ...]
    gradient: bool
    #: Whether it works on copies of its inputs, where it has gradients: a leaf must not be written.
    copies: bool = True

    def text(self, name: str = "program") -> str:
        """The program as a Python function."""
        names = [f"v{i}" for i in range(len(self.inputs(4, "cpu")[0]))]
        copies = [f"{each} = {each} * 1" for each in names] if self.gradient and self.copies else []
        body = [*copies, *self.lines, f"return {', '.join(self.returned)},"]
        return "\n".join([f"def {name}({', '.join(names)}):", *(f"    {line}" for line in body)]) + "\n"

    def inputs(self, n: int, device: str, apart: bool = False) -> tuple[list[Tensor], list[Tensor]]:
        """Its inputs of size ``n``, small whole numbers, and their memory; ``apart``: each has its own."""
        dtype, found, memory = getattr(torch, self.dtype), [], []
        for number, layout in enumerate(self.layouts):
            size, views = LAYOUTS[layout]
            shape = size(n)
            values = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(n + number))
            whole = (values - 4 if dtype.is_signed else values).to(dtype).to(device)
            own = [whole.clone() for _ in views(whole, n)] if apart else [whole]
            memory += own
            found += [views(each, n)[i] for i, each in enumerate(own)] if apart else views(whole, n)
        if self.gradient:
            found = [each.detach().requires_grad_() for each in found]
        return found, memory

    def json(self) -> dict[str, Any]:
        """The program as JSON knows it."""
        return asdict(self)

    def without(self, place: int) -> Program:
        """The program without one of its lines."""
        return replace(self, lines=self.lines[:place] + self.lines[place + 1 :])


def from_json(found: dict[str, Any]) -> Program:
    """What :meth:`Program.json` gave."""
    return Program(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})


def define(programs: Sequence[Program]) -> Callable[[list[list[Tensor]]], list[tuple[Tensor, ...]]]:
    """One function that runs programs one after the other, each on its own inputs."""
    calls = ", ".join(f"p{i}(*inputs[{i}])" for i in range(len(programs)))
    text = "".join(program.text(f"p{i}") for i, program in enumerate(programs))
    text += f"def graph(inputs):\n    return [{calls}]\n"
    names: dict[str, Any] = {"torch": torch, "__name__": __name__}
    place = f"<aliases {hash(text)}>"
    linecache.cache[place] = (len(text), None, text.splitlines(True), place)
    exec(compile(text, place, "exec"), names)  # noqa: S102 - our own text
    made = names["graph"]
    assert callable(made)
    return made  # type: ignore[no-any-return]


@dataclass
class Outcome:
    """What programs have left: for each what it returned, its memory, and gradients, on the CPU."""

    results: list[list[Tensor]]
    #: The same after something was added to all that was returned: what shares memory changes together.
    shared: list[list[Tensor]]


def run(programs: Sequence[Program], function: Callable[..., Any], n: int, device: str, apart: bool = False) -> Outcome:
    """Runs a function made by :func:`define`, or compiled from it, on inputs of size ``n``, which do not overlap if
    they are to lie ``apart``."""
    inputs, memory = [], []
    for program in programs:
        given, whole = program.inputs(n, device, apart)
        inputs.append(given)
        memory.append(whole)
    returned = function(inputs)
    if any(program.gradient for program in programs):
        outputs = [each for values in returned for each in values if each.requires_grad]
        torch.autograd.backward(outputs, [_weights(each) for each in outputs])
    parts = []
    for values, whole, given in zip(returned, memory, inputs, strict=True):
        gradients = [each.grad for each in given if each.grad is not None]
        parts.append([*values, *whole, *gradients])
    results = [[_to_cpu(each) for each in part] for part in parts]
    for values in returned:
        for each in values:
            if not each.requires_grad:
                _count_up(each)
    return Outcome(results, [[_to_cpu(each) for each in part] for part in parts])


def gradients(program: Program, function: Callable[..., Any], n: int, device: str, written: int | None) -> list[Tensor]:
    """The gradients of a program's inputs, on the CPU, if that one of its inputs and results is written after the
    function has run: 1 is added."""
    inputs, _ = program.inputs(n, device)
    (returned,) = function([inputs])
    outputs = [each for each in returned if each.requires_grad]
    weights = [_weights(each) for each in outputs]
    if written is not None:
        with torch.no_grad():
            _count_up([*inputs, *returned][written])
    torch.autograd.backward(outputs, weights)
    return [torch.zeros(()) if each.grad is None else _to_cpu(each.grad) for each in inputs]


def _to_cpu(x: Tensor) -> Tensor:
    # A copy even where it is there: it will be written to.
    return x.detach().to("cpu", copy=True)


def _weights(x: Tensor) -> Tensor:
    return (torch.arange(x.numel()).view(x.shape) % 5 - 2).to(x)


def _count_up(x: Tensor) -> None:
    """Adds 1, where no element has the memory of another: each dimension steps over all that lies in smaller ones."""
    end = 0
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1):
        if stride <= end:
            return
        end += stride * (size - 1)
    x.add_(1)
