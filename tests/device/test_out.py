# SPDX-License-Identifier: Apache-2.0
"""``out=`` tensors that already are something: all memory around them, form, warnings and exceptions are the CPU's.

A few operators of each kind; ``tools/opinfo.py --check out`` has all."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import RunPython

DEVICE = torch.accelerator.current_accelerator().type

#: Each makes six elements: of shape (6,), (2, 3) or (1, 6, 1, 1).
OPERATORS: dict[str, Callable[[str, Tensor], Any]] = {
    "linspace": lambda device, out: torch.linspace(0, 3, 6, device=device, out=out),
    "logspace": lambda device, out: torch.logspace(0, 1, 6, device=device, out=out),
    "arange": lambda device, out: torch.arange(6, device=device, out=out),
    "full": lambda device, out: torch.full((2, 3), 5.0, device=device, out=out),
    "eye": lambda device, out: torch.eye(2, 3, device=device, out=out),
    "add": lambda device, out: torch.add(_numbers(device), 1, out=out),
    "where": lambda device, out: torch.where(_numbers(device) > 2, _numbers(device), 0.5, out=out),
    "cat": lambda device, out: torch.cat([_numbers(device)[:1]] * 2, out=out),
    "cumsum": lambda device, out: torch.cumsum(_numbers(device), 1, out=out),
    "mm": lambda device, out: torch.mm(_numbers(device)[:, :2], _numbers(device), out=out),
    "addr": lambda device, out: torch.addr(_numbers(device), _numbers(device)[:, 0], _numbers(device)[0], out=out),
    "addr to a number": lambda device, out: torch.addr(
        torch.tensor(2.0, device=device), _numbers(device)[:, 0], _numbers(device)[0], out=out
    ),
    "addbmm": lambda device, out: torch.addbmm(
        _numbers(device), _numbers(device)[None, :, :2], _numbers(device)[None], out=out
    ),
    "index_select": lambda device, out: torch.index_select(
        _numbers(device), 0, torch.tensor([1, 0], device=device), out=out
    ),
    "masked_select": lambda device, out: torch.masked_select(_numbers(device), _numbers(device) >= 0, out=out),
    "cholesky": lambda device, out: torch.linalg.cholesky(torch.eye(2, device=device) * 4, out=out),
    "lu_solve": lambda device, out: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(torch.eye(2, device=device) * 4), _numbers(device).view(2, 3), out=out
    ),
    "histc": lambda device, out: torch.histc(_numbers(device), 6, out=out),
    "channels": lambda device, out: torch.cat([_channels_last(device), _channels_last(device)], 1, out=out),
    "sorted channels": lambda device, out: torch.sort(
        _channels_last(device), 1, out=(out, torch.empty(0, dtype=torch.int64, device=device))
    )[0],
    "pooled channels": lambda device, out: torch.ops.aten.avg_pool2d(_channels_last(device), 2, out=out),
    "chosen channels": lambda device, out: torch.where(
        _channels_last(device) > 1, _channels_last(device), 0.0, out=out
    ),
}
#: Shape, strides and offset of an ``out=`` tensor in memory of 40 elements.
PLACES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "empty": ((0,), (1,), 0),
    "right": ((2, 3), (3, 1), 2),
    "gaps": ((2, 3), (6, 2), 1),
    "transposed": ((2, 3), (1, 2), 0),
    "transposed of another shape": ((3, 2), (1, 3), 0),
    "rows with gaps": ((3, 2), (4, 1), 1),
    "flat": ((6,), (1,), 0),
    "larger": ((3, 3), (3, 1), 0),
    "smaller": ((5,), (1,), 0),
    "expanded": ((2, 3), (0, 0), 0),
}


def _numbers(device: str) -> Tensor:
    return torch.arange(6.0, device=device).view(2, 3)


def _channels_last(device: str) -> Tensor:
    return torch.arange(24.0, device=device).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)


def _seen(name: str, place: str, device: str, dtype: torch.dtype = torch.float32) -> list[Any]:
    """Everything that a call does, in a form that can be compared."""
    shape, strides, offset = PLACES[place]
    memory = torch.full((40,), 97.0).to(dtype).to(device)
    out = memory.as_strided(shape, strides, offset)
    error = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            OPERATORS[name](device, out)
        except Exception as raised:  # noqa: BLE001 - compared
            error = f"{type(raised).__name__}: {raised}".replace(f"{DEVICE}:0", "cpu")
    said = [str(one.message).partition(" (Triggered")[0] for one in caught if "runs on the CPU" not in str(one.message)]
    if error:
        return [error, memory.tolist()]
    return [said, tuple(out.shape), out.stride(), out.storage_offset(), out.tolist(), memory.tolist()]


@pytest.mark.parametrize("name", OPERATORS)
def test_out_is_what_it_is_on_the_cpu(name: str) -> None:
    for place in PLACES:
        ours, theirs = _seen(name, place, DEVICE), _seen(name, place, "cpu")
        # Not all of PyTorch's kernels look at what they are to write one element in the place of another.
        is_refused = place == "expanded" and "more than one element of the written-to tensor" in str(ours[0])
        assert is_refused or ours == theirs, place


@pytest.mark.parametrize("dtype", (torch.float64, torch.int64, torch.complex64), ids=str)
@pytest.mark.parametrize("name", ("add", "cat", "masked_select", "histc", "cumsum", "mm", "lu_solve", "cholesky"))
def test_out_of_another_dtype(name: str, dtype: torch.dtype) -> None:
    for place in ("right", "larger"):
        assert _seen(name, place, DEVICE, dtype) == _seen(name, place, "cpu", dtype), place


@pytest.mark.parametrize("dtype", (torch.float32, torch.bool), ids=str)
def test_nonzero_out_of_another_dtype(dtype: torch.dtype) -> None:
    said = []
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError) as error:
            torch.nonzero(torch.ones(3, device=device), out=torch.empty(0, dtype=dtype, device=device))
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "function",
    (
        lambda x, out: torch.nonzero(x, out=out.long()),
        lambda x, out: torch.masked_select(x, x > 0, out=out),
        lambda x, out: torch.histc(x, 3, out=out),
        lambda x, out: torch.normal(x, x, out=out),
        lambda x, out: torch.add(x, 1, out=out),
        lambda x, out: torch.addr(x[:1].expand(1, 1), x[:1], x[:1], out=out),
    ),
)
def test_out_on_another_device_is_refused(function: Callable[[Tensor, Tensor], Any]) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device, but found at least two"):
        function(torch.ones(3, device=DEVICE), torch.empty(3))


@pytest.mark.parametrize("function", (torch.nonzero, lambda x, out: torch.masked_select(x, x > 0, out=out)))
def test_out_that_is_read_is_refused(function: Callable[..., Any]) -> None:
    for device in ("cpu", DEVICE):
        x = torch.ones(3, 1, dtype=torch.int64, device=device)
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
            function(x, out=x)


def _reversed(x: Tensor) -> Tensor:
    """The same numbers, in memory in the opposite order of dimensions."""
    return x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))


aten = torch.ops.aten
#: What makes a result of two tensors of one shape, the first of which decides how it lies.
PAIRS: dict[str, Callable[..., Any]] = {
    "copysign": torch.copysign,
    "floor_divide": torch.floor_divide,
    "floor_divide by a number": lambda x, y, out: torch.floor_divide(y, torch.tensor(2.0), out=out),
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
    "masked_fill": lambda x, y, out: aten.masked_fill.Scalar_out(y, x > 3, 1.0, out=out),
    "mvlgamma": lambda x, y, out: torch.mvlgamma(y + 1, 1, out=out),
    "mse_loss_backward": lambda x, y, out: aten.mse_loss_backward.grad_input(x, y, x, 0, grad_input=out),
    "huber_loss_backward": lambda x, y, out: aten.huber_loss_backward.out(x, y, x, 0, 1.0, grad_input=out),
    "smooth_l1_loss_backward": lambda x, y, out: aten.smooth_l1_loss_backward.grad_input(
        x, y, x, 0, 1.0, grad_input=out
    ),
    "glu_backward": lambda x, y, out: aten.glu_backward.grad_input(y[..., :3], y.repeat(1, 1, 2), 2, grad_input=out),
    "log_sigmoid_forward": lambda x, y, out: aten.log_sigmoid_forward.output(
        y, output=out, buffer=torch.empty(0, device=y.device)
    )[0],
}
#: What makes an image in the memory format of a first one.
IMAGES: dict[str, Callable[..., Any]] = {
    **{
        f"{name}{dims}d": lambda x, y, out, name=name, dims=dims: getattr(aten, f"{name}{dims}d").out(
            x, [1] * 2 * dims, out=out
        )
        for name in ("reflection_pad", "replication_pad")
        for dims in (2, 3)
    },
    **{
        f"{name}{dims}d_backward": lambda x, y, out, name=name, dims=dims: getattr(
            aten, f"{name}{dims}d_backward"
        ).grad_input(y, x, [1] * 2 * dims, grad_input=out)
        for name in ("reflection_pad", "replication_pad")
        for dims in (2, 3)
    },
    "max_unpool2d": lambda x, y, out: aten.max_unpool2d.out(
        x, torch.arange(12, device=x.device).view(x.shape), [4, 5], out=out
    ),
    "roll": lambda x, y, out: aten.roll.out(x, [1], [1], out=out),
}


@pytest.mark.parametrize(
    "function",
    (
        torch.abs,
        torch.angle,
        lambda x, out: torch.fft.fft(x, dim=0, out=out.to(torch.complex64)),
        lambda x, out: torch.fft.rfft(x.real, dim=1, out=out.to(torch.complex64)),
        lambda x, out: torch.fft.irfft(x, dim=1, out=out),
    ),
    ids=("abs", "angle", "fft", "rfft", "irfft"),
)
def test_out_of_complex_numbers_is_contiguous(function: Callable[..., Tensor]) -> None:
    x = torch.arange(24.0).view(2, 4, 3).to(torch.complex64).mul(1 + 2j)
    for values in (x, _reversed(x)):
        results = [function(values.to(device), out=torch.empty(0, device=device)) for device in ("cpu", DEVICE)]
        torch.testing.assert_close(results[1].cpu(), results[0], check_stride=True)


def test_out_that_the_shape_function_leaves_as_it_is() -> None:
    """In another dtype: it is computed on a copy of ``out``, as PyTorch's decomposition is written."""
    results = []
    for device in ("cpu", DEVICE):
        x = torch.arange(6.0, device=device).view(2, 3)
        out = torch.empty(2, 3, dtype=torch.float16, device=device)
        results.append(aten.smooth_l1_loss_backward.grad_input(x, x, x * 2, 0, 1.0, grad_input=out))
    torch.testing.assert_close(results[1].cpu(), results[0])


def test_an_expanded_out_is_refused_where_the_kernel_writes_beside_it() -> None:
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.softmax(torch.ones(64, 64, device=DEVICE), 0, out=torch.empty(1, device=DEVICE).expand(64, 64))


@pytest.mark.parametrize("sizes", ((2, 3), (0,), (7,), (3, 2), (4, 2, 3)), ids=str)
def test_normal_numbers_broadcast_with_what_out_was(sizes: tuple[int, ...]) -> None:
    said = []
    for device in ("cpu", DEVICE):
        out = torch.empty(sizes, device=device)
        try:
            said.append(tuple(torch.normal(torch.zeros(2, 3, device=device), 1.0, out=out).shape))
        except RuntimeError as error:
            said.append(str(error))
    assert said[0] == said[1]


@pytest.mark.parametrize("name", PAIRS)
def test_an_empty_out_lies_as_on_the_cpu(name: str) -> None:
    for first, second in itertools.product((Tensor.contiguous, _reversed), repeat=2):
        results = []
        for device in ("cpu", DEVICE):
            x, y = (change(torch.arange(1.0, 25, device=device).view(2, 4, 3)) for change in (first, second))
            result = PAIRS[name](x, y, out=torch.empty(0, device=device))
            results.append(result)
        torch.testing.assert_close(results[1].cpu(), results[0], check_stride=True)


@pytest.mark.parametrize("name", IMAGES)
def test_an_empty_out_has_the_format_of_the_image(name: str) -> None:
    is_volume = "3d" in name
    shape = (1, 2, 2, 3, 2) if is_volume else (1, 2, 3, 2)
    kept = torch.channels_last_3d if is_volume else torch.channels_last
    for change in (Tensor.contiguous, lambda x: x.contiguous(memory_format=kept)):
        results = []
        for device in ("cpu", DEVICE):
            x = change(torch.arange(float(torch.Size(shape).numel()), device=device).view(shape))
            padded = torch.ones((*shape[:2], *(side + 2 for side in shape[2:])), device=device)
            result = IMAGES[name](x, padded, out=torch.empty(0, device=device))
            results.append(result)
        torch.testing.assert_close(results[1].cpu(), results[0], check_stride=True)


def test_topk_of_one_element_writes_it() -> None:
    """However few elements are asked for."""
    memory = torch.full((64,), 97.0, device=DEVICE)
    del memory
    values, indices = torch.topk(torch.tensor(3.0, device=DEVICE), 0)
    assert (values.item(), indices.item()) == (3.0, 0)


def test_out_that_the_cpus_kernel_would_leave_alone(run_python: RunPython) -> None:
    """PyTorch's own writes no results of ``gelu`` that are not contiguous. A device that leaves it to the CPU does."""
    run_python(
        """
        import torch
        name = torch._C._get_privateuse1_backend_name()
        x = torch.randn(3, 4)
        for out in (torch.empty(4, 3, device=name).t(), torch.empty(3, 8, device=name)[:, ::2]):
            torch.ops.aten.gelu.out(x.to(name), out=out)
            torch.testing.assert_close(out.cpu(), torch.nn.functional.gelu(x))
        """,
        OUTBOARD_DRIVER="sim",
    )
