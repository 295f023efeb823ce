# SPDX-License-Identifier: Apache-2.0
"""Numbers that tensors are filled with: those that the dtype does not hold are refused, wherever the number is."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

Fill = Callable[[Tensor, Tensor, Tensor], Tensor]


def _put(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    x = x.clone()
    x[mask] = value
    return x


FILLS: dict[str, Fill] = {
    "masked_fill": lambda x, mask, value: x.masked_fill(mask, value),
    "masked_fill_": lambda x, mask, value: x.clone().masked_fill_(mask, value),
    "index_fill": lambda x, mask, value: x.index_fill(0, torch.arange(0, 4, 2, device=x.device), value),
    "index_put": _put,
}
#: The dtype that is filled, that of the number, and numbers.
NUMBERS: list[tuple[torch.dtype, torch.dtype, list[float]]] = [
    (torch.int8, torch.int64, [127, 128, -128, -129, 0]),
    (torch.uint8, torch.int64, [255, 256, -5, -255, -256]),
    (torch.int8, torch.float32, [127, 127.5, -128, -128.5, 3.7, float("nan"), float("inf")]),
    (torch.int32, torch.float32, [2147483520.0, 2147483648.0, -2147483648.0, -2147483904.0]),
    (torch.float16, torch.float32, [65504, 65505, -65505, float("inf"), float("nan")]),
    (torch.float16, torch.bfloat16, [65280, 65536]),
    (torch.float32, torch.int64, [2**62]),
]


def _outcome(call: Callable[[], Tensor]) -> list[float] | str:
    try:
        return [float(each) for each in call().cpu()]
    except RuntimeError as error:
        assert "without overflow" in str(error), error
        return "refused"


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", FILLS)
def test_numbers_on_the_device(name: str, compiled: bool, device: str) -> None:
    fill: Fill = torch.compile(FILLS[name], dynamic=False) if compiled else FILLS[name]
    torch._dynamo.reset()
    mask = torch.tensor([True, False, False, True])
    for dtype, kind, numbers in NUMBERS[::2] if compiled else NUMBERS:
        x = torch.arange(4).to(dtype)
        for number in numbers:
            value = torch.tensor(number, dtype=kind)
            expected = _outcome(lambda x=x, value=value: FILLS[name](x, mask, value))
            found = _outcome(lambda x=x, value=value: fill(x.to(device), mask.to(device), value.to(device)))
            assert repr(found) == repr(expected), (dtype, value)


@pytest.mark.parametrize("limits", [{"max": 300}, {"min": 300}, {"min": -300}, {"max": -300}, {"min": -1, "max": 2}])
def test_limits_that_the_dtype_does_not_hold(limits: dict[str, int], device: str) -> None:
    """PyTorch 2.15 takes those that limit nothing; earlier releases refuse all."""

    def outcome(call: Callable[..., Tensor], where: str) -> list[int] | str:
        try:
            return call(torch.tensor([-100, 1, 100], dtype=torch.int8, device=where), **limits).tolist()
        except RuntimeError as error:
            return re.findall("outside the representable|without overflow", str(error))[0]

    expected = outcome(torch.clamp, "cpu")
    assert outcome(torch.clamp, device) == expected
    assert outcome(torch.compile(torch.clamp), device) == expected


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.pad(x, (1, 1), value=200),
        lambda x: x.scatter(0, torch.zeros(1, dtype=torch.int64, device=x.device), 200),
    ],
    ids=["pad", "scatter"],
)
def test_numbers_in_graphs(call: Callable[[Tensor], Tensor], device: str) -> None:
    x = torch.ones(3, dtype=torch.int8)
    for run, where in ((call, "cpu"), (call, device), (torch.compile(call), device)):
        with pytest.raises(RuntimeError, match="without overflow"):
            run(x.to(where)).cpu()


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_numbers_of_another_dtype_that_indices_place(count: int, accumulate: bool, device: str) -> None:
    def put(x: Tensor) -> Tensor:
        values = torch.ones(count, device=x.device)
        return x.index_put((torch.arange(count, device=x.device),), values, accumulate=accumulate)

    x = torch.zeros(3, dtype=torch.int64)
    for run, where in ((put, "cpu"), (put, device), (torch.compile(put), device)):
        with pytest.raises(RuntimeError, match="dtypes match, got Long for the destination and Float for the source"):
            run(x.to(where)).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_a_number_that_indices_add_or_multiply(reduce: str, dtype: torch.dtype, device: str, compiled: bool) -> None:
    """In place or not, with more indices than there are elements, and numbers that a plan does not know."""
    for size, count in ((2, 5), (3, 1)):
        x, index = torch.arange(2, 2 + size).to(dtype), torch.arange(count) % size
        for number in (2.5, 3.5, -1):
            expected = x.scatter(0, index, number, reduce=reduce)
            for scatter in (Tensor.scatter, lambda x, *rest, **options: x.clone().scatter_(*rest, **options)):
                run = torch.compile(scatter) if compiled else scatter
                found = run(x.to(device), 0, index.to(device), number, reduce=reduce)
                assert found.tolist() == expected.tolist()
