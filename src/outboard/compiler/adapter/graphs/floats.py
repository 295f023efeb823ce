# SPDX-License-Identifier: Apache-2.0
"""Floats that a compiled function takes.

PyTorch makes a tensor of such a float, and operators on tensors of operators on it, so that one graph serves all its
values. Where an operator takes only a number, its value is written into the graph, which holds for that value only.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._dynamo.symbolic_convert import TensorifyState
from torch._guards import TracingContext
from torch.utils._sympy.symbol import SymT, symbol_is_type

from outboard import patches

aten = torch.ops.aten

_CACHE = "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache"
_PASS = "torch.fx.passes._tensorify_python_scalars"
_VARIABLE = "torch._dynamo.variables.tensor:SymNodeVariable"


def register() -> None:
    """Has graphs that take floats compute with the floats that they are given."""
    patches.apply("graphs that hold the value of a float serve no other", {f"{_CACHE}.save": _without_values})
    patches.apply("multiples of floats that a graph takes are added", {f"{_PASS}._tensorify_impl": _with_multiples})
    patches.apply("floats are returned where there is a default device", {f"{_VARIABLE}.as_tensor": _without_modes})


def _without_values(original: Callable[..., None]) -> Callable[..., None]:
    """Graphs are kept by their text before values were written into them, and found without the guards for these. So
    such a graph is not kept."""

    @functools.wraps(original)
    def save(key: str, entry: Any, remote: bool) -> None:
        if not _holds_values():
            original(key, entry, remote)

    return save


def _holds_values() -> bool:
    """Whether what is compiled has a guard on a float that the graph takes."""
    context = TracingContext.try_get()
    if context is None or context.fake_mode is None or context.fake_mode.shape_env is None:
        return False
    guarded = {symbol for guard in context.fake_mode.shape_env.guards for symbol in guard.expr.free_symbols}
    # Dynamo has written the others into the function's text, which is in the key.
    return any(
        symbol_is_type(symbol, SymT.FLOAT) and not TensorifyState.should_specialize(str(symbol)) for symbol in guarded
    )


def _with_multiples(original: Callable[..., None]) -> Callable[..., None]:
    """The pass that makes tensors of floats forgets ``alpha``, the factor of the float that is added or subtracted."""

    @functools.wraps(original)
    def tensorify(gm: fx.GraphModule, shape_env: Any, fake_mode: Any) -> None:
        for node in gm.graph.nodes:
            if node.target in (aten.add.Tensor, aten.sub.Tensor) and "alpha" in node.kwargs:
                _multiply_ahead(node)
        original(gm, shape_env, fake_mode)

    return tensorify


def _multiply_ahead(node: fx.Node) -> None:
    first, second = node.args
    if isinstance(value := _value(second), torch.SymFloat):
        alpha = node.kwargs["alpha"]
        with node.graph.inserting_before(node):
            multiple = node.graph.call_function(operator.mul, (second, alpha))
        multiple.meta["val"] = value * _value(alpha)
        node.args, node.kwargs = (first, multiple), {}


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def _without_modes(original: Callable[..., Any]) -> Callable[..., Any]:
    """A float that is returned leaves the graph as a tensor, which Dynamo makes when it has traced the function. It
    calls the default device's mode for that, too, whose code it no longer traces: the result would be None."""

    @functools.wraps(original)
    def as_tensor(self: Any, tx: Any, dtype: Any) -> Any:
        state = tx.symbolic_torch_function_state
        enabled, state.torch_function_mode_enabled = state.torch_function_mode_enabled, False
        try:
            return original(self, tx, dtype)
        finally:
            state.torch_function_mode_enabled = enabled

    return as_tensor
