# SPDX-License-Identifier: Apache-2.0
"""What speech models train with: the loss of connectionist temporal classification, and weights apart from norms."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

#: The second has no labels, the third too many for its length, the fourth takes every step.
INPUTS, LABELS = (12, 10, 3, 7), (3, 0, 5, 4)
TARGETS = torch.tensor([[1, 1, 3, 5, 4], [3, 3, 3, 3, 3], [1, 1, 4, 4, 5], [5, 4, 3, 1, 1]])


@pytest.fixture(autouse=True)
def _no_fallbacks(device_module: ModuleType) -> Iterator[None]:
    device_module.set_fallback_policy("error")
    yield
    device_module.set_fallback_policy("allow")


def loss(device: str, targets: Tensor, lengths: str, dtype: torch.dtype, **options: object) -> list[Tensor]:
    """The losses and the gradient."""
    torch.manual_seed(0)
    scores = torch.randn(12, 4, 6, dtype=dtype).to(device).requires_grad_()
    given: list[object] = [INPUTS, LABELS]
    if lengths != "numbers":
        given = [torch.tensor(numbers, device=device if lengths == "device" else "cpu") for numbers in given]
    result = F.ctc_loss(scores.log_softmax(-1), targets.to(device), *given, **options)  # type: ignore[arg-type]
    result.sum().backward()
    assert scores.grad is not None
    return [result.detach().cpu(), scores.grad.cpu()]


@pytest.mark.parametrize("lengths", ["numbers", "host", "device"])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc(device: str, lengths: str, flat: bool, reduction: str, zero_infinity: bool) -> None:
    targets = torch.cat([row[:count] for row, count in zip(TARGETS, LABELS, strict=True)]) if flat else TARGETS
    options = {"reduction": reduction, "zero_infinity": zero_infinity, "blank": 2 if flat else 0}
    expected = loss("cpu", targets, lengths, torch.float32, **options)
    found = loss(device, targets, lengths, torch.float32, **options)
    for here, there in zip(found, expected, strict=True):
        torch.testing.assert_close(here, there, equal_nan=True)


def test_ctc_in_float64_with_short_labels(device: str) -> None:
    expected, found = (loss(where, TARGETS.int(), "numbers", torch.float64) for where in ("cpu", device))
    for here, there in zip(found, expected, strict=True):
        torch.testing.assert_close(here, there, equal_nan=True)


def test_ctc_makes_no_plan_for_each_length(device: str, device_module: ModuleType) -> None:
    scores = torch.randn(30, 2, 6).log_softmax(-1).to(device)
    targets = torch.randint(1, 6, (2, 12)).to(device)
    F.ctc_loss(scores, targets, (30, 20), (12, 5))
    before = device_module.compile_stats()["misses"]
    for length in range(6, 12):
        F.ctc_loss(scores, targets, (30 - length, 20), (length, 5))
    assert device_module.compile_stats()["misses"] == before


def test_a_label_out_of_range_is_reported(device: str, device_module: ModuleType) -> None:
    scores = torch.randn(5, 1, 4).log_softmax(-1).to(device)
    with pytest.raises(RuntimeError, match="label is out of range"):
        F.ctc_loss(scores, torch.tensor([[1, 9]]).to(device), (5,), (2,))
        device_module.synchronize()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(device: str, dtype: torch.dtype, dim: int) -> None:
    v, g = torch.randn(4, 5, 6).to(dtype), torch.rand([(4, 5, 6)[i] if i == dim else 1 for i in range(3)]).to(dtype)
    results = []
    for where in ("cpu", device):
        directions, norms = (x.detach().to(where).requires_grad_() for x in (v, g))
        weight = torch._weight_norm(directions, norms, dim)
        weight.square().sum().backward()
        results.append([x.detach().cpu() for x in (weight, directions.grad, norms.grad)])  # type: ignore[union-attr]
    for here, there in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(here, there, check_stride=True)


def test_a_parametrized_layer(device: str) -> None:
    results = []
    for where in ("cpu", device):
        torch.manual_seed(0)
        layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(3, 4, 5)).to(where)
        layer(torch.ones(2, 3, 9, device=where)).square().sum().backward()
        results.append([x.grad.cpu() for x in layer.parameters() if x.grad is not None])
    assert len(results[0]) == 3
    for here, there in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(here, there)
