# SPDX-License-Identifier: Apache-2.0
"""Complex tensors, which PyTorch's compiler has no loops for: calls and graphs with their gradients, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Function = Callable[..., Tensor]


def inputs(*shapes: tuple[int, ...], dtype: torch.dtype = torch.complex64) -> list[Tensor]:
    torch.manual_seed(5)
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def results(function: Function, tensors: list[Tensor], place: str) -> list[Tensor]:
    """The result, and the gradients of the sum of its magnitudes."""
    moved = [x.to(place).requires_grad_() for x in tensors]
    out = function(*moved)
    out.abs().sum().backward()
    return [out.detach().cpu(), *(x.grad.cpu() for x in moved if x.grad is not None)]


def assert_as_on_the_cpu(function: Function, on_device: Function, tensors: list[Tensor], device: str) -> None:
    for found, expected in zip(results(on_device, tensors, device), results(function, tensors, "cpu"), strict=True):
        torch.testing.assert_close(found, expected)


def places(x: Tensor) -> Tensor:
    return torch.tensor([0, 2], device=x.device)


CALLS: dict[str, Function] = {
    "index_fill": lambda x, y: x.index_fill(0, places(x), 1 + 2j),
    "index_fill with a number": lambda x, y: x.index_fill(0, places(x), 2.0),
    "index_add": lambda x, y: x.index_add(0, places(x), y[:2], alpha=2),
    "index_copy": lambda x, y: x.index_copy(0, places(x), y[:2]),
    "cross": lambda x, y: torch.linalg.cross(x, y),
    "cross that broadcasts": lambda x, y: torch.linalg.cross(x, y[:1]),
    "lerp": lambda x, y: torch.lerp(x, y, y * 0.5),
    "lerp by a number": lambda x, y: torch.lerp(x, y, 0.25),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(device: str, name: str) -> None:
    assert_as_on_the_cpu(CALLS[name], CALLS[name], inputs((4, 3), (4, 3)), device)


COMPLEX, REAL = torch.complex64, torch.float32
GRAPHS: dict[str, tuple[Function, torch.dtype, list[tuple[int, ...]]]] = {
    "times a number": (lambda x: x * 2.5, COMPLEX, [(4, 3)]),
    "times a complex number": (lambda x: x * 2.5j, COMPLEX, [(4, 3)]),
    "square of the magnitude": (lambda x: (x * x.conj()).real, COMPLEX, [(4, 3)]),
    "product": (lambda x, y: (x @ y.mT).sum(), COMPLEX, [(4, 3), (4, 3)]),
    "pairs": (lambda x: torch.view_as_complex(x).sum().abs(), REAL, [(4, 2)]),
    "spectrogram": (lambda x: torch.stft(x, 16, return_complex=True).abs(), REAL, [(2, 64)]),
    "spectrum": (lambda x: torch.fft.rfft(x).abs().pow(2).mean(-1), REAL, [(4, 16)]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(device: str, name: str) -> None:
    function, dtype, shapes = GRAPHS[name]
    assert_as_on_the_cpu(function, torch.compile(function), inputs(*shapes, dtype=dtype), device)


MOVES: dict[str, Function] = {
    "converted": lambda x, m: x.real.t().to(torch.complex64),
    "laid out anew": lambda x, m: x.t().clone(memory_format=torch.contiguous_format),
    "joined": lambda x, m: torch.cat([x, x.flip(0)]),
    "chosen": lambda x, m: torch.where(m, x, x.roll(1, 1)),
    "padded": lambda x, m: torch.nn.functional.pad(x, (1, 2)),
    "filled": lambda x, m: x.masked_fill(m, 1 + 2j),
    "as real numbers": lambda x, m: x.t().contiguous().view(torch.float32) + 1,
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_in_graphs(device: str, name: str) -> None:
    (x,) = inputs((6, 5))
    mask = x.real > 0
    found, expected = torch.compile(MOVES[name])(x.to(device), mask.to(device)), MOVES[name](x, mask)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)
    assert found.stride() == expected.stride()


def test_what_is_complex_runs_on_the_cpu_in_one_call(device: str) -> None:
    """Not in the parts that a decomposition makes of it, each of which would be a call."""
    module = getattr(torch, device)
    x = inputs((4, 3))[0].to(device)
    module.reset_fallbacks()
    torch.linalg.cross(x, x[:1])
    assert list(module.fallbacks().values()) == [1]
