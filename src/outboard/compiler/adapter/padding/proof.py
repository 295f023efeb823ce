# SPDX-License-Identifier: Apache-2.0
"""Graphs whose sizes vary, made exact for padded sizes, so that a compiler of fixed sizes is asked once for many.

A dimension is followed from the inputs to the results, through views that take it apart and join it with others, as the
factors of its size. Most operators treat its rows one by one: what padded rows hold stays in them. A fold over it gets
a mask, which puts what changes nothing in their place: 0 in sums and products of matrices, the least number in maxima
and softmax. Where neither is enough, the dimension is not padded."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils import _pytree as pytree

from ..symbols import expression

aten = torch.ops.aten
_log = logging.getLogger(__name__)

#: The factors of a dimension's size, the outermost first, without ones.
Dim: TypeAlias = tuple[sympy.Expr, ...]
Dims: TypeAlias = tuple[Dim, ...]
#: Slices that end here or later end where the dimension does.
_END = 2**62
_HALVES = (torch.float16, torch.bfloat16)


class Mixed(Exception):
    """Rows along dimensions with these symbols are not treated one by one."""

    def __init__(self, symbols: Iterable[sympy.Symbol]) -> None:
        super().__init__(*symbols)
        self.symbols = frozenset(self.args)


#: A number as a tensor without dimensions: what it is of the sizes, and its dtype.
Number: TypeAlias = tuple[sympy.Basic, torch.dtype]


#: An input, and which of its dimensions has a size; None if the input is the size.
Place: TypeAlias = tuple[int, int | None]


@dataclasses.dataclass(frozen=True)
class Padded:
    """A graph that is exact for padded sizes. It has more placeholders than the one that it was made of: masks, which
    are bool, with one dimension, true in the rows that are no padding; and numbers that come of true sizes."""

    module: torch.fx.GraphModule
    symbols: dict[sympy.Symbol, Place]  #: sizes that vary, and where they are told
    varying: frozenset[sympy.Symbol]  #: those that may be padded
    inputs: tuple[Dims | sympy.Expr, ...]  #: dimensions of tensors; of sizes what they are
    extra: tuple[Dim | Number, ...]  #: what masks are of, and numbers
    results: tuple[Dims, ...]

    def sizes_of(self, args: Sequence[Any]) -> dict[sympy.Symbol, int]:
        """What the symbols are for arguments of the graph that this was made of; those of numbers that are no integers,
        or not known, are left out."""
        found = {
            symbol: args[number] if dim is None else args[number].shape[dim]
            for symbol, (number, dim) in self.symbols.items()
        }
        return {symbol: size for symbol, size in found.items() if isinstance(size, int)}


def padded(module: torch.fx.GraphModule) -> Padded | None:
    """A functional graph, whose sizes that vary are symbols, made exact for padded ones; None if none can be padded."""
    values = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    terms = Terms(values)
    numbers = {number: terms.of(value) for number, value in enumerate(values) if _is_size(value)}
    alone = {size: (number, None) for number, size in numbers.items() if isinstance(size, sympy.Symbol)}
    in_shapes = {
        size: (number, place)
        for number, value in enumerate(values)
        for place, size in enumerate(terms.shape(value))
        if isinstance(size, sympy.Symbol)
    }
    symbols: dict[sympy.Symbol, Place] = {
        **in_shapes,
        **{size: alone[size] for size in alone.keys() - in_shapes.keys()},
    }
    used = [*numbers.values(), *(size for value in values for size in terms.shape(value))]
    if not set().union(*(size.free_symbols for size in used)) <= symbols.keys():
        return None
    varying = frozenset(in_shapes)
    while varying:
        for numbers_first in (False, True):
            try:
                return _Proof(copy_of(module), terms, symbols, varying, numbers_first).run()
            except Mixed as mixed:
                blamed = mixed.symbols
        varying = varying - blamed if varying & blamed else frozenset()
    return None


def copy_of(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph with nodes of its own, of the same values."""
    copy = torch.fx.GraphModule(module, torch.fx.Graph())
    copy.graph.output(copy.graph.graph_copy(module.graph, {}))
    return copy


def as_it_is(module: torch.fx.GraphModule) -> Padded:
    """A graph of fixed sizes, none of which is padded."""
    nodes = module.graph.find_nodes(op="placeholder"), pytree.tree_leaves(module.graph.output_node().args[0])
    terms = Terms([])
    inputs, results = (
        tuple(tuple((size,) for size in terms.shape(node and node.meta.get("val"))) for node in each) for each in nodes
    )
    return Padded(module, {}, frozenset(), inputs, (), results)


def grows(node: torch.fx.Node) -> bool:
    """Whether a node concatenates along a dimension that varies. Padding would lie between the parts: copies of bytes
    serve better."""
    if node.target is not aten.cat.default:
        return False
    call = dict(zip(("tensors", "dim"), node.args, strict=False)) | node.kwargs
    sizes = [part.meta["val"].shape for part in call["tensors"]]  # type: ignore[union-attr]
    return any(isinstance(each[call.get("dim", 0)], torch.SymInt) for each in sizes)


def _is_size(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat))


class Terms:
    """Sizes in terms of what inputs have. Where that is a symbol and a constant, as of a cache that has grown by a row,
    and never the symbol alone, the sum becomes a symbol of its own."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._sums: dict[sympy.Symbol, sympy.Expr] = {}
        sizes = {size for value in values for size in self.shape(value)}
        for size in sorted(sizes, key=str):
            alone = min(size.free_symbols, key=str, default=None)
            if alone in sizes or alone in self._sums or alone is None:
                continue
            added = size - alone
            if added.is_Integer and added > 0:
                self._sums[alone] = sympy.Symbol(f"{alone}_and_{added}", integer=True, positive=True) - added

    def of(self, number: Any) -> sympy.Expr:
        """A size."""
        size = sympy.sympify(expression(number))
        return sympy.expand(size.subs(self._sums)) if size.free_symbols & self._sums.keys() else size

    def shape(self, value: Any) -> tuple[sympy.Expr, ...]:
        """The sizes of a tensor; none of anything else."""
        return tuple(map(self.of, value.shape)) if isinstance(value, torch.Tensor) else ()


def _canonical(factors: Iterable[sympy.Expr]) -> Dim:
    """Factors without ones, numbers beside one another as one."""
    made: list[sympy.Expr] = []
    for factor in factors:
        if made and made[-1].is_Integer and factor.is_Integer:
            made[-1] *= factor
        elif factor != 1:
            made.append(factor)
    return tuple(made)


class _Proof:
    """Follows dimensions through a graph, and puts masks where it needs them."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        terms: Terms,
        symbols: dict[sympy.Symbol, Place],
        varying: frozenset[sympy.Symbol],
        numbers_first: bool,
    ) -> None:
        self.module, self.graph, self.symbols, self.all_varying = module, module.graph, symbols, varying
        self.terms, self.numbers_first = terms, numbers_first
        self.order = {symbol: place for place, symbol in enumerate(symbols)}
        self.dims: dict[torch.fx.Node, Any] = {}
        self.masks: dict[Dim, torch.fx.Node] = {}
        self.numbers: dict[tuple[sympy.Basic, torch.dtype], torch.fx.Node] = {}

    def run(self) -> Padded:
        """The graph with masks. Raises Mixed."""
        placeholders = self.graph.find_nodes(op="placeholder")
        for before, node in itertools.pairwise(placeholders):
            before.append(node)  # masks come behind them, and before all else
        nodes = list(self.graph.nodes)
        for node in nodes:
            if node.op == "output" or node in self.dims:
                continue
            try:
                self.dims[node] = self._result(node)
            except Mixed as mixed:
                _log.info("%s are not padded: %s", sorted(map(str, mixed.symbols)), node.format_node())
                raise
        results = tuple(self._tensor_dims(node) for node in pytree.tree_leaves(nodes[-1].args[0]))
        self.module.recompile()
        inputs = tuple(self.dims[node] for node in placeholders)
        given = {node: what for what, node in [*self.masks.items(), *self.numbers.items()]}
        extra = tuple(given[node] for node in self.graph.find_nodes(op="placeholder")[len(placeholders) :])
        return Padded(self.module, self.symbols, self.all_varying, inputs, extra, results)

    def _tensor_dims(self, node: Any) -> Dims:
        if not isinstance(node, torch.fx.Node) or not isinstance(node.meta.get("val"), torch.Tensor):
            raise Mixed(self.all_varying)  # a number among the results
        dims: Dims = self.dims[node]
        return dims

    def varying(self, *values: Any) -> frozenset[sympy.Symbol]:
        """The symbols to be padded among dimensions, sizes, or anything of these."""
        leaves = pytree.tree_leaves(values, is_leaf=lambda each: isinstance(each, sympy.Basic))
        free: frozenset[sympy.Symbol] = frozenset().union(
            *(each.free_symbols for each in leaves if isinstance(each, sympy.Basic))
        )
        return free & self.all_varying

    def refuse(self, *values: Any) -> None:
        """Raises Mixed if there is any such symbol."""
        if symbols := self.varying(*values):
            raise Mixed(symbols)

    def made(self, value: Any) -> Any:
        """The dimensions of a value that does not come of other tensors'."""
        if isinstance(value, (list, tuple)):
            return [self.made(each) for each in value]
        shape = self.terms.shape(value)
        self.refuse(*(size for size in shape if not isinstance(size, sympy.Symbol)))
        return tuple(_canonical([size]) for size in shape)

    def factors(self, size: sympy.Expr) -> Dim:
        """The factors of a size that is not followed from elsewhere. Their order is a guess that does no harm: what
        meets must have the same, and then rows are rows."""
        if not self.varying(size):
            return _canonical([size])
        number, rest = size.as_coeff_Mul()
        factors = sorted(sympy.Mul.make_args(rest), key=lambda each: self.order.get(each, 0))
        self.refuse(*(each for each in factors if not isinstance(each, sympy.Symbol)))
        return _canonical([number, *factors] if self.numbers_first else [*factors, number])

    def _result(self, node: torch.fx.Node) -> Any:
        value = node.meta.get("val")
        if _is_size(value):
            return self.terms.of(value)
        if node.op == "placeholder":
            return tuple(map(self.factors, self.terms.shape(value)))
        if node.target is operator.getitem:
            return self.dims[node.args[0]][node.args[1]]  # type: ignore[index]
        is_write = node.target is aten.copy_.default
        if not isinstance(node.target, torch._ops.OpOverload) or (node.target._schema.is_mutable and not is_write):
            raise Mixed(self.all_varying)
        call = BoundNode(self, node, node.target._schema)
        made = [self.terms.shape(each) for each in pytree.tree_leaves(value)]
        varying = self.varying([self.dims[each] for each in node.all_input_nodes], made)
        if not varying:
            return self.made(value)
        rule = _RULES.get(node.target._schema.name)
        is_pointwise = torch.Tag.pointwise in node.target.tags and (
            torch.Tag.nondeterministic_seeded not in node.target.tags
        )
        if rule is None and not is_pointwise:
            raise Mixed(varying)
        if rule is None:
            call.give_numbers()
        elif rule not in _TAKE_SIZES and any(isinstance(self.dims[each], sympy.Basic) for each in node.all_input_nodes):
            raise Mixed(varying)
        return (rule or _pointwise)(call)


class BoundNode:
    """A node whose arguments have the names of its schema: what a rule gets."""

    def __init__(self, proof: _Proof, node: torch.fx.Node, schema: torch._C.FunctionSchema) -> None:
        self.proof, self.node = proof, node
        self.names = [argument.name for argument in schema.arguments]
        defaults = {argument.name: argument.default_value for argument in schema.arguments}
        self.args: dict[str, Any] = defaults | dict(zip(self.names, node.args, strict=False)) | node.kwargs

    def dims(self, name: str | int) -> Dims:
        """The dimensions of a tensor argument."""
        given = self.args[self.names[name] if isinstance(name, int) else name]
        return self.proof.dims[given] if isinstance(given, torch.fx.Node) else ()

    def tensors(self) -> list[Dims]:
        """The dimensions of all tensors among the arguments."""
        dims = (self.proof.dims[node] for node in self.node.all_input_nodes)
        return [each for each in dims if not isinstance(each, sympy.Basic)]

    def place(self, name: str = "dim", of: str | int = 0) -> int:
        """An argument that is a dimension, from the front."""
        return int(self.args[name]) % max(len(self.dims(of)), 1)

    def places(self, name: str = "dim", of: str | int = 0) -> list[int]:
        """The same of several; all of them if none is given."""
        given, count = self.args.get(name), len(self.dims(of))
        given = [given] if isinstance(given, int) else given
        return [each % count for each in given] if given else list(range(count))

    def mask(self, dim: Dim) -> torch.fx.Node:
        """The mask of a dimension."""
        masks, graph = self.proof.masks, self.proof.graph
        if dim not in masks:
            with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
                masks[dim] = graph.placeholder(f"mask_{len(masks)}")
        return masks[dim]

    def add(self, overload: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """A call before this one."""
        with self.proof.graph.inserting_before(self.node):
            return self.proof.graph.call_function(overload, args, kwargs)

    def hide(self, name: str | int, places: Iterable[int], value: float | bool) -> None:
        """Puts a number into the padded rows of an argument, along some of its dimensions."""
        name = self.names[name] if isinstance(name, int) else name
        given = self.args[name]
        hidden = self.hidden(given, self.dims(name), places, value, given.meta["val"])
        if hidden is not given:
            hidden.meta["val"] = given.meta["val"]
            self.proof.dims[hidden] = self.dims(name)
            self._replace(name, hidden)

    def hidden(
        self, given: torch.fx.Node, dims: Dims, places: Iterable[int], value: float | bool, like: torch.Tensor
    ) -> torch.fx.Node:
        """A tensor with a number in its padded rows."""
        for place in places:
            if self.proof.varying(dims[place]):
                sizes = [-1 if d == place else 1 for d in range(len(dims))]
                mask = self.add(aten.view.default, self.mask(dims[place]), sizes)
                number = self.add(aten.full.default, [], value, dtype=like.dtype, device=like.device)
                given = self.add(aten.where.self, mask, given, number)
        return given

    def count(self, dims: Dims, places: Iterable[int], dtype: torch.dtype) -> torch.fx.Node:
        """How many elements are no padding along some dimensions."""
        fixed = sympy.Integer(1)
        for d in places:
            fixed *= sympy.Mul(*dims[d]) if not self.proof.varying(dims[d]) else 1
        if not fixed.is_Integer:
            raise Mixed(self.proof.all_varying)
        made = None
        for dim in (dims[place] for place in places if self.proof.varying(dims[place])):
            rows = self.add(aten._to_copy.default, self.mask(dim), dtype=dtype)
            rows = self.add(aten.sum.dim_IntList, rows, [0])
            made = rows if made is None else self.add(aten.mul.Tensor, made, rows)
        return self.add(aten.mul.Tensor, made, float(fixed))

    def give_numbers(self) -> None:
        """Sizes among the operands of arithmetic are what they are, and become tensors, which executables read."""
        value, overload = self.node.meta["val"], self.node.target
        assert isinstance(overload, torch._ops.OpOverload)
        takes_tensors = getattr(overload.overloadpacket, "Tensor", overload)
        for argument in takes_tensors._schema.arguments:
            given = self.args.get(argument.name)
            what = self.proof.dims.get(given) if isinstance(given, torch.fx.Node) else None
            if not isinstance(what, sympy.Basic) or not self.proof.varying(what):
                continue
            if str(argument.type) != "Tensor" or not value.dtype.is_floating_point:
                self.proof.refuse(what)
            dtype = torch.float32 if value.dtype in _HALVES else value.dtype
            self.node.target = takes_tensors
            self._replace(argument.name, self._number(what, dtype))

    def _number(self, what: sympy.Basic, dtype: torch.dtype) -> torch.fx.Node:
        numbers, graph = self.proof.numbers, self.proof.graph
        if (what, dtype) not in numbers:
            with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
                numbers[what, dtype] = node = graph.placeholder(f"number_{len(numbers)}")
            self.proof.dims[node] = ()
        return numbers[what, dtype]

    def give(self, made: torch.fx.Node, user: torch.fx.Node, dims: Dims) -> None:
        """Puts a value in the place of this call, or of one of its results."""
        made.meta = user.meta
        self.proof.dims[made] = self.proof.dims[user] = dims
        user.replace_all_uses_with(made)
        self.proof.graph.erase_node(user)

    def _replace(self, name: str, value: torch.fx.Node) -> None:
        self.args[name] = value
        position = self.names.index(name)
        if position < len(self.node.args):
            self.node.update_arg(position, value)
        else:
            self.node.update_kwarg(name, value)

    def result(self, number: int | None = None) -> tuple[sympy.Expr, ...]:
        """The sizes of the result, or of one of several."""
        value = self.node.meta["val"]
        return self.proof.terms.shape(value if number is None else value[number])

    def match(self, one: Dim, other: Dim) -> None:
        """Refuses dimensions that are not padded alike."""
        if one != other:
            self.proof.refuse(one, other)


Rule: TypeAlias = Callable[[BoundNode], Any]
_RULES: dict[str, Rule] = {}
#: Rules of operators whose arguments may be sizes: of their results, which the graph has already.
_TAKE_SIZES: set[Rule | None] = set()


def _rule(*names: str, takes_sizes: bool = False) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update((f"aten::{name}" if "::" not in name else name, rule) for name in names)
        if takes_sizes:
            _TAKE_SIZES.add(rule)
        return rule

    return register


# ---- row by row ----


@_rule("where", "copy", "clone", "_to_copy", "alias", "detach", "full_like", "prims::convert_element_type")
def _pointwise(call: BoundNode) -> Dims:
    return _broadcast(call, call.tensors())


@_rule("div", "floor_divide", "fmod", "remainder", takes_sizes=True)
def _quotient(call: BoundNode) -> Dims:
    """Integers are not divided by 0, also not in padding: there executables may raise."""
    call.give_numbers()
    divisor = call.args["other"]
    value = divisor.meta.get("val") if isinstance(divisor, torch.fx.Node) else None  # of a run-time number, a symbol
    if isinstance(value, torch.Tensor) and not value.is_floating_point():
        call.hide("other", range(len(call.dims("other"))), 1)
    return _pointwise(call)


def _broadcast(call: BoundNode, tensors: Sequence[Dims]) -> Dims:
    dims: list[Dim] = []
    for place in range(1, max(map(len, tensors)) + 1):
        here = [each[-place] for each in tensors if len(each) >= place and each[-place]]
        for one in here[1:]:
            call.match(here[0], one)
        dims.insert(0, here[0] if here else ())
    return tuple(dims)


@_rule("copy_")
def _write(call: BoundNode) -> Dims:
    """Into an input; padding is not written."""
    dims = call.dims(0)
    for own, source in zip(reversed(dims), reversed(call.dims("src")), strict=False):
        if source:
            call.match(own, source)
    return dims


@_rule("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", takes_sizes=True)
def _view(call: BoundNode) -> Dims:
    return _regroup(call, call.dims(0), call.result())


def _regroup(call: BoundNode, dims: Dims, sizes: Sequence[sympy.Expr]) -> Dims:
    """The factors of dimensions, in order, as those of other sizes."""
    rest = [*reversed(_canonical(factor for dim in dims for factor in dim))]
    made = []
    for size in sizes:
        group = []
        while size != 1:
            factor = rest.pop() if rest else sympy.Integer(1)
            part = sympy.gcd(size.as_coeff_Mul()[0], factor) if factor.is_Integer else factor
            size = size / part
            if part == 1 or not size.is_integer:
                call.proof.refuse(dims, sizes)
                raise Mixed(call.proof.all_varying)
            group.append(part)
            if factor != part:
                rest.append(factor / part)
        made.append(_canonical(group))
    return tuple(made)


@_rule("expand", takes_sizes=True)
def _expand(call: BoundNode) -> Dims:
    sizes = call.result()
    dims = ((),) * (len(sizes) - len(call.dims(0))) + call.dims(0)
    repeated = [size for dim, size in zip(dims, sizes, strict=True) if not dim]
    call.proof.refuse(*(size for size in repeated if not isinstance(size, sympy.Symbol)))
    return tuple(dim or _canonical([size]) for dim, size in zip(dims, sizes, strict=True))


@_rule("permute")
def _permute(call: BoundNode) -> Dims:
    return tuple(call.dims(0)[place] for place in call.places("dims"))


@_rule("t")
def _transpose_matrix(call: BoundNode) -> Dims:
    return call.dims(0)[::-1]


@_rule("transpose")
def _transpose(call: BoundNode) -> Dims:
    dims, one, other = [*call.dims(0)], call.place("dim0"), call.place("dim1")
    dims[one], dims[other] = dims[other], dims[one]
    return tuple(dims)


@_rule("full", "zeros", "ones", "new_zeros", "new_ones", "new_full", takes_sizes=True)
def _create(call: BoundNode) -> Dims:
    return tuple(map(call.proof.factors, call.result()))


@_rule("prims::iota", "arange", takes_sizes=True)
def _count(call: BoundNode) -> Dims:
    """What comes first counts from a number: the length alone may be padded."""
    first = [call.args.get("start"), call.args.get("step")]
    call.proof.refuse(*(call.proof.dims[each] for each in first if isinstance(each, torch.fx.Node)))
    return call.proof.made(call.node.meta["val"])


# ---- some dimensions are not padded, the others are treated row by row ----


def _whole(call: BoundNode, dims: Dims, places: Iterable[int]) -> Dims:
    """Refuses padding along these dimensions."""
    call.proof.refuse(*(dims[place] for place in places))
    return dims


def _with_sizes(call: BoundNode, dims: Dims, places: Iterable[int], number: int | None = None) -> Dims:
    """Dimensions, some of which are not padded, and have the result's sizes."""
    sizes, whole = call.result(number), set(places)
    return tuple(_canonical([sizes[d]]) if d in whole else dim for d, dim in enumerate(_whole(call, dims, whole)))


@_rule("slice")
def _slice(call: BoundNode) -> Dims:
    place, end = call.place(), call.args["end"]
    is_all = call.args["start"] in (None, 0) and (end is None or end >= _END) and call.args["step"] == 1
    return call.dims(0) if is_all else _with_sizes(call, call.dims(0), [place])


@_rule("select")
def _select(call: BoundNode) -> Dims:
    dims, place = call.dims(0), call.place()
    if call.args["index"] != 0:
        _whole(call, dims, [place])
    return dims[:place] + dims[place + 1 :]


@_rule("split", "split_with_sizes")
def _split(call: BoundNode) -> list[Dims]:
    count = len(call.node.meta["val"])
    return [_with_sizes(call, call.dims(0), [call.place()], number) for number in range(count)]


@_rule("cat")
def _cat(call: BoundNode) -> Dims:
    parts = [call.proof.dims[node] for node in call.args["tensors"]]
    place = call.args["dim"] % len(parts[0])
    for part in parts:
        _whole(call, part, [place])
        for d in range(len(part)):
            if d != place:
                call.match(part[d], parts[0][d])
    return _with_sizes(call, parts[0], [place])


@_rule("constant_pad_nd")
def _constant_pad(call: BoundNode) -> Dims:
    dims = call.dims(0)
    return _with_sizes(call, dims, range(len(dims) - len(call.args["pad"]) // 2, len(dims)))


@_rule("native_layer_norm", "_fused_rms_norm", "rms_norm")
def _layer_norm(call: BoundNode) -> Any:
    dims, count = call.dims(0), len(call.args["normalized_shape"])
    _whole(call, dims, range(len(dims) - count, len(dims)))
    if isinstance(call.node.meta["val"], torch.Tensor):
        return dims
    folded = dims[: len(dims) - count] + ((),) * count
    return [dims, *[folded] * (len(call.node.meta["val"]) - 1)]


@_rule("max_pool2d_with_indices")
def _max_pool(call: BoundNode) -> list[Dims]:
    dims = call.dims(0)
    return [_with_sizes(call, dims, range(len(dims) - 2, len(dims)), number) for number in range(2)]


@_rule("convolution")
def _convolution(call: BoundNode) -> Dims:
    call.proof.refuse(call.dims("weight"), call.dims("bias"))
    if len(call.dims("input")) < len(call.dims("weight")):
        call.proof.refuse(call.dims("input"))  # no batch
    return _with_sizes(call, call.dims("input"), range(1, len(call.dims("input"))))


@_rule("convolution_backward")
def _convolution_backward(call: BoundNode) -> list[Dims | None]:
    """The gradients of weight and bias are sums over the batch."""
    dims = call.dims("input")
    call.proof.refuse(call.dims("weight"))
    _whole(call, call.dims("grad_output"), range(1, len(dims)))
    call.match(call.dims("grad_output")[0], dims[0])
    for name in ("grad_output", "input"):
        call.hide(name, [0], 0)
    gradients = [call.proof.made(value) for value in call.node.meta["val"][1:]]
    return [_whole(call, dims, range(1, len(dims))), *gradients]


@_rule("cumsum")
def _scan(call: BoundNode) -> Dims:
    """What comes before padding does not hear of it."""
    dims, place = call.dims(0), call.place()
    if len(dims[place]) > 1:
        _whole(call, dims, [place])
    return dims


@_rule("flip", "prims::rev")
def _reorder(call: BoundNode) -> Dims:
    return _whole(call, call.dims(0), call.places("dims"))


@_rule("prod")
def _fold_whole(call: BoundNode) -> Any:
    dims, places = _whole(call, call.dims(0), call.places()), call.places()
    result, value = _folded(call, dims, places), call.node.meta["val"]
    return result if isinstance(value, torch.Tensor) else [result] * len(value)


# ---- folds with a mask ----


def _folded(call: BoundNode, dims: Dims, places: Iterable[int]) -> Dims:
    keeps = bool(call.args.get("keepdim", False)) and bool(dims)
    folded = set(places)
    return tuple(() if d in folded else dim for d, dim in enumerate(dims) if keeps or d not in folded)


@_rule("sum", "any")
def _sum(call: BoundNode) -> Dims:
    dims, places = call.dims(0), call.places()
    call.hide(0, places, 0)
    return _folded(call, dims, places)


@_rule("amax", "amin", "max", "min")
def _extreme(call: BoundNode) -> Any:
    dims, places = call.dims(0), call.places()
    if "other" in call.args:
        return _pointwise(call)
    if not isinstance(call.node.meta["val"], torch.Tensor):  # with places
        return _fold_whole(call)
    call.hide(0, places, _least(call, greatest=call.node.target._schema.name in ("aten::amin", "aten::min")))  # type: ignore[union-attr]
    return _folded(call, dims, places)


def _least(call: BoundNode, greatest: bool = False) -> float:
    dtype = call.args[call.names[0]].meta["val"].dtype
    if dtype.is_floating_point:
        return float("inf") if greatest else float("-inf")
    limits = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return limits[greatest]


@_rule("argmax", "argmin")
def _place_of_extreme(call: BoundNode) -> Dims:
    """Of equal ones the first, which is no padding: that comes last, where rows are not parts of a larger dimension."""
    dims, places = call.dims(0), call.places()
    call.proof.refuse(_canonical(factor for place in places for factor in dims[place])[1:])
    call.hide(0, places, _least(call, greatest=call.node.target._schema.name == "aten::argmin"))  # type: ignore[union-attr]
    return _folded(call, dims, places)


@_rule("sort")
def _sort(call: BoundNode) -> list[Dims]:
    """Padding is what comes last, and stays behind what is equal."""
    dims, place = call.dims(0), call.place()
    if call.proof.varying(dims[place]):
        call.proof.refuse(dims[place][1:])
        descends, dtype = bool(call.args["descending"]), call.args["self"].meta["val"].dtype
        is_nan_last = dtype.is_floating_point and not descends
        call.hide(0, [place], float("nan") if is_nan_last else _least(call, greatest=not descends))
        call.node.target = aten.sort.stable
        call.node.args = (call.args["self"],)
        call.node.kwargs = {"stable": True, "dim": place, "descending": descends}
    return [dims, dims]


@_rule("mean")
def _mean(call: BoundNode) -> Dims:
    """A sum, divided by how many there are: as the masks say where there is padding."""
    dims, places, value = call.dims(0), call.places(), call.node.meta["val"]
    result = _folded(call, dims, places)
    if call.proof.varying(*(dims[place] for place in places)):
        given = call.args[call.names[0]]
        made = _masked_mean(call, given, given.meta["val"], value.dtype, bool(call.args.get("keepdim", False)))
        call.give(made, call.node, result)
    return result


def _masked_mean(
    call: BoundNode, given: torch.fx.Node, like: torch.Tensor, dtype: torch.dtype, keeps: bool
) -> torch.fx.Node:
    """That of ``given``, a tensor like ``like`` with the dimensions of the call's operand."""
    dims, places = call.dims(0), call.places()
    wide = torch.float32 if dtype in _HALVES else dtype
    total = call.add(aten.sum.dim_IntList, call.hidden(given, dims, places, 0, like), places, keeps, dtype=wide)
    mean = call.add(aten.div.Tensor, total, call.count(dims, places, wide))
    return mean if wide == dtype else call.add(aten._to_copy.default, mean, dtype=dtype)


@_rule("var", "var_mean", takes_sizes=True)
def _variance(call: BoundNode) -> Any:
    """The mean of squares of what is left without the mean. The rounding of a mean may be as large as what is left: so
    the mean of that is taken away, too."""
    dims, places, given = call.dims(0), call.places(), call.args[call.names[0]]
    result, is_alone = _folded(call, dims, places), isinstance(call.node.meta["val"], torch.Tensor)
    if not call.proof.varying(*(dims[place] for place in places)):
        return result if is_alone else [result, result]
    if "correction" not in call.args:  # other overloads
        raise Mixed(call.proof.varying(dims))
    correction = 1.0 if call.args["correction"] is None else call.args["correction"]
    if isinstance(correction, torch.fx.Node):
        call.proof.refuse(call.proof.dims[correction])
    value, keeps = given.meta["val"], bool(call.args["keepdim"])
    dtype = torch.float32 if value.dtype in _HALVES else value.dtype
    rest, like = given, value
    if dtype != value.dtype:
        rest, like = call.add(aten._to_copy.default, given, dtype=dtype), value.to(dtype)
    for _ in range(2):
        rest = call.add(aten.sub.Tensor, rest, _masked_mean(call, rest, like, dtype, True))
    rest = call.hidden(rest, dims, places, 0, like)
    squares = call.add(aten.sum.dim_IntList, call.add(aten.mul.Tensor, rest, rest), places, keeps)
    freedom = call.add(aten.sub.Tensor, call.count(dims, places, dtype), correction)
    if isinstance(correction, torch.fx.Node) or correction > 1:
        freedom = call.add(aten.clamp_min.default, freedom, 0)
    variance = call.add(aten.div.Tensor, squares, freedom)
    if dtype != value.dtype:
        variance = call.add(aten._to_copy.default, variance, dtype=value.dtype)
    if is_alone:
        call.give(variance, call.node, result)
        return result
    made = [variance, _masked_mean(call, given, value, value.dtype, keeps)]
    for user in list(call.node.users):
        call.give(made[user.args[1]], user, result)  # type: ignore[index]
    call.proof.graph.erase_node(call.node)
    return [result, result]


@_rule("_softmax", "_log_softmax")
def _softmax(call: BoundNode) -> Dims:
    call.hide(0, [call.place()], float("-inf"))
    return call.dims(0)


@_rule("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(call: BoundNode) -> Dims:
    for name in ("grad_output", "output"):
        call.hide(name, [call.place()], 0)
    return _pointwise(call)


@_rule("mm", "bmm")
def _product(call: BoundNode) -> Dims:
    return _multiply(call, *call.names[:2])


@_rule("addmm", "baddbmm")
def _sum_and_product(call: BoundNode) -> Dims:
    product = _multiply(call, *call.names[1:3])
    for own, made in zip(reversed(call.dims(0)), reversed(product), strict=False):
        if own:
            call.match(own, made)
    return product


def _multiply(call: BoundNode, a: str, b: str) -> Dims:
    left, right = call.dims(a), call.dims(b)
    for one, other in zip((*left[:-2], left[-1]), right[:-1], strict=True):
        call.match(one, other)
    call.hide(a, [len(left) - 1], 0)
    call.hide(b, [len(right) - 2], 0)
    return (*left[:-1], right[-1])


@_rule("scaled_dot_product_attention")
def _attention(call: BoundNode) -> Dims:
    """Padded keys come last: causal queries that are no padding do not look at them."""
    query, key, value = (call.dims(name) for name in ("query", "key", "value"))
    if not call.args["is_causal"] or query[-2] != key[-2]:
        call.proof.refuse(key[-2])
    call.proof.refuse(call.dims("attn_mask"), query[-1], value[-1])
    if call.args["dropout_p"] != 0:
        call.proof.refuse(query)
    for d in range(len(query) - 2):
        if not call.args["enable_gqa"] or d != len(query) - 3:
            call.match(query[d], key[d])
    return (*query[:-1], value[-1])


# ---- indices: padded ones are 0 ----


@_rule("embedding")
def _embedding(call: BoundNode) -> Dims:
    _whole(call, call.dims("weight"), [0])
    call.hide("indices", range(len(call.dims("indices"))), 0)
    return (*call.dims("indices"), *call.dims("weight")[1:])


@_rule("embedding_dense_backward")
def _embedding_backward(call: BoundNode) -> Dims:
    dims = call.dims("indices")
    for name in ("indices", "grad_output"):
        call.hide(name, range(len(dims)), 0)
    return (*call.proof.made(call.node.meta["val"])[:1], *call.dims("grad_output")[len(dims) :])


@_rule("index_select")
def _index_select(call: BoundNode) -> Dims:
    dims, place = call.dims(0), call.place()
    _whole(call, dims, [place])
    call.hide("index", range(len(call.dims("index"))), 0)
    return (*dims[:place], *(call.dims("index") or ((),)), *dims[place + 1 :])


@_rule("gather")
def _gather(call: BoundNode) -> Dims:
    dims, index, place = call.dims(0), call.dims("index"), call.place()
    _whole(call, dims, [place])
    for d, dim in enumerate(dims):
        if d != place:
            call.match(dim, index[d])
    call.hide("index", range(len(index)), 0)
    return index


@_rule("index")
def _index(call: BoundNode) -> Dims:
    """As many indices as there may be, for dimensions that are not padded."""
    dims, indices = call.dims(0), [*call.args["indices"]]
    used = [place for place, index in enumerate(indices) if index is not None]
    if any(indices[place].meta["val"].dtype in (torch.bool, torch.uint8) for place in used):
        raise Mixed(call.proof.all_varying)
    _whole(call, dims, used)
    for place in used:
        index = indices[place]
        of_index, value = call.proof.dims[index], index.meta["val"]
        indices[place] = call.hidden(index, of_index, range(len(of_index)), 0, value)
        indices[place].meta["val"], call.proof.dims[indices[place]] = value, of_index
    call.node.args = (call.args["self"], indices)
    made = _broadcast(call, [call.proof.dims[indices[place]] for place in used])
    others = [[dims[d] for d in range(*ends) if d not in used] for ends in ((used[0],), (used[0], len(dims)))]
    if used[-1] - used[0] != len(used) - 1:  # not side by side
        return (*made, *others[0], *others[1])
    return (*others[0], *made, *others[1])


@_rule("scatter", "scatter_add")
def _scatter(call: BoundNode) -> Dims:
    dims = call.dims(0)
    if "reduce" in call.args:
        call.proof.refuse(dims)
    _gather(call)
    if isinstance(call.args.get("src"), torch.fx.Node):
        for one, other in zip(call.dims("src"), call.dims("index"), strict=True):
            call.match(one, other)
    return dims
