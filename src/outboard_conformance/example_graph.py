# SPDX-License-Identifier: Apache-2.0
"""Small graphs, compiled by the compiler of graphs that a device names: what clauses about executables load."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from outboard.compiler.target import Target
from outboard.compilers import GraphCompiler, Operand, Unsupported, find
from outboard.compilers.symbolic import expression

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


#: Functions and what they take, the largest first: the first one that a compiler takes is the example.
_CASES: tuple[tuple[Callable[..., Tensor], Callable[[int, int, int], tuple[Tensor, ...]]], ...] = (
    (_layer, lambda m, k, n: (_numbers(m, k), _numbers(k, n), _numbers(n))),
    (_product, lambda m, k, n: (_numbers(m, k), _numbers(k, n))),
    (_mean, lambda m, k, n: (_numbers(m, k),)),
    (_sum, lambda m, k, n: (_numbers(m, k), _numbers(m, k))),
    (_relu, lambda m, k, n: (_numbers(m, k),)),
)


def compiled(compiler: str, static_sizes: bool) -> tuple[dict[str, Any], ...]:
    """For each graph that a compiler takes: an executable's code, the bytes of scratch memory that it wants, inputs,
    and the result that PyTorch has; and ``others``, more inputs and results, of other sizes, which it is for unless
    ``static_sizes``.

    ``compiler`` and ``static_sizes`` are the driver's properties. Raises LookupError if no package offers the compiler,
    Unsupported if it takes none of the graphs.
    """
    target = Target(dialect="", compiler=compiler, static_sizes=static_sizes)
    found = find(target)
    assert found is not None
    made, reasons = [], []
    for function, inputs in _CASES:
        try:
            made.append(_compiled(function, inputs, found, target))
        except Unsupported as refused:
            reasons.append(str(refused))
    if not made:
        raise Unsupported(f"it takes none of the kit's graphs: {'; '.join(reasons)}")
    return tuple(made)


def _compiled(
    function: Callable[..., Tensor], inputs: Callable[..., tuple[Tensor, ...]], compiler: GraphCompiler, target: Target
) -> dict[str, Any]:
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
    return {"name": function.__name__.strip("_"), "code": made.code, "scratch": made.scratch, "others": others, **first}


def _call(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    values = [{"values": each.flatten().tolist(), "sizes": list(each.shape)} for each in (*inputs, function(*inputs))]
    return {"inputs": values[:-1], "result": values[-1]}
