# SPDX-License-Identifier: Apache-2.0
"""Floats that a compiled function takes: results are those of the float that is given, whatever graphs there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

#: What takes a float as a tensor, beside what takes a number only, and what computes with the number itself.
FUNCTIONS: dict[str, Callable[[Tensor, float], Any]] = {
    "power": lambda x, a: (x * a, x.abs().pow(a), x.clamp(min=a)),
    "epsilon": lambda x, a: (x * a, F.layer_norm(x, (5,), eps=abs(a))),
    "multiple": lambda x, a: (torch.add(x, a, alpha=2), torch.sub(x, a, alpha=3)),
    "branch": lambda x, a: (x * a, torch.lerp(x, x.flip(0), a), a * 2) if a > 0.25 else x - int(a * 10),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_floats(name: str, device: str) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function)
    x = torch.tensor([1.5, -0.25, -2.0, 0.5, -1.0])
    for value in (0.1, 0.3, 0.6, -0.5):
        torch.testing.assert_close(compiled(x.to(device), value), function(x, value), check_device=False)


@pytest.mark.parametrize("default", ["cpu", "meta", None])
def test_a_default_device(default: str | None, device: str) -> None:
    """A float that is computed from one is returned, whatever new tensors are put on."""
    compiled = torch.compile(lambda x, a: (x * a, a * 2))
    x = torch.ones(3, device=device)
    torch.set_default_device(default or device)
    try:
        found = [compiled(x, value)[1] for value in (0.1, 0.3, 0.6)]
    finally:
        torch.set_default_device(None)
    assert found == [0.2, 0.6, 1.2]
