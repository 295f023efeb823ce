# SPDX-License-Identifier: Apache-2.0
"""Integers of a schema on which no code depends: a plan holds for all their values, and computes what the CPU does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from outboard import _C
from outboard.compiler.adapter.lowering import lower_operator
from outboard.compiler.plans.plan import Launch
from outboard.compiler.target import target_of

aten = torch.ops.aten


def _new_plans(device: str, operator: Callable[..., Any], *arguments: Any) -> int:
    """Compares an operator with the CPU's; returns how many plans it took that were not in this process before."""
    before = int(_C.eager_stats()["plans"])
    found = operator(*pytree.tree_map_only(Tensor, lambda x: x.to(device), arguments))
    made = int(_C.eager_stats()["plans"]) - before
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(operator(*arguments)), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)
    return made


def _same_gradients(device: str, function: Callable[..., Tensor], *inputs: Tensor) -> None:
    def gradients(device: str) -> list[Tensor]:
        leaves = [x.to(device).requires_grad_() for x in inputs]
        function(*leaves).square().sum().backward()
        return [leaf.grad.cpu() for leaf in leaves if leaf.grad is not None]

    torch.testing.assert_close(gradients(device), gradients("cpu"), rtol=1e-4, atol=1e-5)


def test_an_index_of_select(device: str) -> None:
    gradient = torch.randn(3, 4)
    calls = ((7, 2), (9, 5), (12, 1), (13, 12), (100, 50))
    assert [_new_plans(device, aten.select_backward, gradient, [3, n, 4], 1, i) for n, i in calls][1:] == [0] * 4
    for n, i in ((9, -1), (8, -2), (6, 0), (1, 0)):
        _same_gradients(device, lambda x, i=i: x.select(1, i), torch.randn(3, n, 4))


def test_bounds_of_a_slice(device: str) -> None:
    spans = ((7, 2, 5), (11, 1, 4), (30, 3, 20))
    made = [
        _new_plans(device, aten.slice_backward, torch.randn(3, b - a, 4), [3, n, 4], 1, a, b, 1) for n, a, b in spans
    ]
    assert made[1:] == [0, 0]
    for n, a, b in ((9, 0, 3), (9, 1, None), (9, -2, None), (5, 0, 5), (12, 3, -1), (6, 4, 4), (6, 4, 99)):
        _same_gradients(device, lambda x, a=a, b=b: x[:, a:b], torch.randn(3, n, 4))
    _same_gradients(device, lambda x: x[:, 1:8:3], torch.randn(3, 9, 4))


def test_the_shape_of_a_layer_norm(device: str) -> None:
    def made(n: int) -> int:
        return _new_plans(device, aten.native_layer_norm, torch.randn(5, n), [n], torch.randn(n), torch.randn(n), 1e-5)

    assert [made(n) for n in (64, 96, 768, 80)][2:] == [0, 0]
    for shape in ((1,), (2, 3), (17,), (1, 1), (64,)):
        _same_gradients(device, lambda x, w: F.layer_norm(x, w.shape, w), torch.randn(4, *shape), torch.randn(shape))


def test_the_length_of_an_embedding(device: str) -> None:
    ids = torch.randint(5, (3, 4))
    gradient = torch.randn(3, 4, 8)
    lengths = (8, 31, 1000)
    made = [_new_plans(device, aten.embedding_dense_backward, gradient, ids, n, -1, False) for n in lengths]
    assert made[1:] == [0, 0]
    _same_gradients(
        device, lambda w: F.embedding(torch.zeros(3, dtype=torch.long, device=w.device), w), torch.ones(1, 8)
    )


@pytest.mark.parametrize("index", [7, -8])
def test_an_index_out_of_range(device: str, index: int) -> None:
    """It is refused as on the CPU, and does not make plans of single values of those that follow."""
    gradient = torch.ones(3, 4, 2)
    for each in (gradient, gradient.to(device)):
        with pytest.raises(IndexError):
            aten.select_backward(each, [3, 7, 4, 2], 1, index)
    made = [_new_plans(device, aten.select_backward, gradient, [3, 7, 4, 2], 1, i) for i in range(4)]
    assert made[1:] == [0, 0, 0]


@pytest.mark.parametrize("kind", ["uniform_", "normal_"])
def test_parameters_of_random_numbers(device: str, kind: str) -> None:
    """So layers made on the device need no plan for each of their sizes."""
    x = torch.empty(4000, device=device)
    getattr(x, kind)(0.0, 1.0)
    before = int(_C.eager_stats()["plans"])
    for first, second in ((-0.25, 0.25), (3.0, 5.5), (-1e-3, 0.0), (1e4, 1.1e4), (2.0, 2.0)):
        getattr(x, kind)(first, second)
        values = x.cpu().double()
        if kind == "normal_":
            assert abs(values.mean().item() - first) <= 0.1 * second + 1e-9
            assert abs(values.std().item() - second) <= 0.1 * second + 1e-9
            continue
        assert first <= values.min().item() and (values.max().item() < second or first == second)
        assert abs(values.mean().item() - (first + second) / 2) <= 0.05 * (second - first)
    assert int(_C.eager_stats()["plans"]) - before == 0


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("bernoulli_", [(0.2,), (0.7,), (0.05,)]),
        ("cauchy_", [(0.0, 1.0), (3.0, 0.5), (-7.0, 2.0)]),
        ("exponential_", [(1.0,), (0.25,), (30.0,)]),
        ("geometric_", [(0.5,), (0.1,), (0.9,)]),
        ("log_normal_", [(1.0, 0.5), (0.0, 0.1), (2.0, 0.3)]),
        ("random_", [(0, 10), (-7, 90), (1000, 100_000)]),
        ("random_", [(10,), (90,), (100_000,)]),
    ],
)
def test_parameters_of_distributions(device: str, kind: str, parameters: list[tuple[float, ...]]) -> None:
    """Quartiles are near the CPU's, with no plan for each parameter."""
    quarters = torch.tensor([0.25, 0.5, 0.75])
    made = []
    for each in parameters:
        before = int(_C.eager_stats()["plans"])
        found = getattr(torch.empty(20_000, device=device), kind)(*each).cpu()
        made.append(int(_C.eager_stats()["plans"]) - before)
        expected = getattr(torch.empty(20_000), kind)(*each)
        width = float(expected.quantile(0.9) - expected.quantile(0.1)) + 0.4
        discrete = 1.0 if kind in ("geometric_", "random_") else 0.0
        assert (found.mean() - expected.mean()).abs() <= 0.05 * width or kind == "cauchy_"
        assert (found.quantile(quarters) - expected.quantile(quarters)).abs().max() <= 0.05 * width + discrete
    assert made[1:] == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bounds", [(0, 1000), (0, 5000), (-1000, -3), (-3000, 3000), (4097, 5000), (-1, 0), (10, 11)])
@pytest.mark.filterwarnings("ignore:.*out of bounds")
def test_random_integers_of_halves_stay_below_their_end(
    device: str, dtype: torch.dtype, bounds: tuple[int, int]
) -> None:
    """bfloat16 has 996 and 1000, and nothing between them."""
    found = torch.empty(20_000, dtype=dtype, device=device).random_(*bounds).cpu()
    expected = torch.empty(20_000, dtype=dtype).random_(*bounds)
    assert found.max().item() == expected.max().item() < bounds[1] and found.min() >= expected.min()


def test_the_probability_of_dropout(device: str) -> None:
    x = torch.rand(100, 100) + 1
    made = []
    for p in (0.5, 0.1, 0.25, 0.9, 0.0, 1.0):
        before = int(_C.eager_stats()["plans"])
        leaf = x.to(device).requires_grad_()
        y = F.dropout(leaf, p)
        y.backward(torch.ones_like(y))
        kept = (y != 0).cpu()
        made.append(int(_C.eager_stats()["plans"]) - before)
        assert abs(kept.float().mean().item() - (1 - p)) < 0.03
        expected = torch.where(kept, 1 / (1 - p) if p < 1 else 0.0, 0.0)
        torch.testing.assert_close(y.detach().cpu(), x * expected)
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad.cpu(), expected)
    assert made[2:4] == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_constant_pads(device: str, dtype: torch.dtype) -> None:
    x = torch.arange(24).reshape(4, 6).remainder(3).to(dtype)
    pads = ((3, 2), (5, 7), (2, 9), (4, -2), (-3, 5), (2, 2, 3, -2), (0, 1), (0, 0), (1, 0, 2, 0))
    made = [_new_plans(device, F.pad, x, pad, "constant", value) for pad in pads for value in (0, 1, 3)]
    assert made[6:9] == [0] * 3  # rows of fewer than the processor's lanes have plans of their own
    for value in (2.5, float("inf"), float("nan")) if dtype.is_floating_point else ():
        _new_plans(device, lambda x, v=value: F.pad(x, (1, 3), value=v).nan_to_num(7.0), x)


def test_padding_of_many_sides_compiles_soon(device: str) -> None:
    """Products of the padded sizes, which are sums, took sympy 7 s of eight sides."""
    call = _C.signed_call(
        "aten::constant_pad_nd", (torch.randn(2, 3, 8, 9, device=device), [*range(1, 9)], 0.0), {}, False
    )
    plan = lower_operator(call, target_of(0)).plan
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    assert max(len(argument.expr) for step in launches for argument in step.arguments) < 30


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_pads_by_what_is_there(device: str, mode: str) -> None:
    pads = ((3, 2, 1, 1), (2, 4, 2, 3), (4, 3, 3, 2), (5, 2, 2, 3), (0, 1, 0, 0), (0, 0, 5, 0))
    made = [_new_plans(device, F.pad, torch.randn(2, 3, 8, 9), pad, mode) for pad in pads]
    assert made[3] == 0
    for each in ("cpu", device):
        with pytest.raises(RuntimeError):
            F.pad(torch.randn(1, 3, 4, 4, device=each), (4, 0, 0, 0), "reflect") if mode == "reflect" else F.pad(
                torch.randn(4, 4, device=each), (1, 1, 1, 1), "replicate"
            )


@pytest.mark.parametrize(
    "operator",
    [
        lambda x, i: x.roll(i, 1),
        lambda x, i: x.roll((i, 2 * i), (0, 1)),
        lambda x, i: x.triu(i - 4),
        lambda x, i: x.tril(4 - i),
        lambda x, i: x.repeat(i, i + 1),
        lambda x, i: F.interpolate(x[None, None], size=(10 + i, 20 - i), mode="bilinear"),
        lambda x, i: F.interpolate(x[None, None], size=(10 + i, 20 - i), mode="nearest"),
        lambda x, i: F.group_norm(x.expand(i, 4, 7, 9), 2),
    ],
)
def test_one_plan_for_all_places(device: str, operator: Callable[..., Tensor]) -> None:
    x = torch.randn(7, 9)
    made = [_new_plans(device, operator, x, i) for i in (2, 3, 5, 6, 4, 0, 1) if i > 1 or operator(x, 1).numel() > 0]
    assert made[3:5] == [0] * 2


@pytest.mark.parametrize(
    "call",
    [
        "uniform_(2.0, 1.0)",
        "uniform_(float('nan'), 1.0)",
        "normal_(0.0, -1.0)",
        "bernoulli_(1.5)",
        "exponential_(-1.0)",
        "geometric_(1.0)",
        "cauchy_(0.0, -1.0)",
        "log_normal_(0.0, 0.0)",
        "random_(5, 2)",
        "random_(0)",
    ],
)
def test_wrong_parameters_of_random_numbers(device: str, call: str) -> None:
    """They are found each time, not only while there is no plan."""
    x = torch.empty(3, device=device)
    x.uniform_(0.0, 1.0), x.normal_(0.0, 1.0), x.random_(2, 5)
    with pytest.raises(RuntimeError) as expected:
        eval("torch.empty(3)." + call)
    with pytest.raises(RuntimeError) as found:
        eval("x." + call)
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_sizes_of_nothing_among_numbers(device: str) -> None:
    """Such as circular padding's gradient asks for: a dimension of 0 in front of others."""
    gradient = torch.zeros(0, 0, 3, 2).as_strided((0, 0, 3, 2), (6, 6, 2, 1))
    assert _new_plans(device, aten.slice_backward, gradient, [0, 0, 3, 6], 3, 1, 3, 1) == 1
