# SPDX-License-Identifier: Apache-2.0
"""Pointwise calls on tensors that lie alike are calls on vectors: one plan for all ranks, shapes and permutations."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

Tensor = torch.Tensor

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "vector": lambda: torch.rand(60),
    "matrix": lambda: torch.rand(6, 10),
    "five dimensions": lambda: torch.rand(2, 3, 1, 5, 2),
    "transposed": lambda: torch.rand(6, 10).t(),
    "channels last": lambda: torch.rand(2, 3, 5, 4).to(memory_format=torch.channels_last),
    "permuted": lambda: torch.rand(3, 4, 5).permute(2, 0, 1),
}


def plans(device: str) -> int:
    return int(torch.get_device_module(device).compile_stats()["plans"])


def test_all_layouts_share_one_plan(device: str) -> None:
    torch.atan2(torch.rand(8).to(device), torch.rand(8).to(device))
    known = plans(device)
    for make in LAYOUTS.values():
        x = make()
        y = torch.rand_like(x)
        result, expected = torch.atan2(x.to(device), y.to(device)), torch.atan2(x, y)
        assert (result.shape, result.stride()) == (expected.shape, expected.stride())
        torch.testing.assert_close(result.cpu(), expected)
    assert plans(device) == known


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_lie_as_the_arguments_do(layout: str, device: str) -> None:
    x = LAYOUTS[layout]()
    ours = x.to(device)
    calls: list[Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = [
        lambda t: t * 2 + t,
        lambda t: torch.where(t > 0.5, t, -t),
        lambda t: torch.clamp(t, max=torch.tensor(0.5, device=t.device)),
        lambda t: torch.nan_to_num(t),
        lambda t: t.to(torch.int32).ceil(),
        lambda t: torch.lerp(t, t * 3, 0.25),
        lambda t: (t > 0.3).logical_not(),
        lambda t: torch.add(t, t, out=torch.empty_strided(t.shape, t.stride(), device=t.device)),
        lambda t: t.clone().mul_(t).add_(1),
    ]
    for call in calls:
        results, expected = call(ours), call(x)
        results = results if isinstance(results, tuple) else (results,)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for result, right in zip(results, expected, strict=True):
            assert result.stride() == right.stride()
            torch.testing.assert_close(result.cpu(), right)


def test_tensors_that_lie_differently_are_no_vectors(device: str) -> None:
    a, b = torch.rand(6, 6), torch.rand(6, 6).t()
    torch.testing.assert_close((a.to(device) * b.to(device)).cpu(), a * b)
    row = torch.rand(6)
    torch.testing.assert_close((a.to(device) * row.to(device)).cpu(), a * row)
    part = torch.rand(6, 12)[:, ::2]
    torch.testing.assert_close(part.to(device).exp().cpu(), part.exp())


def test_views_into_one_storage(device: str) -> None:
    whole = torch.rand(4, 5, 6)
    ours = whole.to(device)
    ours[1:3].mul_(ours[2:4] + 1)
    whole[1:3].mul_(whole[2:4] + 1)
    torch.testing.assert_close(ours.cpu(), whole)


def test_wrong_arguments_keep_their_message(device: str) -> None:
    x = torch.zeros(3, 4, dtype=torch.bool, device=device)
    with pytest.raises(RuntimeError, match="Subtraction"):
        torch.sub(x, x)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), min_size=0, max_size=5),
    seed=st.integers(0, 1000),
    same=st.booleans(),
    scalar=st.booleans(),
)
def test_any_shape_and_order(device: str, shape: list[int], seed: int, same: bool, scalar: bool) -> None:
    generator = torch.Generator().manual_seed(seed)

    def permuted() -> tuple[Tensor, list[int]]:
        order = torch.randperm(len(shape), generator=generator).tolist()
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return torch.rand([shape[d] for d in order], generator=generator).permute(inverse), order

    x, _ = permuted()
    y = torch.rand_like(x) if same else permuted()[0]
    if scalar:
        y = torch.rand((), generator=generator)
    result, expected = torch.hypot(x.to(device), y.to(device)), torch.hypot(x, y)
    assert result.shape == expected.shape
    if same and result.numel():
        moved = x.to(device)  # the strides of dimensions of one element are anybody's choice
        assert result.stride() == torch.hypot(moved, moved).stride() == moved.stride()
    torch.testing.assert_close(result.cpu(), expected)
