# SPDX-License-Identifier: Apache-2.0
"""Lists of many tensors: as the CPU's kernels, and no plan for each length."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

MANY = 23  # eight and eight, four, two and one


def compare(function: Callable[[list[Tensor]], Tensor], tensors: list[Tensor], device: str) -> None:
    """Values, dtype and strides."""
    expected = function(tensors)
    found = function([each.to(device) for each in tensors])
    assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


def blocks(dim: int, count: int = MANY) -> list[Tensor]:
    """Tensors of three dimensions that differ in one."""
    sizes = [[2, 3, 4] for _ in range(count)]
    for i, size in enumerate(sizes):
        size[dim] = i % 4
    return [torch.randn(size) for size in sizes]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_parts_of_any_length(device: str, dim: int) -> None:
    compare(lambda each: torch.cat(each, dim), blocks(dim), device)
    compare(lambda each: torch.stack(each, dim), [torch.randn(2, 3) for _ in range(MANY)], device)


def test_dtypes_are_promoted(device: str) -> None:
    tensors = [torch.tensor([1, 2], dtype=dtype) for dtype in (torch.bool, torch.uint8, torch.int64) for _ in range(4)]
    compare(torch.cat, tensors, device)
    compare(torch.cat, [*tensors, torch.tensor([0.3, 1e4], dtype=torch.float16)], device)


def test_vectors_without_elements_are_left_out(device: str) -> None:
    compare(lambda each: torch.cat(each, 1), [torch.empty(0), *blocks(1), torch.empty(0)], device)
    compare(torch.cat, [torch.empty(0) for _ in range(MANY)], device)


def test_memory_formats(device: str) -> None:
    images = [torch.randn(2, 1 + i % 3, 3, 4).to(memory_format=torch.channels_last) for i in range(MANY)]
    compare(lambda each: torch.cat(each, 1), images, device)
    compare(lambda each: torch.cat(each, 1), [images[0].contiguous(), *images[1:]], device)
    compare(torch.stack, [torch.randn(3, 4).t() for _ in range(MANY)], device)


def test_gradients(device: str) -> None:
    def gradients(on: str) -> list[Tensor]:
        torch.manual_seed(0)
        leaves = [block.to(on).requires_grad_() for block in blocks(1)]
        (torch.cat(leaves, 1).square().sum() + torch.stack([leaf.sum() for leaf in leaves]).square().sum()).backward()
        return [leaf.grad.cpu() for leaf in leaves if leaf.grad is not None]

    torch.testing.assert_close(gradients(device), gradients("cpu"))


@pytest.mark.parametrize("join", [torch.cat, torch.stack], ids=["cat", "stack"])
def test_results_that_are_given(device: str, join: Callable[..., Tensor]) -> None:
    """As large as they have to be, with gaps, of another dtype, empty, and of another size, with a warning."""
    tensors = [torch.randn(2, 3) for _ in range(MANY)]
    size = join(tensors).shape
    given = {
        "fits": lambda on: torch.zeros(size, device=on),
        "gaps": lambda on: torch.zeros((*size, 2), device=on)[..., 0],
        "dtype": lambda on: torch.zeros(size, device=on, dtype=torch.bfloat16),
        "empty": lambda on: torch.empty(0, device=on),
        "larger": lambda on: torch.zeros(200, 200, device=on),
    }
    for name, make in given.items():
        results = []
        for on in ("cpu", device):
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                out = make(on)
                assert join([each.to(on) for each in tensors], out=out) is out
            results.append((out.cpu(), out.stride(), out.dtype, any("resize" in str(each.message) for each in heard)))
        assert torch.equal(results[0][0], results[1][0]), name
        assert results[0][1:] == results[1][1:], name


def test_results_that_cannot_be_given(device: str) -> None:
    """A dtype that nothing casts to, and memory that is read: as the CPU."""

    def attempt(on: str, case: str) -> tuple[type[BaseException], str]:
        memory = torch.zeros(MANY * 2, 3, device=on)
        tensors = [torch.randn(2, 3, device=on) for _ in range(MANY)]
        out = memory if case == "overlap" else torch.zeros_like(memory, dtype=torch.int64)
        with pytest.raises((RuntimeError, TypeError)) as raised:
            torch.cat([memory[:2], *tensors[1:]], out=out)
        return type(raised.value), str(raised.value)

    for case in ("overlap", "dtype"):
        assert attempt(device, case) == attempt("cpu", case)


@pytest.mark.parametrize("function", [torch.cat, torch.stack])
def test_what_does_not_fit_is_refused(device: str, function: Callable[[list[Tensor]], Tensor]) -> None:
    tensors = [torch.randn(2, 3) for _ in range(MANY)] + [torch.randn(2, 4)]
    with pytest.raises(RuntimeError) as expected:
        function(tensors)
    with pytest.raises(RuntimeError) as found:
        function([each.to(device) for each in tensors])
    assert str(found.value) == str(expected.value)
    with pytest.raises(RuntimeError, match="same device"):
        function([each.to(device) for each in tensors[:-1]] + [torch.randn(2, 3)])


@pytest.mark.parametrize(
    "function",
    [
        torch.cat,
        torch.hstack,
        torch.stack,
        torch.dstack,
        lambda each: torch.block_diag(*each),
        lambda each: torch.cat(each, out=each[0].new_empty(2 * len(each), 3)),
        lambda each: torch.stack(each, 1, out=each[0].new_empty(2, len(each), 3)),
    ],
    ids=["cat", "hstack", "stack", "dstack", "block_diag", "cat, out=", "stack, out="],
)
def test_no_plan_for_each_length(device: str, device_module: ModuleType, function: Callable[..., Tensor]) -> None:
    def joined(count: int) -> None:
        tensors = [torch.full((2, 3), float(i)) for i in range(count)]
        torch.testing.assert_close(function([each.to(device) for each in tensors]).cpu(), function(tensors))

    joined(MANY)
    before = device_module.compile_stats()["misses"]
    for count in (31, 47, 90):
        joined(count)
    assert device_module.compile_stats()["misses"] == before
