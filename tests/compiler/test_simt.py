# SPDX-License-Identifier: Apache-2.0
"""Generated kernels for SIMT devices, run on whatever device is there: work-groups and barriers work on all of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from outboard import _C
from outboard.compiler import dialects, target
from outboard.compiler.adapter import kernel
from outboard.compiler.adapter.lowering import lower_operator
from outboard.compiler.dialects.c import groups
from outboard.compiler.operators.overloads import find_overload
from outboard.compiler.plans.schema import serialize

Tensor = torch.Tensor


#: Sizes that kernels may ask for, where they may; 0 leaves the choice to the device's compiler.
SIZES = [0, 4, 8, 16, 32, 64]


def _gpu(sub_group_size: int) -> target.Target:
    """This process's device, taken for a GPU. Skips the test where it cannot be taken for that one."""
    real = target.target_of(0)
    if real.max_work_group_size < 256:
        pytest.skip("the device's work-groups are too small")
    if sub_group_size > 1 and real.sub_group_size == 1:
        pytest.skip("the OpenCL runtime has no sub-groups that can shuffle; Intel's for CPUs has")
    return dataclasses.replace(real, execution="simt", vector_width=1, compute_units=4, sub_group_size=sub_group_size)


class Runner:
    """``run(operator, *arguments)``: results of the operator's plan for a GPU; ``run.text`` is its last program."""

    def __init__(self, gpu: target.Target, device: str, monkeypatch: pytest.MonkeyPatch, asks: bool = True) -> None:
        self.gpu = gpu
        self.device = device
        self.asks = asks
        self.text = ""
        monkeypatch.setattr(kernel, "target_of", lambda index: self.gpu)

    def lower(self, op: str, *arguments: Any) -> tuple[Any, list[Any]]:
        """The operator's plan, and its inputs."""
        moved = tuple(v.to(self.device) if isinstance(v, Tensor) else v for v in arguments)
        call = _C.signed_call(op, moved, {}, False)
        plan = lower_operator(call, self.gpu).plan
        if not self.asks:
            plan.programs = [(_without_size(source), options) for source, options in plan.programs]
        self.text = "".join(source for source, _ in plan.programs)
        return plan, list(_inputs(call))

    def __call__(self, op: str, *arguments: Any) -> Any:
        plan, inputs = self.lower(op, *arguments)
        results = _C.Plan(serialize(plan), 0).run(inputs)
        return results[0].cpu() if len(results) == 1 else tuple(result.cpu() for result in results)


def _inputs(call: _C.SignedCall) -> Iterator[Any]:
    """What a plan takes of a call: tensors, and the numbers that are not baked into it."""
    names = [argument.name for argument in find_overload(call.op)._schema.arguments]
    for leaf in call.leaves:
        value = call.args[names.index(leaf.argument)]
        yield value if leaf.item < 0 else value[leaf.item]


def kernels_of(text: str) -> str:
    """A program without the words of its dialect and the functions before its kernels."""
    return text[text.index("\nOB_KERNEL ") :]


def written(text: str) -> str:
    """A program without the words of its dialect."""
    return text.replace(dialects.find("opencl-c").words, "")


def _without_size(source: str) -> str:
    return source.replace("#ifdef cl_intel_required_subgroup_size", "#if 0")


@pytest.fixture(params=[False, True], ids=["local-memory", "sub-groups"])
def run(request: pytest.FixtureRequest, device: str, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Once as without sub-groups, and once with those that the device has."""
    return Runner(_gpu(max(target.target_of(0).sub_group_size, 2) if request.param else 1), device, monkeypatch)


@pytest.fixture(params=SIZES)
def run_of_size(request: pytest.FixtureRequest, device: str, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """With sub-groups of each size."""
    return Runner(_gpu(request.param or 32), device, monkeypatch, asks=request.param != 0)


@pytest.fixture
def print_for(device: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``print_for(sub_group_size, operator, *arguments)``: a program's text, which no device need be able to run."""

    def text(sub_group_size: int, op: str, *arguments: Any) -> str:
        printer = Runner(dataclasses.replace(_gpu(1), sub_group_size=sub_group_size), device, monkeypatch)
        printer.lower(op, *arguments)
        return printer.text

    return text


SHAPES = [(3, 40), (5, 1000), (1, 70000), (2, 3), (300, 33), (7, 4096)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_reductions(run: Runner, shape: tuple[int, int], dim: int) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(run("aten::sum.dim_IntList", x, [dim]), x.sum(dim), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(run("aten::amax", x, [dim]), x.amax(dim))
    torch.testing.assert_close(run("aten::argmin", x, dim), x.argmin(dim))
    torch.testing.assert_close(run("aten::_softmax", x, dim, False), x.softmax(dim))
    torch.testing.assert_close(run("aten::any.dim", x > 3, dim), (x > 3).any(dim))


@pytest.mark.parametrize("shape", [(17000, 33), (2000, 300), (300, 40), (64, 20000)], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_few_long_reductions(run: Runner, shape: tuple[int, int], dim: int) -> None:
    """Rows and columns in pieces, whose results are combined, and what follows from these."""
    x = torch.randn(shape)
    torch.testing.assert_close(run("aten::sum.dim_IntList", x, [dim]), x.sum(dim), rtol=1e-4, atol=2e-3)
    torch.testing.assert_close(run("aten::amin", x, [dim]), x.amin(dim))
    torch.testing.assert_close(run("aten::all.dim", x > -4, dim), (x > -4).all(dim))
    whole = x.mul(3).round()  # many ties
    whole[-3:, -3:] = whole[5, 7] = float("nan")
    torch.testing.assert_close(run("aten::argmax", whole, dim), whole.argmax(dim))
    torch.testing.assert_close(run("aten::argmin", x.round(), dim), x.round().argmin(dim))
    torch.testing.assert_close(run("aten::var_mean.correction", x, [dim])[0], x.var(dim), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length, offset", [(64, 0), (200, 1), (1023, 0), (2048, 0), (2050, 2), (5000, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_neighbouring_terms_wherever_they_lie(
    run: Runner, device: str, dtype: torch.dtype, length: int, offset: int
) -> None:
    x = (torch.randn(3, length + offset) * 3).to(dtype)
    part, view = x[:, offset:], x.to(device)[:, offset:]
    torch.testing.assert_close(run("aten::_softmax", view, 1, False), part.softmax(1))
    torch.testing.assert_close(run("aten::argmax", view, 1), part.argmax(1))
    torch.testing.assert_close(
        run("aten::native_layer_norm", view, [length], None, None, 1e-5)[0],
        torch.native_layer_norm(part, [length], None, None, 1e-5)[0],
    )


@pytest.mark.parametrize("shape", [(8, 3, 80, 80), (40, 32, 29, 29), (600, 40, 7, 7)], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_statistics_of_channels(run: Runner, shape: tuple[int, ...], memory_format: torch.memory_format) -> None:
    x, gradient = (torch.randn(shape).mul(3).add(7).to(memory_format=memory_format) for _ in range(2))
    weight, bias, mean, var = torch.rand(4, shape[1])
    ours = [mean.clone().to(run.device), var.clone().to(run.device)]
    found = run("aten::native_batch_norm", x, weight, bias, *ours, True, 0.1, 1e-5)
    expected = torch.native_batch_norm(x, weight, bias, mean, var, True, 0.1, 1e-5)
    for one, other in zip((*found[:3], *ours), (*expected, mean, var), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=2e-4, atol=2e-4)
    saved = (weight, mean, var, *expected[1:], True, 1e-5, [True, True, True])
    found = run("aten::native_batch_norm_backward", gradient, x, *saved)
    for one, other in zip(found, torch.ops.aten.native_batch_norm_backward(gradient, x, *saved), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


@pytest.mark.parametrize("count", [1, 31, 32, 8191, 8193, 300001])
def test_full_reductions(run: Runner, count: int) -> None:
    x = torch.randn(count)
    torch.testing.assert_close(run("aten::sum", x), x.double().sum().float(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(run("aten::amax", x, [0]), x.amax())
    torch.testing.assert_close(run("aten::argmax", x), x.argmax())
    torch.testing.assert_close(run("aten::prod", x.sign()), x.sign().prod())


def test_ties_and_nan_are_found_first(run: Runner) -> None:
    x = torch.zeros(4, 1000)
    x[1, 700] = x[1, 300] = 5
    x[2, 900] = x[2, 44] = float("nan")
    x[3] = float("-inf")
    torch.testing.assert_close(run("aten::argmax", x, 1), x.argmax(1))
    torch.testing.assert_close(run("aten::amax", x, [1]), x.amax(1), equal_nan=True)
    same = torch.full((3, 500), 7)
    assert run("aten::argmax", same, 1).tolist() == [0, 0, 0]


@pytest.mark.parametrize("shape", [(8, 1024), (4, 5, 6), (65, 33)], ids=str)
def test_norms(run: Runner, shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])
    expected = torch.native_layer_norm(x, [shape[-1]], weight, bias, 1e-5)
    for result, right in zip(run("aten::native_layer_norm", x, [shape[-1]], weight, bias, 1e-5), expected, strict=True):
        torch.testing.assert_close(result, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [[0, 2, 3], [1, 3], [0, 1, 2, 3], [2]], ids=str)
def test_dimensions_that_do_not_lie_together(run: Runner, dims: list[int]) -> None:
    x = torch.randn(4, 6, 9, 11)
    torch.testing.assert_close(run("aten::sum.dim_IntList", x, dims), x.sum(dims), rtol=1e-4, atol=1e-4)
    y = x.permute(2, 0, 3, 1)
    torch.testing.assert_close(run("aten::mean.dim", y, dims), y.mean(dims), rtol=1e-4, atol=1e-5)


def test_who_reduces(print_for: Callable[..., str]) -> None:
    """A group where terms are many, an item where they are few or results lie side by side, pieces where few results
    have many."""
    for size in (1, 32):
        text = print_for(size, "aten::sum.dim_IntList", torch.rand(64, 1000), [1])
        assert "OB_SHARED float shared" in text and "extra1 > 1" not in text
        assert "OB_SHARED" not in kernels_of(print_for(size, "aten::sum.dim_IntList", torch.rand(1000, 10), [1]))
        assert "OB_SHARED" not in kernels_of(print_for(size, "aten::sum.dim_IntList", torch.rand(100, 20000), [0]))
        assert "OB_SHARED float shared" in print_for(size, "aten::sum.dim_IntList", torch.rand(1000, 200), [0])
        assert "extra1 > 1" in print_for(size, "aten::sum", torch.rand(100000))


@pytest.mark.parametrize(("size", "terms"), [(8, 4), (16, 100), (32, 16), (32, 64), (32, 255), (64, 500)])
def test_sub_groups_reduce_short_rows(print_for: Callable[..., str], size: int, terms: int) -> None:
    x = torch.rand(3000, terms)
    for op, arguments in (("aten::sum.dim_IntList", ([1],)), ("aten::_softmax", (1, False)), ("aten::argmax", (1,))):
        text = print_for(size, op, x, *arguments)
        kernel_text = kernels_of(text)
        assert "x += OB_SUB_GROUP_COUNT()" in kernel_text and f"OB_SUB_GROUPS_OF({size}) void" in kernel_text
        assert "OB_BARRIER" not in kernel_text and "OB_SHARED" not in kernel_text


@pytest.mark.parametrize(("size", "terms"), [(8, 3), (8, 64), (32, 15), (32, 256)])
def test_sub_groups_leave_other_rows_alone(print_for: Callable[..., str], size: int, terms: int) -> None:
    text = print_for(size, "aten::sum.dim_IntList", torch.rand(3000, terms), [1])
    assert "OB_SUB_GROUP_COUNT();" not in kernels_of(text)


def test_sub_groups_meet_at_two_barriers(print_for: Callable[..., str]) -> None:
    x = torch.rand(64, 4000)
    cases: list[tuple[str, Any, int]] = [
        ("aten::sum.dim_IntList", [1], 1),
        ("aten::var_mean.correction", [1], 2),
        ("aten::argmax", 1, 1),
    ]
    for op, dims, reductions in cases:
        text = print_for(32, op, x, dims)
        assert kernels_of(text).count(groups.BARRIER) == 2 * reductions
        assert "OB_SHUFFLE(" in written(text) and "reach = OB_LOCAL_COUNT(0)" not in text
        assert "reach = OB_LOCAL_COUNT(0)" in print_for(1, op, x, dims)


def test_two_results_of_one_loop_share_the_barriers(print_for: Callable[..., str]) -> None:
    text = print_for(32, "aten::aminmax", torch.rand(4000))
    first, _, second = kernels_of(text).partition("aminmax_0_combine")
    assert first.count(groups.BARRIER) == second.count(groups.BARRIER) == 2
    assert "shared_float_0" in first and "shared_float_1" in first


def test_devices_without_sub_groups_hear_nothing_of_them(print_for: Callable[..., str]) -> None:
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("aten::sum", ()),
        ("aten::argmax", (1,)),
        ("aten::cumsum", (1,)),
        ("aten::_softmax", (1, False)),
    ]
    for op, arguments in cases:
        text = written(print_for(1, op, torch.rand(64, 200), *arguments)).lower()
        assert "sub_group" not in text and "shuffle" not in text


def test_products_and_scans_use_them(print_for: Callable[..., str]) -> None:
    dots = print_for(32, "aten::mm", torch.rand(1, 4000), torch.rand(4000, 30))
    assert "ob_meet_sum_float32(&" in dots and "NEAR_TERMS 256" in dots and "OB_SUB_GROUPS_OF(32)" in dots
    scan = print_for(32, "aten::cumsum", torch.rand(64, 4000), 1)
    assert "OB_SUB_GROUPS_OF(32)" in scan and "reach < GROUP" not in scan
    assert "reach < GROUP" in print_for(1, "aten::cumsum", torch.rand(64, 4000), 1)


def test_the_size_is_part_of_the_key_of_caches() -> None:
    real = target.target_of(0)
    assert real.sub_group_size == 1 or real.cache_key.endswith(f"|{real.sub_group_size}")


def test_each_run_gives_the_same_bits(run: Runner) -> None:
    x = torch.randn(300001)
    first = run("aten::sum", x)
    assert all(torch.equal(run("aten::sum", x), first) for _ in range(3))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    data=st.data(),
)
def test_any_reduction(run: Runner, shape: list[int], data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    x = torch.randn(shape)
    torch.testing.assert_close(run("aten::sum.dim_IntList", x, dims), x.sum(dims), rtol=1e-4, atol=1e-4)
    variance = run("aten::var.correction", x, dims)
    torch.testing.assert_close(variance, x.var(dims), rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool], ids=str)
def test_neighbours_wherever_they_lie(run: Runner, device: str, dtype: torch.dtype) -> None:
    """Items take several points by one access where addresses allow it, and one by one where they do not."""
    plan, _ = run.lower("aten::maximum", torch.ones(2000, dtype=dtype), torch.ones(2000, dtype=dtype))
    assert "pack" in run.text
    loaded = _C.Plan(serialize(plan), 0)
    for count, offset in itertools.product([2, 7, 64, 1023, 1024, 2051], [0, 1, 3, 4, 8]):
        x, y = (torch.randn(2, count + offset) * 4).to(dtype)
        (result,) = loaded.run([x.to(device)[offset:], y.to(device)[:count]])
        torch.testing.assert_close(result.cpu(), torch.maximum(x[offset:], y[:count]))


@pytest.mark.parametrize(
    "rows, length, offset",
    [
        (3, 768, 0),
        (5, 1023, 0),
        (2, 260, 1),
        (4, 1024, 2),
        (70000, 3, 0),
        (70001, 9, 1),
        (500, 24, 0),
        (33, 64, 4),
        (40, 8, 3),
    ],
)
def test_rows_of_neighbours(run: Runner, device: str, rows: int, length: int, offset: int) -> None:
    x, column = torch.randn(rows, length + offset), torch.randn(rows, 1)
    table, places = torch.randn(9, length), torch.randint(9, (rows,))
    part, view = x[:, offset:], x.to(device)[:, offset:]
    torch.testing.assert_close(run("aten::mul.Tensor", view, column), part * column)
    eights = part.flatten()[: part.numel() // 8 * 8].half().view(-1, 8)
    at = torch.cat([eights.flatten()[:offset], eights.flatten()]).to(device)[offset:].view(-1, 8)
    torch.testing.assert_close(run("aten::mul.Tensor", at, column[:1].half()), eights * column[:1].half())
    torch.testing.assert_close(run("aten::maximum", view, table[0].half()), torch.maximum(part, table[0].half()))
    torch.testing.assert_close(run("aten::embedding", table, places), table[places])


@pytest.mark.parametrize("shape", [(3, 100000), (100000, 3), (7, 8, 9)], ids=str)
def test_broadcasts(run: Runner, shape: tuple[int, ...]) -> None:
    x, row = torch.randn(shape), torch.randn(shape[-1])
    torch.testing.assert_close(run("aten::mul.Tensor", x, row), x * row)


def _terms(dtype: torch.dtype, shape: list[int]) -> Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) > 0.9
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -9, 10, shape).to(dtype)


FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(run: Runner, dtype: torch.dtype) -> None:
    for shape in ([9, 50], [5, 300], [3, 70000]):
        x = _terms(dtype, shape)
        total = run("aten::sum.dim_IntList", x, [1])
        tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-4)
        torch.testing.assert_close(total, x.double().sum(1).to(total.dtype), rtol=tolerance, atol=50 * tolerance)
        assert torch.equal(run("aten::amax", x, [1]), x.amax(1))
        assert torch.equal(run("aten::amin", x, [1]), x.amin(1))
        assert torch.equal(run("aten::any.dim", x, 1), x.any(1)) and torch.equal(run("aten::all.dim", x, 1), x.all(1))
        if dtype != torch.bool:
            assert torch.equal(run("aten::argmax", x, 1), x.argmax(1))
            assert torch.equal(run("aten::argmin", x, 1), x.argmin(1))


def test_integers_of_any_size_are_exact(run: Runner) -> None:
    x = torch.randint(-(2**62), 2**62, (7, 3000))
    assert torch.equal(run("aten::sum.dim_IntList", x, [1]), x.sum(1))
    odd = x[:, :200] | 1
    assert torch.equal(run("aten::prod.dim_int", odd, 1), odd.prod(1))
    assert torch.equal(run("aten::argmax", x, 1), x.argmax(1))


@pytest.mark.parametrize("terms", [64, 3000])
def test_minimum_and_maximum_keep_nan(run: Runner, terms: int) -> None:
    x = torch.randn(40, terms)
    for row in range(0, 40, 3):
        x[row, (row * 37) % terms] = float("nan")
    for op, expected in (("aten::amax", x.amax(1)), ("aten::amin", x.amin(1))):
        torch.testing.assert_close(run(op, x, [1]), expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(run("aten::argmax", x, 1), x.argmax(1))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 70),
    terms=st.one_of(st.integers(1, 130), st.integers(131, 3000)),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int64, torch.int8, torch.bool]),
    data=st.data(),
)
def test_sub_groups_of_any_size(
    run_of_size: Runner, rows: int, terms: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    x = _terms(dtype, [rows, terms])
    dim = data.draw(st.integers(0, 1))
    total = run_of_size("aten::sum.dim_IntList", x, [dim])
    torch.testing.assert_close(total, x.double().sum(dim).to(total.dtype), rtol=1e-4, atol=1e-3)
    assert torch.equal(run_of_size("aten::amin", x, [dim]), x.amin(dim))
    if dtype != torch.bool:
        assert torch.equal(run_of_size("aten::argmax", x, dim), x.argmax(dim))
    torch.testing.assert_close(run_of_size("aten::cumsum", x, dim), x.cumsum(dim), rtol=1e-4, atol=1e-3)
    if dtype.is_floating_point:
        torch.testing.assert_close(run_of_size("aten::_softmax", x, dim, False), x.softmax(dim))
        product = run_of_size("aten::mm", x[:1], x.t())
        torch.testing.assert_close(product, x[:1] @ x.t(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("count", [64, 3000, 300001])
def test_sub_groups_of_one_size_give_the_same_bits(run_of_size: Runner, count: int) -> None:
    x = torch.randn(3, count)
    first = run_of_size("aten::sum.dim_IntList", x, [1])
    assert all(torch.equal(run_of_size("aten::sum.dim_IntList", x, [1]), first) for _ in range(3))


@pytest.mark.parametrize("shape", [(5, 100), (3, 5000)], ids=str)
def test_scans(run: Runner, shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    x[1, 50] = float("nan")
    torch.testing.assert_close(run("aten::cumsum", x, 1), x.cumsum(1), rtol=1e-4, atol=1e-3, equal_nan=True)
    torch.testing.assert_close(run("aten::cummax", x, 1), tuple(x.cummax(1)), equal_nan=True)
    torch.testing.assert_close(run("aten::logcumsumexp", x, 1), x.logcumsumexp(1), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("images", [0, 3, 40])
def test_gradients_of_a_bias(run: Runner, layout: torch.memory_format, images: int) -> None:
    """Of a few channels, each of which several work-groups add."""
    grad = torch.randn(images, 5, 31, 67).add(0.5).contiguous(memory_format=layout)
    x, weight = torch.zeros(images, 1, 31, 67), torch.zeros(5, 1, 1, 1)
    rest = ([5], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, False, True])
    plan, inputs = run.lower("aten::convolution_backward", grad, x, weight, *rest)
    found = _C.Plan(serialize(plan), 0).run(inputs)[2].cpu()
    torch.testing.assert_close(found.double(), grad.double().sum((0, 2, 3)), rtol=1e-6, atol=1e-6)
