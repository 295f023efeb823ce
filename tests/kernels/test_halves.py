# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions of bfloat16 and float16 against float64: as near to it as those of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

HALVES = [torch.bfloat16, torch.float16]
#: Odd sizes, empty ones, one row, column or term; sizes that fill blocks, and those just beyond.
SIZES = [
    (3, 5, 7), (70, 65, 130), (9, 1, 30), (33, 513, 97), (2, 256, 40), (4, 301, 33), (40, 31, 1), (1, 65, 100),
    (1, 2, 1), (5, 0, 3), (0, 4, 3), (64, 64, 32),
]  # fmt: skip


def rows(x: Tensor) -> Tensor:
    return x


def columns(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def gaps(x: Tensor) -> Tensor:
    """Neighbours in memory in neither dimension."""
    return torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(-2)[..., ::2]


LAYOUTS: list[Callable[[Tensor], Tensor]] = [rows, columns, gaps]


def distance(x: Tensor, exact: Tensor) -> float:
    """The norm of the difference, relative to that of the exact result."""
    norm = exact.norm().item()
    return (x.double() - exact).norm().item() / (norm or 1.0)


def compare(device: str, function: Callable[..., Tensor | Sequence[Tensor]], *inputs: Tensor) -> None:
    """Our results are about as far from those in float64 as the CPU's."""
    exact = function(*[x.double() for x in inputs])
    expected = function(*inputs)
    found = function(*[x.to(device) for x in inputs])
    for ours, theirs, reference in zip(*map(_as_list, (found, expected, exact)), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        limit = max(1.1 * distance(theirs, reference), torch.finfo(ours.dtype).eps / 2)
        assert distance(ours.cpu(), reference) <= limit


def _as_list(value: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", SIZES)
def test_products(size: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    """However operands lie; what is beyond their rows is NaN."""
    m, k, n = size
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    for left in LAYOUTS:
        for right in LAYOUTS:
            compare(device, torch.mm, left(a), right(b))
    compare(device, torch.addmm, torch.randn(n).to(dtype), a, b)
    compare(device, lambda c, x, y: torch.addmm(c, x, y, beta=2, alpha=0.5), torch.randn(m, n).to(dtype), a, b)
    compare(device, functional.linear, a, columns(b).mT, torch.randn(n).to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_batches(dtype: torch.dtype, device: str) -> None:
    a, b = torch.randn(3, 20, 33).to(dtype), torch.randn(3, 33, 47).to(dtype)
    for left in LAYOUTS:
        for right in LAYOUTS:
            compare(device, torch.bmm, left(a), right(b))
    compare(device, torch.baddbmm, torch.randn(20, 1).to(dtype), a, b)
    compare(device, torch.addbmm, torch.randn(20, 47).to(dtype), a, b)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("m", [1, 2, 4, 5])
def test_rows_that_lie_apart(m: int, dtype: torch.dtype, device: str) -> None:
    """At odd distances, behind an odd element: vectors of them have the alignment of one element."""
    a = torch.randn(m * 131 + 1).to(dtype)[1:].view(m, 131)[:, :77]
    b = torch.randn(40 * 99 + 1).to(dtype)[1:].view(40, 99)[:, :77]
    compare(device, lambda x, y: x @ y.mT, a, b)
    compare(device, lambda x, y: x.mT @ y, a, torch.randn(m * 99 + 1).to(dtype)[1:].view(m, 99)[:, :77])


def _gradients(function: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    def run(*inputs: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        result = function(*leaves)
        weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view(result.shape)
        result.backward(weights.to(torch.bfloat16).to(result))
        return [result.detach(), *(x.grad for x in leaves)]

    return run


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_a_linear(dtype: torch.dtype, device: str) -> None:
    x, weight, bias = torch.randn(4, 9, 33), torch.randn(47, 33), torch.randn(47)
    compare(device, _gradients(functional.linear), *(tensor.to(dtype) for tensor in (x, weight, bias)))


CONVOLUTIONS = {
    "3x3": ((2, 8, 9, 11), (16, 8, 3, 3), {"padding": 1}),
    "3x3/2": ((2, 8, 9, 12), (16, 8, 3, 3), {"padding": 1, "stride": 2}),
    "1x1": ((2, 9, 9, 11), (16, 9, 1, 1), {}),
    "1x1/2": ((2, 8, 12, 11), (16, 8, 1, 1), {"stride": 2}),
    "groups": ((2, 8, 9, 11), (16, 4, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise": ((2, 8, 9, 11), (8, 1, 3, 3), {"padding": 1, "groups": 8}),
    "7x7/2": ((1, 3, 32, 32), (40, 3, 7, 7), {"padding": 3, "stride": 2}),
    "short rows": ((2, 5, 7, 3), (33, 5, 3, 2), {}),
    "dilated": ((1, 7, 33, 40), (9, 7, 3, 3), {"dilation": 2}),
    "line": ((2, 4, 70), (6, 4, 3), {}),
    "volume": ((1, 3, 5, 6, 7), (4, 3, 2, 2, 2), {}),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, dtype: torch.dtype, device: str) -> None:
    """Forward and backward."""
    size, weight_size, options = CONVOLUTIONS[name]
    function = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[len(size) - 2]
    x, weight, bias = torch.randn(size), torch.randn(weight_size) * 0.2, torch.randn(weight_size[0])
    inputs = [tensor.to(dtype) for tensor in (x, weight, bias)]
    compare(device, _gradients(lambda x, w, b: function(x, w, b, **options)), *inputs)


@pytest.mark.parametrize("dtype", HALVES)
def test_transposed_convolution(dtype: torch.dtype, device: str) -> None:
    x, weight = torch.randn(2, 8, 9, 11).to(dtype), (torch.randn(8, 16, 3, 3) * 0.2).to(dtype)
    compare(device, _gradients(lambda x, w: functional.conv_transpose2d(x, w, stride=2, padding=1)), x, weight)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("m", [1, 3, 20])
def test_infinity_and_nan(m: int, dtype: torch.dtype, device: str) -> None:
    """Are where they are on the CPU. The depth is odd: what fills it up must not multiply them."""
    a, b = torch.rand(m, 33).to(dtype) + 1, torch.rand(33, 40).to(dtype) + 1
    a[0, 32], b[32, 3], b[5, 7], b[6, 9], b[7, 9] = torch.inf, 0, torch.nan, torch.inf, -torch.inf
    for left in LAYOUTS:
        for right in LAYOUTS:
            expected = torch.mm(a.float(), b.float())
            found = torch.mm(left(a).to(device), right(b).to(device)).cpu().float()
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=0, equal_nan=True)
    x = torch.zeros(1, 3, 6, 20, dtype=dtype)
    x[0, 2, 3, 7] = torch.inf
    ones = torch.ones(4, 3, 3, 3, dtype=dtype)
    expected = functional.conv2d(x.float(), ones.float(), padding=1)
    found = functional.conv2d(x.to(device), ones.to(device), padding=1).cpu().float()
    torch.testing.assert_close(found, expected)


def test_overflow_rounds_to_infinity(device: str) -> None:
    a = torch.full((20, 40), 300.0, dtype=torch.float16)
    assert torch.isinf(torch.mm(a.to(device), a.mT.to(device)).cpu()).all()
    assert torch.mm(a[:, :1].to(device), a.mT[:1].to(device)).cpu().isinf().all()  # 90000 is beyond float16
    assert (torch.mm(a[:, :1].to(device), (a.mT[:1] / 300).to(device)).cpu() == 300).all()


@pytest.mark.parametrize("m", [1, 3, 20])
def test_subnormal_numbers_of_bfloat16(m: int, device: str) -> None:
    """Count as they are or, with instructions for bfloat16, as zero; no sum is off by more than that."""
    a, b = torch.randn(m, 40).to(torch.bfloat16), torch.randn(40, 33).to(torch.bfloat16)
    small = a.clone()
    small[:, ::3] = 2.0**-130
    found = torch.mm(small.to(device), b.to(device)).cpu().double()
    torch.testing.assert_close(found, small.double() @ b.double(), rtol=1e-2, atol=1e-2)
    large = torch.full((40, 33), 2.0**100, dtype=torch.bfloat16)
    alone = torch.full((m, 40), 2.0**-130, dtype=torch.bfloat16)
    found = torch.mm(alone.to(device), large.to(device)).cpu().double()
    assert found.unique().tolist() in ([0.0], [40 * 2.0**-30])


def test_subnormal_numbers_of_float16_count(device: str) -> None:
    a = torch.full((20, 40), 2.0**-20, dtype=torch.float16)
    b = torch.full((40, 33), 2.0**10, dtype=torch.float16)
    assert (torch.mm(a.to(device), b.to(device)).cpu() == 40 * 2.0**-10).all()
    assert (torch.mm(a[:1].to(device), b.to(device)).cpu() == 40 * 2.0**-10).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_are_rounded_once(dtype: torch.dtype, device: str) -> None:
    """The product, 257 times a number, is not rounded before the bias is added, which leaves that number."""
    scale = 1 if dtype == torch.bfloat16 else 8
    a, b = torch.ones(17, 257, dtype=dtype), torch.full((257, 33), float(scale), dtype=dtype)
    bias = torch.full((33,), -256.0 * scale, dtype=dtype)
    assert (torch.addmm(bias.to(device), a.to(device), b.to(device)).cpu() == scale).all()
