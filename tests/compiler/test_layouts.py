# SPDX-License-Identifier: Apache-2.0
"""Results lie as the CPU's do where operands lie in different orders, in single calls and in graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

#: Of a transposed matrix, another one, a vector and places.
OPERATORS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "copysign": lambda a, b, v, i: torch.copysign(a, b),
    "copysign of a number": lambda a, b, v, i: torch.copysign(a, -1.0),
    "div": lambda a, b, v, i: torch.div(a, b),
    "div, floor": lambda a, b, v, i: torch.div(a, b, rounding_mode="floor"),
    "div, trunc": lambda a, b, v, i: torch.div(a, b, rounding_mode="trunc"),
    "div by a number": lambda a, b, v, i: torch.div(a, 1.5, rounding_mode="trunc"),
    "div by a vector": lambda a, b, v, i: torch.div(v, a, rounding_mode="trunc"),
    "floor_divide": lambda a, b, v, i: torch.floor_divide(a, b),
    "xlogy": lambda a, b, v, i: torch.xlogy(a, b),
    "xlog1py": lambda a, b, v, i: torch.special.xlog1py(a, b),
    "addr": lambda a, b, v, i: torch.addr(a, v, v),
    "addr of nothing": lambda a, b, v, i: torch.addr(a, v, v, beta=0),
    "addr of a row": lambda a, b, v, i: torch.addr(v, v, v, beta=0),
    "put": lambda a, b, v, i: torch.put(a, i, v),
    "masked_fill": lambda a, b, v, i: torch.masked_fill(a, a > b, 1.5),
    "logsigmoid": lambda a, b, v, i: torch.nn.functional.logsigmoid(a),
    "mvlgamma": lambda a, b, v, i: torch.mvlgamma(a + 2, 2),
    "normal": lambda a, b, v, i: torch.normal(a, b * 0),
    "normal, one deviation": lambda a, b, v, i: torch.normal(a, 0.0),
    "dropout, backward": lambda a, b, v, i: torch.ops.aten.native_dropout_backward(a, b > 1.5, 2.0),
    "hardswish, backward": lambda a, b, v, i: torch.ops.aten.hardswish_backward(b, a),
    "hardtanh, backward": lambda a, b, v, i: torch.ops.aten.hardtanh_backward(b, a, 0.0, 2.0),
    "logit, backward": lambda a, b, v, i: torch.ops.aten.logit_backward(b, a / 3, 0.1),
    "elu, backward": lambda a, b, v, i: torch.ops.aten.elu_backward(b, 1.0, 1.0, 1.0, False, a),
    "softplus, backward": lambda a, b, v, i: torch.ops.aten.softplus_backward(b, a, 1.0, 20.0),
    "hardsigmoid, backward": lambda a, b, v, i: torch.ops.aten.hardsigmoid_backward(b, a),
    "log_softmax, backward": lambda a, b, v, i: torch.ops.aten._log_softmax_backward_data(a, b, 1, torch.float32),
    "unfold, backward": lambda a, b, v, i: torch.ops.aten.unfold_backward(a[:, :, None], [4, 4], 1, 1, 1),
    "layer_norm, backward": lambda a, b, v, i: torch.ops.aten.native_layer_norm_backward(
        a, a, [4], v[:, None], v[:, None], None, None, [True, False, False]
    )[0],
    "glu, backward": lambda a, b, v, i: torch.ops.aten.glu_backward(a[:2], a, 0),
    "huber_loss, backward": lambda a, b, v, i: torch.ops.aten.huber_loss_backward(a, a, b, 0, 1.0),
    "cat of one": lambda a, b, v, i: torch.cat([a]),
    "cat of one and nothing": lambda a, b, v, i: torch.cat([a, v[:0], a[:0]]),
    "cat of one, wider": lambda a, b, v, i: torch.cat([a, v[:0].double()]),
    "cat of one image": lambda a, b, v, i: torch.cat([a.view(2, 2, 2, 2).to(memory_format=torch.channels_last)]),
    "stack of one": lambda a, b, v, i: torch.stack([a], 1),
    "nonzero_static": lambda a, b, v, i: torch.nonzero_static(a > 1.5, size=3),
    "mse_loss, backward": lambda a, b, v, i: torch.ops.aten.mse_loss_backward(a, a, b, 0),
}


#: Those of which single calls take another layout than PyTorch's shape functions say: one for each rule.
SINGLE = ("div, floor", "addr of nothing", "normal", "hardswish, backward")


def _compare(names: Iterable[str], device: str, through: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    def every(*args: Tensor) -> list[Tensor]:
        return [OPERATORS[name](*args) for name in names]

    torch._dynamo.reset()
    arguments = (torch.rand(4, 4).t() + 1, torch.rand(4, 4) + 1, torch.rand(4), torch.arange(4))
    results = through(every)(*(each.to(device) for each in arguments))
    for name, ours, theirs in zip(names, results, every(*arguments), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, msg=lambda text, name=name: f"{name}: {text}")
        assert ours.stride() == theirs.stride(), name


@pytest.mark.parametrize("names", [SINGLE, pytest.param(tuple(OPERATORS), marks=pytest.mark.full("many plans"))])
def test_results_of_single_calls_lie_as_on_the_cpu(device: str, names: tuple[str, ...]) -> None:
    _compare(names, device, lambda function: function)


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_in_graphs_lie_as_on_the_cpu(device: str, dynamic: bool) -> None:
    _compare(tuple(OPERATORS), device, functools.partial(torch.compile, dynamic=dynamic))


def test_out_that_was_empty_lies_as_the_first_operand(device: str) -> None:
    for function in (
        lambda a, b, out: torch.div(a, b, rounding_mode="floor", out=out),
        lambda a, b, out: torch.addr(a, b[0], b[1], beta=0, out=out),
        lambda a, b, out: torch.addr(a[0], b[0], b[1], beta=0, out=out),
    ):
        a, b = torch.rand(4, 4).t() + 1, torch.rand(4, 4) + 1
        ours = function(a.to(device), b.to(device), torch.empty(0, device=device))
        assert ours.stride() == function(a, b, torch.empty(0)).stride()


def test_the_gradient_through_batch_norm_has_the_format_of_its_source(device: str) -> None:
    strides = []
    for where in ("cpu", device):
        x = torch.rand(2, 2, 2, 2).to(where).to(memory_format=torch.channels_last).requires_grad_()
        y = torch.nn.functional.batch_norm(x, None, None, None, None, training=True)
        strides.append(torch.autograd.grad(y, x, torch.ones(y.shape, device=where))[0].stride())
    assert strides[0] == strides[1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.conv2d(x, torch.ones(4, 1, 3, 3, device=x.device), dilation=(2, 1)),
        lambda x: torch.nn.functional.pixel_unshuffle(x, 2),
        lambda x: torch.cat([x, x, x, x, x], 1),
    ],
)
def test_images_of_one_channel_lie_alike_whoever_came_first(device: str, function: Callable[[Tensor], Tensor]) -> None:
    """Contiguous and channels-last are the same memory there, and one plan serves both."""
    x = torch.rand(2, 1, 8, 8, device=device)
    function(x.as_strided(x.shape, (64, 1, 8, 1)))
    assert function(x).is_contiguous()
