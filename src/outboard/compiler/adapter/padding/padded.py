# SPDX-License-Identifier: Apache-2.0
"""Padded graphs as steps of a plan: inputs are copied into larger memory, masks and true sizes are filled in, one
executable serves all sizes of a bucket, and results are cut. Every driver has what it takes: copies and fills."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

from outboard import compilers

from ...plans.builder import PlanBuilder, TensorArg
from ...target import Target, index_of
from .. import executables
from ..operators.strides import dense_strides, memory_order
from . import kept
from .proof import Dim, Dims, Number, Padded, copy_of

#: No tensor has as many bytes.
TOO_MANY_BYTES = 2**63
#: Copies that padding or cutting one tensor may take; what is in more pieces gets an executable of its own size.
MOST_COPIES = 256

_log = logging.getLogger(__name__)
_Sizes: TypeAlias = dict[sympy.Symbol, int]


class Unfit(Exception):
    """These sizes are not padded."""


def add_padded(
    builder: PlanBuilder,
    padded: Padded,
    values: Sequence[Any],
    given: Sequence[executables.Given],
    expected: Sequence[Any],
    compiler: compilers.GraphCompiler,
    mode: FakeTensorMode,
) -> None:
    """Appends what a padded graph computes of inputs of one set of sizes.

    ``values`` are the inputs as tensors without data, of ``mode``, and numbers, and ``given`` what stands for them in
    the plan; ``expected`` are the results, as they are to lie, without data. Raises Unfit and Refused.
    """
    true = padded.sizes_of(values)
    wide = _wide(padded, true, compiler)
    module = _widened(padded, values, wide, mode)
    _require_room(module, true, wide, builder.target)
    given = [*given, *[None] * len(padded.extra)]
    _Lowering(builder, module, given, compiler, padded, (true, wide), expected).run()


def add_concatenation(builder: PlanBuilder, parts: Sequence[TensorArg], result: torch.Tensor, dim: int) -> None:
    """Appends a concatenation by copies of bytes. Raises Unfit."""
    if any(part.dtype != result.dtype for part in parts) or not result.is_contiguous():
        raise Unfit("it takes more than copies")
    made = builder.allocate_like([*result.shape], [*result.stride()], result.dtype)
    begin = 0
    for part in parts:
        if math.prod(part.sizes) == 0:
            continue
        place = (begin * made.strides[dim] + made.offset) * made.itemsize
        for source, target, count in _runs(part.sizes, part.strides, made.strides):
            offsets = source * made.itemsize, place + target * made.itemsize
            builder.copy(part.buffer, made.buffer, count * made.itemsize, *offsets)
        begin += part.sizes[dim]
    builder.output_tensor(made)


def _wide(padded: Padded, true: _Sizes, compiler: compilers.GraphCompiler) -> _Sizes:
    """The sizes of the buckets. Raises Unfit if there is none."""
    buckets = {symbol: _bucket(true[symbol], compiler) for symbol in padded.varying}
    if 0 in true.values() or (buckets and not any(buckets.values())):
        raise Unfit("no bucket for them")
    return {symbol: buckets.get(symbol) or size for symbol, size in true.items()}


def _bucket(size: int, compiler: compilers.GraphCompiler) -> int | None:
    """What a compiler pads a size to. Raises Unfit for an answer that is none, which is logged."""
    assert isinstance(compiler, compilers.Bucketing)
    try:
        answer = compiler.bucket(size)
        bucket = None if answer is None else operator.index(answer)
        if bucket is not None and bucket < size:
            raise ValueError(f"a bucket is no smaller than what goes into it, and this is {bucket}")
    except (Exception, SystemExit) as error:
        failure = executables.failure(compiler, error)
        _log.warning("sizes are not padded: bucket(%d) of %s", size, failure, exc_info=error)
        raise Unfit(failure) from error
    return bucket


def _widened(padded: Padded, values: Sequence[Any], wide: _Sizes, mode: FakeTensorMode) -> torch.fx.GraphModule:
    """The graph with numbers for sizes."""
    module = copy_of(padded.module)
    fakes: list[Any] = []
    device = next(value.device for value in values if isinstance(value, torch.Tensor))
    inputs = zip(module.graph.find_nodes(op="placeholder"), values, padded.inputs, strict=False)
    for node, value, dims in inputs:
        if isinstance(value, torch.Tensor):
            with mode:
                fakes.append(_widened_tensor(value, dims, wide))
            continue
        fakes.append(int(dims.subs(wide)) if isinstance(value, int) else value)  # type: ignore[union-attr]
        executables.put_number(node, fakes[-1])
    with mode, torch.no_grad():
        fakes += [_extra(what, device, wide) for what in padded.extra]
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*fakes)
    for node in reversed(module.graph.nodes):
        if node.op == "call_function":
            executables.put_number(node, node.meta.get("val"))
    return module


def _require_room(module: torch.fx.GraphModule, true: _Sizes, wide: _Sizes, target: Target) -> None:
    """Raises Unfit, which is logged, for buckets of which a tensor alone is too large for the device."""
    from outboard import _C

    properties = _C.device_properties(index_of(target))
    room = properties["max_allocation"] or properties["total_memory"]
    values = [value for node in module.graph.nodes for value in pytree.tree_leaves(node.meta.get("val"))]
    largest = max(_bytes(value) for value in values if isinstance(value, torch.Tensor))
    if largest > room:
        pairs = ", ".join(f"{wide[symbol]} of {size}" for symbol, size in true.items() if wide[symbol] != size)
        _log.warning("sizes are not padded: buckets (%s) make a tensor of %d bytes; %d fit", pairs, largest, room)
        raise Unfit("buckets that the device has no room for")


def _bytes(tensor: torch.Tensor) -> int:
    """Of a dense tensor; dimensions that are repeated take none."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0)
    return math.prod(sizes) * tensor.itemsize


def _widened_tensor(tensor: torch.Tensor, dims: Dims, wide: _Sizes) -> torch.Tensor:
    """One of the sizes of buckets: dense, with dimensions in the same order; those that are repeated stay so."""
    sizes = [math.prod(_factors(dim, wide)) for dim in dims]
    repeated = [stride == 0 and size != 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)]
    once = [1 if repeats else size for repeats, size in zip(repeated, sizes, strict=True)]
    if math.prod(once) * tensor.itemsize >= TOO_MANY_BYTES:
        _log.warning("sizes are not padded: the buckets of %s make a tensor of %s", [*tensor.shape], sizes)
        raise Unfit("buckets that no tensor has room for")
    strides = dense_strides(once, memory_order(tensor))
    strides = [0 if repeats else stride for repeats, stride in zip(repeated, strides, strict=True)]
    return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)


def _extra(what: Dim | Number, device: torch.device, wide: _Sizes) -> torch.Tensor:
    if _is_number(what):
        return torch.empty((), dtype=what[1], device=device)
    return torch.empty(math.prod(_factors(what, wide)), dtype=torch.bool, device=device)


def _is_number(what: Dim | Number) -> bool:
    return len(what) == 2 and isinstance(what[1], torch.dtype)


def _factors(dim: Dim, sizes: _Sizes) -> list[int]:
    return [int(factor.subs(sizes)) for factor in dim]


class _Lowering(executables.Lowering):
    """The steps of a graph of the sizes of buckets, whose inputs and results are of others."""

    def __init__(
        self,
        builder: PlanBuilder,
        module: torch.fx.GraphModule,
        given: Sequence[executables.Given],
        compiler: compilers.GraphCompiler,
        padded: Padded,
        sizes: tuple[_Sizes, _Sizes],
        expected: Sequence[Any],
    ) -> None:
        super().__init__(builder, module, given, compiler, aliased=True)
        self._true, self._wide = sizes
        self._temporary: list[TensorArg] = []
        self._expected = expected
        nodes = list(self.numbers)
        self._dims = dict(zip(nodes, padded.inputs, strict=False))
        self._extra = dict(zip(nodes[len(padded.inputs) :], padded.extra, strict=True))
        self._results = padded.results

    def _place(self, node: torch.fx.Node, inputs: Sequence[torch.fx.Node]) -> TensorArg:
        """New memory; of what is written to an input, with dimensions in the input's order."""
        value = node.meta["val"]
        for write in self.writes:
            if write.source is node:
                target = write.target.meta["val"]
                strides = dense_strides([*value.shape], memory_order(target))
                return self.builder.allocate_like([*value.shape], strides, value.dtype)
        return self._allocate(value)

    def _read(self, node: torch.fx.Node) -> executables.Given:
        if node in self._extra:
            return self._filled(self._extra[node])
        given, value, dims = self.given[node], node.meta["val"], self._dims.get(node)
        if dims is None or not isinstance(given, TensorArg) or _lies_as(given, value):
            return given
        is_whole = [*given.sizes] == [*value.shape]
        made = dataclasses.replace(given, sizes=(*value.shape,), strides=value.stride())
        try:
            copies = self._copies(given, made, dims)
        except Unfit:
            if is_whole:
                return given
            raise
        made = self.builder.allocate_like(made.sizes, made.strides, made.dtype)
        if not is_whole:
            self.builder.fill(made.buffer, made.numel() * made.itemsize, b"\0")
        self._copy(given, made, copies)
        self._temporary.append(made)
        return made

    def _filled(self, what: Dim | Number) -> TensorArg:
        """A mask, or a number as a tensor."""
        if _is_number(what):
            number = torch.tensor([float(what[0].subs(self._true))], dtype=what[1])
            made = self.builder.allocate_like((), (), number.dtype)
            self.builder.fill(made.buffer, made.itemsize, bytes(number.view(torch.uint8).tolist()))
        else:
            true, wide = _factors(what, self._true), _factors(what, self._wide)
            made = self.builder.allocate_like((math.prod(wide),), (1,), torch.bool)
            self.builder.fill(made.buffer, made.numel(), b"\0")
            strides = dense_strides(wide, reversed(range(len(wide))))
            for _, begin, count in _runs(true, strides, strides):
                self.builder.fill(made.buffer, count, b"\1", begin)
        self._temporary.append(made)
        return made

    def _execute(self, graph: torch.fx.Graph, given: Sequence[executables.Given], results: Sequence[TensorArg]) -> None:
        super()._execute(graph, given, results)
        for each in self._temporary:
            self.builder.free(each.buffer)

    def _made(self, name: str, graph: torch.fx.Graph, operands: Sequence[compilers.Operand]) -> compilers.Executable:
        make = functools.partial(super()._made, name, graph, operands)
        return kept.found_or_made(graph, operands, self.target, make)

    def _write_back(self, write: executables.Write, source: TensorArg, target: TensorArg) -> None:
        self._copy(source, target, self._copies(source, target, self._dims[write.target]))

    def _output(self, number: int, output: Any, views: dict[torch.fx.Node, TensorArg]) -> None:
        if output not in views:
            super()._output(number, output, views)
            return
        made, value = views[output], self._expected[number]
        if [*made.sizes, *made.strides] != [*value.shape, *value.stride()]:
            made = self._allocate(value)
            self._copy(views[output], made, self._copies(views[output], made, self._results[number]))
        self.builder.output_tensor(made)

    def _copies(self, source: TensorArg, target: TensorArg, dims: Dims) -> list[tuple[int, int, int]]:
        """What is no padding, of a tensor of true sizes and one of the sizes of buckets, in pieces. Raises Unfit."""
        sizes: list[int] = []
        strides: tuple[list[int], list[int]] = ([], [])
        for place, dim in enumerate(dims):
            if source.sizes[place] == target.sizes[place] == 1:
                continue
            sizes += _factors(dim, self._true)
            for each, view in zip(strides, (source, target), strict=True):
                of_true = view.sizes[place] == math.prod(_factors(dim, self._true))
                factors = _factors(dim, self._true if of_true else self._wide)
                each += [view.strides[place] * step for step in dense_strides(factors, reversed(range(len(factors))))]
        return [*_runs(sizes, *strides)]

    def _copy(self, source: TensorArg, target: TensorArg, pieces: Iterable[tuple[int, int, int]]) -> None:
        for begin, end, count in pieces:
            offsets = ((view.offset + at) * view.itemsize for view, at in ((source, begin), (target, end)))
            self.builder.copy(source.buffer, target.buffer, count * source.itemsize, *offsets)


def _lies_as(given: TensorArg, value: torch.Tensor) -> bool:
    pairs = zip(given.sizes, given.strides, value.stride(), strict=True)
    return [*given.sizes] == [*value.shape] and all(size == 1 or one == other for size, one, other in pairs)


def _runs(sizes: Sequence[int], source: Sequence[int], target: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The elements of a tensor in pieces without gaps in either of two memories: where each begins there, and its
    length. Raises Unfit if there are too many."""
    outer = sorted((d for d, size in enumerate(sizes) if size != 1), key=lambda d: (target[d], -d), reverse=True)
    length = 1
    while outer and source[outer[-1]] == target[outer[-1]] == length:
        length *= sizes[outer.pop()]
    if (count := math.prod(sizes[d] for d in outer)) > MOST_COPIES:
        raise Unfit(f"a tensor lies in {count} pieces")
    for at in itertools.product(*(range(sizes[d]) for d in outer)):
        begin, end = (sum(place * each[d] for place, d in zip(at, outer, strict=True)) for each in (source, target))
        yield begin, end, length
