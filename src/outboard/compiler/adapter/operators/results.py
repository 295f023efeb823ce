# SPDX-License-Identifier: Apache-2.0
"""What PyTorch says of an operator's results: their dtypes, and how they lie in memory.

PyTorch's shape functions, asked with the sizes and strides of the call in hand, know it best: decompositions and
lowerings compute the right elements, and now and then put them elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...operators import facts
from ...plans.builder import NotExpressible
from ..symbols import hints
from . import mistaken_shapes
from .strides import dense_strides, iterated_order, memory_order

aten = torch.ops.aten

#: Layouts of which ``TensorIterator`` decides by operands.
OF_OPERANDS = (facts.Layout.OF_FIRST_OPERAND, facts.Layout.OF_FIRST_ALONE)
#: Layouts of new results that are contiguous.
CONTIGUOUS = (facts.Layout.CONTIGUOUS, facts.Layout.CONTIGUOUS_IF_NEW)


def to_meta(value: Any) -> Any:
    """An argument of a call without its data; what has none stays as it is.

    One plan serves all contiguous tensors, whatever strides those dimensions have in which nothing moves: by these an
    image of one channel may have its channels last.
    """
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu":
            return value
        if value.is_contiguous():
            return torch.empty(value.shape, dtype=value.dtype, device="meta")
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, (list, tuple)):
        return [to_meta(item) for item in value]
    return value


def of_shape_function(overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any] | None:
    """The operator's results, in order, as tensors without data; None if no shape function tells.

    Raises what the shape function finds wrong with the arguments.
    """
    fact = facts.of(overload._schema.name)
    if _depends_on_data(overload, args) or (fact.mistaken and getattr(mistaken_shapes, fact.mistaken)(*args, **kwargs)):
        return None
    if fact.shaped_as:
        overload = _same_overload(overload, fact.shaped_as)
    call_args = _with_tensors(overload, [to_meta(value) for value in args])
    call_kwargs = {key: to_meta(value) for key, value in kwargs.items() if not isinstance(value, torch.Generator)}
    if call_args is None:
        return None
    try:
        results = [*pytree.tree_leaves(overload(*call_args, **call_kwargs))]
    except NotImplementedError:
        return None
    if torch.Tag.pointwise in overload.tags and any(_is_expanded_half(value) for value in call_args):
        singles = overload(*(_as_float(value) for value in call_args), **call_kwargs)
        return [_laid_out(*pair) for pair in zip(results, pytree.tree_leaves(singles), strict=True)]
    if overload is aten.convolution.default:
        return [like_channels(results[0], *call_args[:2])]
    if overload is aten.convolution_backward.default:
        return [*(like_channels(result, *call_args[1:3]) for result in results[:2]), results[2]]
    if overload is aten.index.Tensor:
        return [_picked(results[0], *call_args[:2])]
    if overload._schema.is_mutable:
        return results
    return _with_layout(fact, results, call_args)


def _same_overload(overload: torch._ops.OpOverload, name: str) -> torch._ops.OpOverload:
    """That of another operator: "aten::convolution"."""
    namespace, _, operator = name.partition("::")
    found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), operator), overload._overloadname)
    return found


def _with_layout(fact: facts.Facts, results: list[Any], args: list[Any]) -> list[Any]:
    """New results as the operator's row says that they lie."""
    if fact.layout in OF_OPERANDS:
        order = order_of_operands(fact, results[0].shape, args)
        return [_ordered(results[0], order)]
    if fact.layout in CONTIGUOUS:
        return [result if result is None else result.contiguous() for result in results]
    if fact.format_of is not None:
        return [_of_format(result, args[fact.format_of]) for result in results]
    return results


def _is_expanded_half(value: Any) -> bool:
    """Whether the shape function has a number of this be computed in float32, from a copy that is not expanded: then it
    decides about the order of dimensions."""
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16) and 0 in value.stride()


def _as_float(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float16, torch.bfloat16):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=torch.float32, device="meta")


def _laid_out(result: Any, pattern: Any) -> Any:
    if not isinstance(result, torch.Tensor):
        return result
    return torch.empty_strided(pattern.shape, pattern.stride(), dtype=result.dtype, device="meta")


def _depends_on_data(overload: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    """Whether the sizes of results do: of indices only where a mask is among them."""
    if overload is aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return torch.Tag.dynamic_output_shape in overload.tags


def _of_format(result: Any, pattern: torch.Tensor) -> Any:
    """The result in the memory format of a tensor; what is no such image stays as it is."""
    if not isinstance(result, torch.Tensor) or result.dim() != pattern.dim():
        return result
    return result.contiguous(memory_format=torch._prims_common.suggest_memory_format(pattern))


def like_channels(result: Any, source: torch.Tensor, weight: torch.Tensor) -> Any:
    """A result of a convolution or of its gradient, with the channels last where they are so in either operand; in
    three dimensions only for the dtypes for which the CPU does so. The shape function looks at what CUDA's libraries
    do. In one dimension the CPU computes as in two, from a contiguous source."""
    if not isinstance(result, torch.Tensor):
        return result
    if result.dim() == 3:
        source, weight = source.contiguous().unsqueeze(2), weight.unsqueeze(2)
        return like_channels(result.unsqueeze(2), source, weight).squeeze(2)
    formats = [torch._prims_common.suggest_memory_format(operand) for operand in (source, weight)]
    chosen = {torch.channels_last} if result.dim() == 4 else set()
    if result.dim() == 5 and result.dtype in (torch.float32, torch.bfloat16):
        chosen = {torch.channels_last_3d}
    last = [layout for layout in formats if layout in chosen]
    return result.contiguous(memory_format=last[0] if last else torch.contiguous_format)


def _picked(result: torch.Tensor, source: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """What indices pick, with the indices' dimensions in the order in which they lie in the indices. The shape function
    makes it contiguous."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    given = torch.broadcast_tensors(*(index for index in indices if index is not None))
    before = dims[0]
    if dims != [*range(before, before + len(dims))]:
        source = source.permute([*dims, *(dim for dim in range(source.dim()) if dim not in dims)])
        before = 0
    after = source.dim() - before - len(dims)
    places = given[0].dim()
    strides = [[*source.stride()[:before], *[0] * places, *source.stride()[source.dim() - after :]]]
    strides += [[*[0] * before, *index.stride(), *[0] * after] for index in given]
    return _ordered(result, iterated_order(result.shape, strides))


def order_of_operands(fact: facts.Facts, sizes: Sequence[Any], args: Sequence[Any]) -> list[int]:
    """The dimensions of a result of these sizes, from the innermost in memory to the outermost, of an operator whose
    layout is one of :data:`OF_OPERANDS`, from its positional arguments."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    deciding = tensors[:1] if fact.layout is facts.Layout.OF_FIRST_ALONE else tensors
    return iterated_order(sizes, [operand.expand(sizes).stride() for operand in deciding])


def _ordered(result: torch.Tensor, inner_to_outer: Sequence[int]) -> torch.Tensor:
    """A dense one of the same sizes and dtype with this order of dimensions."""
    strides = dense_strides(result.shape, inner_to_outer)
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def _with_tensors(overload: torch._ops.OpOverload, args: list[Any]) -> list[Any] | None:
    """Numbers in the place of tensors as tensors without dimensions, of which PyTorch's Python interface makes none;
    None if they would weigh as much in type promotion as the other tensors."""
    numbers = [
        position
        for position, (value, argument) in enumerate(zip(args, overload._schema.arguments, strict=False))
        if isinstance(value, (bool, int, float)) and str(argument.type) == "Tensor"
    ]
    if numbers and not any(isinstance(value, torch.Tensor) and value.dim() for value in args):
        return None
    for position in numbers:
        args[position] = torch.tensor(args[position], device="meta")
    return args


def match(graph: torch.fx.GraphModule, overload: torch._ops.OpOverload, expected: Sequence[Any], mode: Any) -> None:
    """Has the graph of one call make its results as ``expected``: Inductor lays an output out as its ``val`` lies.

    ``mode`` is the fake mode of the graph's values. Raises NotExpressible if dtypes or sizes differ.
    """
    nodes = pytree.tree_leaves(graph.graph.output_node().args[0])
    written = [r.alias_info is not None and r.alias_info.is_write for r in overload._schema.returns]
    if len(nodes) != len(expected) or (any(written) and len(written) != len(nodes)):
        return
    for node, result, is_written in zip(nodes, expected, written * len(nodes), strict=False):
        if isinstance(node, torch.fx.Node) and isinstance(result, torch.Tensor) and not is_written:
            _match(node, result, mode)


def _match(node: torch.fx.Node, expected: torch.Tensor, mode: Any) -> None:
    value = node.meta["val"]
    if value.dtype != expected.dtype or hints(value.shape) != [*expected.shape]:
        raise NotExpressible(
            f"a result of {value.dtype} {hints(value.shape)} where PyTorch's is {expected.dtype} {[*expected.shape]}"
        )
    if node.op == "placeholder" or _lies_alike(hints(value.stride()), expected):
        return
    if not torch._prims_common.is_non_overlapping_and_dense_or_false(expected):
        return
    strides = dense_strides(value.shape, memory_order(expected))
    with mode:
        node.meta["val"] = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)


def _lies_alike(strides: Sequence[int], expected: torch.Tensor) -> bool:
    """Whether strides are those of a tensor in every dimension in which anything moves."""
    if expected.numel() == 0:
        return False
    moving = [dim for dim, size in enumerate(expected.shape) if size > 1]
    return all(strides[dim] == expected.stride(dim) for dim in moving)
