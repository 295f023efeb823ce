# SPDX-License-Identifier: Apache-2.0
"""Numbers on whose values no code depends: a plan that was made for one value is right for the others, and what the CPU
refuses is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

aten = torch.ops.aten
X = torch.tensor([-3.5, -1.0, -0.25, -0.0, 0.0, 0.125, 1.0, 2.75, 40.0, math.inf, -math.inf, math.nan]).reshape(3, 4)
Y = torch.linspace(-1, 1, 12).reshape(3, 4)
TARGET = torch.tensor([1, 3, 0])

EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    0.5,
    0.1,
    1e-5,
    1e-320,
    1e-45,
    65504.0,
    3.4e38,
    -7.25,
    math.inf,
    -math.inf,
    math.nan,
]
FLOATS = st.sampled_from(EDGES) | st.floats(-100, 100)
POSITIVE = st.sampled_from([1e-5, 1e-12, 0.1, 0.5, 1.0, 2.0, 1e30]) | st.floats(1e-3, 100)
INTS = st.integers(-6, 6)

#: By name: a call with a number, and the numbers.
CALLS: dict[str, tuple[Callable[[Tensor, Tensor, Any], Any], st.SearchStrategy[Any]]] = {
    "add alpha": (lambda x, y, n: torch.add(x, y, alpha=n), FLOATS),
    "addmm beta": (lambda x, y, n: torch.addmm(y, y[:, :3], y, beta=n), FLOATS),
    "addmm alpha": (lambda x, y, n: torch.addmm(y, y[:, :3], y, alpha=n), FLOATS),
    "addmv beta": (lambda x, y, n: torch.addmv(y[:, 0], y, y[0], beta=n), FLOATS),
    "addr beta": (lambda x, y, n: torch.addr(y, y[:, 0], y[0], beta=n, alpha=0.3), FLOATS),
    "baddbmm": (lambda x, y, n: torch.baddbmm(y[None], y[None, :, :3], y[None], beta=n, alpha=n), FLOATS),
    "celu": (lambda x, y, n: F.celu(x, n), POSITIVE),
    "clamp": (lambda x, y, n: x.clamp(-1.0, n), FLOATS),
    "dist": (lambda x, y, n: torch.dist(x[0], y[0], n), POSITIVE),
    "elu": (lambda x, y, n: F.elu(x, n), FLOATS),
    "hardshrink": (lambda x, y, n: F.hardshrink(x, n), FLOATS),
    "huber_loss": (lambda x, y, n: F.huber_loss(x, y, reduction="none", delta=n), POSITIVE),
    "index_add": (lambda x, y, n: x.index_add(0, TARGET.to(x.device) % 3, y, alpha=n), FLOATS),
    "layer_norm": (lambda x, y, n: F.layer_norm(y, (4,), eps=n), POSITIVE),
    "leaky_relu": (lambda x, y, n: F.leaky_relu(x, n), FLOATS),
    "lerp": (lambda x, y, n: torch.lerp(x, y, n), FLOATS),
    "logit": (lambda x, y, n: torch.logit(y, n), st.floats(0.05, 0.5)),
    "nan_to_num": (lambda x, y, n: torch.nan_to_num(x, n, n, n), FLOATS),
    "norm": (lambda x, y, n: torch.linalg.vector_norm(y, n, 1), POSITIVE),
    "renorm": (lambda x, y, n: torch.renorm(y, n, 0, 0.5), POSITIVE),
    "scatter": (lambda x, y, n: x.scatter(1, TARGET.to(x.device)[:, None], n), FLOATS),
    "smooth_l1_loss": (
        lambda x, y, n: F.smooth_l1_loss(x, y, reduction="none", beta=n),
        st.floats(1e-3, 100) | st.just(0.0),
    ),
    "softplus": (lambda x, y, n: F.softplus(x, n), POSITIVE),
    "threshold": (lambda x, y, n: F.threshold(x, n, n), FLOATS),
    "cdist": (lambda x, y, n: torch.cdist(y, y + 1, p=n), POSITIVE | st.sampled_from([0.0, math.inf])),
    "diag_embed": (lambda x, y, n: torch.diag_embed(x, n), INTS),
    "diagonal_copy": (lambda x, y, n: torch.diagonal_copy(x, n), st.integers(-2, 3)),
    "kthvalue": (lambda x, y, n: torch.kthvalue(y, n), st.integers(1, 4)),
    "nll_loss": (lambda x, y, n: F.nll_loss(y, TARGET.to(x.device), ignore_index=n, reduction="sum"), INTS),
    "topk": (lambda x, y, n: torch.topk(y, n), st.integers(0, 4)),
    "triu_": (lambda x, y, n: x.clone().triu_(n), INTS),
}
#: Of those, what the CPU computes in another order or in other steps, for which it is but close.
_SUMS = {
    "logit",
    "index_add",
    "addr beta",
    "addmm beta",
    "addmm alpha",
    "addmv beta",
    "baddbmm",
    "layer_norm",
    "norm",
    "dist",
    "renorm",
    "cdist",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_results_are_the_cpus(device: str, name: str, dtype: torch.dtype) -> None:
    call, numbers = CALLS[name]
    x, y = X.to(dtype), Y.to(dtype)

    @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(numbers)
    def check(number: Any) -> None:
        wanted, refused = outcome(lambda: call(x, y, number))
        if refused is NotImplementedError:
            return  # a dtype that the CPU's kernel lacks
        found, refused_here = outcome(lambda: call(x.to(device), y.to(device), number))
        assert refused_here is refused, number
        for one, other in zip(found, wanted, strict=True):
            eps = torch.finfo(dtype).eps
            close = {"rtol": 64 * eps, "atol": 256 * eps} if name in _SUMS else {"rtol": 4 * eps, "atol": 0.0}
            torch.testing.assert_close(one.cpu(), other, equal_nan=True, msg=lambda text: f"{number}: {text}", **close)

    check()


def outcome(call: Callable[[], Any]) -> tuple[list[Tensor], type[Exception] | None]:
    """The tensors that a call returns, or none and what it raises."""
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - compared
        return [], type(error)
    return [result] if isinstance(result, Tensor) else list(result), None


#: By name: a call, a number that is fine, and some that the CPU refuses.
REFUSED: dict[str, tuple[Callable[[Tensor, Any], Any], Any, list[Any]]] = {
    "cdist": (lambda y, n: torch.cdist(y, y, p=n), 1.5, [-1.0]),
    "huber_loss": (lambda y, n: F.huber_loss(y, y, delta=n), 0.3, [0.0, -0.4]),
    "smooth_l1_loss": (lambda y, n: F.smooth_l1_loss(y, y, beta=n), 0.3, [-0.4]),
    "smooth_l1_loss after zero": (lambda y, n: aten.smooth_l1_loss(y, y * 2, 1, n), 0.0, [-0.4]),
    "logit": (lambda y, n: torch.logit(y, n), 0.3, [1e39]),
    "logit_backward": (lambda y, n: aten.logit_backward(y, y, n), 0.3, [1e39]),
    "logit_backward of halves": (lambda y, n: aten.logit_backward(y.half(), y.half(), n), 0.3, [65520.0]),
    "slice_scatter": (lambda y, n: torch.slice_scatter(y, y, 1, n), 0, [1, 2]),
    "slice_scatter end": (lambda y, n: torch.slice_scatter(y, y, 1, 0, n), 4, [3, 2]),
    "upsample_linear1d_backward": (
        lambda y, n: aten.upsample_linear1d_backward(y[None], [n], [1, 3, 7], False),
        4,
        [5, 3, 0],
    ),
    "upsample_nearest1d_backward": (
        lambda y, n: aten.upsample_nearest1d_backward(y[None], [4], [1, 3, n]),
        7,
        [0, -1],
    ),
    "upsample_nearest2d_backward": (
        lambda y, n: aten.upsample_nearest2d_backward(y[None, None], [3, 4], [1, n, 2, 3]),
        1,
        [2, 0],
    ),
    "upsample_nearest2d_backward of twice the size": (
        lambda y, n: aten.upsample_nearest2d_backward(y[None, None], [3, 4], [1, n, 3, 2]),
        1,
        [2, 0],
    ),
    "upsample_bilinear2d_aa_backward": (
        lambda y, n: aten._upsample_bilinear2d_aa_backward(y[None, None], [3, n], [1, 1, 2, 3], False),
        4,
        [5, 3, 0],
    ),
    "celu": (lambda y, n: F.celu(y, n), 0.3, [0.0]),
    "renorm": (lambda y, n: torch.renorm(y, n, 0, 1.0), 1.5, [0.0, -1.0]),
    "renorm maximum": (lambda y, n: torch.renorm(y, 1.5, 0, n), 1.5, [-1.0]),
    "topk": (lambda y, n: torch.topk(y, n), 3, [5, -1]),
    "kthvalue": (lambda y, n: torch.kthvalue(y, n), 3, [5, 0, -1]),
    "diagonal_copy": (lambda y, n: torch.diagonal_copy(y, n), 1, []),
    "narrow_copy": (lambda y, n: torch.narrow_copy(y, 1, n, 2), 1, [3, -5]),
    "select_scatter": (lambda y, n: torch.select_scatter(y, y[0], 0, n), 1, [3, -4]),
    "select_copy": (lambda y, n: torch.select_copy(y, 0, n), 1, [3, -4]),
    "adaptive_avg_pool2d": (lambda y, n: F.adaptive_avg_pool2d(y[None], (n, 2)), 2, [-1]),
    "replication_pad1d_backward": (lambda y, n: aten.replication_pad1d_backward(y, y[:, :2], [n, 1]), 1, [2, 3]),
    "diagonal_scatter": (lambda y, n: torch.diagonal_scatter(y, y[0, :3], n), 0, [2]),
    "fake_quantize scale": (lambda y, n: torch.fake_quantize_per_tensor_affine(y, n, 0, 0, 255), 0.1, []),
    "fake_quantize zero": (lambda y, n: torch.fake_quantize_per_tensor_affine(y, 0.1, n, 0, 255), 3, [-1, 256]),
    "upsample": (lambda y, n: F.interpolate(y[None], n), 7, [0, -1]),
    "max_unpool2d": (
        lambda y, n: aten.max_unpool2d(y[None], torch.arange(12).reshape(1, 3, 4).to(y.device), n),
        [5, 6],
        [[-1, 6]],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_cpu_refuses_is_refused(device: str, name: str) -> None:
    call, fine, wrong = REFUSED[name]
    for number in (fine, *wrong):
        wanted, refused = outcome(lambda number=number: call(Y, number))
        found, refused_here = outcome(lambda number=number: call(Y.to(device), number))
        assert refused_here is refused, number
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.cpu(), other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("eps", [-1.0, 0.0, 1e-12, 1e-3, 0.00195, 0.25, 0.6])
def test_bounds_of_logit_are_numbers_of_its_dtype(device: str, eps: float, dtype: torch.dtype) -> None:
    """Of halves, the upper one may be 1. A negative one is none."""
    x = torch.tensor([-1.0, 0.0, 1e-6, 0.001, 0.25, 0.5, 0.75, 0.998, 0.9999, 1.0, 3.0]).to(dtype)
    eps_of = torch.finfo(dtype).eps
    for call in (lambda x: torch.logit(x, eps), lambda x: aten.logit_backward(x + 1, x, eps)):
        torch.testing.assert_close(call(x.to(device)).cpu(), call(x), rtol=8 * eps_of, atol=4 * eps_of, equal_nan=True)
