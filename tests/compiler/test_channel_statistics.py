# SPDX-License-Identifier: Apache-2.0
"""Statistics of channels that lie in the middle, as batch normalisation takes them: loops follow memory, results are
right whatever the sizes."""

from __future__ import annotations

import copy

import pytest
import sympy
import torch
from torch import nn

from outboard.compiler.loops.nest import Entry, LoopKernel, Region, Root, Store, Value
from outboard.compiler.printing import emit
from outboard.compiler.target import Target

FLOAT = torch.float32
GATHER = "(float16)(*(p0"


def sums_of_channels(channels: int, images: int, places: int) -> LoopKernel:
    """One sum per channel of ``x[image, channel, place]``, and much else that is done once per channel."""
    channel, image, place = sympy.symbols("c n p", integer=True, nonnegative=True)
    x = Root("x", sympy.Integer(channels), False, channels)
    r = Root("r", sympy.Integer(images * places), True, images * places)
    one = sympy.Integer(1)
    entries = {
        channel: Entry(channel, x, one, sympy.Integer(channels), True, 1, channels),
        place: Entry(place, r, one, sympy.Integer(places), False, 1, places),
        image: Entry(image, r, sympy.Integer(places), sympy.Integer(images), True, places, images),
    }
    term = Value("t0", "load", FLOAT, buffer="x", index=(image * channels + channel) * places + place)
    total = Value("t1", "reduce", FLOAT, (term,), kind="sum")
    stores = [Store(f"out{number}", channel, total) for number in range(5)]
    buffers = {"x": FLOAT, **{store.buffer: FLOAT for store in stores}}
    regions = [Region(True, [term, total]), Region(False, list(stores))]
    return LoopKernel([x, r], entries, regions, buffers, {s.buffer for s in stores}, {}, set())


def test_vectors_lie_along_the_places_of_a_channel() -> None:
    """However many results there are per channel: they are written once, terms are read thousands of times."""
    definition = emit(sums_of_channels(64, 2, 3136), Target()).definition
    assert "vload16(0, p0 + " in definition and GATHER not in definition


def test_vectors_lie_across_short_rows() -> None:
    definition = emit(sums_of_channels(64, 100, 3), Target()).definition
    assert "vload16(0, p0 + " not in definition and GATHER in definition


@pytest.mark.parametrize("shape", [(2, 64, 56, 56), (3, 20, 7, 7), (4, 5, 1, 1), (2, 33, 5, 3), (1, 1, 40, 40)])
def test_compiled_batch_norm_training(shape: tuple[int, ...], device: str) -> None:
    """Forward, backward and running statistics against float64 on the CPU."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    norms = nn.Sequential(nn.BatchNorm2d(shape[1]), nn.ReLU(), nn.BatchNorm2d(shape[1]))
    with torch.no_grad():
        for parameter in norms.parameters():
            parameter.uniform_(0.5, 1.5)
    exact, ours = copy.deepcopy(norms).double(), copy.deepcopy(norms).to(device)
    x, weights = torch.randn(shape) + 3, torch.randn(shape)
    inputs = [x.double().requires_grad_(), x.to(device).requires_grad_()]
    results = [exact(inputs[0]), torch.compile(ours)(inputs[1])]
    (results[0] * weights.double()).sum().backward()
    (results[1] * weights.to(device)).sum().backward()
    found = [results[1], inputs[1].grad, *(p.grad for p in ours.parameters()), *ours.buffers()]
    expected = [results[0], inputs[0].grad, *(p.grad for p in exact.parameters()), *exact.buffers()]
    for mine, right in zip(found, expected, strict=True):
        assert mine is not None and right is not None
        torch.testing.assert_close(mine.detach().cpu(), right.detach().to(mine.dtype), rtol=2e-4, atol=2e-4)
