# SPDX-License-Identifier: Apache-2.0
"""Loops that leave terms for the next one: which do, and that the results stay right."""

from __future__ import annotations

import pytest
import sympy
import torch

from outboard.compiler.loops.nest import LoopKernel, Region, Root, Store, Value
from outboard.compiler.loops.passes import keep_terms

FLOAT = torch.float32
INDEX = sympy.Symbol("i")


def softmax_like(memory: torch.dtype = FLOAT, weighted: bool = False) -> LoopKernel:
    """``sum(exp(a))``, then ``b = exp(a) / sum``, which may be multiplied by ``w``."""
    roots = [Root("x", sympy.Symbol("s0"), False, 64), Root("r", sympy.Symbol("s1"), True, 64)]
    first = Value("t0", "load", FLOAT, buffer="a", index=INDEX)
    term = Value("t1", "exp", FLOAT, (first,))
    total = Value("t2", "reduce", FLOAT, (term,), kind="sum")
    second = Value("t3", "load", FLOAT, buffer="a", index=INDEX)
    again = Value("t4", "exp", FLOAT, (second,))
    quotient = Value("t5", "truediv", FLOAT, (again, total))
    body: list[Value | Store] = [second, again, quotient]
    if weighted:
        weight = Value("t6", "load", FLOAT, buffer="w", index=INDEX)
        body += [weight, Value("t7", "mul", FLOAT, (quotient, weight))]
    result = body[-1]
    assert isinstance(result, Value)
    regions = [Region(True, [first, term, total]), Region(True, [*body, Store("b", INDEX, result)])]
    return LoopKernel(roots, {}, regions, {"a": FLOAT, "b": memory, "w": FLOAT}, {"b"}, {}, set())


def operations(kernel: LoopKernel) -> list[list[str]]:
    return [[f"store {s.buffer}" if isinstance(s, Store) else s.op for s in r.body] for r in kernel.regions]


def test_a_term_is_left_where_the_result_goes() -> None:
    kernel = softmax_like()
    keep_terms(kernel)
    assert operations(kernel) == [["load", "exp", "reduce", "store b"], ["load", "truediv", "store b"]]
    taken = kernel.regions[1].body[0]
    assert isinstance(taken, Value) and taken.buffer == "b"


@pytest.mark.parametrize(
    "kernel",
    [softmax_like(memory=torch.float16), softmax_like(weighted=True)],
    ids=["it would be rounded", "an operand may share the buffer"],
)
def test_a_term_is_computed_again(kernel: LoopKernel) -> None:
    before = operations(kernel)
    keep_terms(kernel)
    assert operations(kernel) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_softmax(dtype: torch.dtype, dim: int, device: str) -> None:
    for shape in ((3, 5), (40, 1000), (130, 17)):
        x = (torch.randn(shape) * 20).to(dtype)
        x[0, 1] = float("-inf")
        expected = x.double().softmax(dim).to(dtype)
        tolerance = 2e-3 if dtype == torch.float16 else 1e-5
        torch.testing.assert_close(x.to(device).softmax(dim).cpu(), expected, rtol=tolerance, atol=1e-6)


def test_compiled_attention_weights(device: str) -> None:
    """The scores are no longer needed, so the weights may get their buffer; a row without any score is NaN."""
    torch._dynamo.reset()

    def weights(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return ((q @ k.t()) * 0.3).masked_fill(mask, float("-inf")).softmax(-1)

    q, k, mask = torch.randn(33, 8), torch.randn(70, 8), torch.rand(33, 70) < 0.5
    mask[4] = True
    expected = weights(q, k, mask)
    result = torch.compile(weights, fullgraph=True)(q.to(device), k.to(device), mask.to(device))
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-6, equal_nan=True)
