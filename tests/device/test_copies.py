# SPDX-License-Identifier: Apache-2.0
"""Copies between CPU and device and on the device: every dtype, layout and overlap that the CPU supports."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGRAL = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
RARE = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]
ALL = FLOATING + INTEGRAL + COMPLEX + RARE

relaxed = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Distinct small values that every dtype holds."""
    count = 1
    for size in shape:
        count *= size
    values = (torch.arange(count, dtype=torch.float64) % 100).reshape(shape)
    if dtype.is_complex:
        return torch.complex(values, values + 1).to(dtype)
    return values.to(dtype)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in row-major order as bytes, for dtypes without comparison."""
    resolved = tensor.resolve_conj().resolve_neg()
    return resolved.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(as_bytes(a), as_bytes(b))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_round_trip(device: str, dtype: torch.dtype) -> None:
    x = make((3, 5), dtype)
    assert same(x.to(device).cpu(), x)


def strided(shape: tuple[int, ...], order: tuple[int, ...], steps: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor with permuted dimensions, some of them stepped over."""
    base = make(tuple(shape[d] * steps[d] for d in order), dtype)
    inverse = [order.index(d) for d in range(len(shape))]
    return base.permute(inverse)[tuple(slice(None, None, s) for s in steps)]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=0, max_size=4)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    steps = tuple(draw(st.lists(st.integers(1, 2), min_size=len(shape), max_size=len(shape))))
    return shape, order, steps


@relaxed
@given(layout=layouts(), dtype=st.sampled_from(ALL), target=st.sampled_from(FLOATING + INTEGRAL))
def test_any_layout_and_conversion_to_and_from_the_cpu(
    device: str,
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    dtype: torch.dtype,
    target: torch.dtype,
) -> None:
    x = strided(*layout, dtype)
    y = x.to(device)
    assert y.stride() == x.to("cpu", copy=True).stride() and same(y.cpu(), x)
    if dtype.is_complex:
        return
    out = torch.empty(x.shape, dtype=target, device=device)
    out.copy_(x)
    assert same(out.cpu(), x.to(target))
    back = torch.empty(x.shape, dtype=target)
    back.copy_(y)
    assert same(back, x.to(target))


@relaxed
@given(layout=layouts(), dtype=st.sampled_from([torch.float32, torch.int64, torch.bool]))
def test_views_of_device_tensors_reach_the_cpu(
    device: str, layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], dtype: torch.dtype
) -> None:
    shape, order, steps = layout
    base = make(tuple(shape[d] * steps[d] for d in order), dtype)
    inverse = [order.index(d) for d in range(len(shape))]
    window = tuple(slice(None, None, s) for s in steps)
    assert same(base.to(device).permute(inverse)[window].cpu(), base.permute(inverse)[window])
    target = torch.zeros(base.shape, dtype=dtype).to(device)
    target.permute(inverse)[window].copy_(base.permute(inverse)[window])
    expected = torch.zeros_like(base)
    expected.permute(inverse)[window].copy_(base.permute(inverse)[window])
    assert same(target.cpu(), expected)


def test_expanded_sources_and_broadcast(device: str) -> None:
    row = make((1, 4), torch.float32)
    assert same(row.expand(3, 4).to(device).cpu(), row.expand(3, 4))
    assert same(row.to(device).expand(3, 4).cpu(), row.expand(3, 4))
    target = torch.empty(3, 4).to(device)
    target.copy_(row)
    assert same(target.cpu(), row.expand(3, 4))
    target.copy_(row[0] + 1)
    assert same(target.cpu(), (row + 1).expand(3, 4))
    with pytest.raises(RuntimeError):
        target.copy_(torch.ones(5))


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_memory_formats(device: str, memory_format: torch.memory_format) -> None:
    x = make((2, 3, 4, 5), torch.float32)
    y = x.to(device, memory_format=memory_format)
    assert y.is_contiguous(memory_format=memory_format) and same(y.cpu(), x)
    assert y.cpu().stride() == y.stride()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (1, 1)])
def test_small_and_empty(device: str, shape: tuple[int, ...]) -> None:
    x = make(shape, torch.float32)
    y = x.to(device)
    assert y.shape == x.shape and same(y.cpu(), x)
    y.copy_(x)
    y.copy_(y)
    assert same(y.clone().cpu(), x)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_conjugate_and_negative_views(device: str, dtype: torch.dtype) -> None:
    x = make((2, 3), dtype)
    y = x.to(device)
    assert same(x.conj().to(device).cpu(), x.conj())
    assert y.conj().is_conj() and same(y.conj().cpu(), x.conj())
    assert same(y.conj().imag.cpu(), x.conj().imag)
    target = torch.zeros(2, 3, dtype=dtype).to(device)
    target.conj().copy_(x)
    assert same(target.cpu(), x.conj())
    into_cpu = torch.zeros(2, 3, dtype=dtype)
    into_cpu.conj().copy_(y)
    assert same(into_cpu, x.conj())
    target.copy_(y.conj())
    assert same(target.cpu(), x.conj())
    real = torch.zeros(2, 3, dtype=torch.float32).to(device)
    real.copy_(y.conj().imag)
    assert same(real.cpu(), x.conj().imag.float())


def test_the_zero_tensor(device: str) -> None:
    target = torch.ones(3).to(device)
    target.copy_(torch._efficientzerotensor(3))
    assert same(target.cpu(), torch.zeros(3))
    target.fill_(2).copy_(torch._efficientzerotensor(3, device=device))
    assert same(target.cpu(), torch.zeros(3))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_on_the_device_strided(device: str, dtype: torch.dtype) -> None:
    x = make((4, 6), dtype)
    y = x.to(device)
    assert same(y.clone().cpu(), x)
    assert same(y.t().contiguous().cpu(), x.t().contiguous())
    assert same(y[::2, 1::2].clone().cpu(), x[::2, 1::2].clone())
    target = torch.zeros(4, 6, dtype=torch.uint8).to(dtype).to(device)
    target[:, ::2] = y[:, ::2]
    expected = torch.zeros(4, 6, dtype=torch.uint8).to(dtype)
    expected[:, ::2] = x[:, ::2]
    assert same(target.cpu(), expected)


@pytest.mark.parametrize("source", FLOATING + INTEGRAL, ids=str)
def test_on_the_device_converting(device: str, source: torch.dtype) -> None:
    x = make((3, 4), source)
    for target in FLOATING + INTEGRAL + COMPLEX[1:]:
        assert same(x.to(device).to(target).cpu(), x.to(target)), target


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_complex_to_real_on_the_device(device: str) -> None:
    x = make((3, 4), torch.complex64)
    target = torch.zeros(3, 4).to(device)
    target.copy_(x.to(device))
    assert same(target.cpu(), x.real.contiguous())


def test_complex_to_bool_on_the_device(device: str) -> None:
    """Whether either part is not zero; without a warning, as nothing is discarded."""
    x = torch.tensor([0, 2j, 1, complex(0, float("nan"))])
    given = x.to(device)
    for view in (lambda x: x, torch.conj, torch._neg_view, lambda x: x.expand(2, 4)):
        assert torch.equal(view(given).bool().cpu(), view(x).bool())


def test_special_values_survive(device: str) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 3.4e38])
    assert same(x.to(device).cpu(), x)
    assert same(x.to(device).to(torch.float64).cpu(), x.double())


@pytest.mark.parametrize("pinned", [False, True])
def test_non_blocking(device: str, pinned: bool) -> None:
    source = make((1000, 100), torch.float32)
    source = source.pin_memory() if pinned else source
    assert source.is_pinned() == pinned
    y = source.to(device, non_blocking=True)
    back = torch.empty(source.shape, pin_memory=pinned)
    back.copy_(y, non_blocking=True)
    torch.accelerator.synchronize()
    assert same(back, source)
    for _ in range(50):
        staged = source.clone().pin_memory() if pinned else source.clone()
        z = staged.to(device, non_blocking=True)
        del staged
    assert same(z.cpu(), source)


def test_overlap(device: str) -> None:
    x = torch.arange(10.0).to(device)
    with pytest.raises(RuntimeError, match="single memory location"):
        x[1:].copy_(x[:-1])
    with pytest.raises(RuntimeError, match="single memory location"):
        x[:1].expand(3).copy_(torch.ones(3))
    square = torch.arange(4.0).reshape(2, 2).to(device)
    with pytest.raises(RuntimeError, match="single memory location"):
        square.copy_(square.t())
    x.copy_(x)
    x[:5].copy_(x[5:])
    assert x.cpu().tolist() == [5, 6, 7, 8, 9, 5, 6, 7, 8, 9]


def test_storage_offsets(device: str) -> None:
    x = torch.arange(20.0).to(device)
    x[3:7].copy_(torch.ones(4))
    x[10:14].copy_(x[3:7])
    expected = torch.arange(20.0)
    expected[3:7] = 1
    expected[10:14] = 1
    assert same(x.cpu(), expected)


def test_item_and_tolist(device: str) -> None:
    for dtype in (*FLOATING, *INTEGRAL, *COMPLEX[1:]):
        x = make((2, 3), dtype)
        assert x.to(device)[1, 2].item() == x[1, 2].item()
        assert x.to(device).tolist() == x.tolist()
    assert int(torch.tensor(7).to(device)) == 7
    assert bool(torch.tensor(True).to(device))
    assert x.to(device)[0].cpu().numpy().shape == (3,)
    with pytest.raises(RuntimeError):
        torch.ones(2).to(device).item()
    with pytest.raises(TypeError):
        torch.ones(2).to(device).numpy()


@pytest.mark.parametrize("part", [slice(None), slice(1, 3)], ids=["whole", "view"])
def test_lazy_clones_share_nothing(device: str, part: slice) -> None:
    expected, whole = torch.arange(8.0).view(4, 2)[part], torch.arange(8.0, device=device).view(4, 2)
    copy = torch._lazy_clone(whole[part])
    copy.add_(1)
    torch.testing.assert_close(copy.cpu(), expected + 1)
    torch.testing.assert_close(whole[part].cpu(), expected)
    lazy = torch._lazy_clone(expected)
    assert (copy.stride(), copy.storage_offset()) == (lazy.stride(), lazy.storage_offset())
