# SPDX-License-Identifier: Apache-2.0
"""Operators whose results are as large as their data say: on the device, and as on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
DTYPES += [torch.int8, torch.uint8, torch.bool]
SHAPES = [(), (0,), (1,), (7,), (1023,), (1024,), (1025,), (5000,), (3, 0), (3, 5), (40, 60), (4, 5, 6), (2, 3, 1, 500)]


@pytest.fixture(autouse=True)
def _no_fallbacks(device_module: ModuleType) -> Iterator[None]:
    device_module.set_fallback_policy("error")
    yield
    device_module.set_fallback_policy("allow")


def sparse(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, share: float = 0.5) -> torch.Tensor:
    """Numbers of which about ``share`` are not zero."""
    values = torch.randint(1, 5, shape) * (torch.rand(shape) < share)
    return values.to(dtype)


def agree(function: Callable[..., Any], *tensors: torch.Tensor, device: str) -> None:
    """The same values, dtypes, shapes and strides on both sides."""
    expected = function(*tensors)
    found = function(*(tensor.to(device) for tensor in tensors))
    as_tuple = lambda result: result if isinstance(result, tuple) else (result,)  # noqa: E731
    for here, there in zip(as_tuple(found), as_tuple(expected), strict=True):
        assert here.device.type == device
        torch.testing.assert_close(here.cpu(), there, rtol=0, atol=0, equal_nan=True, check_stride=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_nonzero(device: str, shape: tuple[int, ...], share: float) -> None:
    agree(torch.nonzero, sparse(shape, share=share), device=device)
    if shape:
        agree(lambda x: x.nonzero(as_tuple=True), sparse(shape, share=share), device=device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(device: str, dtype: torch.dtype) -> None:
    x, mask = sparse((30, 70), dtype), torch.rand(30, 70) < 0.3
    agree(torch.nonzero, x, device=device)
    agree(torch.masked_select, x, mask, device=device)
    agree(lambda x: torch.unique(x, return_inverse=True, return_counts=True), x, device=device)
    agree(lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), x, device=device)


def test_layouts(device: str) -> None:
    x, mask = torch.randn(8, 9, 10), torch.rand(8, 9, 10) < 0.4
    agree(lambda m: m.permute(2, 0, 1).nonzero(), mask, device=device)
    agree(lambda m: m[::2, :, 1::3].nonzero(), mask, device=device)
    agree(lambda x, m: x.permute(2, 0, 1).masked_select(m.permute(2, 0, 1)), x, mask, device=device)
    agree(lambda x, m: x.masked_select(m[:, :1]), x, mask, device=device)
    agree(lambda x, m: x[0].masked_select(m), x, mask, device=device)
    agree(lambda x: torch.unique(x.round().transpose(0, 2), return_inverse=True), x, device=device)


def test_many(device: str) -> None:
    mask = torch.rand(3_000_001) < 0.3
    agree(torch.nonzero, mask, device=device)
    agree(lambda x: torch.unique(x, return_counts=True), torch.randint(0, 1000, (300_001,)), device=device)


def test_masks_as_indices(device: str) -> None:
    x, mask, rows = torch.randn(6, 7, 8), torch.rand(6, 7, 8) < 0.4, torch.rand(6) < 0.5
    agree(lambda x, m: x[m], x, mask, device=device)
    agree(lambda x, m: x[m], x, rows, device=device)
    agree(lambda x, m: x[:, m[0]], x, mask[:, :, 0], device=device)
    agree(lambda x, m: x[m, 1:3], x, rows, device=device)
    columns = torch.tensor([True, False, True, False, False, False, False])
    agree(lambda x, m, i: x[i, m], x, columns, torch.tensor([1, 2]), device=device)

    def put(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[m] = v
        return y

    agree(put, x, mask, torch.arange(float(mask.sum())), device=device)
    agree(put, x, mask, torch.tensor(3.0), device=device)
    agree(put, x, rows, torch.randn(8), device=device)
    agree(lambda x, m, v: x.index_put((m,), v, accumulate=True), x, mask, torch.tensor(2.0), device=device)


def test_one_number_through_a_mask_waits_for_nothing(device: str, device_module: ModuleType) -> None:
    x, mask = torch.randn(4, 5, 6), torch.rand(5) < 0.5
    there, mask_there, number = x.to(device), mask.to(device), torch.tensor(7.0).to(device)
    device_module.set_sync_debug_mode("error")
    try:
        there[:, mask_there] = 3.0
        there[:, :, mask_there[:1].expand(6)] = number
    finally:
        device_module.set_sync_debug_mode("default")
    x[:, mask] = 3.0
    x[:, :, mask[:1].expand(6)] = 7.0
    assert torch.equal(there.cpu(), x)


def test_gradients(device: str) -> None:
    x, mask = torch.randn(20, 30), torch.rand(20, 30) < 0.4
    for function in (lambda x, m: x.masked_select(m).square().sum(), lambda x, m: x[m].square().sum()):
        leaf, there = x.clone().requires_grad_(), x.to(device).requires_grad_()
        function(leaf, mask).backward()
        function(there, mask.to(device)).backward()
        assert leaf.grad is not None and there.grad is not None
        torch.testing.assert_close(there.grad.cpu(), leaf.grad)


@pytest.mark.parametrize(
    "values", [[float("nan"), 1.0, float("nan"), 1.0, -0.0, 0.0], [3.0], [float("inf"), float("-inf")]]
)
def test_unique_of_unusual_numbers(device: str, values: list[float]) -> None:
    agree(lambda x: torch.unique(x, return_inverse=True, return_counts=True), torch.tensor(values), device=device)
    agree(
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        torch.tensor(values),
        device=device,
    )


SLICES = [((20, 3), 0), ((3, 20), 1), ((6, 2, 7), 1), ((5,), 0), ((1, 4), 0), ((4, 1), 1), ((30, 7), 0), ((0, 3), 0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("function", [torch.unique, torch.unique_consecutive])
def test_unique_slices(device: str, dtype: torch.dtype, function: Callable[..., Any]) -> None:
    for shape, dim in SLICES:
        x = torch.randint(0, 2, shape).to(dtype)
        for values in (x, x.transpose(0, -1).contiguous().transpose(0, -1)):
            agree(lambda v: function(v, return_inverse=True, return_counts=True, dim=dim), values, device=device)  # noqa: B023


@pytest.mark.parametrize("shape", [(0, 0), (3, 0)])
def test_unique_slices_of_nothing(device: str, shape: tuple[int, ...]) -> None:
    for where in ("cpu", device):
        with pytest.raises(RuntimeError, match="unique cannot be applied"):
            torch.unique(torch.zeros(shape, device=where), dim=0)


def test_repeats(device: str) -> None:
    x, repeats = torch.randn(4, 3), torch.tensor([2, 0, 3, 1])
    agree(torch.repeat_interleave, repeats, device=device)
    agree(torch.repeat_interleave, repeats.int(), device=device)
    agree(lambda x, r: x.repeat_interleave(r, 0), x, repeats, device=device)
    agree(lambda x, r: x.repeat_interleave(r, 0, output_size=6), x, repeats, device=device)
    agree(torch.repeat_interleave, torch.tensor([0, 0]), device=device)
    agree(torch.repeat_interleave, torch.empty(0, dtype=torch.int64), device=device)


def test_given_results(device: str) -> None:
    mask = torch.rand(50) < 0.5
    out = torch.empty(0, dtype=torch.int64, device=device)
    torch.nonzero(mask.to(device), out=out)
    assert torch.equal(out.cpu(), mask.nonzero())
    kept = torch.empty(0, device=device)
    torch.masked_select(torch.arange(50.0).to(device), mask.to(device), out=kept)
    assert torch.equal(kept.cpu(), torch.arange(50.0)[mask])


WRONG: list[tuple[str, Callable[[torch.Tensor], Any]]] = [
    ("mask of another dtype", lambda x: x.masked_select(x)),
    ("mask of another shape", lambda x: x[torch.ones(4, dtype=torch.bool, device=x.device)]),
    ("mask of too many dimensions", lambda x: x[torch.ones(3, 5, 1, dtype=torch.bool, device=x.device)]),
    ("out of another dtype", lambda x: torch.nonzero(x, out=torch.empty(0, device=x.device))),
    ("masks that do not broadcast", lambda x: x.masked_select(torch.ones(4, dtype=torch.bool, device=x.device))),
    ("too few values", lambda x: x.index_put_((torch.arange(3, device=x.device),), torch.ones(2, device=x.device))),
    ("values of a column", lambda x: x.index_put((torch.arange(3, device=x.device),), torch.ones(3, device=x.device))),
    ("values for a mask", lambda x: x.__setitem__(x == x, torch.ones(2, device=x.device))),
    (
        "values behind two indices",
        lambda x: x.index_put((torch.arange(3, device=x.device),) * 2, torch.ones(2, device=x.device)),
    ),
    (
        "values beside an index",
        lambda x: x[None, :, :].__setitem__((0, slice(None), [1, 2]), torch.ones(4, 2, device=x.device)),
    ),
    ("negative repeats", lambda x: torch.repeat_interleave(torch.tensor([1, -1], device=x.device))),
    ("repeats of another dtype", lambda x: torch.repeat_interleave(x[0])),
    ("a wrong output size", lambda x: torch.repeat_interleave(torch.tensor([1, 2], device=x.device), output_size=4)),
]


@pytest.mark.parametrize(("what", "call"), WRONG, ids=[what for what, _ in WRONG])
def test_wrong_arguments(device: str, what: str, call: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(Exception) as expected:  # noqa: B017, PT011 - whatever the CPU raises
        call(torch.randn(3, 5))
    with pytest.raises(expected.type):
        call(torch.randn(3, 5).to(device))
