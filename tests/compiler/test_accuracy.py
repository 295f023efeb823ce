# SPDX-License-Identifier: Apache-2.0
"""Functions and reductions against float64: what once was wrong, and part of ``tools/accuracy.py`` by rotating seed."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import accuracy  # noqa: E402
import accuracy_functions  # noqa: E402
import accuracy_reductions  # noqa: E402

#: A new part of the functions every day; a failure names it.
SEED = int(time.time()) // 86400
#: Functions tried in each run of the tests.
SOME = 3
COUNTS = {"float32": 60_000, "float64": 4096, "float16": 1 << 16, "bfloat16": 1 << 16}
PLAN = accuracy.Plan(COUNTS, SEED, ("vector", "scalar"))
HALVES = (torch.float16, torch.bfloat16)
Function = Callable[[torch.Tensor], torch.Tensor]


def _some(names: list[str]) -> list[str]:
    names = [name for name in names if not accuracy_functions.FUNCTIONS[name].known]
    start = SEED * SOME % len(names)
    return (names + names)[start : start + SOME]


def test_some_functions_by_rotating_seed() -> None:
    names = ["sin", "tan", *_some(list(accuracy_functions.FUNCTIONS))]
    rows = list(accuracy.measure(names, ["float32", "float16"], gradients=False, plan=PLAN))
    assert len(rows) >= 2 * len(PLAN.forms)
    assert not [accuracy.describe(row) for row in rows if not row.holds], f"seed {SEED}"


@pytest.mark.parametrize("name", ["sum", "var", "columns"])
def test_some_reductions(name: str, device: str) -> None:
    (reduction,) = [r for r in accuracy_reductions.REDUCTIONS if r.name == name]
    for kind in ("shifted", "normal"):
        for shape in ((256, 1000), (16, 20_011)):
            (row,) = accuracy_reductions.compare([reduction], kind, shape, device)
            assert row.holds, accuracy_reductions.describe(row)


def test_the_judge_sees_what_is_wrong() -> None:
    """One unit off, another sign of zero, NaN, and infinity where there is none."""
    exact = np.array([1.0, 0.0, 2.0, 3e38])
    ours = np.array([1.0 + 2.0**-23, -0.0, math.nan, math.inf])
    errors = accuracy.Standard(exact, "float32").errors(ours)
    assert errors[0] == 1 and errors[3] > 1e6
    assert accuracy.wrong_kind(ours, exact, exact).tolist() == [False, True, True, False]


@pytest.mark.parametrize("function", [torch.sin, torch.cos, torch.tan], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=str)
def test_large_arguments_leave_their_neighbours_alone(function: Function, dtype: torch.dtype, device: str) -> None:
    mixed = torch.tensor([1e10, 1e-6, 1e-3, 0.5, math.inf, -1e-6, 3e38, 2.0, math.nan, 6e4, -0.0, 1e7] * 5)
    x = mixed.to(dtype)
    expected = function(x.double())
    for result in (function(x.to(device)), torch.compile(function)(x.to(device))):
        near = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 0.0}
        torch.testing.assert_close(result.cpu(), expected.to(dtype), equal_nan=True, **near)
        assert torch.equal(result.cpu()[10::12].signbit(), x[10::12].signbit()) or function is torch.cos


def test_tiny_arguments(device: str) -> None:
    x = torch.tensor([1.2e-38, -1.2e-38, 1e-45, -1e-45] * 5)
    torch.testing.assert_close(torch.sinc(x.to(device)).cpu(), torch.ones(20))
    torch.testing.assert_close(torch.digamma(x.to(device)).cpu(), torch.digamma(x))


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 7, 1000])
def test_variance_far_from_zero(size: int, device: str) -> None:
    x = torch.rand(size) + 1e4
    ours, exact = x.to(device), x.double()
    torch.testing.assert_close(ours.var().cpu().double(), exact.var(), rtol=4e-7, atol=0)
    torch.testing.assert_close(ours.std().cpu().double(), exact.std(), rtol=4e-7, atol=0)
    torch.testing.assert_close(ours.mean().cpu().double(), exact.mean(), rtol=1e-7, atol=0)
    rows = x[: size // 100 * 100].view(100, -1)
    for dim in (0, 1):
        expected = rows.double().var(dim)
        torch.testing.assert_close(rows.to(device).var(dim).cpu().double(), expected, rtol=5e-7, atol=0)


def test_variance_of_equal_numbers(device: str) -> None:
    for count in (7, 100, 5000):
        assert float(torch.full((count,), 0.1, device=device).std()) == 0
    assert torch.ones(3, device=device).div(0).var().isnan()


_DIVISIONS: list[Callable[..., torch.Tensor]] = [
    lambda x, d: x // d,
    lambda x, d: x % d,
    lambda x, d: torch.div(x, d, rounding_mode="trunc"),
    lambda x, d: torch.div(x, torch.full_like(x, d), rounding_mode="trunc"),
]


def test_floor_division_by_numbers_and_tensors(device: str) -> None:
    assert (torch.tensor([83], device=device) // 0.1).tolist() == [829.0]
    for dtype in (torch.float32, torch.float64, *HALVES, torch.int64, torch.uint8):
        x = torch.arange(0, 200).to(dtype)
        if dtype.is_floating_point:
            x = (torch.arange(-400, 400) * 0.37).to(dtype)
        for divisor in (0.1, 0.3, 7.0, 3, *(() if dtype == torch.uint8 else (-7,))):
            for function in _DIVISIONS[: 4 if dtype.is_floating_point else 3]:
                result, expected = function(x.to(device), divisor), function(x, divisor)
                assert result.dtype == expected.dtype
                assert torch.equal(result.cpu(), expected), (dtype, divisor)


def test_compiled_division_rounds_as_single_operators_do(device: str) -> None:
    x = torch.arange(-50, 300, device=device).float()
    for function in (lambda x: x // 0.1, lambda x: torch.div(x.half(), 0.3, rounding_mode="floor")):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(function)(x).cpu(), function(x.cpu()))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_next_half(dtype: torch.dtype, device: str) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    for goal in (math.inf, -math.inf, 0.0):
        other = torch.full_like(x, goal)
        result, expected = torch.nextafter(x.to(device), other.to(device)).cpu(), torch.nextafter(x, other)
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_ldexp(device: str) -> None:
    for left in (torch.int32, torch.float32, torch.float16, torch.float64):
        for right in (torch.int32, torch.int64, torch.float64, torch.float32):
            a, b = torch.tensor([3, -4, 0]).to(left), torch.tensor([1, 2, 7]).to(right)
            result, expected = torch.ldexp(a.to(device), b.to(device)), torch.ldexp(a, b)
            assert result.dtype == expected.dtype and torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_erfcx(dtype: torch.dtype, device: str) -> None:
    x = torch.tensor([10.0, 100.0, 30.0, 1e10, 0.0, -0.0, -3.0, -30.0, math.inf, -math.inf, math.nan, 0.3] * 2).to(
        dtype
    )
    expected = torch.special.erfcx(x.double()).to(dtype)
    result = torch.special.erfcx(x.to(device)).cpu()
    torch.testing.assert_close(result, expected, rtol=16 * torch.finfo(dtype).eps, atol=0, equal_nan=True)


def test_signs_of_zeros_and_products_that_overflow(device: str) -> None:
    zeros = torch.tensor([-0.0, 0.0] * 9)
    assert torch.equal(torch.relu(zeros.to(device)).cpu().signbit(), torch.relu(zeros).signbit())
    small = torch.linspace(-0.4, 0.4, 33)
    shrunk = torch.nn.functional.softshrink(small.to(device)).cpu()
    assert torch.equal(shrunk.signbit(), torch.nn.functional.softshrink(small).signbit())
    large = torch.full((20,), 2.6e38)
    factor = torch.full((20,), -1.3)
    torch.testing.assert_close(
        torch.addcmul(large.to(device), large.to(device), factor.to(device)).cpu(), torch.addcmul(large, large, factor)
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_bounds_of_halves_are_rounded_as_on_the_cpu(dtype: torch.dtype, device: str) -> None:
    for bound in (0.1, 0.3, 0.7):
        x = torch.tensor(bound).to(dtype) * torch.tensor([-1.1, -1.0, 0.0, 1.0, 1.1], dtype=dtype)
        shrunk, expected = torch.nn.functional.softshrink(x.to(device), bound), torch.nn.functional.softshrink(x, bound)
        torch.testing.assert_close(shrunk.cpu(), expected, rtol=0, atol=0)


def test_text_for_simt_devices(tmp_path: Path) -> None:
    """In a process of its own, whose compiler sees such a device."""
    command = [sys.executable, str(TOOLS / "accuracy.py"), "--forms", "simt", "--count", "20000", "--dtypes", "float32"]
    command += ["--no-gradients", "--no-reductions", "--only", "sin", "tan", "special.erfcx", "div_floor"]
    environment = os.environ | {"OUTBOARD_CACHE_DIR": str(tmp_path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 rows, 0 out of bounds" in result.stdout


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=str)
def test_a_zero_within_limits_keeps_its_sign(dtype: torch.dtype, device: str) -> None:
    x = torch.tensor([-0.0, 0.0, math.nan, -1.0, 7.0] * 13).to(dtype)
    functions: list[Function] = [
        lambda x: x.clamp(0.0, 6.0), lambda x: x.clamp_min(0.0), lambda x: x.clamp_max(-0.0), torch.nn.functional.relu6,
        torch.relu,
    ]  # fmt: skip
    for function in functions:
        result, expected = function(x.to(device)).cpu(), function(x)
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(result.signbit(), expected.signbit())


def test_limits_that_are_numbers_need_no_host(device: str) -> None:
    module = torch.get_device_module(device)
    x = torch.randn(100, device=device)
    module.reset_fallbacks()
    for limits in ((0.0, 6.0), (None, 1.0), (-1.0, None)):
        torch.testing.assert_close(x.clamp(*limits).cpu(), x.cpu().clamp(*limits))
    assert not module.fallbacks()


_GRADIENTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "hardswish": torch.ops.aten.hardswish_backward,
    "hardshrink": lambda grad, x: torch.ops.aten.hardshrink_backward(grad, x, 0.5),
    "softshrink": lambda grad, x: torch.ops.aten.softshrink_backward(grad, x, 0.5),
    "mish": torch.ops.aten.mish_backward,
}


@pytest.mark.parametrize("name", _GRADIENTS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_gradients_stay_on_the_device(name: str, dtype: torch.dtype, device: str) -> None:
    x = torch.tensor([-0.0, -3.0, 3.0, -0.5, 0.5, 6.0, -1.1953125, 88.0] * 16).to(dtype)
    grad = torch.linspace(0.5, 2.0, len(x)).to(dtype)
    module, function = torch.get_device_module(device), _GRADIENTS[name]
    module.reset_fallbacks()
    result = function(grad.to(device), x.to(device)).cpu()
    near = {"rtol": torch.finfo(dtype).eps, "atol": 4e-7}
    torch.testing.assert_close(result, function(grad, x), equal_nan=True, **near)
    assert not module.fallbacks()


def test_doubles_near_the_end_of_their_range(device: str) -> None:
    """The largest exponential, the smallest, and tangents of all sizes."""
    x = torch.tensor([709.782712893384, 709.78271289338, -745.1, -708.4, math.inf, -math.inf, math.nan, 1.0] * 3)
    x = x.double()
    torch.testing.assert_close(x.to(device).exp().cpu(), x.exp(), rtol=3e-16, atol=5e-324, equal_nan=True)
    x = torch.tensor([1e5, -8.179949567853551e71, 79.3206000088625, 1e308, math.pi / 2, math.inf, 3e-320] * 5).double()
    for y in (x, x[:3]):
        torch.testing.assert_close(y.to(device).tan().cpu(), y.tan(), rtol=3e-16, atol=0, equal_nan=True)


def test_logarithms_and_digamma_where_terms_cancel(device: str) -> None:
    x, tiny = torch.full((20,), 2.0**100), torch.full((20,), 1e-44)
    torch.testing.assert_close(torch.special.xlog1py(x.to(device), tiny.to(device)).cpu(), x * tiny)
    x = torch.tensor([-1.5734984874725342, -0.504083, 1.4616321, -2.6107, 9.5] * 5)
    torch.testing.assert_close(x.to(device).digamma().cpu(), x.double().digamma().float(), rtol=1e-6, atol=0)


def test_the_gradient_of_hardswish_around_its_zero(device: str) -> None:
    x = torch.full((20,), -1.4999990463256836, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(torch.nn.functional.hardswish(x).sum(), x)
    torch.testing.assert_close(grad.cpu(), torch.full((20,), 3.178914387835796e-07), rtol=1e-6, atol=0)
