# SPDX-License-Identifier: Apache-2.0
"""Generated kernels against the CPU: dtypes, shapes around the vector width, layouts, special values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.conftest import RunPython

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
SHAPES = [(), (1,), (15,), (16,), (33, 65), (3, 1, 130), (0, 4)]


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    return (torch.randn(shape, generator=generator) * 5).to(dtype)


def check(function: Callable[..., torch.Tensor], *tensors: torch.Tensor, device: str, **tolerance: float) -> None:
    """The same call on the device gives the CPU's result, natively."""
    module = torch.get_device_module(device)
    expected = function(*tensors)
    module.reset_fallbacks()
    result = function(*[tensor.to(device) for tensor in tensors])
    assert module.fallbacks() == {}
    torch.testing.assert_close(result.cpu(), expected, equal_nan=True, **tolerance)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_arithmetic(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    a, b = values(shape, dtype), values(shape, dtype).flip(0) if shape else values(shape, dtype)
    check(lambda a, b: a + b * 3 - a * b, a, b, device=device)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + [torch.bool], ids=str)
def test_layouts(dtype: torch.dtype, device: str) -> None:
    a = values((33, 65), dtype)
    check(lambda a: a.t().contiguous(), a, device=device)
    check(lambda a: a.flip(1), a, device=device)
    check(lambda a: a[::2, ::3].clone(), a, device=device)
    check(lambda a: a.view(3, 11, 65).permute(2, 0, 1).contiguous(), a, device=device)
    check(lambda a: torch.cat([a, a[:2]]), a, device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (33, 65), (2, 300), (300, 70), (4, 5, 6)], ids=str)
def test_reductions(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    a = values(shape, dtype)
    for dim in range(len(shape)):
        check(lambda a, dim=dim: a.sum(dim), a, device=device, rtol=1e-5, atol=1e-4)
        check(lambda a, dim=dim: a.amax(dim), a, device=device)
        check(lambda a, dim=dim: (a > 0).any(dim), a, device=device)
        check(lambda a, dim=dim: a.argmax(dim), a, device=device)
    check(lambda a: a.sum(), a, device=device, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_division(dtype: torch.dtype, device: str) -> None:
    a, b = values((500,), dtype), values((500,), dtype).flip(0)
    b = torch.where(b == 0, torch.full_like(b, 3), b)
    for name in ("floor_divide", "remainder", "fmod"):
        check(lambda a, b, name=name: getattr(torch, name)(a, b), a, b, device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_remainders_are_exact(dtype: torch.dtype, device: str) -> None:
    """Quotients of all sizes, those next to an integer, and what is not finite, one behind the other, so that each
    vector has some that are unusual; and without these."""
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randn(3000, dtype=torch.float64, generator=generator) for _ in range(2))
    many = torch.randint(1, 1 << 22, (3000,), generator=generator)
    near = (b.to(dtype) * many).to(dtype)
    finite = torch.cat([a.to(dtype), (a * 1e9).to(dtype), near, near.nextafter(torch.zeros_like(near))])
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -3.0, 2.5], dtype=dtype)
    unusual = torch.cartesian_prod(special, special)
    pairs = [(finite, b.to(dtype).repeat(4)), (unusual[:, 0].contiguous(), unusual[:, 1].contiguous())]
    for left, right in pairs:
        for name in ("fmod", "remainder"):
            function = getattr(torch, name)
            found, expected = function(left.to(device), right.to(device)).cpu(), function(left, right)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
            zero = expected == 0
            assert torch.equal(found.signbit()[zero], expected.signbit()[zero])


@pytest.mark.parametrize("function", [torch.tanh, torch.log1p], ids=lambda function: function.__name__)
def test_functions_where_their_ways_meet(function: Callable[[torch.Tensor], torch.Tensor], device: str) -> None:
    """Around the limits between ways to compute them, at the ends, and at numbers that are not finite."""
    limits = torch.tensor([0.0, 1.0, 9.01091385, -0.2928932, 0.4142135, -1.0, 1e-45, 1e-30, 3e38])
    around = torch.linspace(-1e-3, 1e-3, 101)
    a = torch.cat(
        [(limits[:, None] * (1 + around)).flatten(), -limits, torch.tensor([torch.inf, -torch.inf, torch.nan])]
    )
    found, expected = function(a.to(device)).cpu(), function(a.double()).float()
    torch.testing.assert_close(found, expected, rtol=1.5e-7, atol=1e-45, equal_nan=True)
    assert torch.equal(found.signbit()[expected == 0], expected.signbit()[expected == 0])


@pytest.mark.parametrize(
    "name",
    [
        "round",
        "floor",
        "trunc",
        "sign",
        "isnan",
        "relu",
        "sigmoid",
        "tanh",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "erf",
        "expm1",
        "log1p",
        "digamma",
        "erfinv",
        "signbit",
    ],
)
def test_special_values(name: str, device: str) -> None:
    special = torch.tensor([float("nan"), 1, -float("inf"), float("inf"), -0.0, 0.5, -0.5, 1.5, 2.5, 3e38]).repeat(4)
    check(getattr(torch.Tensor, name), special, device=device, rtol=1e-5, atol=1e-6)


def test_nan_wins_extremes(device: str) -> None:
    a = torch.randn(3, 50)
    a[1, 20] = float("nan")
    for name in ("amax", "amin", "argmax", "argmin"):
        check(lambda a, name=name: getattr(a, name)(1), a, device=device)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_atomic_additions(dtype: torch.dtype, device: str) -> None:
    index = torch.tensor([1, 1, 2, 0])
    check(lambda a, i: torch.zeros_like(a).index_add_(0, i, a), values((4, 37), dtype), index, device=device,
          rtol=2e-2, atol=2e-2)  # fmt: skip


def test_integers_wrap(device: str) -> None:
    a = torch.tensor([2**31 - 1, -(2**31)] * 20, dtype=torch.int32)
    check(lambda a: a + a - 3, a, device=device)
    check(lambda a: -a, a, device=device)


@pytest.mark.parametrize("call", [
    lambda x, i: x.gather(0, i), lambda x, i: x.index_select(0, i.flatten()),
    lambda x, i: torch.nn.functional.embedding(i, x), lambda x, i: x[i],
])  # fmt: skip
def test_indices_out_of_range_raise_and_corrupt_nothing(call: Callable[..., torch.Tensor], device: str) -> None:
    x = torch.randn(5, 4, device=device)
    before = x.cpu()
    with pytest.raises((IndexError, RuntimeError), match="index"):
        call(x, torch.full((1, 4), 9).to(device)).cpu()
    torch.testing.assert_close(x.cpu(), before)


def test_continuous_integration_changes_nothing(run_python: RunPython, device: str, tmp_path: Path) -> None:
    """Inductor has a check of its own tables that is on where ``CI`` is set; it sent operators to the CPU."""
    source = f"""
        import torch
        x = torch.randn(1, 2, 6, 7, device="{device}")
        resize = lambda x: torch.nn.functional.interpolate(x, size=(5, 13), mode="bicubic")
        torch.testing.assert_close(resize(x).cpu(), resize(x.cpu()))
        torch.testing.assert_close(torch.compile(resize)(x).cpu(), resize(x.cpu()))
    """
    run_python(source, CI="true", OUTBOARD_FALLBACK="error", OUTBOARD_CACHE_DIR=str(tmp_path))


@pytest.mark.parametrize("width", [1, 15, 16, 33, 700])
def test_rows_that_are_looked_up(device: str, width: int) -> None:
    table = torch.randn(50, width)
    places = torch.randint(0, 50, (3, 7))
    check(lambda t, p: torch.nn.functional.embedding(p, t), table, places, device=device)
    check(lambda t, p: t[p] * 2 + t[p].sum(-1, keepdim=True), table, places, device=device, rtol=1e-5, atol=1e-4)
    check(lambda t, p: t[:, p[0] % width], table, places, device=device)
    check(
        lambda t, p: torch.zeros(50, width).to(t.device).index_add(0, p.flatten(), t[:21]), table, places, device=device
    )
    check(lambda t, p: torch.where(p[..., None] > 20, t[p], t[0]), table, places, device=device)


def test_places_among_all_elements_follow_the_shape_and_not_memory(device: str) -> None:
    x = torch.randn(5, 7, 19).transpose(1, 2)
    equal = torch.tensor([3, 1, 2, 1, 3]).repeat(133)[:665].reshape(5, 7, 19).transpose(1, 2)
    for tensor in (x, equal, x.permute(2, 0, 1), x[:, ::2]):
        check(lambda t: torch.stack([t.argmin(), t.argmax(), t.argmax(keepdim=True).sum()]), tensor, device=device)


def test_empty_tensors_begin_wherever_their_offset_says(device: str) -> None:
    """Of memory that ends before: nothing is read there."""

    def within(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        behind = (x + 1)[4:, 5:]
        return x[3:, 5:] @ x.new_ones(0, 2), behind.sum(), behind.sort(1)[0], behind.cumsum(1)

    def given(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ x.new_ones(x.shape[1], 2), x.sum(), x.sort(1)[0], x + 1

    whole = torch.arange(20.0).reshape(4, 5)
    for function, view in ((within, lambda x: x), (given, lambda x: x[4:, 5:]), (given, lambda x: x[3:, 5:])):
        results = torch.compile(function, fullgraph=True)(view(whole.to(device)))
        for result, expected in zip(results, function(view(whole)), strict=True):
            torch.testing.assert_close(result.cpu(), expected)


def test_convolutions_of_nothing(device: str) -> None:
    """Compiled too: a batch without images."""
    images, weight = torch.zeros(0, 3, 5, 5), torch.ones(2, 3, 1, 1)
    function = torch.compile(torch.nn.functional.conv2d, fullgraph=True)
    assert function(images.to(device), weight.to(device)).shape == (0, 2, 5, 5)


@pytest.mark.parametrize(
    "refused",
    [
        lambda x, i: torch.index_reduce(x, 0, i, torch.ones(2, 5, device=x.device), "amax"),
        lambda x, i: torch.index_reduce(x, 0, i, torch.ones(3, 9, device=x.device), "prod"),
        lambda x, i: F.conv2d(x.view(1, 1, 4, 5), torch.ones(2, 1, 1, 1, device=x.device), dilation=0),
        lambda x, i: F.conv_transpose2d(x.view(1, 1, 4, 5), torch.ones(1, 2, 1, 1, device=x.device), output_padding=3),
        lambda x, i: torch.std(i),
        lambda x, i: torch.var(i, 0),
    ],
    ids=["too few rows", "too many columns", "dilation", "padding of the result", "std", "var"],
)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
def test_what_shape_functions_let_pass_is_refused(device: str, refused: Callable[..., Any], dynamic: bool) -> None:
    x, index = torch.ones(4, 5, device=device), torch.arange(3, device=device)
    with pytest.raises(RuntimeError):  # noqa: PT012 - here or where the device is waited for
        torch.compile(refused, dynamic=dynamic)(x, index)
        torch.accelerator.synchronize()


def test_integers_that_meet_floats_are_promoted(device: str) -> None:
    torch._dynamo.reset()
    integers, floats = torch.arange(12).reshape(3, 4), torch.randn(3, 4)
    for function in (torch.hypot, torch.nn.functional.mse_loss):
        found = torch.compile(function)(integers.to(device), floats.to(device))
        torch.testing.assert_close(found.cpu(), function(integers, floats))


@pytest.mark.parametrize(
    "function",
    [
        *(F.softmax, F.gelu, F.silu, F.mish, F.softplus, F.logsigmoid, F.hardswish, F.hardsigmoid, F.hardshrink),
        *(F.softshrink, F.celu, torch.frac, lambda i: torch.round(i, decimals=1)),
        *(lambda i: torch.hypot(i, i), lambda i: torch.logaddexp(i, i), lambda i: torch.lerp(i, i + 1, 0.5)),
        *(lambda i: F.huber_loss(i, i + 1), lambda i: F.smooth_l1_loss(i, i + 1), lambda i: F.nll_loss(i, i[:, 0])),
        *(lambda i: F.interpolate(i[None], 6, mode="linear"), lambda i: F.adaptive_avg_pool2d(i[None], 2)),
        *(lambda i: i.clone().round_(decimals=1), lambda i: i.clone().uniform_()),
        *(lambda i: i.clone().exponential_(), lambda i: i.clone().cauchy_(), lambda i: i.clone().log_normal_()),
    ],
)
@pytest.mark.filterwarnings("ignore:.*runs on the CPU", "ignore:Implicit dimension choice")
def test_integers_where_only_floats_have_a_kernel(device: str, function: Callable[..., Any]) -> None:
    """PyTorch's compiler computes with them, and cuts what comes out."""
    integers = torch.arange(12).reshape(3, 4)
    for refused, where in ((function, "cpu"), (torch.compile(function), device)):
        with pytest.raises(RuntimeError, match="not implemented|(expects|must be) .*floating"):
            refused(integers.to(where))


def test_sizes_of_a_reduction_by_index(device: str) -> None:
    def reduce(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.index_reduce(x, 0, index, source, "amax")

    compiled = torch.compile(reduce, dynamic=True)
    for rows, columns, count in ((4, 5, 3), (9, 2, 30), (1, 7, 2)):
        x, index = torch.randn(rows, columns), torch.randint(rows, (count,))
        source = torch.randn(count, columns)
        expected = reduce(x, index, source)
        assert torch.equal(compiled(*(each.to(device) for each in (x, index, source))).cpu(), expected)
