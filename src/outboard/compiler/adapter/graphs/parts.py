# SPDX-License-Identifier: Apache-2.0
"""Parts of graphs that run as one executable."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils import _pytree as pytree

from outboard import compilers

from ... import progress, statistics
from ...isolation import isolated
from ...plans import cache
from ...plans import plan as p
from ...plans.builder import PlanBuilder, TensorArg
from ...plans.schema import serialize
from ...target import Target, target_of
from .. import executables
from ..padding import proof
from ..padding.padded import Unfit, add_padded, put_number

_log = logging.getLogger(__name__)
#: Sets of sizes of which a part of a graph keeps the plans.
MOST_SIZES = 256


class Part:
    """A part of a graph that runs as one executable. Its plan is made, or found on disk, for each set of sizes when
    they first come; sizes of one bucket share the executable."""

    def __init__(self, module: torch.fx.GraphModule, compiler: compilers.GraphCompiler, index: int) -> None:
        self._module = module
        self._compiler = compiler
        self._index = index
        self._padded = proof.padded(module) if isinstance(compiler, compilers.Bucketing) else None
        self._plans: dict[tuple[Any, ...], Any] = {}
        self.__name__ = "executable"

    def __call__(self, *args: Any) -> Any:
        plan = self.plan_of(args)
        if plan is None:
            return self._module(*args)
        statistics.add("executables")
        results = plan.run([arg if isinstance(arg, torch.Tensor) else None for arg in args])
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
            self._plans[key] = self._plan(args, key)
        return self._plans[key]

    @isolated
    def _plan(self, args: Sequence[Any], key: tuple[Any, ...]) -> Any:
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
                made = serialize(self._compile(args, target))
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
            put_number(node, arg)
        with torch.no_grad():
            FakeTensorProp(module, mode).propagate_dont_convert_inputs(*fakes)
            results = [node.meta["val"] for node in pytree.tree_leaves(module.graph.output_node().args[0])]
            if self._padded is not None:
                try:
                    builder, given = _begun(args, target)
                    add_padded(builder, self._padded, fakes, given, results, self._compiler, mode)
                    return builder.finish()
                except (Unfit, executables.Refused) as reason:
                    _log.info("a graph is compiled for its own sizes: %s", reason)
            builder, given = _begun(args, target)
            executables.add_graph(builder, module, given, self._compiler)
        return builder.finish()


def _begun(args: Sequence[Any], target: Target) -> tuple[PlanBuilder, list[TensorArg | None]]:
    """A plan that has its inputs, and the tensors among them."""
    builder = PlanBuilder(target)
    given: list[TensorArg | None] = []
    for arg in args:
        is_tensor = isinstance(arg, torch.Tensor)
        number = builder.add_input(p.InputKind.TENSOR if is_tensor else p.InputKind.NONE)
        given.append(TensorArg(number, arg.dtype, tuple(arg.shape), arg.stride()) if is_tensor else None)
    return builder, given


def layout_of(args: Sequence[Any]) -> tuple[Any, ...]:
    """What plans for arguments depend on."""
    return tuple(map(_layout, args))


def _layout(arg: Any) -> Any:
    if not isinstance(arg, torch.Tensor):
        return arg
    return (arg.dtype, arg.device.type, tuple(arg.shape), arg.stride())


def _like(arg: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device=arg.device)
