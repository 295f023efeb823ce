# SPDX-License-Identifier: Apache-2.0
"""Histograms on the device: bincount and histc, against the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch


@pytest.fixture(autouse=True)
def _no_fallbacks(device_module: ModuleType) -> Iterator[None]:
    device_module.set_fallback_policy("error")
    yield
    device_module.set_fallback_policy("allow")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("minlength", [0, 3, 200])
def test_bincount(device: str, dtype: torch.dtype, minlength: int) -> None:
    x = torch.randint(0, 100, (5000,)).to(dtype)
    expected = torch.bincount(x, minlength=minlength)
    assert torch.equal(torch.bincount(x.to(device), minlength=minlength).cpu(), expected)
    assert torch.equal(
        torch.bincount(x.to(device)[::3], minlength=minlength).cpu(), torch.bincount(x[::3], minlength=minlength)
    )
    for weights in (torch.rand(5000), torch.rand(5000).double(), torch.randint(0, 9, (5000,)), torch.rand(5000).half()):
        found = torch.bincount(x.to(device), weights.to(device), minlength)
        torch.testing.assert_close(found.cpu(), torch.bincount(x, weights, minlength))
    empty = torch.empty(0, dtype=dtype)
    assert torch.equal(
        torch.bincount(empty.to(device), minlength=minlength).cpu(), torch.bincount(empty, minlength=minlength)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("range_", [(0, 0), (-1, 1), (-0.5, 3.25), (2, 2)])
@pytest.mark.parametrize("bins", [1, 7, 100])
def test_histc(device: str, dtype: torch.dtype, range_: tuple[float, float], bins: int) -> None:
    x = torch.cat([torch.randn(3000), torch.tensor([-1.0, 1.0, -0.5, 3.25, 0.0])]).to(dtype)
    expected = torch.histc(x, bins, *range_)
    found = torch.histc(x.to(device), bins, *range_).cpu()
    # A number beside an edge may be on either side of it.
    torch.testing.assert_close(found, expected, rtol=0, atol=2 if dtype == torch.float32 else 0)
    assert found.sum() == expected.sum()


def test_histc_of_unusual_data(device: str) -> None:
    nan = torch.tensor([float("nan"), 1.0, 2.0, float("inf")])
    for x, arguments in ((nan, (3, 0, 3)), (torch.empty(0), (3,)), (torch.full((5,), 2.0), (4,)), (nan[1:2], (2,))):
        assert torch.equal(torch.histc(x.to(device), *arguments).cpu(), torch.histc(x, *arguments))
    out = torch.empty(0, device=device)
    torch.histc(nan[1:3].to(device), 2, out=out)
    assert out.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_histc_of_integers(device: str, dtype: torch.dtype) -> None:
    """As on CUDA; the CPU has none. A mixture of experts counts its tokens so."""
    x = torch.randint(0, 8, (999,))
    found = torch.histc(x.to(dtype).to(device), bins=8, min=0, max=7)
    assert found.dtype == dtype
    assert torch.equal(found.cpu().long(), torch.bincount(x, minlength=8))


def test_an_encoder_with_padding_keeps_it(device: str) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.rand(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.enable_grad():
        expected = encoder(x, src_key_padding_mask=padding)
        found = encoder.to(device)(x.to(device), src_key_padding_mask=padding.to(device))
    torch.testing.assert_close(found.cpu()[~padding], expected[~padding])


WRONG: dict[str, Callable[[str], object]] = {
    "negative": lambda d: torch.bincount(torch.tensor([1, -1], device=d)),
    "two dimensions": lambda d: torch.bincount(torch.ones(2, 2, dtype=torch.int64, device=d)),
    "floats": lambda d: torch.bincount(torch.ones(2, device=d)),
    "other weights": lambda d: torch.bincount(torch.tensor([1, 2], device=d), torch.ones(3, device=d)),
    "negative length": lambda d: torch.bincount(torch.tensor([1, 2], device=d), minlength=-1),
    "no bins": lambda d: torch.histc(torch.ones(2, device=d), bins=0),
    "edges in the wrong order": lambda d: torch.histc(torch.ones(2, device=d), bins=2, min=3, max=1),
    "endless edges": lambda d: torch.histc(torch.ones(2, device=d), bins=2, min=0, max=float("inf")),
    "endless data": lambda d: torch.histc(torch.tensor([1.0, float("inf")], device=d), bins=2),
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_wrong_arguments(device: str, what: str) -> None:
    with pytest.raises(Exception) as expected:  # noqa: B017, PT011 - whatever the CPU raises
        WRONG[what]("cpu")
    with pytest.raises(expected.type):
        WRONG[what](device)
