# SPDX-License-Identifier: Apache-2.0
"""Calls at the edge of what PyTorch accepts: the same dtype, shape, strides, values or exception as on the CPU."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import metadata_case

Call = Callable[[str], object]
aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")


def _bytes(device: str, *values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8, device=device)


def _mask(device: str) -> Tensor:
    return torch.tensor([True, False, True], device=device)


def _wide(device: str) -> Tensor:
    return torch.arange(12.0, device=device).reshape(3, 4).t()


def _channels_last(device: str) -> Tensor:
    return torch.arange(48.0, device=device).reshape(2, 4, 2, 3).contiguous(memory_format=torch.channels_last)


def _channels_last_3d(device: str) -> Tensor:
    return torch.arange(96.0, device=device).reshape(2, 4, 2, 2, 3).contiguous(memory_format=torch.channels_last_3d)


def _gradient(device: str, function: Callable[[Tensor], Tensor]) -> Tensor:
    x = torch.tensor([-INF, -1, -0.5, 0.0, 0.5, 2, INF], device=device, requires_grad=True)
    return torch.autograd.grad(function(x), x, torch.full_like(x, 2))[0]


def _image_gradient(device: str, function: Callable[[Tensor], Tensor]) -> Tensor:
    x = _channels_last(device).requires_grad_()
    result = function(x)
    return torch.autograd.grad(result, x, result.detach() ** 2)[0]


def _gradient_of_nothing(device: str, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    x = torch.ones(0, 3, device=device, requires_grad=True)
    return torch.autograd.grad(loss(x, x.detach()), x)[0]


def _where_out(device: str, condition: Tensor, size: int) -> Tensor:
    x = torch.arange(3.0, device=device)
    return torch.where(condition, x, -x, out=torch.empty(size, device=device))


def _repeats(device: str, repeats: list[int], size: int) -> Tensor:
    return torch.repeat_interleave(torch.tensor(repeats, dtype=torch.int64, device=device), output_size=size)


CALLS: dict[str, Call] = {
    # empty and degenerate
    "pixel_unshuffle": lambda d: F.pixel_unshuffle(torch.zeros(0, 4, 4, 4, device=d), 2),
    "repeat_interleave": lambda d: _repeats(d, [1, 2], 3),
    "repeat_interleave_none": lambda d: _repeats(d, [0, 0], 0),
    "repeat_interleave_empty": lambda d: _repeats(d, [], 0),
    "repeat_interleave_more": lambda d: _repeats(d, [1, 2], 2),
    "repeat_interleave_fewer": lambda d: _repeats(d, [1, 2], 4),
    "layer_norm": lambda d: torch.native_layer_norm(torch.zeros(3, 0, device=d), [0], None, None, 1e-5),
    "group_norm": lambda d: torch.native_group_norm(torch.zeros(2, 4, 0, device=d), None, None, 2, 4, 0, 2, 1e-5),
    "group_norm_rows": lambda d: torch.native_group_norm(torch.zeros(0, 4, 3, device=d), None, None, 0, 4, 3, 2, 1e-5),
    "unbind_copy": lambda d: torch.unbind_copy(torch.zeros(0, 3, device=d)),
    "batch_norm": lambda d: aten._native_batch_norm_legit_no_training(
        torch.ones(2, 3, 4, device=d).half(), None, None, torch.zeros(3, device=d), torch.ones(3, device=d), 0.1, 1e-5
    ),
    "batch_norm_no_update": lambda d: aten._batch_norm_no_update(
        torch.ones(2, 3, 4, device=d), None, None, torch.zeros(3, device=d), torch.ones(3, device=d), 0.1, 1e-5
    ),
    "roll": lambda d: torch.roll(torch.zeros(0, 3, device=d), 1, 5),
    "where_bytes": lambda d: torch.where(_bytes(d, 0, 1, 2), torch.ones(3, device=d), torch.zeros(3, device=d)),
    "where_bytes_out": lambda d: _where_out(d, _bytes(d, 0, 1, 2), 3),
    "where_bytes_out_resized": lambda d: _where_out(d, _bytes(d, 0, 1, 2), 0),
    "where_floats_out": lambda d: _where_out(d, torch.ones(3, device=d), 3),
    "elu": lambda d: F.elu(torch.tensor([NAN, -INF, INF, -1, 0.0, -0.0], device=d), INF),
    "bmm_rows": lambda d: torch.bmm(torch.zeros(0, 3, 2, device=d), torch.zeros(0, 2, 4, device=d)),
    "bmm_inner": lambda d: torch.bmm(torch.zeros(2, 3, 0, device=d), torch.zeros(2, 0, 4, device=d)),
    # without elements, and with an offset behind their memory
    "mm_behind": lambda d: torch.empty(4, 0, device=d)[2:] @ torch.zeros(0, 3, device=d),
    "bmm_behind": lambda d: torch.zeros(2, 4, 5, device=d)[:, :, 5:][2:] @ torch.zeros(0, 0, 3, device=d),
    "linear_behind": lambda d: F.linear(torch.ones(4, 5, device=d)[3:, 5:], torch.ones(3, 0, device=d)),
    "cumsum_behind": lambda d: torch.empty(4, 0, device=d)[2:].cumsum(1),
    "cat_behind": lambda d: torch.cat([torch.ones(4, 5, device=d), torch.ones(4, 5, device=d)[4:, 5:]], 0),
    # dtypes
    "any_bytes": lambda d: _bytes(d, 0, 2).any(),
    "any_bytes_dim": lambda d: _bytes(d, 0, 2).reshape(1, 2).any(1),
    "all_bytes": lambda d: _bytes(d, 0, 2).all(0),
    "clamp_float": lambda d: torch.tensor([1.0, 1e-9], device=d).clamp(min=1e-6),
    "clamp_bool": lambda d: torch.tensor([True, False], device=d).clamp(min=0.5),
    "group_norm_halves": lambda d: torch.native_group_norm(
        torch.arange(24, device=d).reshape(2, 4, 3).half(), torch.ones(4, device=d), None, 2, 4, 3, 2, 1e-5
    ),
    # numbers that do not fit
    "fits": lambda d: torch.zeros(3, device=d).masked_fill(_mask(d), 1e30),
    "masked_fill_float": lambda d: torch.zeros(3, device=d).masked_fill(_mask(d), 1e40),
    "masked_fill_byte_fits": lambda d: _bytes(d, 1, 2, 3).masked_fill(_mask(d), 200),
    "masked_fill_byte": lambda d: _bytes(d, 1, 2, 3).masked_fill(_mask(d), 300),
    "masked_fill_int": lambda d: torch.zeros(3, dtype=torch.int32, device=d).masked_fill_(_mask(d), 2**40),
    "masked_fill_bool": lambda d: torch.zeros(3, dtype=torch.bool, device=d).masked_fill(_mask(d), INF),
    "masked_fill_large": lambda d: torch.zeros(1 << 17, dtype=torch.uint8, device=d).masked_fill(
        torch.ones(1 << 17, dtype=torch.bool, device=d), 300
    ),
    "full": lambda d: torch.full((3,), 300, dtype=torch.uint8, device=d),
    "alpha_fits": lambda d: torch.add(_bytes(d, 1, 2), _bytes(d, 1, 2), alpha=3),
    "alpha": lambda d: torch.add(_bytes(d, 1, 2), _bytes(d, 1, 2), alpha=300),
    "add": lambda d: _bytes(d, 1, 2) + 300,
    "eq": lambda d: _bytes(d, 1, 2) == 300,
    "clamp": lambda d: _bytes(d, 1, 2).clamp(max=300),
    # aliasing
    "partial": lambda d: (lambda x: torch.mul(x[:3], 2, out=x[1:]))(torch.ones(4, device=d)),
    "copy_partial": lambda d: (lambda x: x[1:].copy_(x[:-1]))(torch.ones(4, device=d)),
    "fill_expanded": lambda d: torch.ones(1, device=d).expand(3).fill_(2),
    "index_itself": lambda d: (lambda x: torch.index_select(x, 0, torch.tensor([1, 0], device=d), out=x))(
        torch.ones(2, device=d)
    ),
    "resized_input": lambda d: (lambda x: torch.sub(torch.ones(4, 3, device=d), x, out=x))(torch.ones(3, device=d)),
    "cat_itself": lambda d: (lambda x: torch.cat([x, x], out=x))(torch.ones(4, device=d)),
    # storages beyond what the tensor sees of them
    "as_strided_copy": lambda d: torch.as_strided_copy(torch.arange(9.0, device=d)[:0], (2, 2), (2, 1), 1),
    "as_strided_copy_expanded": lambda d: torch.as_strided_copy(_wide(d)[:1].expand(4, 3), (2, 2), (2, 1)),
    "as_strided_copy_beyond": lambda d: torch.as_strided_copy(torch.arange(9.0, device=d), (2, 2), (9, 1)),
    "as_strided_scatter": lambda d: torch.as_strided_scatter(
        torch.arange(9.0, device=d)[:0], torch.ones(1, device=d), (1,), (1,), 0
    ),
    "as_strided_scatter_shape": lambda d: torch.as_strided_scatter(
        _wide(d), torch.ones(1, device=d), (2, 2), (2, 1), 0
    ),
    # no gradient is asked for
    "convolution_mask": lambda d: aten.convolution_backward(
        *2 * [torch.ones(1, 1, 3, 3, device=d)],
        torch.ones(1, 1, 1, 1, device=d),
        None,
        [1, 1],
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
        [False] * 3,
    ),
    "layer_norm_mask": lambda d: aten.native_layer_norm_backward(
        *2 * [torch.ones(3, 4, device=d)], [4], *2 * [torch.ones(3, 1, device=d)], None, None, [False] * 3
    ),
    "group_norm_mask": lambda d: aten.native_group_norm_backward(
        *2 * [torch.ones(2, 4, 2, 3, device=d)], *2 * [torch.ones(2, 2, device=d)], None, 2, 4, 6, 2, [False] * 3
    ),
    "batch_norm_mask": lambda d: aten.native_batch_norm_backward(
        *2 * [_wide(d)], None, None, None, *2 * [torch.ones(3, device=d)], True, 1e-5, [False] * 3
    ),
    "batch_norm_weight_mask": lambda d: aten.native_batch_norm_backward(
        *2 * [_wide(d)], None, None, None, *2 * [torch.ones(3, device=d)], True, 1e-5, [False, True, False]
    ),
    # losses
    "multilabel": lambda d: F.multilabel_margin_loss(
        torch.tensor([[0.1, 0.2, 0.4, 0.8]], device=d), torch.tensor([[3, 0, -1, 1]], device=d)
    ),
    "multilabel_none": lambda d: F.multilabel_margin_loss(
        torch.tensor([0.1, 0.2, 0.4, 0.8], device=d), torch.tensor([3, -1, 0, 1], device=d), reduction="none"
    ),
    **{
        f"grid_sample_nowhere_{mode}_{padding}_{aligned}": lambda d, mode=mode, padding=padding, aligned=aligned: (
            F.grid_sample(
                torch.arange(1.0, 10, device=d).view(1, 1, 3, 3),
                torch.tensor([[[[math.nan, 0], [INF, 0], [-INF, 1], [0.5, math.nan]]]], device=d),
                mode,
                padding,
                aligned,
            )
        )
        for mode in ("bilinear", "nearest")
        for padding in ("border", "reflection")
        for aligned in (False, True)
    },
    "multi_margin_none": lambda d: F.multi_margin_loss(
        torch.tensor([0.1, 0.2, 0.4, 0.8], device=d), torch.tensor(3, device=d), reduction="none"
    ),
    "softshrink_gradient": lambda d: _gradient(d, F.softshrink),
    "hardshrink_gradient": lambda d: _gradient(d, F.hardshrink),
    # numbers beside tensors
    **{
        f"{name}_of_{dtype}_and_{other}": lambda d, name=name, dtype=dtype, other=other: (
            [getattr(torch, name)(x, other) for x in torch.tensor([[7], [-2]], device=d).to(dtype)[0]]
            + [getattr(torch, name)(torch.tensor([7, 3], device=d).to(dtype), other)]
        )
        for name in ("fmod", "remainder", "copysign", "xlogy")
        for dtype in (torch.bfloat16, torch.float64, torch.int8)
        for other in (2.484, 3)
    },
    "shift_of_int8": lambda d: torch.tensor(7, dtype=torch.int8, device=d) << 2,
    # strides
    "expanded_half": lambda d: (
        _wide(d)[:, :1].bfloat16().expand(_wide(d).shape) - _wide(d).bfloat16().t().contiguous().t()
    ),
    "logsigmoid": lambda d: F.logsigmoid(_wide(d)),
    "silu": lambda d: F.silu(_wide(d)),
    "fmin": lambda d: torch.fmin(_wide(d), _wide(d)),
    "xlogy": lambda d: torch.xlogy(_wide(d), 2.0),
    "lerp": lambda d: torch.lerp(_wide(d), _wide(d), 0.5),
    "index_select": lambda d: torch.index_select(_wide(d), 0, torch.tensor([0, 2], device=d)),
    "masked_fill": lambda d: _wide(d).masked_fill(_wide(d) > 3, 2.0),
    "masked_fill_tensor": lambda d: _wide(d).masked_fill(_wide(d) > 3, torch.tensor(2.0, device=d)),
    "mvlgamma": lambda d: torch.mvlgamma(_wide(d) + 1, 1),
    "pixel_shuffle": lambda d: F.pixel_shuffle(_channels_last(d), 2),
    "reflection_pad2d": lambda d: F.pad(_channels_last(d), (1, 1, 1, 0), mode="reflect"),
    "replication_pad2d": lambda d: F.pad(_channels_last(d), (1, 1, 1, 0), mode="replicate"),
    "reflection_pad3d": lambda d: F.pad(_channels_last_3d(d), (1, 1, 1, 0, 0, 0), mode="reflect"),
    "replication_pad3d": lambda d: F.pad(_channels_last_3d(d), (1, 1, 1, 0, 0, 0), mode="replicate"),
    "reflection_pad2d_gradient": lambda d: _image_gradient(d, lambda x: F.pad(x, (1, 1, 1, 0), mode="reflect")),
    "replication_pad2d_gradient": lambda d: _image_gradient(d, lambda x: F.pad(x, (1, 1, 1, 0), mode="replicate")),
    "pixel_shuffle_gradient": lambda d: _image_gradient(d, lambda x: F.pixel_shuffle(torch.cat([x, x], 1), 2)),
    "glu_gradient": lambda d: _image_gradient(d, lambda x: F.glu(x / 48, 1)),
    "roll_image": lambda d: _channels_last(d).roll(1, 1),
    "group_norm_gradient": lambda d: aten.native_group_norm_backward(
        _channels_last(d), _channels_last(d), *2 * [torch.ones(2, 2, device=d)], None, 2, 4, 6, 2, [True, False, False]
    ),
    "loss_gradients": lambda d: [
        _image_gradient(d, lambda x, f=f: f(x, x.detach() * 2, reduction="none"))
        for f in (F.mse_loss, F.huber_loss, F.smooth_l1_loss)
    ],
    "loss_gradients_of_nothing": lambda d: [
        _gradient_of_nothing(d, loss) for loss in (F.mse_loss, F.huber_loss, F.smooth_l1_loss)
    ],
    "max_unpool2d": lambda d: F.max_unpool2d(_channels_last(d), _channels_last(d).long() % 6, 2),
    "lstsq": lambda d: torch.linalg.lstsq(_wide(d).t()[:, :2], torch.ones(3, 2, device=d)),
    "embedding_bag": lambda d: F.embedding_bag(
        torch.tensor([0, 1, 2], device=d), _wide(d), torch.tensor([0, 1], device=d)
    ),
    "irfft": lambda d: torch.fft.irfft(torch.ones(7, 10, 5, device=d).permute(2, 1, 0)),
}


def _outcome(call: Call, device: str) -> object:
    try:
        result = call(device)
        if device != "cpu":
            torch.accelerator.synchronize()
    except Exception as error:  # noqa: BLE001 - its type is what is compared
        return error
    return result


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(CALLS))
def test_edge(device: str, name: str) -> None:
    expected, actual = _outcome(CALLS[name], "cpu"), _outcome(CALLS[name], device)
    if isinstance(expected, Exception) or isinstance(actual, Exception):
        assert type(expected) is type(actual), f"{actual!r}\nthe CPU: {expected!r}"
        return
    torch.testing.assert_close(actual, expected, check_device=False, check_stride=True, equal_nan=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "where_bytes",
        "roll",
        "group_norm_halves",
        "softshrink_gradient",
        "hardshrink_gradient",
        "masked_fill",
        "clamp_float",
        "as_strided_copy",
        "as_strided_scatter",
        "convolution_mask",
        "layer_norm_mask",
        "group_norm_mask",
        "batch_norm_mask",
    ],
)
def test_edge_on_the_device(device: str, device_module: ModuleType, name: str) -> None:
    """What is right might be so thanks to the CPU."""
    device_module.reset_fallbacks()
    CALLS[name](device)
    assert device_module.fallbacks() == {}


def test_linear_backward_of_nothing(device: str) -> None:
    """Which the CPU has no kernel for: its other gradients are undefined where none is asked for."""
    x, gradient, weight = (
        torch.ones(3, 4, device=device),
        torch.ones(3, 5, device=device),
        torch.ones(5, 4, device=device),
    )
    assert aten.linear_backward(x, gradient, weight, [False] * 3) == (None, None, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_filling_several_halves_with_more_than_they_hold(dtype: torch.dtype, device: str) -> None:
    for x in (torch.empty(3, dtype=dtype, device=device), torch.empty(4, 6, dtype=dtype, device=device)[:, ::2]):
        with pytest.raises(RuntimeError, match="without overflow"):
            x.fill_(1e40)
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.full((2,), -1e40, dtype=dtype, device=device)
    assert torch.empty(1, dtype=dtype, device=device).fill_(1e40).isinf().all()  # as on the CPU


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["sum", "prod", "cumsum", "cumprod"])
def test_sums_are_computed_in_the_dtype_they_are_written_in(name: str, dtype: torch.dtype, device: str) -> None:
    x, reduce = torch.tensor([[1.5, 2.5, 0.25], [2.5, 3.5, 0.5]]), getattr(torch, name)
    expected = torch.empty(0, dtype=dtype)
    reduce(x, 1, out=expected)
    result = torch.empty_like(expected, device=device)
    reduce(x.to(device), 1, out=result)
    torch.testing.assert_close(result.cpu(), expected)


def test_a_number_that_fitted_before(device: str) -> None:
    """Whether a number fits is asked of every call, not of the first that made a plan."""
    x = torch.zeros(3, dtype=torch.int16, device=device)
    for value, wrong in itertools.product((5, 1 << 20), range(2)):
        if value == 5:
            assert x.masked_fill(_mask(device), value).tolist() == [5, 0, 5], wrong
            continue
        with pytest.raises(RuntimeError, match="without overflow"):
            x.masked_fill(_mask(device), value)


def test_dlpack_within_pytorch_stays_on_the_device(device: str) -> None:
    x = torch.ones(3, device=device)
    y = torch.from_dlpack(x)
    assert y.device == x.device
    y.add_(1)
    assert x.tolist() == [2.0, 2.0, 2.0]
    assert torch.from_dlpack(x, device="cpu").device.type == "cpu"


#: A few operators of each kind; ``tools/opinfo.py --check metadata`` has all.
@pytest.mark.parametrize(
    "name", ["add", "cat", "clamp", "gather", "masked_fill", "nn.functional.logsigmoid", "sum", "where"]
)
def test_metadata(device: str, name: str) -> None:
    op = next(op for op in op_db if op.name == name)
    outcome = metadata_case.run(op, torch.float32, device, 1)
    assert outcome.kind == "native", outcome.detail


_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", _INTEGERS, ids=str)
def test_powers_of_integers(dtype: torch.dtype, compiled: bool, device: str, device_module: ModuleType) -> None:
    base = torch.tensor([-3, -1, 0, 1, 2, 5, 100, 7]).to(dtype)
    exponent = torch.tensor([-3, -2, -1, 0, 1, 2, 3, 7, 63]).to(dtype)
    torch._dynamo.reset()
    power = torch.compile(torch.pow) if compiled else torch.pow
    before = dict(device_module.fallbacks())
    for x, y in ((base[:, None], exponent), (base, torch.tensor(3)), (-1, exponent), (base, 5)):
        ours = power(*(v.to(device) if isinstance(v, Tensor) and v.dim() else v for v in (x, y)))
        torch.testing.assert_close(ours.cpu(), torch.pow(x, y), rtol=0, atol=0)
    assert dict(device_module.fallbacks()) == before
    with pytest.raises(RuntimeError, match="Integers to negative integer powers"):
        power(base.to(device), -1)


@pytest.mark.parametrize("shape", [(3,), (0,), (70,), (33, 65), (20000,)], ids=str)
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_reductions_in_bool(name: str, shape: tuple[int, ...], device: str, device_module: ModuleType) -> None:
    before = dict(device_module.fallbacks())
    for density in (0.0, 0.01, 0.99, 1.0):
        x = (torch.rand(shape) < density).float() / 2
        ours = getattr(x.to(device), name)(dim=-1, dtype=torch.bool)
        torch.testing.assert_close(ours.cpu(), getattr(x, name)(dim=-1, dtype=torch.bool))
    assert dict(device_module.fallbacks()) == before


@pytest.mark.parametrize("name", ["add", "sub"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32], ids=str)
def test_factors_of_other_dtypes_keep_their_digits(name: str, dtype: torch.dtype, device: str) -> None:
    x, y = torch.rand(7, dtype=torch.float64), (torch.rand(7) * 20).to(dtype)
    if dtype == torch.bool and name == "sub":
        with pytest.raises(RuntimeError, match="with a bool tensor is not supported"):
            torch.sub(x.to(device), y.to(device), alpha=0.546)
        return
    ours = getattr(torch, name)(x.to(device), y.to(device), alpha=0.546)
    torch.testing.assert_close(ours.cpu(), getattr(torch, name)(x, y, alpha=0.546), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_first_operand_of_xlog1py_decides_how_it_lies(compiled: bool, device: str) -> None:
    def operands(place: str) -> tuple[Tensor, Tensor, Tensor]:
        numbers = torch.rand(4 * 16 * 16 * 2, device=place)
        expanded = numbers[:128].reshape(4, 16, 1, 2).expand(4, 16, 16, 2)
        return expanded, numbers.as_strided((4, 16, 16, 2), (512, 2, 32, 1)), numbers.reshape(4, 16, 16, 2)

    torch._dynamo.reset()
    function = torch.compile(torch.special.xlog1py) if compiled else torch.special.xlog1py
    for (x, y), pair in zip(
        itertools.permutations(operands("cpu"), 2), itertools.permutations(operands(device), 2), strict=True
    ):
        assert function(*pair).stride() == torch.special.xlog1py(x, y).stride()
        if not compiled:
            assert torch.xlogy(*pair).stride() == torch.xlogy(x, y).stride()


@pytest.mark.parametrize("dtype", _INTEGERS, ids=str)
def test_products_of_integers_are_added_as_integers(dtype: torch.dtype, device: str) -> None:
    x, a, b = (torch.tensor(v).to(dtype) for v in ([12, torch.iinfo(dtype).max], [7, 0], [5]))
    torch._dynamo.reset()
    ours = torch.compile(lambda x, a, b: torch.addcmul(x, a, b, value=2))(x.to(device), a.to(device), b.to(device))
    torch.testing.assert_close(ours.cpu(), torch.addcmul(x, a, b, value=2), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_results_without_elements(device: str, dtype: torch.dtype) -> None:
    """The plan is made for a size of 0, by which places of elements are divided, and serves others, too."""
    x = torch.arange(15).reshape(5, 3).to(dtype)
    for pad in ((-1, -2, 1, 1), (-1, -1, 1, 2), (1, 2, -2, -3)):
        assert torch.equal(F.pad(x.to(device), pad, value=2).cpu(), F.pad(x, pad, value=2))
    for times in ((2, 0), (0, 3), (2, 3)):
        assert torch.equal(x.to(device).repeat(times).cpu(), x.repeat(times))


@pytest.mark.parametrize("shape", [(7,), (3, 5), (1, 3), (4, 2, 5)], ids=str)
def test_roll(device: str, shape: tuple[int, ...]) -> None:
    """By any number, along any dimension or all of it."""
    x = torch.randn(shape)
    for shift in (0, 1, -2, 100, -77):
        for dim in (None, *range(-len(shape), len(shape))):
            expected, found = torch.roll(x, shift, dim), torch.roll(x.to(device), shift, dim)
            assert torch.equal(found.cpu(), expected)
            assert found.stride() == expected.stride()
    dims = tuple(range(len(shape)))
    assert torch.equal(torch.roll(x.to(device), dims, dims).cpu(), torch.roll(x, dims, dims))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_a_convolution_without_channels(dtype: torch.dtype, device: str) -> None:
    """Its result has none either, whatever the weight says; the gradient of the bias is zero."""
    for rank, function in enumerate((F.conv1d, F.conv2d, F.conv3d), 1):
        results = []
        for where in ("cpu", device):
            x = torch.ones(1, 0, *[4] * rank, dtype=dtype, device=where, requires_grad=True)
            weight = torch.ones(3, 0, *[3] * rank, dtype=dtype, device=where, requires_grad=True)
            bias = torch.ones(3, dtype=dtype, device=where, requires_grad=True)
            result = function(x, weight, bias, stride=2, padding=2)
            gradients = torch.autograd.grad(result, (x, weight, bias), torch.ones_like(result))
            results.append([value.detach().cpu() for value in (result, *gradients)])
        for one, other in zip(*results, strict=True):
            assert one.shape == other.shape and torch.equal(one, other)


def _with_gradients(function: Callable[..., Tensor], *operands: Tensor) -> list[Tensor]:
    leaves = [operand.detach().requires_grad_() for operand in operands]
    result = function(*leaves)
    return [
        result,
        *torch.autograd.grad(result, leaves, torch.arange(1.0, 1 + result.numel()).to(result).view_as(result)),
    ]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(device: str, device_module: ModuleType, reduction: str, p: int) -> None:
    x, target, weight = torch.randn(3, 4), torch.tensor([0, 3, 1]), torch.rand(4)
    x[2, 3] = torch.nan  # no margin of it counts

    def loss(x: Tensor) -> Tensor:
        options: dict[str, Any] = {"p": p, "margin": 0.3, "reduction": reduction}
        losses = F.multi_margin_loss(x, target.to(x.device), weight=weight.to(x.device), **options)
        return torch.stack([*losses.reshape(-1), F.multi_margin_loss(x[0], target[0].to(x.device), **options)])

    device_module.set_fallback_policy("error")
    try:
        found = _with_gradients(loss, x.to(device))
    finally:
        device_module.set_fallback_policy("allow")
    torch.testing.assert_close([each.cpu() for each in found], _with_gradients(loss, x))


def test_bilinear(device: str, device_module: ModuleType) -> None:
    operands = torch.randn(3, 4), torch.randn(3, 5), torch.randn(2, 4, 5), torch.randn(2)
    device_module.set_fallback_policy("error")
    try:
        found = _with_gradients(F.bilinear, *(operand.to(device) for operand in operands))
    finally:
        device_module.set_fallback_policy("allow")
    torch.testing.assert_close([each.cpu() for each in found], _with_gradients(F.bilinear, *operands))
