# SPDX-License-Identifier: Apache-2.0
"""A small graph, compiled by the compiler of graphs that a device names: what clauses about executables load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from outboard.compiler.target import Target
from outboard.compilers import Operand, Unsupported, find

_X, _W, _B = (torch.linspace(-1, 1, count) for count in (12, 20, 5))


def _layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(torch.addmm(b, x, w))


def _product(x: Tensor, w: Tensor) -> Tensor:
    return torch.mm(x, w)


def _sum(x: Tensor, y: Tensor) -> Tensor:
    return torch.add(x, y)


def _relu(x: Tensor) -> Tensor:
    return torch.relu(x)


#: Functions and what they take, the largest first: the first one that a compiler takes is the example.
_CASES: tuple[tuple[Callable[..., Tensor], tuple[Tensor, ...]], ...] = (
    (_layer, (_X.view(3, 4), _W.view(4, 5), _B)),
    (_product, (_X.view(3, 4), _W.view(4, 5))),
    (_sum, (_X.view(3, 4), _X.view(3, 4))),
    (_relu, (_X.view(3, 4),)),
)


def compiled(compiler: str) -> dict[str, Any]:
    """An executable's code, the bytes of scratch memory that it wants, its inputs, and the result that PyTorch has.

    ``compiler`` is the driver's property. Raises LookupError if no package offers it, Unsupported if it takes none of
    the graphs.
    """
    target = Target(dialect="", compiler=compiler, static_sizes=True)
    found = find(target)
    assert found is not None
    reasons = []
    for function, inputs in _CASES:
        graph = make_fx(lambda *each, function=function: (function(*each),), tracing_mode="fake")(*inputs).graph
        calls = [node for node in graph.nodes if node.op == "call_function"]
        refused = [answer for node in calls if (answer := found.supports(node, target)) is not True]
        if refused:
            reasons += refused
            continue
        result = function(*inputs)
        operands = [Operand(each.dtype, tuple(each.shape), each.stride()) for each in (*inputs, result)]
        made = found.compile(graph, operands, target)
        values = [{"values": each.flatten().tolist(), "sizes": list(each.shape)} for each in (*inputs, result)]
        return {"code": made.code, "scratch": made.scratch, "inputs": values[:-1], "result": values[-1]}
    raise Unsupported(f"it takes none of the kit's graphs: {'; '.join(reasons)}")
