# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint in a graph draws again are the numbers of the forward pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(torch.ones_like(x)),
    "multinomial": lambda x: torch.multinomial(x, x.shape[1]) % 2,
    "normal": lambda x: torch.normal(x) > 0.4,
    "poisson": lambda x: torch.poisson(x) > 0,
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_those_of_the_forward_pass(name: str, device: str) -> None:
    torch._dynamo.reset()
    x = (torch.rand(16, 16) * 0.6 + 0.2).to(device).requires_grad_()

    def inner(x: Tensor) -> Tensor:
        return (x * DRAWS[name](x.detach())).exp()

    y = torch.compile(lambda x: checkpoint(inner, x, use_reentrant=False))(x)
    torch.rand(3, device=device)
    y.sum().backward()
    kept = y.detach() != 1
    assert kept.any() and not kept.all()
    assert torch.equal(x.grad != 0, kept)
