# SPDX-License-Identifier: Apache-2.0
"""Finds, among the lines of a graph, products that the launch after them finishes (see ``compiler.epilogue``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen import wrapper
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.utils import LineContext
from torch._inductor.virtualized import V
from torch.utils import _pytree as pytree

from ..kernels.epilogue import Epilogue
from ..operators import facts

_PASSIVE = (
    wrapper.MemoryPlanningLine,
    wrapper.FreeLine,
    LineContext,
    wrapper.CommentLine,
    wrapper.MultiOutputLine,
    wrapper.EnterDeviceContextManagerLine,
    wrapper.ExitDeviceContextManagerLine,
)


def pairs(lines: Sequence[Any], launch_type: type[Any]) -> Iterator[tuple[Any, Any]]:
    """Yields (line of a product, line of the launch that reads its result and is the only one to do so)."""
    for number, line in enumerate(lines):
        name = _product(line)
        if name is None:
            continue
        follower = next((later for later in lines[number + 1 :] if not _is_passive(later)), None)
        if not isinstance(follower, launch_type) or not _only_read_by(name, follower, lines, launch_type):
            continue
        if Epilogue.suits(follower.loops, name):
            yield line, follower


def result_of(node: Any) -> Any:
    """The IR node of a call's only result; None if there are none or several."""
    if not isinstance(node.layout, ir.MultiOutputLayout):
        return node
    outputs = [output for output in pytree.tree_leaves(node.outputs) if isinstance(output, ir.MultiOutput)]
    return outputs[0] if len(outputs) == 1 else None


def _product(line: Any) -> str | None:
    """The name of a line's result if the line is a product whose kernel takes epilogues."""
    if not isinstance(line, (wrapper.ExternKernelAllocLine, wrapper.ExternKernelOutLine)):
        return None
    overload = line.node.op_overload
    if not isinstance(overload, torch._ops.OpOverload) or overload.namespace != "aten":
        return None
    if not facts.of(overload._schema.name).finishes or getattr(line.node, "output_view", None) is not None:
        return None
    result = result_of(line.node)
    return None if result is None else result.get_name()


def _is_passive(line: Any) -> bool:
    """Whether a line computes nothing: operands of a product before it are the same after it."""
    if isinstance(line, wrapper.UnbackedSymbolDefsLine):
        return not line.unbacked_bindings
    return isinstance(line, _PASSIVE)


def _only_read_by(name: str, launch: Any, lines: Sequence[Any], launch_type: type[Any]) -> bool:
    """Whether a buffer is needed for one launch and for nothing else."""
    users = V.graph.scheduler.name_to_buf[name].users
    readers = [line for line in lines if isinstance(line, launch_type) and name in line.loops.buffers]
    return readers == [launch] and all(isinstance(user.node, SchedulerNode) for user in users)
