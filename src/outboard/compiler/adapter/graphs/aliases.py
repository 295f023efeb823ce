# SPDX-License-Identifier: Apache-2.0
"""Results of graphs that share memory with inputs or with each other.

Eager PyTorch returns views. A traced graph is functional: it returns values, and PyTorch makes views again of what it
returns. For sizes that are symbols it does so by the strides and the place in memory that a result has when the graph
has run. So these have to be those of the eager program, and what shares memory there has to share it here, and no more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import getitem
from typing import Any

import sympy
import torch
from torch import fx
from torch._functorch._aot_autograd.functional_utils import to_fun
from torch._functorch._aot_autograd.schemas import OutputType
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch._inductor import ir
from torch._inductor.fx_passes import reinplace
from torch._inductor.fx_utils import get_node_storage, get_storage
from torch._inductor.virtualized import V
from torch._subclasses.functional_tensor import FunctionalTensor, disable_functional_mode
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from outboard import patches

from ..symbols import expression
from ..wrapper import operator_builder

_REINPLACE = "torch._inductor.fx_passes.reinplace"


def register(name: str) -> None:
    """Has compiled graphs return what shares memory as eager PyTorch does; what Inductor makes, on the device of that
    name."""
    aot = "torch._functorch._aot_autograd"
    patches.apply(
        "results that are views of inputs lie where they should",
        {
            f"{aot}.runtime_wrappers.create_synthetic_base_metadata": _with_own_places,
            f"{aot}.graph_capture.create_functionalized_fn": _with_views_of_inputs,
        },
    )
    graph = "torch._inductor.graph:GraphLowering"
    patches.apply(
        "results share the memory that they share in eager mode, and no more",
        {f"{graph}.run": _keeping_roots, f"{graph}.output": functools.partial(_with_shared_memory, name)},
    )
    patches.apply(
        "a copy that is returned stays one where its source will be written in place",
        {"torch._inductor.fx_passes.post_grad.remove_noop_ops": _with_copies_kept},
    )
    patches.apply(
        "a sum with zero or a product with one that is returned is a tensor of its own",
        {"torch._inductor.fx_passes.joint_graph.remove_no_ops": _with_results_computed},
    )
    patches.apply(
        "what is written into a buffer that has been written goes into that buffer",
        {"torch._inductor.lowering.mutate_to": _into_written_buffers},
    )
    patches.apply(
        "a result that is computed in an input is read before the input is written",
        {f"{_REINPLACE}.reinplace_inplaceable_ops_core": _with_results_apart},
    )


def _with_own_places(original: Callable[..., Any]) -> Callable[..., Any]:
    """Overlapping inputs become views of one tensor. Results that are views of such an input must not be made from that
    tensor by the same steps, but by their strides and their place in it."""

    @functools.wraps(original)
    def create(m: Any, synthetic_base_info: Any, *others: Any, **named: Any) -> Any:
        metadata, indices = original(m, synthetic_base_info, *others, **named)
        for number, info in enumerate(m.output_info):
            if info.base_idx is not None and not isinstance(synthetic_base_info[info.base_idx], int):
                found = metadata.output_info[number]
                metadata.output_info[number] = dataclasses.replace(found, view_meta_sequence=None)
        return metadata, indices

    return create


def _with_views_of_inputs(original: Callable[..., Any]) -> Callable[..., Any]:
    """Results that are views of an input become views of that input itself, in the graph, too. PyTorch makes them of
    what the graph has written into the input, which has other strides where the input has gaps."""

    @functools.wraps(original)
    def create(fn: Any, args: Any, args_descs: Any, *, meta: Any, aot_config: Any, **named: Any) -> Any:
        # An exported graph is run by others, who read its results.
        if not aot_config.is_export:
            fn = _returning_views(fn, meta, named["trace_joint"])
        return original(fn, args, args_descs, meta=meta, aot_config=aot_config, **named)

    return create


def _returning_views(fn: Callable[..., Any], meta: Any, is_joint: bool) -> Callable[..., Any]:
    """A function of functional tensors; ``meta`` tells what its results are, ``is_joint`` whether it has a backward
    pass, too."""

    @functools.wraps(fn)
    def traced(*given: Any) -> Any:
        inputs = [_value(each) for each in (given[0] if is_joint else given)]
        outputs, descriptions = fn(*given)
        forward = outputs[0] if is_joint else outputs
        results = [*forward]
        for place, info in enumerate(meta.output_info, meta.num_mutated_inp_runtime_indices):
            if info.output_type is OutputType.alias_of_input and inputs[info.base_idx] is not None:
                results[place] = _view_of(inputs[info.base_idx], results[place])
        forward = type(forward)(results)
        return ((forward, *outputs[1:]) if is_joint else forward), descriptions

    return traced


def _value(given: Any) -> torch.Tensor | None:
    """What an input of a function that is made functional holds before anything is written; None of subclasses."""
    return torch._from_functional_tensor(given.elem) if isinstance(given, FunctionalTensor) else None


def _view_of(base: torch.Tensor, result: FunctionalTensor) -> Any:
    """The view of ``base`` that ``result`` is of what ``base`` has become."""
    steps = torch._C._functionalization.get_view_meta_sequence(result.elem)
    with disable_functional_mode():
        view = torch._C._functionalization.apply_view_meta_sequence(base, steps)
    return to_fun(view)


def _with_copies_kept(original: Callable[..., Any]) -> Callable[..., Any]:
    """What inputs become is computed step by step, and later passes make each step write into the input. A copy of a
    step that is returned is not useless then, and neither is one that rounds integers to tens, of which PyTorch asks
    as if it had no digits."""

    @functools.wraps(original)
    def remove(graph: fx.Graph) -> Any:
        written, returned = _written(graph), {*map(get_node_storage, _results(graph))}
        kept = [
            node
            for node in graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
            if get_node_storage(node) in returned and get_node_storage(node.args[0]) in written
        ]
        rounded = graph.find_nodes(op="call_function", target=torch.ops.aten.round.decimals)
        with _unknown_to_passes([*kept, *rounded]):
            return original(graph)

    return remove


def _with_results_computed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Arithmetic that changes no number is dropped, and what it is done to is returned: an input, or the same memory
    twice. Where a result is a view of what arithmetic gives, or that lies otherwise than what it is made of, it is
    computed."""

    @functools.wraps(original)
    def remove(gm: fx.GraphModule, *others: Any, **named: Any) -> Any:
        returned = {*map(get_node_storage, _results(gm.graph))}
        calls = (gm.graph.find_nodes(op="call_function", target=target) for target in _ARITHMETIC)
        kept = [n for found in calls for n in found if get_node_storage(n) in returned or _lies_otherwise(n)]
        with _unknown_to_passes(kept):
            return original(gm, *others, **named)

    return remove


def _lies_otherwise(node: fx.Node) -> bool:
    """Whether an operand of the same shape may have other strides than the result."""
    result = node.meta["val"]
    operands = [x.meta["val"] for x in node.args if isinstance(x, fx.Node) and isinstance(x.meta["val"], torch.Tensor)]
    same = [x for x in operands if statically_known_true(sym_eq(x.shape, result.shape))]
    return not all(statically_known_true(sym_eq(x.stride(), result.stride())) for x in same)


#: What Inductor drops if it changes no number.
_ARITHMETIC = [getattr(torch.ops.aten, name).Tensor for name in ("add", "sub", "mul", "div")]


@contextlib.contextmanager
def _unknown_to_passes(nodes: list[fx.Node]) -> Iterator[None]:
    """Meanwhile these nodes are calls of something that no pass knows."""
    targets = [node.target for node in nodes]
    for node in nodes:
        node.target = _unknown
    try:
        yield
    finally:
        for node, target in zip(nodes, targets, strict=True):
            node.target = target


def _unknown(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError


def _written(graph: fx.Graph) -> set[Any]:
    """The storages of the steps by which inputs become what is written to them."""
    found = set()
    for copy in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        step = copy.args[1]
        while isinstance(step, fx.Node) and step.op == "call_function" and step.args:
            found.add(get_node_storage(step))
            step = step.args[0]
    return found - {None}


def _with_results_apart(original: Callable[..., Any]) -> Callable[..., Any]:
    """An operator on an input that the graph writes at its end is carried out in place, and its result is that input
    from then on. A result that is read after that write must be memory of its own, if it is not what is written. So
    must be what is made of a tensor whose elements share memory, which would all get what one of them does."""

    @functools.wraps(original)
    def core(graph: fx.Graph) -> None:
        expanded = [node for node in graph.nodes if any(map(_is_expanded, _changed(node)))]
        with _unknown_to_passes([*_overwritten(graph), *expanded]):
            original(graph)

    return core


def _overwritten(graph: fx.Graph) -> list[fx.Node]:
    """The operators that could be carried out in an input, and whose result is read after the input is written."""
    places = {node: place for place, node in enumerate(graph.nodes)}
    copies: dict[Any, fx.Node] = {}
    for copy in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        copies.setdefault(copy.args[0], copy)
    return [
        node
        for node in graph.nodes
        if any(each in copies and _is_read_after(copies[each], node, places) for each in _changed(node))
    ]


def _is_expanded(node: Any) -> bool:
    """Whether elements of a tensor may share memory."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return any(
        statically_known_true(stride == 0) and not statically_known_true(size <= 1)
        for size, stride in zip(value.shape, value.stride(), strict=True)
    )


def _changed(node: fx.Node) -> list[Any]:
    """The arguments that an operator changes if it is carried out in place; of the program's own operators, all."""
    if node.target in (auto_functionalized, auto_functionalized_v2):
        return node.all_input_nodes
    found = reinplace.inplaceable_ops.get(node.target)  # type: ignore[arg-type]
    return [node.args[place] for place in found.mutated_args] if found else []


def _is_read_after(copy: fx.Node, node: fx.Node, places: dict[fx.Node, int]) -> bool:
    """Whether ``node``, or what shares its memory, is read after ``copy`` has written something else there."""
    if node is copy.args[1]:
        return False
    sharing = [each for each in node.users if _is_view(each) or each.target is getitem or node in _changed(each)]
    return any(places[user] > places[copy] for user in node.users) or any(
        _is_read_after(copy, user, places) for user in sharing
    )


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _into_written_buffers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor has the new value take the buffer's place. A scatter that has written to the buffer finds it by that
    place, and would be carried out on the new value, after it."""

    @functools.wraps(original)
    def mutate_to(changed: Any, val: Any, unsafe_alias: bool = False) -> Any:
        box = changed.data if isinstance(changed, ir.TensorBox) else changed
        if not (isinstance(box, ir.StorageBox) and _is_written(box.data)):
            return original(changed, val, unsafe_alias)
        ir.MutationLayoutSHOULDREMOVE.realize_into(val, box, unsafe_alias=unsafe_alias)
        return changed

    return mutate_to


def _is_written(data: Any) -> bool:
    return isinstance(data, ir.Buffer) and data.get_name() in V.graph.mutated_buffers


def _keeping_roots(original: Callable[..., Any]) -> Callable[..., Any]:
    """What a graph's values become is forgotten after their last use, but for those whose memory results share."""

    @functools.wraps(original)
    def run(self: Any, *args: Any) -> Any:
        if operator_builder.get() is not None:
            return original(self, *args)
        _follow_sources(self.graph)
        kept = {*_roots(self.graph).values()}
        for user, values in self.user_to_last_uses.items():
            self.user_to_last_uses[user] = [value for value in values if value not in kept]
        return original(self, *args)

    return run


def _follow_sources(graph: fx.Graph) -> None:
    """Late passes replace what is viewed, and leave the views' values as they were: these get the new storage."""
    for node in graph.nodes:
        if not _is_view(node):
            continue
        source = node.args[0]
        if not isinstance(source, fx.Node) or get_node_storage(source) in (None, get_node_storage(node)):
            continue
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        with V.fake_mode:
            value = node.target(*args, **kwargs)
        # What may copy, as reshape does, has a storage of its own then.
        if isinstance(value, torch.Tensor) and get_storage(value) == get_node_storage(source):
            node.meta["val"] = value


def _with_shared_memory(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Results that share memory in the graph are made views of it, by their strides and places, where Inductor would
    copy what it cannot index so; results that share none are copied where it has dropped a copy. What single operators
    return is placed by whoever calls them."""

    @functools.wraps(original)
    def output(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        nodes, (given, *others) = V.graph.current_node.args[0], args
        if operator_builder.get() is not None or not isinstance(nodes, (list, tuple)):
            return original(self, target, args, kwargs)
        shared, given = _Shared(self, name), [*given]
        for place, node in enumerate(nodes):
            if isinstance(node, fx.Node) and isinstance(given[place], ir.TensorBox):
                given[place] = shared.result(node, given[place])
        return original(self, target, (given, *others), kwargs)

    return output


class _Shared:
    """The memory of a graph's results."""

    def __init__(self, lowering: Any, name: str) -> None:
        self.name, self.env = name, lowering.env
        self.roots = _roots(lowering.graph)
        self.bases: dict[fx.Node, Any] = {}
        #: Which storage of the graph each buffer is for.
        self.storages = {node.target: get_node_storage(node) for node in lowering.graph.find_nodes(op="placeholder")}

    def result(self, node: fx.Node, value: Any) -> Any:
        """What to return for a result that has been lowered to ``value``."""
        device = value.get_device()
        if device is None or device.type != self.name:
            return value
        storage = get_node_storage(node)
        value = self._view(node, self.roots[storage], value) if storage in self.roots else value
        return self._apart(storage, value)

    def _apart(self, storage: Any, value: Any) -> Any:
        """A value in memory that is no other storage's of the graph."""
        value = ir.TensorBox(ir.ExternKernel.realize_input(value))
        if storage is None or self.storages.setdefault(value.get_name(), storage) == storage:
            return value
        return ir.TensorBox(ir.ExternKernel.copy_input(value))

    def _view(self, node: fx.Node, root: fx.Node, value: Any) -> Any:
        found, base = node.meta["val"], root.meta["val"]
        if (found.dtype, found.is_conj(), found.is_neg()) != (base.dtype, base.is_conj(), base.is_neg()):
            return value
        if root not in self.bases:
            stored = self._apart(get_node_storage(root), self.env[root])
            self.bases[root] = ir.ExternKernel.require_exact_strides(stored, base.stride())
        storage, layout = ir.as_storage_and_layout(self.bases[root])
        offset = layout.offset + _symbol(found.storage_offset()) - _symbol(base.storage_offset())
        sizes, strides = [*map(_symbol, found.size())], [*map(_symbol, found.stride())]
        place = ir.FixedLayout(layout.device, layout.dtype, sizes, strides, offset)
        return ir.TensorBox(ir.ReinterpretView(data=storage, layout=place))


def _symbol(number: Any) -> sympy.Expr:
    return sympy.sympify(expression(number))


def _roots(graph: fx.Graph) -> dict[Any, fx.Node]:
    """By storage that results share with each other or with an input, the node that the storage comes from."""
    results = Counter(map(get_node_storage, _results(graph)))
    found: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        storage = get_node_storage(node)
        if results[storage] > (node.op != "placeholder") and storage is not None:
            found.setdefault(storage, node)
    return found


def _results(graph: fx.Graph) -> Iterable[fx.Node]:
    given = graph.output_node().args[0]
    return [each for each in (given if isinstance(given, (list, tuple)) else [given]) if isinstance(each, fx.Node)]
