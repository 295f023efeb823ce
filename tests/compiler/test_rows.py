# SPDX-License-Identifier: Apache-2.0
"""Operators that go over each row several times: rows side by side, of all lengths and numbers, and unusual ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from outboard.compiler.loops.vector import SIDE_BY_SIDE

LENGTHS = [16, 64, 100, 130, 1000, 1024, 5000]

OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:]),
    "var": lambda x: x.var(-1),
    "cross_entropy": lambda x: functional.cross_entropy(
        x, torch.arange(len(x), device=x.device) % 16, reduction="none"
    ),
}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", OPERATORS)
def test_any_number_of_rows(name: str, length: int, device: str) -> None:
    for rows in (1, 2, 3, SIDE_BY_SIDE - 1, SIDE_BY_SIDE + 1, 70):
        x = torch.randn(rows, length) * 4
        result, exact = OPERATORS[name](x.to(device)).cpu(), OPERATORS[name](x.double()).float()
        torch.testing.assert_close(result, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_other_dtypes(name: str, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(19, 200).to(dtype)
    result, exact = OPERATORS[name](x.to(device)).cpu(), OPERATORS[name](x.double())
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(result.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("length", [64, 100, 1024])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm", "cross_entropy"])
def test_gradients(name: str, length: int, device: str) -> None:
    x, weights = torch.randn(21, length), torch.randn(21, length)
    gradients = []
    for at in (x.double(), x.to(device)):
        at.requires_grad_()
        result = OPERATORS[name](at)
        scale = weights if result.dim() == 2 else weights[:, 0]
        (result * scale.to(result)).sum().backward()
        assert at.grad is not None
        gradients.append(at.grad.cpu().float())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [64, 100, 1024])
@pytest.mark.parametrize("unusual", [math.nan, math.inf, -math.inf, 3e38, -3e38])
def test_unusual_rows_leave_their_neighbours_alone(unusual: float, length: int, device: str) -> None:
    x = torch.randn(25, length)
    for name in ("softmax", "log_softmax"):
        usual = OPERATORS[name](x.to(device)).cpu()
        for place in (0, length // 2, length - 1):
            changed = x.clone()
            changed[7, place] = unusual
            changed[12] = unusual
            result = OPERATORS[name](changed.to(device)).cpu()
            torch.testing.assert_close(result, OPERATORS[name](changed), rtol=1e-5, atol=1e-5, equal_nan=True)
            others = [row for row in range(25) if row not in (7, 12)]
            assert torch.equal(result[others], usual[others])


def test_masked_rows(device: str) -> None:
    x = torch.randn(40, 96).masked_fill(torch.arange(96) > torch.arange(40)[:, None], -math.inf)
    result = torch.softmax(x.to(device), -1).cpu()
    torch.testing.assert_close(result, torch.softmax(x, -1), rtol=1e-5, atol=1e-7)
    assert bool((result[x == -math.inf] == 0).all())


@pytest.mark.parametrize("length", [64, 1021])
def test_exp_is_the_same_wherever_it_stands(length: int, device: str) -> None:
    """Alone, in a loop of single vectors, in one of several at once, and in what is left over at the end of a row."""
    torch._dynamo.reset()
    last = int(torch.tensor(110.0).view(torch.int32))
    positive = torch.arange(1, last, 9973, dtype=torch.int32).view(torch.float32)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, -3e38, 1e7, -1e7])
    x = torch.cat([positive, -positive, special])
    x = torch.cat([x, torch.zeros(-len(x) % length)]).reshape(-1, length).to(device)

    @torch.compile
    def terms_and_sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp(), x.exp().sum(-1)

    terms, sums = terms_and_sums(x)
    expected = x.exp()
    assert torch.equal(terms.nan_to_num(7).cpu(), expected.nan_to_num(7).cpu())
    torch.testing.assert_close(sums.cpu(), expected.cpu().double().sum(-1).float(), rtol=1e-5, atol=0, equal_nan=True)


def test_compiled_rows_that_need_each_other(device: str) -> None:
    """Three loops over each row, with values of the row that later loops take."""
    torch._dynamo.reset()

    def steps(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        shifted = (x - x.mean(-1, keepdim=True)) * scale[:, None]
        weights = torch.softmax(shifted, -1)
        return weights * shifted - (weights * shifted).sum(-1, keepdim=True)

    for rows, length in ((3, 64), (17, 100), (9, 1024)):
        x, scale = torch.randn(rows, length), torch.rand(rows)
        result = torch.compile(steps)(x.to(device), scale.to(device))
        torch.testing.assert_close(result.cpu(), steps(x.double(), scale.double()).float(), rtol=1e-4, atol=1e-5)
