# SPDX-License-Identifier: Apache-2.0
"""Compiled functions that write their inputs, called with inputs that overlap otherwise than in the first call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tests.conftest import RunPython

Parts = Callable[[Tensor], tuple[Tensor, Tensor]]


def apart(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:4].clone(), x[4:].clone()


def beside(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:4], x[4:]


def overlapping(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:4], x[2:6]


def further(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[3:7], x[1:5]


def equal(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:4], x[:4]


def write_both(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    y.mul_(3)
    return x[1:] * y[1:]


@pytest.mark.parametrize(
    "calls, gradient, dynamic",
    [
        ((apart, overlapping, apart), True, False),
        ((beside, overlapping, further), False, True),
        ((overlapping, beside), False, False),
        ((overlapping, equal), False, True),
    ],
)
def test_each_call_sees_its_own_overlaps(calls: Sequence[Parts], gradient: bool, dynamic: bool, device: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(write_both, dynamic=dynamic)
    for parts in calls:
        found = []
        for function, place in ((write_both, "cpu"), (compiled, device)):
            x = torch.arange(8.0, device=place).requires_grad_(gradient)
            memory = x * 1
            result = function(*parts(memory))
            gradients = torch.autograd.grad(result.sum(), x) if gradient else ()
            found.append([each.detach().cpu() for each in (result, memory, *gradients)])
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other), parts.__name__


def test_a_graph_that_is_kept_serves_no_other_overlaps(device: str) -> None:
    for parts in (apart, overlapping):
        torch._dynamo.reset()
        result = torch.compile(write_both)(*parts(torch.arange(8.0, device=device)))
        assert torch.equal(result.cpu(), write_both(*parts(torch.arange(8.0))))


PROGRAM = """
import torch
def write(x, y):
    x.mul_(2)
    return x + y
memory = torch.arange(8.0, device=torch._C._get_privateuse1_backend_name())
compiled = torch.compile(write)
for y in (memory[2:6].clone(), memory[{start}:]):
    print(compiled(memory[:4], y[:4]).tolist())
"""


def test_a_trace_of_an_earlier_program_serves_no_other_overlaps(run_python: RunPython) -> None:
    separate = run_python(PROGRAM.format(start=4))
    assert run_python(PROGRAM.format(start=2)) == f"{separate.splitlines()[0]}\n[8.0, 16.0, 12.0, 17.0]\n"


def double_windows(x: Tensor) -> Tensor:
    parts = x[:, 1:].unbind()
    parts[0].unfold(0, 1, 5).mul_(2)
    parts[1].unfold(0, 2, 3).mul_(2)
    parts[2].unfold(0, 2, 12).mul_(2)
    y = x * 1
    y.unfold(1, 3, 5).mul_(2)
    return y


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_lies_between_windows_stays(dynamic: bool, device: str) -> None:
    torch._dynamo.reset()
    x, there = (torch.arange(39.0, device=each).view(3, 13) for each in ("cpu", device))
    result = torch.compile(double_windows, dynamic=dynamic)(there)
    assert torch.equal(result.cpu(), double_windows(x))
    assert torch.equal(there.cpu(), x)


def test_memory_that_lies_otherwise_than_in_the_trace_is_not_read(device: str) -> None:
    def read(x: Tensor) -> Tensor:
        x.add_(1)
        return torch.as_strided_copy(x, (3,), (2,))

    with pytest.raises(RuntimeError, match="as_strided"):
        torch.compile(read)(torch.arange(10, device=device)[::2])
