# SPDX-License-Identifier: Apache-2.0
"""Second derivatives of compiled functions: PyTorch's compiler has none, and nothing may do as if they were zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outboard import _C

REFUSED = "does not (currently )?support double backward"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.cumprod(0),  # whose backward pass reads the function's own results alone
        lambda x: (x.softmax(0) ** 2).sum(),
        lambda x: x * 3 + 1,  # and this one's reads nothing
    ],
    ids=["results", "intermediates", "linear"],
)
def test_a_second_derivative_is_refused(device: str, function: Callable[[Tensor], Tensor]) -> None:
    torch._dynamo.reset()
    x = torch.tensor([0.5, 2.0, 3.0]).to(device).requires_grad_()
    result = torch.compile(function)(x)
    (first,) = torch.autograd.grad(result, x, torch.ones_like(result), create_graph=True)
    expected = torch.autograd.grad(function(x), x, torch.ones_like(result))[0]
    torch.testing.assert_close(first, expected)
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.autograd.grad(first.sum(), x, allow_unused=True)


def test_a_penalty_of_a_gradient_is_refused_behind_other_layers(device: str) -> None:
    """The compiled part is in the middle: its input is a result, and its parameter no input of the program's."""
    torch._dynamo.reset()
    first, middle, last = (torch.nn.Linear(3, 3).to(device) for _ in range(3))
    compiled = torch.compile(lambda x: middle(x).exp())
    x = torch.randn(2, 3).to(device).requires_grad_()
    (gradient,) = torch.autograd.grad(last(compiled(first(x))).sum(), x, create_graph=True)
    for parameter in (first.weight, middle.weight):
        with pytest.raises(RuntimeError, match=REFUSED):
            torch.autograd.grad(gradient.square().sum(), parameter, retain_graph=True, allow_unused=True)


def test_gradients_without_graphs_of_their_own_are_as_before(device: str) -> None:
    torch._dynamo.reset()
    x = torch.ones(4, requires_grad=True, device=device)
    result = torch.compile(lambda x: x.exp().sum())(x)
    result.backward(retain_graph=True)
    result.backward()
    assert x.grad is not None and x.grad.grad_fn is None
    torch.testing.assert_close(x.grad.cpu(), 2 * torch.ones(4).exp())


def test_only_the_context_of_a_function_has_inputs() -> None:
    with pytest.raises(TypeError, match="the ctx of a torch.autograd.Function"):
        _C.joined_to_inputs_of(3)
