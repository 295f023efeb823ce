# SPDX-License-Identifier: Apache-2.0
"""``torch.rbln.capture_programs``: what ``torch.compile(backend="rbln")`` compiled while a scope was open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import CompileContext


@dataclass(frozen=True)
class ShardPlacement:
    """Where a part of a tensor lies on an NPU; no tensor of Outboard's lies in parts."""

    node: int
    chiplet: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PhysicalPlacement:
    """Where the parts of a tensor lie on NPUs."""

    shards: tuple[ShardPlacement, ...]


@dataclass(frozen=True)
class OutputSpec:
    """A tensor that a program returns. ``shape`` has symbols of PyTorch's where a size may change."""

    shape: tuple[Any, ...]
    dtype: torch.dtype
    physical_placement: PhysicalPlacement | None = None


@dataclass(frozen=True)
class InputSpec:
    """A tensor that a program takes. ``shape`` has symbols of PyTorch's where a size may change."""

    name: str
    shape: tuple[Any, ...]
    dtype: torch.dtype
    physical_placement: PhysicalPlacement | None = None


@dataclass(frozen=True)
class CompiledProgram:
    """A graph that was compiled.

    Attributes:
        name: Dynamo's number of it, as ``"0/0"``.
        device: where it runs; None if it has no tensors.
        runtime: what runs it, called with its inputs.
        input_specs, output_specs: its tensors, in order.
    """

    name: str
    device: torch.device | None
    runtime: Callable[..., Any]
    input_specs: tuple[InputSpec, ...]
    output_specs: tuple[OutputSpec, ...]


class _Scopes(threading.local):
    """The lists of a thread's open scopes."""

    def __init__(self) -> None:
        self.open: list[list[CompiledProgram]] = []


_scopes = _Scopes()


@contextmanager
def capture_programs() -> Iterator[list[CompiledProgram]]:
    """A scope of this thread, whose list gets each program that is compiled in it, in order; scopes may be nested."""
    programs: list[CompiledProgram] = []
    _scopes.open.append(programs)
    try:
        yield programs
    finally:
        _scopes.open.remove(programs)


def note(graph: torch.fx.GraphModule, runtime: Callable[..., Any]) -> None:
    """Gives a compiled graph to the open scopes."""
    if not _scopes.open:
        return
    program = _described(graph, runtime)
    for programs in _scopes.open:
        programs.append(program)


def _described(graph: torch.fx.GraphModule, runtime: Callable[..., Any]) -> CompiledProgram:
    nodes = list(graph.graph.nodes)
    taken = [(node.name, _value(node)) for node in nodes if node.op == "placeholder"]
    inputs = [(name, value) for name, value in taken if isinstance(value, torch.Tensor)]
    outputs = [value for node in nodes[-1].all_input_nodes if isinstance(value := _value(node), torch.Tensor)]
    return CompiledProgram(
        str(CompileContext.current_compile_id()),
        next((value.device for value in [*outputs, *(value for _, value in inputs)]), None),
        runtime,
        tuple(InputSpec(name, tuple(value.shape), value.dtype) for name, value in inputs),
        tuple(OutputSpec(tuple(value.shape), value.dtype) for value in outputs),
    )


def _value(node: torch.fx.Node) -> Any:
    """What Dynamo knows of a node's value."""
    return node.meta.get("example_value", node.meta.get("val"))
