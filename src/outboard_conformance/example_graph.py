# SPDX-License-Identifier: Apache-2.0
"""Small graphs, compiled by the compiler of graphs that a device names: what clauses about executables load, by kind:
``float`` the examples, ``integer`` some of 64 bits, ``index`` some that read where an index says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from outboard.compiler.target import Target
from outboard.compilers import GraphCompiler, Operand, Unsupported, find
from outboard.compilers.symbolic import expression

#: As ``array`` names them.
_FORMATS = {torch.float32: "f", torch.int64: "q"}
#: Rows, inner numbers and columns: of the example, and of further calls of it where its sizes may vary.
_SIZES = ((3, 4, 5), (7, 2, 9), (1, 5, 3), (17, 33, 1), (2, 1, 2), (1, 1, 1), (64, 31, 16))


def _numbers(*sizes: int) -> Tensor:
    return torch.linspace(-1, 1, math.prod(sizes)).view(sizes)


def _layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(torch.addmm(b, x, w))


def _product(x: Tensor, w: Tensor) -> Tensor:
    return torch.mm(x, w)


def _mean(x: Tensor) -> Tensor:
    return torch.mean(x, 1)


def _sum(x: Tensor, y: Tensor) -> Tensor:
    return torch.add(x, y)


def _relu(x: Tensor) -> Tensor:
    return torch.relu(x)


def _integers(*sizes: int) -> Tensor:
    """Such that no double holds them, that 32 bits do not hold, and small ones."""
    chosen = torch.tensor([2**53 + 1, -(2**53) - 1, 3, -(2**31) - 1, 2**62 + 1, -1, 0, 2**53])
    return chosen[torch.arange(math.prod(sizes)) % len(chosen)].view(sizes)


def _difference(x: Tensor, y: Tensor) -> Tensor:
    return torch.sub(x, y)


def _multiple(x: Tensor, y: Tensor) -> Tensor:
    return torch.mul(x, y)


def _largest(x: Tensor) -> Tensor:
    return torch.amax(x, 1)


def _total(x: Tensor) -> Tensor:
    return torch.sum(x, 1)


def _larger(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x, y)


def _embedding(table: Tensor, index: Tensor) -> Tensor:
    return torch.embedding(table, index)


def _rows(table: Tensor, index: Tensor) -> Tensor:
    return torch.index_select(table, 0, index)


def _gathered(table: Tensor, index: Tensor) -> Tensor:
    return torch.gather(table, 0, index)


def _places(sizes: tuple[int, ...], end: int) -> Tensor:
    return (torch.arange(math.prod(sizes)) * 7 % end).view(sizes)


class Case(NamedTuple):
    """A function and what it takes of rows, inner numbers and columns."""

    kind: str
    function: Callable[..., Tensor]
    inputs: Callable[[int, int, int], tuple[Tensor, ...]]


#: The largest first: the first one of floats that a compiler takes is the example.
_CASES = (
    Case("float", _layer, lambda m, k, n: (_numbers(m, k), _numbers(k, n), _numbers(n))),
    Case("float", _product, lambda m, k, n: (_numbers(m, k), _numbers(k, n))),
    Case("float", _mean, lambda m, k, n: (_numbers(m, k),)),
    Case("float", _sum, lambda m, k, n: (_numbers(m, k), _numbers(m, k))),
    Case("float", _relu, lambda m, k, n: (_numbers(m, k),)),
    Case("integer", _difference, lambda m, k, n: (_integers(m, k), _integers(m, k).flip(0, 1))),
    Case("integer", _multiple, lambda m, k, n: (_integers(m, k), _integers(m, k).flip(0, 1))),
    Case("integer", _larger, lambda m, k, n: (_integers(m, k), _integers(m, k) - 1)),
    Case("integer", _largest, lambda m, k, n: (_integers(m, k),)),
    Case("integer", _total, lambda m, k, n: (_integers(m, k),)),
    Case("index", _embedding, lambda m, k, n: (_numbers(m, k), _places((n, 2), m))),
    Case("index", _rows, lambda m, k, n: (_numbers(m, k), _places((n,), m))),
    Case("index", _gathered, lambda m, k, n: (_numbers(m, k), _places((n, k), m))),
)


def compiled(compiler: str, static_sizes: bool) -> tuple[dict[str, Any], ...]:
    """For each graph that a compiler takes: its kind, an executable's code, the bytes of scratch memory that it wants,
    inputs, and the result that PyTorch has; and ``others``, more inputs and results, of other sizes, which it is for
    unless ``static_sizes``.

    ``compiler`` and ``static_sizes`` are the driver's properties. Raises LookupError if no package offers the compiler,
    Unsupported if it takes none of the graphs.
    """
    target = Target(dialect="", compiler=compiler, static_sizes=static_sizes)
    found = find(target)
    assert found is not None
    made, reasons = [], []
    for case in _CASES:
        try:
            made.append(_compiled(case, found, target))
        except Unsupported as refused:
            reasons.append(str(refused))
    if not made:
        raise Unsupported(f"it takes none of the kit's graphs: {'; '.join(reasons)}")
    return tuple(made)


def _compiled(case: Case, compiler: GraphCompiler, target: Target) -> dict[str, Any]:
    function, inputs = case.function, case.inputs
    mode: Literal["fake", "symbolic"] = "fake" if target.static_sizes else "symbolic"
    graph = make_fx(lambda *each: (function(*each),), tracing_mode=mode)(*inputs(*_SIZES[0])).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    if refused := [answer for node in calls if (answer := compiler.supports(node, target)) is not True]:
        raise Unsupported("; ".join(refused))
    (results,) = graph.output_node().args
    values = [node.meta["val"] for node in (*graph.find_nodes(op="placeholder"), *pytree.tree_leaves(results))]
    operands = [
        Operand(each.dtype, tuple(map(expression, each.shape)), tuple(map(expression, each.stride())))
        for each in values
    ]
    made = compiler.compile(graph, operands, target)
    first, *others = (_call(function, inputs(*sizes)) for sizes in (_SIZES[:1] if target.static_sizes else _SIZES))
    name = function.__name__.strip("_")
    about = {"name": name, "kind": case.kind, "code": made.code, "scratch": made.scratch}
    return {**about, "others": others, **first}


def _call(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    values = [
        {"values": each.flatten().tolist(), "sizes": list(each.shape), "format": _FORMATS[each.dtype]}
        for each in (*inputs, function(*inputs))
    ]
    return {"inputs": values[:-1], "result": values[-1]}
