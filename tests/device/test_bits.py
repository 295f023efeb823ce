# SPDX-License-Identifier: Apache-2.0
"""Narrow floats: moved, they keep all their bits, also those of NaN; floats of 8 bits are converted as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional

EIGHTHS = [torch.float8_e4m3fn, torch.float8_e5m2]
#: Those that no kernel reads: the CPU does.
LEFT_OUT = [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
INTEGERS = {1: torch.uint8, 2: torch.int16}
MOVES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "cat": lambda x, i: torch.cat([x, x[:3]]),
    "stack": lambda x, i: torch.stack([x, x.t()], 1),
    "flip": lambda x, i: x.flip(0, 1),
    "roll": lambda x, i: x.roll(3, 1),
    "transposed": lambda x, i: x.t().contiguous(),
    "strided": lambda x, i: x[1::3, ::2].contiguous(),
    "gather": lambda x, i: x.gather(0, i[None].expand(5, 9)),
    "index": lambda x, i: x[i, 1:],
    "index_put": lambda x, i: x.index_put((i,), x[:1]),
    "where": lambda x, i: torch.where(x.view(INTEGERS[x.itemsize]) > 3, x, x.t()),
    "tril": lambda x, i: x.tril(),
    "pad": lambda x, i: functional.pad(x, (1, 2, 0, 3)),
}


def patterns(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Elements of all kinds, one in a few a NaN."""
    signalling = {torch.float16: 0x7C01, torch.bfloat16: 0x7F81, torch.float8_e5m2: 0x7D}.get(dtype, 0x7F)
    values = torch.arange(torch.Size(shape).numel()) * 37
    values = torch.where(values % 3 == 0, signalling + values % 2, values)
    return values.to(INTEGERS[dtype.itemsize]).view(dtype).view(shape)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *EIGHTHS], ids=str)
def test_moves_keep_bits(device: str, dtype: torch.dtype, compiled: bool) -> None:
    def moved(x: Tensor, i: Tensor) -> list[object]:
        return [move(x, i) for move in MOVES.values()]

    x, i = patterns(dtype, (64, 64)), torch.arange(9) * 5
    expected = moved(x.view(INTEGERS[dtype.itemsize]), i)
    found = (torch.compile(moved) if compiled else moved)(x.to(device), i.to(device))
    for name, one, other in zip(MOVES, found, expected, strict=True):
        assert isinstance(one, Tensor)
        assert torch.equal(one.cpu().view(INTEGERS[dtype.itemsize]), other), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *EIGHTHS], ids=str)
def test_views_of_bits(device: str, dtype: torch.dtype) -> None:
    integer = INTEGERS[dtype.itemsize]
    x = patterns(dtype, (256,))
    as_integers, as_floats = torch.compile(lambda y: y.view(integer) ^ 1), torch.compile(lambda y: (y ^ 1).view(dtype))
    assert torch.equal(as_integers(x.to(device)).cpu(), x.view(integer) ^ 1)
    assert torch.equal(as_floats(x.view(integer).to(device)).cpu().view(integer), x.view(integer) ^ 1)


def test_what_is_computed_with_too(device: str) -> None:
    x, y = torch.randn(64, 33, dtype=torch.bfloat16), torch.randn(64, 33, dtype=torch.bfloat16)

    def both(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.cat([x, y]), x + y, torch.where(x > 0, x, y), torch.where(x > 0, y, 0.1), (y * 3).neg()

    for found, expected in zip(torch.compile(both)(x.to(device), y.to(device)), both(x, y), strict=True):
        torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_products_that_are_moved(device: str, dtype: torch.dtype) -> None:
    x, y, mask = torch.randn(32, 48).to(dtype), torch.randn(48, 64).to(dtype), torch.rand(32, 64) > 0.5

    def chosen(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, x @ y, -1.5)

    found = torch.compile(chosen)(x.to(device), y.to(device), mask.to(device))
    torch.testing.assert_close(found.cpu(), chosen(x, y, mask), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", EIGHTHS, ids=str)
def test_eighths(device: str, device_module: ModuleType, dtype: torch.dtype, compiled: bool) -> None:
    def converted(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        narrow = x.to(dtype)
        wide = (y.float(), y[1::3].double(), y.view(16, 16).t().bfloat16())
        return narrow.view(torch.uint8), x[1::3].half().to(dtype).view(torch.uint8), narrow.float() * 2, *wide

    every_bfloat16 = torch.arange(2**16).to(torch.int16).view(torch.bfloat16).float()
    edges = torch.tensor([448.0, 464.0, 464.1, 480.0, 57344.0, 61440.0, 61441.0, 65536.0, 0.00195, 1e-9])
    x, y = torch.cat([every_bfloat16, edges, -edges, edges / 1024]), torch.arange(256, dtype=torch.uint8).view(dtype)
    device_module.set_fallback_policy("error")
    try:
        found = (torch.compile(converted) if compiled else converted)(x.to(device), y.to(device))
    finally:
        device_module.set_fallback_policy("allow")
    for one, other in zip(found, converted(x, y), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", LEFT_OUT, ids=str)
def test_dtypes_without_kernels(device: str, device_module: ModuleType, dtype: torch.dtype, compiled: bool) -> None:
    def computed(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        narrow = (x * 2).to(dtype)
        moved = (
            torch.cat([y, narrow]),
            y.view(4, 64).t()[1:].clone(),
            torch.full((3,), 2.0, dtype=dtype, device=x.device),
        )
        return y == narrow, y.float() + 1, *(each.view(torch.uint8) for each in moved), y

    x, y = torch.arange(256) / 8 + 0.25, torch.arange(256, dtype=torch.uint8).view(dtype)
    device_module.reset_fallbacks()
    found = (torch.compile(computed) if compiled else computed)(x.to(device), y.to(device))
    assert device_module.fallbacks()
    for one, other in zip(found, computed(x, y), strict=True):
        assert torch.equal(one.cpu().float().nan_to_num(), other.float().nan_to_num())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", EIGHTHS, ids=str)
def test_eighths_are_added_to_on_the_cpu(
    device: str, device_module: ModuleType, dtype: torch.dtype, compiled: bool
) -> None:
    def added(x: Tensor, i: Tensor) -> Tensor:
        return x.clone().index_put_((i,), x[:2], accumulate=True).view(torch.uint8)

    x, i = torch.tensor([0.5, 1, 2, 4]).to(dtype), torch.tensor([0, 2])
    device_module.reset_fallbacks()
    found = (torch.compile(added) if compiled else added)(x.to(device), i.to(device))
    assert torch.equal(found.cpu(), added(x, i))
    assert any("index_put" in name for name in device_module.fallbacks())
