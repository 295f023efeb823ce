# SPDX-License-Identifier: Apache-2.0
"""Numbers where operators have tensors: `torch.copysign(x, 2)`, and with `out=`."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

#: Binary operators that have no overload for numbers, or none with `out=`.
_OPERATORS = [
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
    "fmod", "remainder", "copysign", "xlogy", "special.zeta", "special.xlog1py",
]  # fmt: skip


def _operator(name: str):  # type: ignore[no-untyped-def]
    return getattr(torch.special, name[8:]) if name.startswith("special.") else getattr(torch, name)


@pytest.mark.parametrize("name", _OPERATORS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("number", [2, 1.7, True])
@pytest.mark.parametrize("values", [[1, 2, 3, 5, 7], 3], ids=["vector", "scalar"])
def test_numbers_promote_as_on_the_cpu(
    device: str, name: str, dtype: torch.dtype, number: float, values: list[int] | int
) -> None:
    operator = _operator(name)
    x = torch.tensor(values, dtype=dtype)
    try:
        expected = operator(x, number)
    except (RuntimeError, NotImplementedError, TypeError) as refusal:
        with pytest.raises(type(refusal)):
            operator(x.to(device), number)
        return
    result = operator(x.to(device), number)
    torch.testing.assert_close(result.cpu(), expected)
    out = torch.empty_like(expected, device=device)
    operator(x.to(device), number, out=out)
    torch.testing.assert_close(out.cpu(), expected)


@pytest.mark.parametrize("name", _OPERATORS)
@pytest.mark.parametrize("number", [200, -200, 70_000])
def test_numbers_that_the_dtype_cannot_hold(device: str, name: str, number: int) -> None:
    """A function that computes floats takes them as they are."""
    for dtype in (torch.int8, torch.uint8, torch.int16):
        x = torch.tensor([1, 2, 3], dtype=dtype)
        try:
            expected = _operator(name)(x, number)
        except RuntimeError as refusal:
            with pytest.raises(type(refusal)):
                _operator(name)(x.to(device), number)
            continue
        torch.testing.assert_close(_operator(name)(x.to(device), number).cpu(), expected, equal_nan=True)


def test_another_number_needs_no_other_plan(device: str, device_module) -> None:  # type: ignore[no-untyped-def]
    x = torch.arange(1.0, 9.0, device=device)
    torch.xlogy(x, 2.5)
    misses = device_module.compile_stats()["misses"]
    for number in (3.5, 4.25, 7.125):
        torch.testing.assert_close(torch.xlogy(x, number).cpu(), torch.xlogy(x.cpu(), number))
    assert device_module.compile_stats()["misses"] == misses


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_a_number_among_edges(device: str, dtype: torch.dtype, compiled: bool) -> None:
    """It is compared in the dtype of both, so that it is found where it is an edge."""
    edges = torch.tensor([0.05, 0.1, 0.15, 0.3, 2.0] if dtype.is_floating_point else [0, 1, 2, 5, 9], dtype=dtype)
    there = edges.to(device)
    for number in (0.05, 0.1, 0.3, 1.0, 2):
        for right in (False, True):

            def search(edges: torch.Tensor, number: float = number, right: bool = right) -> list[torch.Tensor]:
                found = torch.searchsorted(edges, number, right=right)
                return [found, torch.bucketize(number, edges, right=right, out_int32=True)]

            found = (torch.compile(search) if compiled else search)(there)
            for one, other in zip(found, search(edges), strict=True):
                assert one.dtype == other.dtype and torch.equal(one.cpu(), other), (number, right)


#: Operators of a tensor and a number, and what PyTorch makes of such.
_WITH_A_NUMBER: dict[str, Callable[[Tensor, float], Tensor]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv")},
    "rsub": lambda x, number: number - x,
    "remainder": torch.remainder,
    "remainder of the number": lambda x, number: torch.remainder(number, x),
    "fmod": torch.fmod,
    "floor": lambda x, number: torch.div(x, number, rounding_mode="floor"),
    "clamp": lambda x, number: x.clamp(-0.3, number),
    "where": lambda x, number: torch.where(x <= number, x, -x),
    "isin": torch.isin,
    "hardshrink": functional.hardshrink,
    "threshold": lambda x, number: functional.threshold(x, number, 20.1),
    "softshrink": functional.softshrink,
    "lerp": lambda x, number: torch.lerp(x, x.flip(0), number),
    "addcmul": lambda x, number: torch.addcmul(x, x, x, value=number),
    "addcdiv": lambda x, number: torch.addcdiv(x, x, x.flip(0), value=number),
    "full": lambda x, number: torch.full_like(x, number) == number,
    "no dimensions": lambda x, number: x == torch.tensor(number, device=x.device),
    "on the CPU": lambda x, number: x < torch.tensor(number, dtype=torch.float64),
}


def _halves(dtype: torch.dtype) -> Tensor:
    return torch.tensor([0.1, 1.7, 0.3, -0.3, 2048, 256, 1e-3, 1.0, 1 / 3, 5.5, -2.5]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", _WITH_A_NUMBER)
def test_numbers_are_rounded_as_on_the_cpu(device: str, name: str, dtype: torch.dtype) -> None:
    x, operation = _halves(dtype), _WITH_A_NUMBER[name]
    for number in (0.1, 1.7, 0.3, 1e-3, 2049, 257):
        assert torch.equal(operation(x.to(device), number).cpu(), operation(x, number)), number


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_are_rounded_in_graphs(device: str, dtype: torch.dtype) -> None:
    def every(x: Tensor) -> list[Tensor]:
        results = [operation(x, number) for operation in _WITH_A_NUMBER.values() for number in (0.1, 2049)]
        return [*results, torch.arange(2047, 2052, device=x.device).to(dtype).long()]

    torch._dynamo.reset()
    x = _halves(dtype)
    for result, expected in zip(torch.compile(every)(x.to(device)), every(x), strict=True):
        assert torch.equal(result.cpu(), expected)


def test_conversions_round_in_graphs(device: str) -> None:
    """Each of two conversions in a row, and what is left of a number that is taken apart."""
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2, torch.int32]

    def every(x: Tensor) -> list[Tensor]:
        pairs = [x.to(first).to(second) for first, second in itertools.permutations(dtypes, 2)]
        high = x.bfloat16().float()
        return [*pairs, *(each.float() + 1 for each in pairs), high, x - high, x.half().exp()]

    torch._dynamo.reset()
    x = torch.linspace(-300, 300, 997)
    for place, (result, expected) in enumerate(zip(torch.compile(every)(x.to(device)), every(x), strict=True)):
        assert torch.equal(result.cpu(), expected), place


def test_indices_are_rounded_to_floats(device: str) -> None:
    torch._dynamo.reset()
    places = torch.compile(lambda x: torch.arange(2**24, 2**24 + 5, device=x.device).float().long())
    assert torch.equal(places(torch.ones(2, device=device)).cpu(), torch.arange(2**24, 2**24 + 5).float().long())


def test_numbers_scattered_into_a_constant_keep_their_digits(device: str) -> None:
    def scattered(places: Tensor) -> list[Tensor]:
        zeros = torch.zeros(3, 5, dtype=torch.float64, device=places.device)
        return [zeros.scatter(1, places, 0.1), (zeros + 0.1).scatter(-1, places, 2)]

    places = torch.tensor([[1], [0], [4]])
    torch._dynamo.reset()
    for found, wanted in zip(torch.compile(scattered)(places.to(device)), scattered(places), strict=True):
        assert torch.equal(found.cpu(), wanted)


def test_sums_of_equal_numbers_have_their_dtype(device: str) -> None:
    def sums(x: Tensor) -> list[Tensor]:
        whole = torch.full((5,), 3, dtype=torch.int32, device=x.device)
        return [whole.cumsum(0, dtype=d) for d in (torch.float16, torch.int32, torch.float64, torch.uint8)]

    torch._dynamo.reset()
    x = torch.ones(2)
    for result, expected in zip(torch.compile(sums)(x.to(device)), sums(x), strict=True):
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0)


MULTIPLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: torch.add(x, y, alpha=0.3),
    "sub": lambda x, y: torch.sub(x, y, alpha=0.7),
    "number": lambda x, y: torch.add(x, 3.3, alpha=0.7),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("operator", MULTIPLES)
def test_multiples_are_added_before_they_are_rounded(operator: str, compiled: bool, device: str) -> None:
    torch._dynamo.reset()
    function = torch.compile(MULTIPLES[operator]) if compiled else MULTIPLES[operator]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x, y = ((torch.arange(512.0) * factor).sin().to(dtype) * 3 for factor in (1, 0.7))
        expected = MULTIPLES[operator](x, y)
        assert torch.equal(function(x.to(device), y.to(device)).cpu(), expected), dtype


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_factors_without_dimensions(dtype: torch.dtype, compiled: bool, device: str) -> None:
    """The CPU rounds them to the dtype of the halves that they meet if they come first, not if they come second."""

    def results(x: Tensor, factor: Tensor) -> list[Tensor]:
        modes = (None, "floor", "trunc")
        return [x * factor, factor * x, factor / x, *(torch.div(x, factor, rounding_mode=mode) for mode in modes)]

    ours = torch.compile(results, dynamic=False) if compiled else results
    x = torch.linspace(-4, 4, 999).to(dtype)
    for factor in (torch.tensor(0.3), torch.tensor(0.3, dtype=torch.float64), torch.tensor(12345)):
        found = ours(x.to(device), factor.to(device))
        torch.testing.assert_close(found, results(x, factor), rtol=0, atol=0, check_device=False, equal_nan=True)


def test_graphs_compute_products_with_zero_and_divide_by_constants(device: str) -> None:
    x = torch.tensor([math.nan, math.inf, -1.0, 2.5, 7.0], dtype=torch.float64)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * 0, 0 * x, x / 3.0, x.float() / 3, x[3:].mean() / 7, torch.div(x, 3.0, rounding_mode="trunc")]

    for ours, theirs in zip(torch.compile(function)(x.to(device)), function(x), strict=True):
        assert_same_bits(ours.cpu(), theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_quotients_of_halves_are_rounded_as_the_cpus(dtype: torch.dtype, device: str) -> None:
    """Each step of rounding down, and the quotient before it is cut off, also where a number comes first."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 4000, generator=generator) * torch.tensor([[100.0], [0.1]])).to(dtype)
    for mode in ("floor", "trunc"):
        for one, other in ((a, b), (torch.full_like(a, torch.inf), b), (1, b), (a, 0.1)):
            moved = [x.to(device) if isinstance(x, torch.Tensor) else x for x in (one, other)]
            assert_same_bits(torch.div(*moved, rounding_mode=mode).cpu(), torch.div(one, other, rounding_mode=mode))


def assert_same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Zeros have the same signs; of NaN, bits do not count."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert not ((ours.signbit() != theirs.signbit()) & ~theirs.isnan()).any()
