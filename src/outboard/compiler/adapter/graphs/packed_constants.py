# SPDX-License-Identifier: Apache-2.0
"""Finds, among the lines of a frozen graph, constants that products should find packed (see ``kernels.packing``)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import torch
from torch._inductor import ir
from torch._inductor.codegen import wrapper

from ...kernels import packing
from ...plans import plan as p
from ...plans.builder import PlanBuilder, TensorArg
from ...target import Target

_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm)


def matrices(lines: Sequence[Any], constants: Collection[str], target: Target) -> Iterator[tuple[str, Any]]:
    """Yields (name of a constant, node of a view of it) for what the lines multiply by and should be packed."""
    for line in lines:
        if not isinstance(line, (wrapper.ExternKernelAllocLine, wrapper.ExternKernelOutLine)):
            continue
        overload = line.node.op_overload
        if not isinstance(overload, torch._ops.OpOverload) or overload.overloadpacket not in _PRODUCTS:
            continue
        a, b = (cast(ir.TensorBox, operand) for operand in line.node.inputs[-2:])
        name = _name(b)
        if name in constants and packing.pays(target, b.get_dtype(), a.get_size()[0]):
            yield name, b


def _name(node: Any) -> str:
    while isinstance(node, (ir.TensorBox, ir.StorageBox, ir.ReinterpretView)):
        node = node.data
    return str(node.get_name()) if isinstance(node, ir.Buffer) else ""


def plan_of(views: Sequence[TensorArg], target: Target) -> p.Plan:
    """A plan that packs views of constants; its inputs are the constants, one for each view."""
    builder = PlanBuilder(target)
    inputs = [builder.add_input(p.InputKind.TENSOR) for _ in views]
    for number, view in zip(inputs, views, strict=True):
        own = TensorArg(number, view.dtype, view.sizes, view.strides, view.offset)
        builder.output_tensor(packing.pack(builder, own))
    return builder.finish()
