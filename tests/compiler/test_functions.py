# SPDX-License-Identifier: Apache-2.0
"""Functions that kernels bring with them: errors over the whole range of float, and what is not ordinary."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import sympy
import torch

from outboard.compiler.loops.nest import LoopKernel, Region, Root, Store, Value
from outboard.compiler.loops.passes import find_normal_cdf

FLOAT = torch.float32
UNIT = 2.0**-24


def whole_range(limit: float) -> torch.Tensor:
    """Every 997th float from the tiny ones to ``limit``, with both signs, and what is special."""
    last = int(torch.tensor(limit).view(torch.int32))
    positive = torch.arange(1, last, 997, dtype=torch.int32).view(FLOAT)
    patterns = torch.tensor([0x7FC00001, 0x7F800001, -4194303], dtype=torch.int32).view(FLOAT)  # all are NaN
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, -3e38])
    return torch.cat([positive, -positive, patterns, special])


def units_in_the_last_place(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error; exact results that are no floats, and not tiny ones, are left out."""
    fits = (exact.abs() < torch.finfo(FLOAT).max) & (exact.abs() > 2.0**-126)
    exact = exact[fits]
    exponents = torch.frexp(exact).exponent
    return float(((result[fits].double() - exact).abs() / torch.ldexp(torch.ones_like(exact), exponents - 24)).max())


def test_exp(device: str) -> None:
    x = whole_range(110.0)
    result, exact = x.to(device).exp().cpu(), x.double().exp()
    assert units_in_the_last_place(result, exact) < 1.0
    expected = x.exp()
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=2.0**-149, equal_nan=True)  # also below 2^-126
    assert torch.equal(result.isinf(), expected.isinf())
    assert torch.equal(result == 0, expected == 0)


@pytest.mark.parametrize("count", [1, 16, 37])
def test_one_unusual_argument_does_not_change_its_neighbours(count: int, device: str) -> None:
    x = torch.linspace(-3, 3, count)
    expected = x.to(device).exp().cpu()
    for unusual in (math.nan, math.inf, -math.inf, -100.0, 88.5):
        for place in {0, count // 2, count - 1}:
            changed = x.clone()
            changed[place] = unusual
            result = changed.to(device).exp().cpu()
            torch.testing.assert_close(result[place], changed[place].exp(), equal_nan=True)
            rest = torch.arange(count) != place
            assert torch.equal(result[rest], expected[rest])


def test_gelu_and_its_gradient(device: str) -> None:
    x = whole_range(50.0)
    gelu = torch.nn.functional.gelu
    exact = x.double() * torch.special.ndtr(x.double())
    error = (gelu(x.to(device)).cpu().double() - exact).abs()
    ordinary = x.abs() < 50
    assert float((error / x.abs().double().clamp(min=1))[ordinary].max()) < 4 * UNIT
    beyond = torch.tensor([-1e4, -100.0, -6.0, math.nan, -math.inf] * 7)
    torch.testing.assert_close(gelu(beyond.to(device)).cpu(), gelu(beyond), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(gelu(-beyond[:3].to(device)).cpu(), -beyond[:3], rtol=0, atol=0)

    x = torch.linspace(-8, 8, 10_007)
    expected = x.clone().requires_grad_()
    result = x.to(device).requires_grad_()
    gelu(expected).sum().backward()
    gelu(result).sum().backward()
    assert result.grad is not None
    torch.testing.assert_close(result.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-6)


def gelu_like(half: float = 0.5, scale: float = math.sqrt(0.5), again: bool = False) -> LoopKernel:
    """``(x * half) * (erf(x * scale) + 1)``; ``again``: the sum is stored, too."""
    index = sympy.Symbol("i")
    x = Value("t0", "load", FLOAT, buffer="a", index=index)
    constants = [Value(f"c{number}", "constant", FLOAT, constant=c) for number, c in enumerate((half, scale, 1.0))]
    left = Value("t1", "mul", FLOAT, (x, constants[0]))
    scaled = Value("t2", "mul", FLOAT, (x, constants[1]))
    error = Value("t3", "erf", FLOAT, (scaled,))
    total = Value("t4", "add", FLOAT, (error, constants[2]))
    product = Value("t5", "mul", FLOAT, (left, total))
    body: list[Value | Store] = [x, *constants, left, scaled, error, total, product, Store("b", index, product)]
    if again:
        body.append(Store("c", index, total))
    roots = [Root("x", sympy.Symbol("s0"), False, 64)]
    buffers = {"a": FLOAT, "b": FLOAT, "c": FLOAT}
    return LoopKernel(roots, {}, [Region(False, body)], buffers, {"b", "c"}, {}, set())


def operations(kernel: LoopKernel) -> list[str]:
    return [s.op for s in kernel.statements() if isinstance(s, Value) and s.op != "constant"]


def test_the_normal_distribution_is_recognised() -> None:
    kernel = gelu_like()
    find_normal_cdf(kernel)
    assert operations(kernel) == ["load", "normal_cdf", "mul"]


@pytest.mark.parametrize(
    "kernel",
    [gelu_like(half=0.25), gelu_like(scale=1.0), gelu_like(again=True)],
    ids=["no half", "another scale", "the sum is needed"],
)
def test_other_uses_of_erf_stay(kernel: LoopKernel) -> None:
    before = operations(kernel)
    find_normal_cdf(kernel)
    assert operations(kernel) == before


def test_a_row_divided_by_one_number(device: str) -> None:
    x = whole_range(3.4e38)[::101].repeat(2)
    x[:8] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3.4e38, -3.4e38, 1e-45])
    divisors = torch.tensor(
        [1.0, 3.0, -3.0, 0.7, 1024.0, 7e-5, -7e-5, 1e29, 3.4e38, 1e-38, 0.0, -0.0, math.inf, math.nan]
    )
    result, expected = (x.to(device) / divisors.to(device)[:, None]).cpu(), x / divisors[:, None]
    ordinary = ((x.abs() > 2.0**-100) & (expected.abs() >= 2.0**-126)) | (expected == 0)
    assert torch.equal(result[ordinary], expected[ordinary])
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.signbit()[~expected.isnan()], expected.signbit()[~expected.isnan()])
    # What is left over of a tiny numerator is no float: the last bit may be another.
    torch.testing.assert_close(result, expected, rtol=2 * UNIT, atol=2.0**-149, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("count", [7, 16, 64, 200, 1021])
def test_nan_is_the_least_and_the_greatest(dtype: torch.dtype, count: int, device: str) -> None:
    x = torch.randn(6, count).to(dtype)
    x[1, 0] = x[2, count // 2] = x[3, -1] = math.nan
    x[2, count // 2] = -x[2, count // 2]  # the other sign
    x[4, count // 3], x[4, count // 2] = math.inf, -math.inf
    x[5] = -math.inf
    for function in (torch.amax, torch.amin):
        for dims in ((1,), (0, 1)):
            torch.testing.assert_close(
                function(x.to(device), dims).cpu(), function(x, dims), rtol=0, atol=0, equal_nan=True
            )
    softmax = x.to(device).softmax(1).cpu()
    torch.testing.assert_close(softmax, x.softmax(1), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_all_halves_are_converted(dtype: torch.dtype, device: str) -> None:
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    torch.testing.assert_close(halves.to(device).float().cpu(), halves.float(), rtol=0, atol=0, equal_nan=True)
    floats = torch.cat([halves.float() * (1 + step * 2.0**-13) for step in range(-2, 3)])
    result = floats.to(device).to(dtype).cpu()
    torch.testing.assert_close(result, floats.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("exponent", [2, 3, -1, -2, 0.5, -0.5, 2.0, 0, 1, 4, 2.5, -3.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_powers(dtype: torch.dtype, exponent: float, device: str) -> None:
    special = [0.0, math.inf, math.nan, 1e30, 1e-30]
    if dtype != torch.float16 or abs(exponent) != 0.5:  # ATen has another square root of -0.0 and -inf for halves
        special += [-0.0, -math.inf]
    x = torch.cat([torch.randn(53), torch.tensor(special)]).to(dtype)
    torch.testing.assert_close(x.to(device).pow(exponent).cpu(), x.pow(exponent), equal_nan=True)


def test_usual_powers_are_products(device: str) -> None:
    """They are the squares of every norm: bits of products, not of a function that must find logarithms."""
    x = torch.randn(1000, device=device)
    for exponent, expected in ((2, x * x), (3, x * x * x), (-1, 1 / x), (0.5, x.sqrt())):
        assert torch.equal(x.pow(exponent).nan_to_num(7).cpu(), expected.nan_to_num(7).cpu())


def test_powers_of_positive_numbers_are_rounded_once(device: str) -> None:
    """The whole range of results, from nothing to infinity."""
    x = torch.exp2(torch.empty(1 << 16).uniform_(-149, 128)).clamp(1e-45, 3.4e38)
    y = torch.empty(1 << 16).uniform_(-160, 140) / x.log2()
    y[::7] = torch.randn(y[::7].shape) * 3
    exact = x.double() ** y.double()
    expected = exact.float()
    result = (x.to(device) ** y.to(device)).cpu()
    assert torch.equal(result.isinf(), expected.isinf()) and not result.isnan().any()
    finite = ~expected.isinf()
    unit = torch.nextafter(expected, torch.tensor(math.inf)).double() - expected.double()
    assert ((result.double() - exact).abs() / unit)[finite].max() < 0.51


def test_powers_of_what_is_special(device: str) -> None:
    numbers = [0.0, -0.0, 1.0, -1.0, 2.0, -2.5, 3.0, 0.5, 1e-45, 3.4e38, -3.4e38, math.inf, -math.inf, math.nan]
    x, y = torch.tensor(numbers)[:, None], torch.tensor([*numbers, 2.5, -3.0, 1e30])[None]
    x, y = (tensor.expand(len(numbers), len(numbers) + 3).reshape(-1) for tensor in (x, y))
    torch.testing.assert_close((x.to(device) ** y.to(device)).cpu(), x**y, equal_nan=True)
    among_others = torch.full((x.numel(), 16), 1.5)
    among_others[:, 5] = x
    result = (among_others.to(device) ** y[:, None].to(device)).cpu()
    torch.testing.assert_close(result, among_others ** y[:, None], equal_nan=True)


#: Views of halves as integers and back, and one index without dimensions.
REINTERPRETED: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "float16 as int16": (lambda x: x.view(torch.int16) + 1, [torch.randn(37).half()]),
    "what is computed as int16": (lambda x: (x * 2).view(torch.int16), [torch.randn(37).half()]),
    "bfloat16 as int16": (lambda x: x.view(torch.int16) & -2, [torch.randn(37).bfloat16()]),
    "int16 as float16": (lambda x: x.view(torch.float16) + 1, [torch.randn(37).half().view(torch.int16)]),
    "int16 as bfloat16": (lambda x: (x & -2).view(torch.bfloat16), [torch.randn(37).bfloat16().view(torch.int16)]),
    "float16 as bfloat16": (lambda x: (x + 1).view(torch.bfloat16) * 2, [torch.randn(37).half()]),
    "every second": (lambda x: x[::2].view(torch.int16) + 1, [torch.randn(37).half()]),
    "index_add": (lambda x, y, i: x.index_add(0, i, y[:1]), [torch.randn(3), torch.randn(3), torch.tensor(2)]),
}


@pytest.mark.parametrize("name", REINTERPRETED)
def test_bits_of_halves(device: str, name: str) -> None:
    function, arguments = REINTERPRETED[name]
    found = torch.compile(function)(*(x.to(device) for x in arguments)).cpu()
    expected = function(*arguments)
    assert found.dtype == expected.dtype and torch.equal(found, expected)
