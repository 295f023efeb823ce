# SPDX-License-Identifier: Apache-2.0
"""From one operator call to a plan: fake arguments, a functional graph, Inductor's lowering."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops_core
from torch._inductor.fx_passes.replace_random import replace_random_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils import _pytree as pytree

from outboard import compilers
from outboard._C import SignedCall, SignedLeaf

from ..isolation import Together
from ..kernels.common import INTEGER_DTYPES
from ..loops.nest import GATHER_ERROR, INDEX_ERROR, index_message
from ..operators import facts
from ..operators.overloads import find_overload, names_memory, overloads_taking
from ..plans import plan as p
from ..plans.builder import NotExpressible, PlanBuilder, TensorArg
from ..plans.ordering import ordered
from ..target import Target
from . import executables
from .executables import decompositions_for
from .operators import complex_pairs, ctc, results
from .operators.compaction import FUNCTIONS
from .operators.corrections import concerns
from .operators.decompositions import eager_decompositions
from .operators.fills import COMPOSED, title_of
from .operators.strides import dense_strides, memory_order
from .optimizers.fused import STEPS
from .padding import history, padded, proof
from .registration import EAGER_CONFIG, register
from .symbols import RunTimeFloat, expression, hints
from .wrapper import building

aten = torch.ops.aten
_log = logging.getLogger(__name__)


def _running_extreme(operator: Any) -> Callable[..., None]:
    """``cummax`` or ``cummin`` into tensors, which PyTorch has as an operator that returns nothing."""

    def function(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
        for written, result in zip((values, indices), operator(x, dim), strict=True):
            written.copy_(result)

    return function


#: What operators of our own do, and those that functionalisation refuses, in terms of PyTorch's others.
_OWN: dict[Any, Callable[..., Any]] = {
    **STEPS,
    **FUNCTIONS,
    **complex_pairs.FUNCTIONS,
    **ctc.FUNCTIONS,
    aten._cummax_helper.default: _running_extreme(aten.cummax.default),
    aten._cummin_helper.default: _running_extreme(aten.cummin.default),
}


class ScalarSteersGraph(Exception):
    """The graph depends on the value of a scalar argument: it must be a constant."""


@dataclasses.dataclass
class Leaf:
    """One input of a plan: the fake tensor or symbolic scalar that stands for it, and its kind."""

    fake: Any
    kind: p.InputKind


class Inputs:
    """Symbolic stand-ins for the inputs of one call's plan, as C++ signed them. ``varying``: the dimensions of leaves
    whose sizes are symbols, those of tensors that then are taken for dense; None: all are, and strides, too."""

    def __init__(self, call: SignedCall, varying: frozenset[history.Place] | None = None) -> None:
        self.bake = call.bake
        self.varying = varying
        self.shape_env = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.shape_env, allow_non_fake_inputs=True)
        self.mode.cache_enabled = False  # no operator comes twice, and a key costs about what its answer does
        self.leaves: list[Leaf] = []
        self.sources: list[tuple[sympy.Symbol, p.SymbolSource, int, int]] = []
        self.scalar_symbols: set[sympy.Symbol] = set()
        #: Floats that kernels are told.
        self.told: list[RunTimeFloat] = []
        #: By float, the symbol of its place among all floats, which guards compare.
        self.orders: dict[sympy.Symbol, sympy.Symbol] = {}
        #: What another graph of the same call assumes of its numbers.
        self.assumed: list[sympy.Basic] = []
        self._signed = {(leaf.argument, leaf.item): leaf for leaf in call.leaves}

    def argument(self, value: Any, name: str) -> Any:
        """The stand-in for an argument, or for each item of a list. What is no input of the plan stands for itself."""
        if isinstance(value, (list, tuple)):
            return [self._item(item, name, number) for number, item in enumerate(value)]
        return self._item(value, name, -1)

    def _item(self, value: Any, name: str, number: int) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0:
            value = value.item()  # a number that PyTorch wrapped
        leaf = self._signed.get((name, number))
        if leaf is None:
            return value
        return self.tensor(value, leaf) if leaf.kind == "tensor" else self.scalar(value, leaf)

    def scalar(self, value: int | float, leaf: SignedLeaf) -> Any:
        """A symbolic number."""
        number = len(self.leaves)
        source = ConstantSource(f"scalar{number}")
        symbol = self._symbol(value, source, positive=None, specialize=False)
        if leaf.kind == "int":
            symbolic: Any = self.shape_env.create_symintnode(symbol, hint=value, source=source)
            kind, origin = p.InputKind.INT, p.SymbolSource.INT
        else:
            symbolic = self.shape_env.create_symfloatnode(symbol, hint=value, source=source)
            kind, origin = p.InputKind.FLOAT, p.SymbolSource.FLOAT
            if leaf.item < 0:  # else it may be NaN, of which places say nothing
                self.orders[symbol] = sympy.Symbol(f"order{number}", integer=True)
        self.leaves.append(Leaf(symbolic, kind))
        self.sources.append((symbol, origin, number, 0))
        self.scalar_symbols.add(symbol)
        return symbolic

    def told_floats(self, overload: torch._ops.OpOverload, args: list[Any]) -> list[Any]:
        """Arguments of an operator; a run-time float that its kernel is told is a :class:`RunTimeFloat`."""
        row = facts.of(overload._schema.name)
        values = list(args)
        for place, argument in enumerate(overload._schema.arguments[: len(args)] if row.kernel else ()):
            if argument.name in row.run_time and isinstance(value := args[place], torch.SymFloat):
                values[place] = RunTimeFloat.of(value)
                self.told.append(values[place])
        return values

    def _symbol(self, value: Any, source: Any, positive: bool | None, specialize: bool = True) -> Any:
        return self.shape_env.create_symbol(
            value,
            source=source,
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=None,
            positive=positive,
            do_not_specialize_zero_one=not specialize,
        )

    def tensor(self, tensor: torch.Tensor, leaf: SignedLeaf) -> Any:
        """A fake tensor with symbolic sizes."""
        number = len(self.leaves)
        self.leaves.append(Leaf(None, p.InputKind.TENSOR))
        sizes = self._dimensions(tensor.shape, leaf.sizes, p.SymbolSource.SIZE, number)
        if self.varying and any(place == number for place, _ in self.varying):
            strides = dense_strides(sizes, memory_order(tensor))
        elif leaf.strides:
            strides = self._dimensions(tensor.stride(), leaf.strides, p.SymbolSource.STRIDE, number)
        else:
            strides = dense_strides(sizes, reversed(leaf.order))
        with self.mode:
            fake = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
        self.leaves[number].fake = fake
        return fake

    def _dimensions(
        self, values: Sequence[int], signed: Sequence[int | None], origin: p.SymbolSource, number: int
    ) -> list[Any]:
        """Sizes or strides of an input: what the signature holds, and symbols for the rest."""
        return [
            self._dimension(value, origin, number, dim) if known is None else known
            for dim, (value, known) in enumerate(zip(values, signed, strict=True))
        ]

    def _dimension(self, value: int, origin: p.SymbolSource, number: int, dim: int) -> Any:
        if self.varying is not None and (number, dim) not in self.varying:
            return value
        source = ConstantSource(f"{origin.name.lower()}{number}_{dim}")
        symbol = self._symbol(value, source, positive=True)
        self.sources.append((symbol, origin, number, dim))
        return self.shape_env.create_symintnode(symbol, hint=value, source=source)


@dataclasses.dataclass
class Compiled:
    """A plan, and how many of its steps the device carries out itself and how many are CPU fallbacks."""

    plan: p.Plan
    native: int
    fallbacks: int


def has_lowering(overload: torch._ops.OpOverload) -> bool:
    """Whether loops are known for an operator, if only for some of its calls."""
    known = lowerings.get(overload)
    return known is not None and not getattr(known, "_is_fallback_handler", False)


def lower_operator(call: SignedCall, target: Target) -> Compiled:
    """Compiles one call of an operator for ``target``.

    Raises ScalarSteersGraph (only if scalars are not baked), what the operator itself raises for bad arguments, or
    NotImplementedError / Unsupported / NotExpressible for what cannot be compiled.
    """
    register()
    compiler = compilers.find(target)
    inputs = Inputs(call, frozenset() if target.static_sizes else None)
    overload = _without_generator(find_overload(call.op))
    schema = overload._schema
    fake_args, fake_kwargs = _bind(schema, call, inputs)
    with _compiling(inputs):
        graph = _graph(overload, fake_args, fake_kwargs, inputs, compiler)
        expected = results.of_shape_function(overload, call.args, call.kwargs)
        if expected is not None:
            results.match(graph, overload, expected, inputs.mode)
        guards = [guard.expr for guard in inputs.shape_env.guards]
        _check_guards(guards, inputs)
        if compiler is not None:
            shared = _padded(call, overload, graph, inputs, compiler, target)
            return shared or _execute(graph, inputs, compiler, torch.Tag.pointwise in overload.tags, target)
        names = (argument.name for argument in schema.arguments)
        arguments = dict(zip(names, fake_args, strict=False)) | fake_kwargs
        with _wording(_index_error(overload, inputs, arguments)):
            return _lower(graph, inputs, target)


@functools.cache
def _without_generator(overload: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The overload without a generator, of one that insists on it: a plan gets its seeds from who runs it."""
    required = {
        argument.name
        for argument in overload._schema.arguments
        if "Generator" in str(argument.real_type) and not argument.has_default_value()
    }
    if not required:
        return overload
    others = [argument for argument in overload._schema.arguments if argument.name not in required]
    for candidate in overloads_taking(overload._overloadpacket, others):
        return candidate
    raise NotExpressible(f"{overload} needs a generator")


def _bind(schema: Any, call: SignedCall, inputs: Inputs) -> tuple[list[Any], dict[str, Any]]:
    """Stand-ins for all arguments, in schema order, which is the order of the plan's inputs."""
    fake_args: list[Any] = []
    fake_kwargs: dict[str, Any] = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(call.args):
            fake_args.append(inputs.argument(call.args[position], argument.name))
        elif argument.name in call.kwargs and "Generator" not in str(argument.real_type):
            fake_kwargs[argument.name] = inputs.argument(call.kwargs[argument.name], argument.name)
    return fake_args, fake_kwargs


#: A context in which graphs are not written as Python text, which is for those that are called.
_interpreted = Together(functools.partial(_use_lazy_graph_module, True))


@contextlib.contextmanager
def _compiling(inputs: Inputs) -> Iterator[None]:
    with (
        _interpreted(),
        inductor_config.patch(EAGER_CONFIG),
        V.set_fake_mode(inputs.mode),
        torch.no_grad(),
        torch._C._DisableFuncTorch(),
        _quiet("torch._inductor.scheduler"),
        _quiet("torch._subclasses.fake_tensor"),
    ):
        yield


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silences a logger that reports each failure before it raises; here that is a decision to run elsewhere."""
    logger = logging.getLogger(name)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


#: Numbers to which a guard may pin a scalar: that of another value is another plan, and code of its own is usual.
_PLAIN = frozenset({-1, 0, 0.5, 1, 2})


def _check_guards(guards: Sequence[Any], inputs: Inputs) -> None:
    """Raises ScalarSteersGraph for a guard that pins a scalar: a plan for each value is better told apart by key."""
    if inputs.bake:
        return
    for guard in guards:
        scalars = guard.free_symbols & inputs.scalar_symbols
        if not scalars:
            continue
        if not all(symbol.is_integer or symbol in inputs.orders for symbol in scalars):
            raise ScalarSteersGraph(str(guard))
        if isinstance(guard, sympy.Eq) and any(a.is_number and float(a) not in _PLAIN for a in guard.args):
            raise ScalarSteersGraph(str(guard))
        try:
            ordered(guard, inputs.orders)
        except NotExpressible as reason:
            raise ScalarSteersGraph(str(reason)) from None


# ---- graphs ----


def _graph(
    overload: torch._ops.OpOverload,
    args: list[Any],
    kwargs: dict[str, Any],
    inputs: Inputs,
    compiler: compilers.GraphCompiler | None,
) -> torch.fx.GraphModule:
    """A functional graph of the call; writes to arguments are ``copy_`` nodes at its end. Kernels that come of it are
    named after the call's operator. What ``compiler`` takes whole is not decomposed."""
    module = _unnamed_graph(overload, args, kwargs, inputs, compiler)
    for node in module.graph.nodes:
        node.meta["original_aten"] = overload
    return module


def _unnamed_graph(
    overload: torch._ops.OpOverload,
    args: list[Any],
    kwargs: dict[str, Any],
    inputs: Inputs,
    compiler: compilers.GraphCompiler | None,
) -> torch.fx.GraphModule:
    decompositions = decompositions_for(compiler, eager_decompositions(), in_graphs=False)
    whole = frozenset() if compiler is None else compiler.whole
    functional = functional_variant(overload)
    if functional is not None and functional.overload._schema.name in whole:
        return _one_node(functional, args, kwargs, inputs)
    if overload in _OWN or _numbers_for_tensors(overload, args):
        return _traced(overload, args, kwargs, inputs, decompositions)
    if overload in lowerings and facts.of(overload._schema.name).in_place and overload not in COMPOSED:
        return _one_node(Functional(overload, (), ()), args, kwargs, inputs)
    if _is_decomposed(overload, args):
        functional = None
    if functional is not None and not _is_decomposed(functional.overload, args) and _is_primitive(functional.overload):
        return _one_node(functional, args, kwargs, inputs)
    return _traced(overload, args, kwargs, inputs, decompositions)


def _is_decomposed(overload: torch._ops.OpOverload, args: list[Any]) -> bool:
    """Whether a decomposition takes the call apart; where Inductor lowers it whole, only if that must be corrected."""
    if overload not in eager_decompositions():
        return False
    return overload not in lowerings or concerns(overload, args[0] if args else None)


def _numbers_for_tensors(overload: torch._ops.OpOverload, args: list[Any]) -> list[int]:
    """Positions of tensor arguments that are given as numbers, where PyTorch takes numbers for tensors in C++ only."""
    if torch._C._should_allow_numbers_as_tensors(overload._schema.name.partition("::")[2].removesuffix("_")):
        return []
    numbers = (bool, int, float, torch.SymInt, torch.SymFloat)
    return [
        position
        for position, (value, argument) in enumerate(zip(args, overload._schema.arguments, strict=False))
        if isinstance(value, numbers) and str(argument.type) == "Tensor"
    ]


def _is_primitive(overload: torch._ops.OpOverload) -> bool:
    """Whether Inductor lowers (or calls) the operator as it is."""
    return not overload._can_decompose() or facts.of(overload._schema.name).library


@dataclasses.dataclass(frozen=True)
class Functional:
    """The operator without side effects behind one that writes to arguments.

    ``written`` are the positions, or names, of the arguments that receive its results, in order; ``drop`` are the
    keyword arguments that it does not take.
    """

    overload: torch._ops.OpOverload
    written: tuple[int | str, ...]
    drop: tuple[str, ...]


@functools.cache
def functional_variant(overload: torch._ops.OpOverload) -> Functional | None:
    """The functional variant of an operator (itself, if it is one); None if there is none of the same arguments."""
    schema = overload._schema
    written = [
        (position, argument)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if not written:
        aliases = any(a.alias_info is not None for a in (*schema.arguments, *schema.returns))
        return None if aliases else Functional(overload, (), ())
    if any("List[" in str(argument.type) for _, argument in written):
        return None
    out = [argument for _, argument in written if argument.kwarg_only]
    if out and len(out) == len(written):
        found = _matching(schema.name, schema, {argument.name for argument in out})
        return None if found is None else Functional(found, tuple(a.name for a in out), tuple(a.name for a in out))
    name = schema.name
    if out or len(written) != 1 or written[0][0] != 0 or not name.endswith("_") or name.endswith("__"):
        return None
    found = _matching(name[:-1], schema, set())
    return None if found is None or len(found._schema.returns) != 1 else Functional(found, (0,), ())


def _matching(name: str, schema: Any, without: set[str]) -> torch._ops.OpOverload | None:
    """The overload of ``name`` that takes the arguments of ``schema`` but ``without``, and writes to none."""
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    if packet is None:
        return None
    others = [argument for argument in schema.arguments if argument.name not in without]
    return next((each for each in overloads_taking(packet, others) if not names_memory(each)), None)


#: Operators that take a factor of their second operand, and the overload that Inductor lowers.
_WITH_ALPHA = {
    aten.add.Tensor: aten.add.Tensor,
    aten.add.Scalar: aten.add.Tensor,
    aten.sub.Tensor: aten.sub.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
}


def _written_dtype(functional: Functional, args: list[Any], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The dtype that the call is to compute in because it writes to such a tensor, if it is."""
    overload = functional.overload
    computes_so = facts.of(overload._schema.name).in_dtype_of_result
    if not computes_so or not functional.written or kwargs.get("dtype") is not None:
        return None
    (target,) = functional.written
    dtype: torch.dtype = (args[target] if isinstance(target, int) else kwargs[target]).dtype
    return dtype


def _one_node(functional: Functional, args: list[Any], kwargs: dict[str, Any], inputs: Inputs) -> torch.fx.GraphModule:
    """The graph of one call, built by hand: several times faster than tracing."""
    graph = torch.fx.Graph()
    nodes: dict[int, torch.fx.Node] = {}
    for number, leaf in enumerate(inputs.leaves):
        node = graph.placeholder(f"arg{number}_1")
        node.meta["val"] = leaf.fake
        nodes[id(leaf.fake)] = node

    def lookup(value: Any) -> Any:
        return pytree.tree_map(lambda v: nodes.get(id(v), v), value)

    def call(overload: torch._ops.OpOverload, call_args: list[Any], call_kwargs: dict[str, Any]) -> torch.fx.Node:
        with inputs.mode, enable_python_dispatcher():
            value = overload(*call_args, **call_kwargs)
        made = graph.call_function(overload, tuple(lookup(call_args)), lookup(call_kwargs))
        made.meta["val"] = value
        nodes[id(value)] = made
        return made

    overload = functional.overload
    call_kwargs = {k: v for k, v in kwargs.items() if k not in functional.drop}
    call_args = inputs.told_floats(overload, args)
    if (dtype := _written_dtype(functional, args, kwargs)) is not None:
        call_kwargs["dtype"] = dtype
    if overload in _WITH_ALPHA:
        overload = _WITH_ALPHA[overload]
        alpha = call_args.pop(2) if len(call_args) > 2 else call_kwargs.pop("alpha", 1)
        # Asking whether a symbol is 1 would make a constant of it.
        if isinstance(alpha, (torch.SymInt, torch.SymFloat)) or alpha != 1:
            call_kwargs["alpha"] = alpha
    node = call(overload, call_args, call_kwargs)
    result = node.meta["val"]
    results: list[torch.fx.Node] = [node] if overload._schema.returns else []
    fakes = [result]
    if isinstance(result, (tuple, list)):
        results, fakes = [], []
        for number, item in enumerate(result):
            element = graph.call_function(operator.getitem, (node, number))
            element.meta["val"] = item
            results.append(element)
            fakes.append(item)
    if functional.written:
        targets = [args[w] if isinstance(w, int) else kwargs[w] for w in functional.written]
        results = [_write(graph, nodes[id(t)], r, f) for t, r, f in zip(targets, results, fakes, strict=True)]
    graph.output(tuple(results))
    return _make_graph_module({}, graph)


def _write(graph: torch.fx.Graph, target: torch.fx.Node, source: torch.fx.Node, fake: Any) -> torch.fx.Node:
    """A ``copy_`` into an argument; raises PyTorch's error if the result cannot be cast to the argument's dtype."""
    value = target.meta["val"]
    if not torch.can_cast(fake.dtype, value.dtype):
        raise RuntimeError(
            f"result type {title_of(fake.dtype)} can't be cast to the desired output type {title_of(value.dtype)}"
        )
    if len(fake.shape) > len(value.shape) or any(
        _differs(a, b) for a, b in zip(reversed(fake.shape), reversed(value.shape), strict=False)
    ):
        raise RuntimeError(
            f"output with shape {hints(value.shape)} doesn't match the broadcast shape {hints(fake.shape)}"
        )
    node = graph.call_function(aten.copy_.default, (target, source))
    node.meta["val"] = value
    return node


def _differs(a: Any, b: Any) -> bool:
    return bool(a != b)


def _takes_constants(overload: torch._ops.OpOverload, args: list[Any]) -> bool:
    """Whether symbols become constants on their way into the operator, whose schema has `float` or `int` for them."""
    text = str(overload._schema)  # the types of its arguments do not tell `SymInt` from `int`
    return any(
        isinstance(value, torch.SymFloat)
        or (isinstance(value, torch.SymInt) and re.search(rf"SymInt\?? {argument.name}\b", text) is None)
        for value, argument in zip(args, overload._schema.arguments, strict=False)
    )


def _traced(
    overload: torch._ops.OpOverload,
    args: list[Any],
    kwargs: dict[str, Any],
    inputs: Inputs,
    decompositions: dict[Any, Callable[..., Any]],
) -> torch.fx.GraphModule:
    """The graph of a call after functionalisation and decomposition."""
    fakes = [leaf.fake for leaf in inputs.leaves]
    places = {id(fake): number for number, fake in enumerate(fakes)}
    function = _OWN.get(overload, overload)  # functionalisation refuses operators of our own that write
    if overload in decompositions and _takes_constants(overload, args):
        function = decompositions[overload]

    def call(*values: Any) -> Any:
        def substitute(value: Any) -> Any:
            number = places.get(id(value))
            return value if number is None else values[number]

        call_args = pytree.tree_map(substitute, args)
        for position in _numbers_for_tensors(overload, args):
            call_args[position] = _as_tensor(call_args[position], inputs)
        call_kwargs = pytree.tree_map(substitute, kwargs)
        result = function(*call_args, **call_kwargs)
        if result is NotImplemented:
            result = overload(*call_args, **call_kwargs)
        return [r for r in pytree.tree_leaves(result)] if result is not None else []

    functional = torch.func.functionalize(call, remove="mutations")
    with inputs.mode, enable_python_dispatcher():
        module = make_fx(functional, decomposition_table=decompositions, _disable_torch_fn_metadata_mode=True)(*fakes)
    module.graph.eliminate_dead_code()
    for node, leaf in zip(module.graph.find_nodes(op="placeholder"), inputs.leaves, strict=True):
        node.meta["val"] = leaf.fake
    _return_written(module, overload, args, kwargs, places)
    targets = {node.target for node in module.graph.nodes}
    if targets & {aten.rand.default, aten.randn.default, aten.randint.default, aten.randint.low}:
        replace_random_passes(module)
    if targets & {aten.index_put.default, aten._unsafe_index_put.default}:
        reinplace_inplaceable_ops_core(module.graph)
    module.recompile()
    return module


def _as_tensor(number: Any, inputs: Inputs) -> torch.Tensor:
    """A number as a tensor without dimensions, which takes part in type promotion as the number does: less than any
    tensor of its kind. Beside integers with dimensions it keeps its value, which a function may take as a float; among
    others without dimensions it has the dtype that comes of them and the number."""
    tensors = [leaf.fake for leaf in inputs.leaves if isinstance(leaf.fake, torch.Tensor)]
    kind = next((kind for kind in (bool, int, float) if isinstance(number, kind)), None)
    kind = kind or (float if isinstance(number, torch.SymFloat) else int)
    given = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    dtype = torch.result_type(torch.empty(1, dtype=given), kind(1))
    beside = [tensor for tensor in tensors if tensor.dim() and tensor.dtype in INTEGER_DTYPES]
    if kind is int and dtype in INTEGER_DTYPES and beside:
        dtype = torch.int64
    return torch.scalar_tensor(number, dtype=dtype, device=tensors[0].device)


def _return_written(
    module: torch.fx.GraphModule,
    overload: torch._ops.OpOverload,
    args: list[Any],
    kwargs: dict[str, Any],
    places: dict[int, int],
) -> None:
    """Makes results that are arguments written to the ``copy_`` nodes (or placeholders) themselves."""
    schema = overload._schema
    output = module.graph.output_node()
    results = list(pytree.tree_leaves(output.args[0])) if output.args[0] is not None else []
    placeholders = module.graph.find_nodes(op="placeholder")
    copies = {n.args[0]: n for n in module.graph.nodes if n.target is aten.copy_.default}
    aliased: list[Any] = []
    for returned in schema.returns:
        if returned.alias_info is None or not returned.alias_info.is_write:
            aliased.append(None)
            continue
        for position, argument in enumerate(schema.arguments):
            info = argument.alias_info
            if info is not None and info.before_set == returned.alias_info.before_set:
                aliased.append(args[position] if position < len(args) else kwargs[argument.name])
                break
    for number, fake in enumerate(aliased):
        place = places.get(id(fake)) if fake is not None else None
        if place is not None and number < len(results):
            node = placeholders[place]
            results[number] = copies.get(node, node)
    output.args = (tuple(results),)


# ---- lowering ----

_counter = itertools.count()


def _index_error(overload: torch._ops.OpOverload, inputs: Inputs, arguments: dict[str, Any]) -> str:
    """How PyTorch reports a wrong index of the operator. Some of its CPU kernels have a fast path with checks, and an
    exception, of its own."""
    name = overload._schema.name.removeprefix("aten::").removesuffix("_")
    rank = inputs.leaves[0].fake.dim() if inputs.leaves and isinstance(inputs.leaves[0].fake, torch.Tensor) else 0
    dim = arguments.get("dim")
    place = dim % rank if isinstance(dim, int) and rank else 0
    gathers = (
        facts.of(overload._schema.name).gathers
        or (name == "index_select" and place == 1)
        or (name == "index_add" and rank > 1 and place in (0, rank - 1) and _is_scatter_add(arguments))
    )
    return GATHER_ERROR if gathers else INDEX_ERROR


def _is_scatter_add(arguments: dict[str, Any]) -> bool:
    """Whether the CPU takes ``scatter_add`` for an ``index_add`` along the first or last dimension."""
    alpha = arguments.get("alpha", 1)
    return arguments["index"].dtype == torch.int64 and bool(expression(alpha) == 1)


@contextlib.contextmanager
def _wording(message: str) -> Iterator[None]:
    """Inside, wrong indices are reported so."""
    token = index_message.set(message)
    try:
        yield
    finally:
        index_message.reset(token)


def _does_something(graph: torch.fx.GraphModule) -> bool:
    """Whether a graph returns a tensor or a number, writes to an argument, or complains of one."""
    results = pytree.tree_leaves(graph.graph.output_node().args[0])
    acts = {aten.copy_.default, aten._assert_async.msg}
    return any(r is not None for r in results) or any(node.target in acts for node in graph.graph.nodes)


def _builder(inputs: Inputs, target: Target) -> PlanBuilder:
    """A plan with the call's inputs and the symbols of their sizes."""
    builder = PlanBuilder(target)
    for leaf in inputs.leaves:
        builder.add_input(leaf.kind)
    for symbol, source, number, dim in inputs.sources:
        if isinstance(symbol, sympy.Symbol):
            builder.define_symbol(symbol, source, number, dim)
    return builder


def _lower(graph: torch.fx.GraphModule, inputs: Inputs, target: Target) -> Compiled:
    """Runs Inductor on a graph and makes the plan."""
    builder = _builder(inputs, target)
    if not _does_something(graph):
        return _without_steps(graph, builder)
    lowering = GraphLowering(
        graph,
        example_inputs=[leaf.fake for leaf in inputs.leaves],
        shape_env=inputs.shape_env,
        is_inference=True,
        name=f"op{next(_counter)}",
    )
    with building(builder), V.set_graph_handler(lowering), V.set_debug_handler(_NoDebug()):
        lowering.run(*[leaf.fake for leaf in inputs.leaves])
        _check_dtypes(graph, lowering.graph_outputs)
        lowering.codegen()
    if not all(value.is_taken for value in inputs.told):
        raise ScalarSteersGraph("a number that a kernel is to be told is no argument of one")
    wrapper: Any = lowering.wrapper_code  # an EagerWrapper
    fallbacks, native = wrapper.fallbacks, wrapper.native
    _check_guards([guard.expr for guard in inputs.shape_env.guards], inputs)
    _add_guards(builder, inputs)
    return Compiled(builder.finish(), native, fallbacks)


def _check_dtypes(graph: torch.fx.GraphModule, made: Sequence[Any]) -> None:
    """Raises NotExpressible if a lowering makes a result of another dtype than the graph says."""
    nodes = pytree.tree_leaves(graph.graph.output_node().args[0])
    for node, result in zip(nodes, made, strict=True):
        wanted = node.meta["val"] if isinstance(node, torch.fx.Node) else None
        if not isinstance(wanted, torch.Tensor) or isinstance(result, ir.NoneAsConstantBuffer):
            continue
        if result.get_dtype() != wanted.dtype:
            raise NotExpressible(f"{wanted.dtype} is lowered to {result.get_dtype()}")


def _without_steps(graph: torch.fx.GraphModule, builder: PlanBuilder) -> Compiled:
    """The plan of a call of whose results none is asked for. Inductor knows no device to compile it for."""
    results = pytree.tree_leaves(graph.graph.output_node().args[0])
    if not results:
        raise NotExpressible("a call without results")
    for _ in results:
        builder.output_none()
    return Compiled(builder.finish(), native=0, fallbacks=0)


def _add_guards(builder: PlanBuilder, inputs: Inputs) -> None:
    """Adds all that was assumed of the call's sizes and numbers."""
    for guard in (*(guard.expr for guard in inputs.shape_env.guards), *inputs.assumed):
        _add_guard(builder, guard, inputs)


def _add_guard(builder: PlanBuilder, guard: Any, inputs: Inputs) -> None:
    """Adds a guard; one that integers cannot express fixes its sizes to what they are now."""
    if guard == sympy.true:
        return
    if guard == sympy.false and not inputs.bake:
        raise ScalarSteersGraph("a comparison with a number that is not finite")  # which sympy decides at once
    try:
        condition = ordered(guard, inputs.orders)
        for symbol, _, number, _ in inputs.sources:
            if symbol in inputs.orders and symbol in guard.free_symbols:
                builder.define_symbol(inputs.orders[symbol], p.SymbolSource.FLOAT_ORDER, number)
        builder.guard(condition)
    except NotExpressible:
        if not inputs.bake and guard.free_symbols & inputs.scalar_symbols:
            raise ScalarSteersGraph(str(guard)) from None
        for symbol in sorted(guard.free_symbols, key=str):
            builder.guard(sympy.Eq(symbol, inputs.shape_env.backed_var_to_val[symbol]))


def _execute(
    graph: torch.fx.GraphModule,
    inputs: Inputs,
    compiler: compilers.GraphCompiler,
    pointwise: bool,
    target: Target,
) -> Compiled:
    """The plan of a call that the device's graph compiler takes. Raises executables.Refused."""
    builder = _builder(inputs, target)
    if not _does_something(graph):
        return _without_steps(graph, builder)
    given = [_given(number, leaf.fake) for number, leaf in enumerate(inputs.leaves)]
    executables.add_graph(builder, graph, given, compiler, aliased=pointwise)
    _add_guards(builder, inputs)
    return Compiled(builder.finish(), native=1, fallbacks=0)


def _padded(
    call: SignedCall,
    overload: torch._ops.OpOverload,
    graph: torch.fx.GraphModule,
    inputs: Inputs,
    compiler: compilers.GraphCompiler,
    target: Target,
) -> Compiled | None:
    """The plan of a call some sizes or strides of which vary, by an executable for all of a bucket, or by none; None if
    they are not padded. ``graph`` and ``inputs`` are of its own sizes."""
    if not target.static_sizes or not isinstance(compiler, compilers.Bucketing) or not _does_something(graph):
        return None
    varying, strides_vary = history.varying(call)
    if not varying and not strides_vary:
        return None
    builder = _builder(inputs, target)
    values = [leaf.fake for leaf in inputs.leaves]
    given = [_given(number, value) for number, value in enumerate(values)]
    results = pytree.tree_leaves(graph.graph.output_node().args[0])
    expected = [node and node.meta["val"] for node in results]  # None: not asked for
    try:
        if overload is aten.cat.default:
            dim = (dict(zip(("tensors", "dim"), call.args, strict=False)) | call.kwargs).get("dim", 0)
            parts = [each for each in given if isinstance(each, TensorArg)]
            padded.add_concatenation(builder, parts, expected[0], dim % expected[0].dim())
        else:
            proven = proof.padded(_varying_graph(call, overload, varying, compiler, inputs)) if varying else None
            if proven is None and not strides_vary:
                return None
            proven = proven or proof.as_it_is(graph)
            padded.add_padded(builder, proven, values, given, expected, compiler, inputs.mode)
    except (padded.Unfit, executables.Refused) as reason:
        _log.info("%s is compiled for its own sizes: %s", call.op, reason)
        return None
    _add_guards(builder, inputs)
    return Compiled(builder.finish(), native=1, fallbacks=0)


def _varying_graph(
    call: SignedCall,
    overload: torch._ops.OpOverload,
    varying: frozenset[history.Place],
    compiler: compilers.GraphCompiler,
    inputs: Inputs,
) -> torch.fx.GraphModule:
    """The graph of a call with symbols for sizes that vary. ``inputs``, of its own sizes, get what it assumes of
    numbers."""
    free = Inputs(call, varying)
    args, kwargs = _bind(overload._schema, call, free)
    with _compiling(free):
        graph = _graph(overload, args, kwargs, free, compiler)
    places = {tuple(place): symbol for symbol, *place in inputs.sources}
    known = {
        symbol: places.get(tuple(place), free.shape_env.backed_var_to_val[symbol])
        for symbol, *place in free.sources
        if isinstance(symbol, sympy.Symbol)
    }
    guards = [guard.expr.subs(known, simultaneous=True) for guard in free.shape_env.guards]
    _check_guards(guards, inputs)
    inputs.assumed += guards
    return graph


def _given(number: int, fake: Any) -> executables.Given:
    """An input of a plan as its steps name it."""
    if not isinstance(fake, torch.Tensor):
        return expression(fake)
    sizes, strides = (tuple(map(expression, each)) for each in (fake.shape, fake.stride()))
    return TensorArg(number, fake.dtype, sizes, strides)


class _NoDebug:
    """A debug handler that records nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None
