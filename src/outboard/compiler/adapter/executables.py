# SPDX-License-Identifier: Apache-2.0
"""From a functional graph to an executable of the device's graph compiler, as a step of a plan."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch._decomp import decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch.utils import _pytree as pytree

from outboard import compilers
from outboard.compilers.symbolic import symbols_of

from .. import statistics
from ..operators import facts
from ..plans import plan as p
from ..plans.builder import PlanBuilder, TensorArg
from ..target import Target
from . import memory_layouts, trial
from .symbols import expression

aten = torch.ops.aten
_log = logging.getLogger(__name__)
_SOFTMAX_BACKWARD = aten._softmax_backward_data.default
_SEEDS = "prims::inductor_seeds"  # known to PyTorch once its compiler is

#: What stands for an input of a graph in a plan: a buffer, a number's symbol, or a number.
Given: TypeAlias = "TensorArg | sympy.Basic | int | float | None"


class Refused(NotImplementedError):
    """A graph does not become an executable; the text says which operator of it is to blame, and why."""


def refusal(node: torch.fx.Node, compiler: compilers.GraphCompiler, target: Target) -> str | None:
    """Why a node cannot be part of an executable; None if it can."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return f"{node.target}: no operator"
    name = node.target._schema.name
    if _is_draw(node):
        return None  # a step of the plan
    for value in _tensors([node.meta.get("val"), *(each.meta.get("val") for each in node.all_input_nodes)]):
        if _is_empty(value):
            return f"{name}: a tensor without elements"
        if value.device.type == "cpu":
            return f"{name}: a tensor on the CPU"
    if _is_negative_power(node):
        return f"{name}: PyTorch refuses negative powers of integers, in the call's kernel alone"
    try:
        with _handed_over((node, *node.all_input_nodes)):
            answer = compiler.supports(_apart(node), target)
    except (Exception, SystemExit) as error:
        answer = failure(compiler, error)
        _log.warning("the compiler %s failed on %s: %s", target.compiler, name, answer, exc_info=error)
    if answer is True:
        return None
    if not isinstance(answer, str):
        answer = f"{compiler.name}'s supports() is to return True or a text, not {type(answer).__name__}"
    return f"{name}: {answer}"


def add_graph(
    builder: PlanBuilder,
    module: torch.fx.GraphModule,
    given: Sequence[Given],
    compiler: compilers.GraphCompiler,
    aliased: bool = False,
) -> None:
    """Appends what a functional graph computes to a plan, its results included. ``given`` are its placeholders; writes
    to them are ``copy_`` nodes. ``aliased``: what is written may be what is read, as another input. Raises Refused."""
    Lowering(builder, module, given, compiler, aliased).run()


def failure(compiler: compilers.GraphCompiler, error: BaseException) -> str:
    """What a compiler raised, for users to read."""
    try:
        text = str(error)
    except Exception:  # the vendor's own class
        text = "an exception without a text"
    text = text.partition("\nException raised from")[0]  # where in its C++ PyTorch raised it
    return f"{compiler.name} failed: {type(error).__name__}: {text}"


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]


def _is_empty(value: torch.Tensor) -> bool:
    return any(size == 0 for size in value.shape)


def _is_negative_power(node: torch.fx.Node) -> bool:
    if node.target is not aten.pow.Tensor_Scalar:
        return False
    _, exponent = (each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in node.args)
    dtype = node.meta["val"].dtype
    is_integer = not (dtype.is_floating_point or dtype.is_complex)
    return is_integer and isinstance(exponent, (int, torch.SymInt)) and bool(exponent < 0)


def _is_draw(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name == _SEEDS


def _is_copy(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.target is aten.copy_.default


@dataclasses.dataclass
class Write:
    """A tensor that is computed and then put into an input."""

    target: torch.fx.Node
    source: torch.fx.Node


class Lowering:
    """The steps of a functional graph."""

    def __init__(
        self,
        builder: PlanBuilder,
        module: torch.fx.GraphModule,
        given: Sequence[Given],
        compiler: compilers.GraphCompiler,
        aliased: bool,
    ) -> None:
        self.builder, self.target, self.compiler, self.aliased = builder, builder.target, compiler, aliased
        self.graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self.outputs = pytree.tree_leaves(self.graph.graph_copy(module.graph, copies))
        self.outputs = [] if self.outputs == [None] and not module.graph.output_node().args[0] else self.outputs
        placeholders = self.graph.find_nodes(op="placeholder")
        self.given = dict(zip(placeholders, given, strict=True))
        self.numbers = {node: number for number, node in enumerate(placeholders)}
        if not self.target.static_sizes:
            self._inline_numbers()
        self.seeds = [self._draw(node) for node in list(self.graph.nodes) if _is_draw(node)]
        self._leave_out_empty_parts()
        writes = [self._write(node) for node in list(self.graph.nodes) if _is_copy(node)]
        self.writes = [write for write in writes if not _is_empty(write.target.meta["val"])]
        #: By buffer, what holds a result in a layout too, and the layout.
        self.arranged: dict[int, tuple[TensorArg, p.LayoutSpec]] = {}

    def run(self) -> None:
        """Makes the steps and the plan's outputs."""
        written = [write.source for write in self.writes]
        made = [node for node in self.outputs if self._is_made(node)]
        results = list(dict.fromkeys([*written, *made]))
        computed = [node for node in results if not _is_empty(node.meta["val"])]
        inputs = self._narrow(computed)
        self._check()
        views = {node: self._place(node, inputs) for node in results}
        if computed:
            self._execute(self.graph, [self._read(node) for node in inputs], [views[node] for node in computed])
        for write in self.writes:
            self._write_back(write, views[write.source], self._view(write.target))
        for temporary in (*self.seeds, *(view for view, _ in self.arranged.values())):
            self.builder.free(temporary.buffer)
        for number, output in enumerate(self.outputs):
            self._output(number, output, views)

    def _check(self) -> None:
        for node in self.graph.nodes:
            if node.op in ("placeholder", "output") or node.target is operator.getitem:
                continue
            reason = refusal(node, self.compiler, self.target)
            if reason is not None:
                raise Refused(reason)

    def _draw(self, node: torch.fx.Node) -> TensorArg:
        """Has the plan draw seeds of random numbers, which the graph gets as one more input."""
        value = node.meta["val"]
        seeds = self.builder.allocate_like(_sizes(value.shape), (1,), value.dtype)
        self.builder.seeds(seeds.buffer, seeds.numel() * seeds.itemsize)
        with self.graph.inserting_before(next(iter(self.graph.nodes))):
            drawn = self.graph.placeholder(node.name)
        drawn.meta["val"] = value
        self.given[drawn] = seeds
        with self.graph.inserting_before(node):
            node.replace_all_uses_with(copied := self._call(aten.clone.default, drawn))
        self.outputs = [copied if output is node else output for output in self.outputs]
        self.graph.erase_node(node)
        return seeds

    def _inline_numbers(self) -> None:
        """Puts symbolic numbers in the place of the nodes that compute them of sizes."""
        for node in reversed(self.graph.nodes):
            value = node.meta.get("val")
            if node.op != "call_function" or not isinstance(value, (torch.SymInt, torch.SymFloat)):
                continue
            self.outputs = [value if output is node else output for output in self.outputs]
            put_number(node, value)
            self.graph.erase_node(node)

    def _leave_out_empty_parts(self) -> None:
        """Concatenations read no tensors without elements, such as a cache of no keys yet."""
        for node in self.graph.find_nodes(op="call_function", target=aten.cat.default):
            parts = [part for part in node.args[0] if not _is_empty(part.meta["val"])]
            if parts:
                node.args = (parts, *node.args[1:])

    def _write(self, copy: torch.fx.Node) -> Write:
        """A ``copy_`` node as what is copied, which gets the target's dtype and sizes; whoever reads the node reads
        that."""
        target, source = copy.args[:2]
        assert isinstance(target, torch.fx.Node) and isinstance(source, torch.fx.Node)
        wanted, value = target.meta["val"], source.meta["val"]
        with self.graph.inserting_before(copy):
            if value.dtype != wanted.dtype:
                source = self._call(aten._to_copy.default, source, dtype=wanted.dtype)
            if value.shape != wanted.shape:
                source = self._call(aten.expand.default, source, [*wanted.shape])
            if source.op == "placeholder":
                source = self._call(aten.clone.default, source)
        self.outputs = [target if output is copy else output for output in self.outputs]
        copy.replace_all_uses_with(source)
        self.graph.erase_node(copy)
        return Write(target, source)

    def _call(self, overload: torch._ops.OpOverload, value: torch.fx.Node, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = self.graph.call_function(overload, (value, *args), kwargs)
        node.meta["val"] = overload(value.meta["val"], *args, **kwargs)
        return node

    def _is_made(self, node: Any) -> bool:
        """Whether a result of the graph is a tensor that the executable computes."""
        return (
            isinstance(node, torch.fx.Node)
            and node.op != "placeholder"
            and isinstance(node.meta.get("val"), torch.Tensor)
        )

    def _narrow(self, results: list[torch.fx.Node]) -> list[torch.fx.Node]:
        """Leaves what the results need, and returns the inputs that are read. An input that is broadcast in memory
        becomes one that is broadcast by the graph."""
        self.graph.output(tuple(results))
        self.graph.eliminate_dead_code()
        for node in self.graph.find_nodes(op="placeholder"):
            if not node.users:
                self.graph.erase_node(node)
            elif isinstance(node.meta["val"], torch.Tensor):
                self._broadcast(node)
        self._tell_sizes()
        return list(self.graph.find_nodes(op="placeholder"))

    def _tell_sizes(self) -> None:
        """Makes inputs of the symbols that no input tells."""
        values = [[node.meta.get("val"), node.args, node.kwargs] for node in self.graph.nodes]
        used = symbols_of(values, strides=False)
        inputs = [node.meta["val"] for node in self.graph.find_nodes(op="placeholder")]
        needed = set().union(*(each.node.expr.free_symbols for each in used))
        for symbol in sorted(needed - {each.node.expr for each in symbols_of(inputs, strides=False)}, key=str):
            shape_env = used[0].node.shape_env
            with self.graph.inserting_before(next(iter(self.graph.nodes))):
                told = self.graph.placeholder(str(symbol))
            kind, make = (
                (int, shape_env.create_symintnode) if symbol.is_integer else (float, shape_env.create_symfloatnode)
            )
            told.meta["val"] = make(symbol, hint=kind(shape_env.backed_var_to_val[symbol]))
            self.given[told] = symbol

    def _broadcast(self, node: torch.fx.Node) -> None:
        value = node.meta["val"]
        repeated = [d for d, stride in enumerate(value.stride()) if stride == 0 and value.shape[d] != 1]
        if not repeated:
            return
        view = self._view(node)
        sizes = tuple(1 if d in repeated else size for d, size in enumerate(view.sizes))
        self.given[node] = dataclasses.replace(view, sizes=sizes)
        once = value
        for dim in repeated:
            once = once.narrow(dim, 0, 1)
        first = next(each for each in self.graph.nodes if each.op != "placeholder")  # inputs tell sizes before it
        with self.graph.inserting_before(first):
            whole = self.graph.call_function(aten.expand.default, (node, [*value.shape]))
        whole.meta["val"] = value
        node.replace_all_uses_with(whole, delete_user_cb=lambda user: user is not whole)
        node.meta["val"] = once

    def _view(self, node: torch.fx.Node) -> TensorArg:
        view = self.given[node]
        assert isinstance(view, TensorArg)
        return view

    def _place(self, node: torch.fx.Node, inputs: Sequence[torch.fx.Node]) -> TensorArg:
        """Where a result goes: into the input that it is written to, if the executable does not read that, or else new
        memory."""
        targets = [write.target for write in self.writes if write.source is node]
        if len(targets) == 1 and not self.aliased and targets[0] not in inputs:
            return self._view(targets[0])
        return self._allocate(node.meta["val"])

    def _allocate(self, value: torch.Tensor) -> TensorArg:
        """Memory for a tensor, as it lies where that leaves no gaps, else contiguous."""
        dense = torch._prims_common.is_non_overlapping_and_dense_or_false(value)
        strides = value.stride() if dense else torch._prims_common.make_contiguous_strides_for(value.shape)
        return self.builder.allocate_like(_sizes(value.shape), _sizes(strides), value.dtype)

    def _read(self, node: torch.fx.Node) -> Given:
        """What the executable is given for an input."""
        return self.given[node]

    def _execute(self, graph: torch.fx.Graph, given: Sequence[Given], results: Sequence[TensorArg]) -> None:
        number = next((each for node in graph.nodes for each in symbols_of(node.meta.get("val"), strides=False)), None)
        # Of sizes that were found to be equal, PyTorch keeps one symbol.
        simplify = (lambda size: size) if number is None else number.node.shape_env.replace
        operands = [_operand_of(each, simplify) for each in (*given, *results)]
        name = "+".join(dict.fromkeys(_short(node) for node in graph.nodes if node.op == "call_function"))
        with self._asking(name, graph):
            operands = memory_layouts.chosen(self.compiler, _copy(graph), operands, self.target)
            specs = self._specs(operands)
        made = self._made(name, graph, operands)
        self.arranged |= memory_layouts.add_execution(self.builder, name, made, given, results, specs)

    def _specs(self, operands: Sequence[compilers.Operand]) -> list[p.LayoutSpec | None]:
        return [None if each.layout is None else memory_layouts.spec_of(each.layout, self.target) for each in operands]

    def _made(self, name: str, graph: torch.fx.Graph, operands: Sequence[compilers.Operand]) -> compilers.Executable:
        """What the compiler makes of a graph, which it gets a copy of. Raises Refused."""
        with self._asking(name, graph):
            made = memory_layouts.checked(self.compiler.compile(_copy(graph), [*operands], self.target), "compile")
        if os.environ.get("OUTBOARD_CHECK_EXECUTABLES") == "1":
            self._try(name, made, graph, operands)
        statistics.add("executables_made")
        return made

    @contextlib.contextmanager
    def _asking(self, name: str, graph: torch.fx.Graph) -> Iterator[None]:
        """While the compiler is asked about a graph. Raises Refused for what it raises."""
        try:
            with _handed_over(graph.nodes):
                yield
        except compilers.Unsupported as reason:
            raise Refused(f"{name}: {reason}") from reason
        except (Exception, SystemExit) as error:  # a vendor's program may end by sys.exit
            text = failure(self.compiler, error)
            _log.warning("the compiler %s failed on %s: %s", self.target.compiler, name, text, exc_info=error)
            raise Refused(f"{name}: {text}") from error

    def _try(
        self, name: str, made: compilers.Executable, graph: torch.fx.Graph, operands: Sequence[compilers.Operand]
    ) -> None:
        try:
            problem = trial.problem_of(made, graph, operands, self._specs(operands), self.target)
        except RuntimeError as error:  # the driver's, or no memory
            raise Refused(f"{name}: what {self.target.compiler} made does not run: {error}") from error
        if problem is not None:
            _log.warning("%s: %s computes wrongly: %s", name, self.target.compiler, problem)
            raise Refused(f"{name}: {self.target.compiler} computes wrongly: {problem}")

    def _write_back(self, write: Write, source: TensorArg, target: TensorArg) -> None:
        """Copies a result into the input that it is for: bytes, or, where the two lie in other ways, elements."""
        if source.buffer == target.buffer:
            return
        if source.buffer in self.arranged and (source.sizes, source.strides) == (target.sizes, target.strides):
            arranged, layout = self.arranged[source.buffer]
            self.builder.from_layout(arranged, target, layout)
        elif source.strides == target.strides:
            nbytes = source.numel() * source.itemsize
            self.builder.copy(source.buffer, target.buffer, nbytes, target_offset=target.offset * target.itemsize)
        else:
            graph = torch.fx.Graph()
            placeholder = graph.placeholder("value")
            placeholder.meta["val"] = write.source.meta["val"]
            copied = graph.call_function(aten.clone.default, (placeholder,))
            copied.meta["val"] = write.target.meta["val"]
            graph.output((copied,))
            self._execute(graph, [source], [target])
        if write.source not in self.outputs:
            self.builder.free(source.buffer)

    def _output(self, number: int, output: Any, views: dict[torch.fx.Node, TensorArg]) -> None:
        if output is None or (isinstance(output, torch.fx.Node) and output.meta.get("val") is None):
            self.builder.output_none()
        elif isinstance(output, torch.fx.Node) and output in self.numbers:
            self.builder.output_input(self.numbers[output])
        elif isinstance(output, torch.fx.Node) and output in views:
            self.builder.output_tensor(views[output])
        elif isinstance(output, (int, torch.SymInt)):
            self.builder.output_int(expression(output))
        else:
            raise Refused(f"a result that is no tensor: {output}")


def _copy(graph: torch.fx.Graph) -> torch.fx.Graph:
    """For a compiler, which may change it: what it makes is compared with the graph as it was."""
    copy = torch.fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def _apart(node: torch.fx.Node) -> torch.fx.Node:
    """A copy of a call, and of what its operands are, in a graph of its own: for a compiler, which may change it."""
    graph = torch.fx.Graph()
    copies = {each: graph.placeholder(each.name) for each in node.all_input_nodes}
    for each, copy in copies.items():
        copy.meta = {**each.meta}
    return graph.node_copy(node, copies.__getitem__)


@contextlib.contextmanager
def _handed_over(nodes: Iterable[torch.fx.Node]) -> Iterator[None]:
    """While a compiler has nodes. It may run them on their values, whose sizes may be symbols, for which PyTorch has
    the right kernels in Python alone. Undoes what it does to the sizes of these tensors, of which a copy would cost
    what its operator costs."""
    values = _tensors([each.meta.get("val") for each in nodes])
    before = [(value, value.shape, value.stride()) for value in values]
    try:
        with enable_python_dispatcher():
            yield
    finally:
        for value, sizes, strides in before:
            if (_sizes(value.shape), _sizes(value.stride())) != (_sizes(sizes), _sizes(strides)):
                value.as_strided_(sizes, strides)


def put_number(node: torch.fx.Node, value: Any) -> None:
    """Puts a number in the place of a node, for those who read it; nothing if the value is no number."""
    if not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        return
    for user in list(node.users):
        user.args, user.kwargs = torch.fx.node.map_arg(
            (user.args, user.kwargs), lambda each: value if each is node else each
        )


def begun(values: Sequence[Any], target: Target) -> tuple[PlanBuilder, list[Given]]:
    """A plan that has its inputs, and what stands for each in it. ``values`` are tensors, whose sizes may be symbolic
    if each symbol alone is one of them, symbolic numbers, and others, which are constants of the plan."""
    builder = PlanBuilder(target)
    given: list[Given] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            number = builder.add_input(p.InputKind.TENSOR)
            given.append(TensorArg(number, value.dtype, _sizes(value.shape), _sizes(value.stride())))
            continue
        kind = _NUMBERS.get(type(value))
        number = builder.add_input(p.InputKind.NONE if kind is None else kind[0])
        given.append(None if kind is None else expression(value))
        if isinstance(value, torch.SymFloat) and not isinstance(given[-1], sympy.Symbol):
            given[-1] = sympy.Symbol(f"input{number}", real=True)  # plans compute integers alone
    for number, value in enumerate(values):
        kind = _NUMBERS.get(type(value))
        if kind is not None and isinstance(given[number], sympy.Symbol):
            builder.define_symbol(given[number], kind[1], number)
        for dim, size in enumerate(map(expression, value.shape if isinstance(value, torch.Tensor) else ())):
            if isinstance(size, sympy.Symbol):
                builder.define_symbol(size, p.SymbolSource.SIZE, number, dim)
    return builder, given


#: How plans have numbers that a trace does not know.
_NUMBERS = {
    torch.SymInt: (p.InputKind.INT, p.SymbolSource.INT),
    torch.SymFloat: (p.InputKind.FLOAT, p.SymbolSource.FLOAT),
}


def _sizes(sizes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(map(expression, sizes))


def decompositions_for(
    compiler: compilers.GraphCompiler | None, table: dict[Any, Any], *, in_graphs: bool = True
) -> dict[Any, Any]:
    """PyTorch's decompositions as a compiler of graphs, if there is one, is to have them: of all operators but those
    that it takes whole and, ``in_graphs``, those that become Inductor's own; and the gradient of softmax in terms of
    ATen, where Inductor has ``prims::fma``."""
    if compiler is None:
        return table
    table = {**table, _SOFTMAX_BACKWARD: decomposition_table[_SOFTMAX_BACKWARD]}
    whole = compiler.whole | (facts.with_fact(lambda row: row.inductors_own) if in_graphs else frozenset())
    return {key: made for key, made in table.items() if not _is_among(key, whole)}


def _is_among(key: Any, whole: frozenset[str]) -> bool:
    return isinstance(key, torch._ops.OpOverload) and key._schema.name in whole


def _operand_of(given: Given, simplify: Callable[[Any], Any]) -> compilers.Operand:
    if isinstance(given, TensorArg):
        sizes, strides = (
            tuple(simplify(size) if isinstance(size, sympy.Expr) else size for size in each)
            for each in (given.sizes, given.strides)
        )
        return compilers.Operand(given.dtype, sizes, strides)
    is_integer = isinstance(given, int) or (isinstance(given, sympy.Basic) and given.is_integer)
    return compilers.Operand(torch.int64 if is_integer else torch.float64, (), (), is_number=True)


def _short(node: torch.fx.Node) -> str:
    return getattr(node.target, "_opname", None) or str(node.target)
