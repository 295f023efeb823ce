# SPDX-License-Identifier: Apache-2.0
"""Operands of executables in layouts of a compiler's: which they are, and the steps that bring them there and back.

Where a tensor's memory holds nothing else, the runtime keeps its contents in a layout until other work than an
executable that asks for the same layout needs them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from outboard import compilers

from ..plans import plan as p
from ..plans.builder import CallValue, PlanBuilder, TensorArg
from ..plans.dtypes import dtype_number
from ..plans.schema import serialize
from ..target import Target, target_of


def chosen(
    compiler: compilers.GraphCompiler, graph: torch.fx.Graph, operands: Sequence[compilers.Operand], target: Target
) -> list[compilers.Operand]:
    """The operands of an executable in the layouts that its compiler chooses, as far as they can be in any. Raises
    TypeError or ValueError for an answer that is none."""
    if not isinstance(compiler, compilers.Layouts):
        return [*operands]
    answer = compiler.layouts(graph, operands, target)
    if not isinstance(answer, Sequence) or len(answer) != len(operands):
        raise TypeError(f"layouts() is to return a layout or None for each of {len(operands)} operands")
    return [
        dataclasses.replace(operand, layout=_fitting(layout, operand))
        if layout is not None and operand.is_dense
        else operand
        for operand, layout in zip(operands, answer, strict=True)
    ]


@functools.lru_cache(maxsize=4096)
def spec_of(layout: compilers.Layout, target: Target) -> p.LayoutSpec:
    """A layout of the target's compiler as plans have it. Raises RuntimeError if that has none, and TypeError or
    ValueError if what it makes for this one is no executable."""
    compiler = compilers.find(target)
    if not isinstance(compiler, compilers.Layouts):
        raise RuntimeError("the device has no compiler with layouts of its own")
    answer = compiler.relayout(layout, target)
    if not isinstance(answer, Sequence) or len(answer) != 2:
        raise TypeError("relayout() is to return two Executables, to the layout and from it")
    to, back = (checked(made, "relayout") for made in answer)
    return p.LayoutSpec(
        layout.name,
        dtype_number(layout.dtype),
        layout.sizes,
        dtype_number(layout.arranged_dtype),
        layout.arranged_sizes,
        to.code,
        to.scratch,
        back.code,
        back.scratch,
    )


def checked(made: Any, method: str) -> compilers.Executable:
    """What a compiler's method answered. Raises TypeError or ValueError if that is no executable."""
    if not isinstance(made, compilers.Executable):
        raise TypeError(f"{method}() is to return an Executable, not {type(made).__name__}")
    if not isinstance(made.code, (bytes, bytearray, memoryview)):
        raise TypeError(f"an Executable's code is bytes, not {type(made.code).__name__}")
    scratch = operator.index(made.scratch)
    if not 0 <= scratch < 2**63:
        raise ValueError(f"an Executable's scratch is a number of bytes, not {scratch}")
    return compilers.Executable(bytes(made.code), scratch)


def add_execution(
    builder: PlanBuilder,
    name: str,
    made: compilers.Executable,
    given: Sequence[CallValue],
    results: Sequence[TensorArg],
    specs: Sequence[p.LayoutSpec | None],
) -> dict[int, tuple[TensorArg, p.LayoutSpec]]:
    """Appends a run of an executable. ``specs`` are the layouts of what it is given and makes. Returns, by its buffer,
    each result that it makes in a layout, and as what it does: a buffer of the caller's to free."""
    of_given, of_results = specs[: len(given)], specs[len(given) :]
    read = [
        builder.to_layout(view, spec) if spec is not None and isinstance(view, TensorArg) else view
        for view, spec in zip(given, of_given, strict=True)
    ]
    written = [
        view if spec is None else builder.allocate_in(spec) for view, spec in zip(results, of_results, strict=True)
    ]
    memory = [builder.allocate_like((made.scratch,), (1,), torch.uint8)] if made.scratch else []
    builder.execute(name, made.code, read, [*written, *memory])
    arranged = [view for view, spec in zip(read, of_given, strict=True) if spec and isinstance(view, TensorArg)]
    for view in (*memory, *arranged):
        builder.free(view.buffer)
    made_so = {}
    for result, view, spec in zip(results, written, of_results, strict=True):
        if spec is not None:
            builder.from_layout(view, result, spec)
            made_so[result.buffer] = (view, spec)
    return made_so


def _fitting(layout: Any, operand: compilers.Operand) -> compilers.Layout:
    """A compiler's layout. Raises TypeError or ValueError if an operand cannot be in it."""
    if not isinstance(layout, compilers.Layout):
        raise TypeError(f"a Layout is wanted, not {type(layout).__name__}")
    if not isinstance(layout.name, str) or not isinstance(layout.arranged_dtype, torch.dtype):
        raise TypeError(f"a Layout has a text and a dtype, not {layout.name!r} and {layout.arranged_dtype!r}")
    for sizes in (layout.sizes, layout.arranged_sizes):
        if not isinstance(sizes, tuple) or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise TypeError(f"sizes of a Layout are a tuple of numbers above 0, not {sizes!r}")
    if layout.dtype != operand.dtype or math.prod(layout.sizes) != math.prod(operand.sizes):
        raise ValueError(
            f"{layout.name} is of {layout.dtype} {[*layout.sizes]}, and the operand {operand.dtype} {[*operand.sizes]}"
        )
    return layout


def bring(tensor: torch.Tensor, layout: compilers.Layout) -> None:
    """Has the device keep a tensor's contents in a layout, where its memory may move. Raises ValueError for a tensor
    that cannot be in it, and RuntimeError on a device whose compiler has no layouts."""
    from outboard import _C

    device_name = torch._C._get_privateuse1_backend_name()
    if tensor.device.type != device_name:
        raise RuntimeError(
            f"{device_name} has the contents of its own tensors in layouts, not those of {tensor.device}"
        )
    target = target_of(tensor.device.index)
    operand = compilers.Operand(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
    _fitting(layout, operand)
    if not operand.is_dense or tensor.storage_offset() != 0 or tensor.nbytes != tensor.untyped_storage().nbytes():
        raise ValueError("a tensor in a layout is dense, and all of its storage")
    builder = PlanBuilder(target)
    given = TensorArg(builder.add_input(p.InputKind.TENSOR), tensor.dtype, operand.sizes, operand.strides)
    builder.free(builder.to_layout(given, spec_of(layout, target)).buffer)
    _C.Plan(serialize(builder.finish()), tensor.device.index).run([tensor])
