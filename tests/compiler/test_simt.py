# SPDX-License-Identifier: Apache-2.0
"""Generated kernels for SIMT devices, run on whatever device is there: work-groups and barriers work on all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from outboard import _C
from outboard.compiler import eager, target
from outboard.compiler.adapter import kernel
from outboard.compiler.adapter.lowering import lower_operator

Tensor = torch.Tensor
Run = Callable[..., Any]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> target.Target:
    made = dataclasses.replace(target.target_of(0), type="gpu", vector_width=1, compute_units=4)
    if made.max_work_group_size < 256:
        pytest.skip("the device's work-groups are too small")
    monkeypatch.setattr(kernel, "target_of", lambda index: made)
    return made


@pytest.fixture
def run(gpu: target.Target, device: str) -> Iterator[Run]:
    """``run(operator, *arguments)``: results of the operator's plan for a GPU; ``run.text`` is its last program."""

    def call(op: str, *arguments: Any) -> Any:
        overload = eager.find_overload(op)
        moved = [v.to(device) if isinstance(v, Tensor) else v for v in arguments]
        plan = lower_operator(overload, moved, {}, False, gpu).plan
        call.text = "".join(source for source, _ in plan.programs)  # type: ignore[attr-defined]
        kinds = [str(argument.type) for argument in overload._schema.arguments]
        inputs = [value for value, kind in zip(moved, kinds, strict=False) if "Tensor" in kind or "number" in kind]
        results = _C.Plan(plan.serialize(), 0).run(inputs)
        return results[0].cpu() if len(results) == 1 else tuple(result.cpu() for result in results)

    yield call


SHAPES = [(3, 40), (5, 1000), (1, 70000), (2, 3), (300, 33), (7, 4096)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_reductions(run: Run, shape: tuple[int, int], dim: int) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(run("aten::sum.dim_IntList", x, [dim]), x.sum(dim), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(run("aten::amax", x, [dim]), x.amax(dim))
    torch.testing.assert_close(run("aten::argmin", x, dim), x.argmin(dim))
    torch.testing.assert_close(run("aten::_softmax", x, dim, False), x.softmax(dim))
    torch.testing.assert_close(run("aten::any.dim", x > 3, dim), (x > 3).any(dim))


@pytest.mark.parametrize("count", [1, 31, 32, 8191, 8193, 300001])
def test_full_reductions(run: Run, count: int) -> None:
    x = torch.randn(count)
    torch.testing.assert_close(run("aten::sum", x), x.double().sum().float(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(run("aten::amax", x, [0]), x.amax())
    torch.testing.assert_close(run("aten::argmax", x), x.argmax())
    torch.testing.assert_close(run("aten::prod", x.sign()), x.sign().prod())


def test_ties_and_nan_are_found_first(run: Run) -> None:
    x = torch.zeros(4, 1000)
    x[1, 700] = x[1, 300] = 5
    x[2, 900] = x[2, 44] = float("nan")
    x[3] = float("-inf")
    torch.testing.assert_close(run("aten::argmax", x, 1), x.argmax(1))
    torch.testing.assert_close(run("aten::amax", x, [1]), x.amax(1), equal_nan=True)
    same = torch.full((3, 500), 7)
    assert run("aten::argmax", same, 1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("shape", [(8, 1024), (4, 5, 6), (65, 33)], ids=str)
def test_norms(run: Run, shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])
    expected = torch.native_layer_norm(x, [shape[-1]], weight, bias, 1e-5)
    for result, right in zip(run("aten::native_layer_norm", x, [shape[-1]], weight, bias, 1e-5), expected, strict=True):
        torch.testing.assert_close(result, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [[0, 2, 3], [1, 3], [0, 1, 2, 3], [2]], ids=str)
def test_dimensions_that_do_not_lie_together(run: Run, dims: list[int]) -> None:
    x = torch.randn(4, 6, 9, 11)
    torch.testing.assert_close(run("aten::sum.dim_IntList", x, dims), x.sum(dims), rtol=1e-4, atol=1e-4)
    y = x.permute(2, 0, 3, 1)
    torch.testing.assert_close(run("aten::mean.dim", y, dims), y.mean(dims), rtol=1e-4, atol=1e-5)


def test_who_reduces(run: Run) -> None:
    """A group where terms are many, an item where they are few or results lie side by side, pieces where few results
    have many."""
    run("aten::sum.dim_IntList", torch.rand(64, 1000), [1])
    assert "__local" in run.text and "extra1 > 1" not in run.text  # type: ignore[attr-defined]
    run("aten::sum.dim_IntList", torch.rand(1000, 10), [1])
    assert "__local" not in run.text  # type: ignore[attr-defined]
    run("aten::sum.dim_IntList", torch.rand(100, 20000), [0])
    assert "__local" not in run.text  # type: ignore[attr-defined]
    run("aten::sum.dim_IntList", torch.rand(1000, 200), [0])
    assert "__local" in run.text  # type: ignore[attr-defined]
    run("aten::sum", torch.rand(100000))
    assert "extra1 > 1" in run.text  # type: ignore[attr-defined]


def test_each_run_gives_the_same_bits(run: Run) -> None:
    x = torch.randn(300001)
    first = run("aten::sum", x)
    assert all(torch.equal(run("aten::sum", x), first) for _ in range(3))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    data=st.data(),
)
def test_any_reduction(run: Run, shape: list[int], data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    x = torch.randn(shape)
    torch.testing.assert_close(run("aten::sum.dim_IntList", x, dims), x.sum(dims), rtol=1e-4, atol=1e-4)
    variance = run("aten::var.correction", x, dims)
    torch.testing.assert_close(variance, x.var(dims), rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("shape", [(3, 100000), (100000, 3), (7, 8, 9)], ids=str)
def test_broadcasts(run: Run, shape: tuple[int, ...]) -> None:
    x, row = torch.randn(shape), torch.randn(shape[-1])
    torch.testing.assert_close(run("aten::mul.Tensor", x, row), x * row)
