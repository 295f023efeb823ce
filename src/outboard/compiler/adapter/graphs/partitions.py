# SPDX-License-Identifier: Apache-2.0
"""Graphs of ``torch.compile`` for devices with a graph compiler: what the compiler takes of neighbours becomes one
executable, and the rest runs operator by operator, as calls without ``torch.compile`` do."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils import _pytree as pytree

from outboard import compilers, patches
from outboard.compilers.symbolic import symbols_of

from ... import generated_modules
from ...target import target_of
from .. import executables, implemented
from ..interface import device_name
from ..padding import proof
from ..symbols import hints
from .parts import Part

_log = logging.getLogger(__name__)


def keep_whole_operators() -> None:
    """Has AOTAutograd leave operators as they are that the device's graph compiler takes whole, or the program itself
    implements."""
    feature = "graphs keep operators that the device's compiler or the program wants whole"
    patches.apply(feature, {"torch._inductor.compile_fx.compile_fx": _with_whole_operators})


def _with_whole_operators(original: Callable[..., Any]) -> Callable[..., Any]:
    from torch._inductor.decomposition import select_decomp_table

    @functools.wraps(original)
    def compile_fx(model_: Any, example_inputs_: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        targets = map(target_of, indices_among(example_inputs_))
        compiler = next(filter(None, map(compilers.find, targets)), None)
        if (compiler or implemented.overloads()) and len(args) < 3 and kwargs.get("decompositions") is None:
            implemented.define()
            table = executables.decompositions_for(compiler, select_decomp_table())
            kwargs["decompositions"] = implemented.decompositions(table)
        return original(model_, example_inputs_, *args, **kwargs)

    return compile_fx


def indices_among(values: Sequence[Any]) -> list[int]:
    """The indices of the devices of ours that tensors are on."""
    return sorted({index for value in values if (index := _index_of(value)) is not None})


def _index_of(value: Any) -> int | None:
    """The index of a tensor's device of ours; None if it is on no such device, or no tensor."""
    if not isinstance(value, torch.Tensor) or value.device.type != device_name():
        return None
    return value.device.index or 0


def partition(module: torch.fx.GraphModule, index: int) -> torch.fx.GraphModule:
    """The module of a functional graph with executables for the parts that the compiler of device ``index`` takes."""
    compiler = compilers.find(target_of(index))
    assert compiler is not None
    support = _Support(compiler, index, _with_views_of_results(module.graph))
    fused = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True).partition_and_fuse()
    for node in list(fused.graph.find_nodes(op="call_module")):
        name = str(node.target)
        part = getattr(fused, name)
        delattr(fused, name)
        with fused.graph.inserting_before(node):
            call = fused.graph.call_function(Part(part, compiler, index), node.args)
        call.meta = node.meta
        node.replace_all_uses_with(call)
        fused.graph.erase_node(node)
    for node in fused.graph.output_node().all_input_nodes:
        if _is_view(node):
            _make_unknown(node)
    fused.recompile()
    return fused


def _with_views_of_results(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Has a graph make the views that it returns once more, at its end, of what they are views of; returns their nodes.
    An executable would give copies, of which PyTorch takes over the strides, but not the elements."""
    result = graph.output_node()
    made: dict[torch.fx.Node, torch.fx.Node] = {}

    def again(node: torch.fx.Node) -> torch.fx.Node:
        if node not in made and _is_view(node):
            base = node.all_input_nodes[0]
            of = again(base)
            with graph.inserting_before(result):
                made[node] = graph.node_copy(node, lambda operand: of if operand is base else operand)
        return made.get(node, node)

    for node in result.all_input_nodes:
        result.replace_input_with(node, again(node))
    for node in reversed(made):
        if not node.users:
            graph.erase_node(node)
    return set(made.values())


def _make_unknown(node: torch.fx.Node) -> None:
    """Has a graph return a view as a tensor that autograd does not take for one: it may be written to."""
    with node.graph.inserting_after(node):
        made = node.graph.call_function(_unknown, (node,))
    made.meta = node.meta
    node.graph.output_node().replace_input_with(node, made)


def _unknown(view: torch.Tensor) -> torch.Tensor:
    return generated_modules.view_of(view, view.shape, view.stride())


def _is_view(node: torch.fx.Node) -> bool:
    """Whether a node's value shares memory with its first operand, whatever that is."""
    target = (node.all_input_nodes[0] if node.target is operator.getitem else node).target
    return isinstance(target, torch._ops.OpOverload) and target.is_view


class _Support(OperatorSupportBase):
    """Which nodes a compiler takes; ``apart`` are those that it is not asked for."""

    def __init__(self, compiler: compilers.GraphCompiler, index: int, apart: set[torch.fx.Node]) -> None:
        self._compiler = compiler
        self._index = index
        self._apart = apart

    def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
        """Whether a node may be part of an executable."""
        if node.op != "call_function" or node in self._apart:
            return False
        if node.target is operator.getitem:
            return self.is_node_supported(submodules, node.args[0])  # type: ignore[arg-type]
        if not isinstance(node.meta.get("val"), (torch.Tensor, list, tuple)):
            return False
        values = pytree.tree_leaves([each.meta.get("val") for each in (node, *node.all_input_nodes)])
        if any(isinstance(value, torch.Tensor) and _index_of(value) != self._index for value in values):
            return False
        target = target_of(self._index)
        if target.static_sizes and not all(map(_has_numbers, values)):
            _log.info("not part of an executable: a size of %s is known when it runs, and no earlier", node)
            return False
        if target.static_sizes and isinstance(self._compiler, compilers.Bucketing) and proof.grows(node):
            return False
        # What calls graphs, as torch.cond does, has inputs that are no values, and is refused as it stands.
        sized = target.static_sizes and isinstance(node.target, torch._ops.OpOverload)
        reason = executables.refusal(_as_numbers(node) if sized else node, self._compiler, target)
        if reason is not None:
            _log.info("not part of an executable: %s", reason)
        return reason is None


def _as_numbers(node: torch.fx.Node) -> torch.fx.Node:
    """A call with numbers for the symbols that its sizes have: compilers of one set of sizes know no others."""
    values = [node, *node.all_input_nodes]
    if not any(symbols_of(each.meta.get("val")) for each in values):
        return node
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, Any] = {}
    for each in node.all_input_nodes:
        value = each.meta["val"]
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            copies[each] = value.node.hint
            continue
        copies[each] = graph.placeholder(each.name)
        copies[each].meta["val"] = _with_numbers(value)
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: copies[each])
    made = graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
    made.meta["val"] = _with_numbers(node.meta["val"])
    return made


def _has_numbers(value: Any) -> bool:
    """Whether each symbol of a value had a number when it was traced. The size of ``x[x > 0]`` has none."""
    return all(symbol.node.has_hint() for symbol in symbols_of(value))


def _with_numbers(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_with_numbers(each) for each in value]
    if not isinstance(value, torch.Tensor):
        return value
    with FakeTensorMode():
        return torch.empty_strided(hints(value.shape), hints(value.stride()), dtype=value.dtype, device=value.device)
