# SPDX-License-Identifier: Apache-2.0
"""Compiled functions of tensors whose conjugates or negatives are pending."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

FUNCTIONS: dict[str, Callable[[Tensor], object]] = {
    "times": lambda x: x * 2,
    "clone": lambda x: x.clone(),
    "view": lambda x: x.view(1, 12),
    "transposed": lambda x: x.t() + 1,
    "sum": lambda x: x.sum(),
    "a window": lambda x: x[1:, ::2] * 3,
    "written": lambda x: x.add_(1),
    "copied to": lambda x: x.copy_(x.flip(0)),
}


def _conjugate(x: Tensor) -> Tensor:
    return x.conj()


def _negative(x: Tensor) -> Tensor:
    return x.conj().imag


@pytest.mark.parametrize("kind", [_conjugate, _negative])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs(name: str, kind: Callable[[Tensor], Tensor], device: str) -> None:
    x = torch.complex(torch.arange(12.0), torch.arange(1.0, 13)).view(3, 4)
    torch._dynamo.reset()
    theirs, ours = kind(x.clone()), kind(x.to(device))
    assert ours.is_conj() or ours.is_neg()
    expected, found = FUNCTIONS[name](theirs), torch.compile(FUNCTIONS[name])(ours)
    torch.testing.assert_close(found.cpu(), expected)
    torch.testing.assert_close(ours.cpu(), theirs)


def test_elements_that_share_memory(device: str) -> None:
    x = torch.complex(torch.arange(12.0), torch.arange(1.0, 13))
    window = x.conj().imag.as_strided((2, 3), (0, 4))
    ours = x.to(device).conj().imag.as_strided((2, 3), (0, 4))
    assert ours.is_neg()
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(lambda y: y + 1)(ours).cpu(), window + 1)


def test_what_the_backward_pass_is_given(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.full_like(x, 1 + 1j) * x

    x = torch.complex(torch.arange(3.0), torch.arange(1.0, 4))
    torch._dynamo.reset()
    gradients = []
    for call, leaf in (
        (function, x.requires_grad_()),
        (torch.compile(function), x.detach().to(device).requires_grad_()),
    ):
        call(leaf).conj().backward(torch.full((3,), 1 + 0.5j, device=leaf.device))
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[1].cpu(), gradients[0])


def test_negative_gradients(device: str) -> None:
    gradient = _negative(torch.complex(torch.arange(4.0), torch.arange(1.0, 5)).to(device))
    leaf = torch.ones(4, device=device, requires_grad=True)
    torch._dynamo.reset()
    torch.compile(lambda x: x * 3)(leaf).backward(gradient)
    torch.testing.assert_close(leaf.grad.cpu(), gradient.cpu() * 3)
