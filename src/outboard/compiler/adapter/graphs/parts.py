# SPDX-License-Identifier: Apache-2.0
"""Parts of graphs that run as one executable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

from outboard import compilers
from outboard.compilers.symbolic import symbols_of

from ... import progress, statistics
from ...isolation import isolated
from ...plans import cache
from ...plans import plan as p
from ...plans.builder import NotExpressible
from ...plans.schema import serialize
from ...target import Target, target_of
from .. import executables
from ..padding import proof
from ..padding.padded import Unfit, add_padded
from ..symbols import expression

_log = logging.getLogger(__name__)
#: Sets of sizes of which a part of a graph keeps the plans.
MOST_SIZES = 256
#: Where a symbol is told: an input, and which of its sizes; None: it is an integer.
Place: TypeAlias = tuple[int, int | None]


class Part:
    """A part of a graph that runs as one executable. Its plan is made, or found on disk, for each set of sizes when
    they first come; sizes of one bucket share the executable, and all sizes do where executables may have symbols."""

    def __init__(self, module: torch.fx.GraphModule, compiler: compilers.GraphCompiler, index: int) -> None:
        self._module = module
        self._compiler = compiler
        self._index = index
        static = target_of(index).static_sizes
        self._padded = proof.padded(module) if static and isinstance(compiler, compilers.Bucketing) else None
        self._symbolic = None if static else Symbolic.of(module)
        self._for_all: Any = None
        self._plans: dict[tuple[Any, ...], Any] = {}
        self.__name__ = "executable"

    def __call__(self, *args: Any) -> Any:
        plan = self.plan_of(args)
        if plan is None:
            return self._module(*args)
        statistics.add("executables")
        results = plan.run([*args])
        return results if self.gives_several else results[0]

    @property
    def gives_several(self) -> bool:
        """Whether the part has a list of results."""
        return isinstance(self._module.graph.output_node().args[0], (list, tuple))

    def plan_of(self, args: Sequence[Any]) -> Any:
        """The plan for arguments such as these; None if the compiler takes them not."""
        key = layout_of(args)
        if key not in self._plans:
            if len(self._plans) == MOST_SIZES:
                self._plans.pop(next(iter(self._plans)))
            self._plans[key] = self._plan_for_all(args) or self._plan(key, lambda target: self._compile(args, target))
        return self._plans[key]

    def _plan_for_all(self, args: Sequence[Any]) -> Any:
        """The plan for all sizes, of which these are some; None if there is none."""
        symbolic = self._symbolic
        if symbolic is None or not symbolic.holds(args):
            return None
        if self._for_all is None:
            compiler = self._compiler
            self._for_all = self._plan(symbolic.key, lambda target: symbolic.compile(compiler, target))
            if self._for_all is None:
                self._symbolic = None
        return self._for_all

    @isolated
    def _plan(self, key: tuple[Any, ...], make: Callable[[Target], p.Plan]) -> Any:
        """The plan that is kept under a key, or made; None if the compiler takes it not."""
        from outboard import _C

        target = target_of(self._index)
        signature = target.key_of(f"graph {self._module.code}\0{key}".encode())
        progress.programs()
        for kept in reversed(cache.load(signature)[1]):
            try:
                return _C.Plan(kept, self._index)
            except RuntimeError as error:  # the driver's, of an executable for another version: it is made again
                _log.warning("an executable in the cache is not used: %s", error)
        try:
            with statistics.timed():
                made = serialize(make(target))
        except executables.Refused as reason:
            statistics.note_reason("graph", str(reason))
            return None
        plan = _C.Plan(made, self._index)
        cache.store(signature, False, made)
        return plan

    def _compile(self, args: Sequence[Any], target: Target) -> p.Plan:
        module = proof.copy_of(self._module)
        mode = FakeTensorMode()
        with mode:
            fakes = [_like(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        for node, arg in zip(module.graph.find_nodes(op="placeholder"), args, strict=True):
            executables.put_number(node, arg)
        with torch.no_grad():
            FakeTensorProp(module, mode).propagate_dont_convert_inputs(*fakes)
            results = [node.meta["val"] for node in pytree.tree_leaves(module.graph.output_node().args[0])]
            if self._padded is not None:
                try:
                    builder, given = executables.begun(args, target)
                    add_padded(builder, self._padded, fakes, given, results, self._compiler, mode)
                    return builder.finish()
                except (Unfit, executables.Refused) as reason:
                    _log.info("a graph is compiled for its own sizes: %s", reason)
            builder, given = executables.begun(args, target)
            executables.add_graph(builder, module, given, self._compiler)
        return builder.finish()


class Symbolic:
    """A graph some of whose sizes are symbols, all of which its inputs tell."""

    def __init__(self, module: torch.fx.GraphModule, values: Sequence[Any], symbols: dict[sympy.Symbol, Place]) -> None:
        self._module, self._values, self._symbols = module, values, symbols
        #: What a plan for all sizes depends on, beside the graph's code.
        self.key = tuple(_layout_with(value, lambda size: size) for value in values)

    @staticmethod
    def of(module: torch.fx.GraphModule) -> Symbolic | None:
        """A part of a graph as such; None if its sizes are numbers, or symbols that no input tells."""
        values = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
        symbols: dict[sympy.Symbol, Place] = {}
        needed: set[sympy.Basic] = set()
        for number, value in enumerate(values):
            sizes = [size for size in symbols_of(value) if isinstance(size, torch.SymInt)]
            needed |= set().union(*(size.node.expr.free_symbols for size in sizes))
            if isinstance(size := expression(value), sympy.Symbol) and size.is_integer:
                symbols.setdefault(size, (number, None))
            for dim, size in enumerate(map(expression, value.shape if isinstance(value, torch.Tensor) else ())):
                if isinstance(size, sympy.Symbol):
                    symbols.setdefault(size, (number, dim))
        return Symbolic(module, values, symbols) if needed and needed <= symbols.keys() else None

    def holds(self, args: Sequence[Any]) -> bool:
        """Whether arguments have such sizes and strides, and elements."""
        sizes = {
            symbol: args[number] if dim is None else args[number].shape[dim]
            for symbol, (number, dim) in self._symbols.items()
        }

        def number(size: Any) -> int:
            return int(sympy.sympify(expression(size)).xreplace(sizes))

        wanted = (_layout_with(value, number) for value in self._values)
        has_elements = all(arg.numel() for arg in args if isinstance(arg, torch.Tensor))
        return has_elements and all(
            isinstance(value, torch.SymFloat) or layout == _layout(arg)
            for value, layout, arg in zip(self._values, wanted, args, strict=True)
        )

    def compile(self, compiler: compilers.GraphCompiler, target: Target) -> p.Plan:
        """The plan. Raises Refused."""
        shape_env = next(size.node.shape_env for value in self._values for size in symbols_of(value))
        assumed = len(shape_env.guards)
        builder, given = executables.begun(self._values, target)
        try:
            with torch.no_grad():
                executables.add_graph(builder, proof.copy_of(self._module), given, compiler)
        except NotExpressible as reason:
            raise executables.Refused(str(reason)) from reason
        if len(shape_env.guards) != assumed:
            raise executables.Refused(f"{compiler.name} assumed {shape_env.guards[-1].expr} of sizes that vary")
        return builder.finish()


def layout_of(args: Sequence[Any]) -> tuple[Any, ...]:
    """What plans for arguments depend on."""
    return tuple(map(_layout, args))


def _layout(arg: Any) -> Any:
    if not isinstance(arg, torch.Tensor):
        return arg
    return (arg.dtype, arg.device.type, tuple(arg.shape), arg.stride())


def _layout_with(value: Any, number: Callable[[Any], Any]) -> Any:
    """The same for a tensor of symbolic sizes, or such a number, with what a function makes of each size."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.device.type, tuple(map(number, value.shape)), tuple(map(number, value.stride())))
    return number(value) if isinstance(value, torch.SymInt) else str(value)


def _like(arg: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device=arg.device)
