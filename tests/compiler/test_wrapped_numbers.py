# SPDX-License-Identifier: Apache-2.0
"""Numbers where operators have tensors: `torch.copysign(x, 2)`, and with `out=`."""

from __future__ import annotations

import pytest
import torch

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
