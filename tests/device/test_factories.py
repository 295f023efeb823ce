# SPDX-License-Identifier: Apache-2.0
"""Making tensors, changing their geometry and storage."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def test_empty(device: str) -> None:
    x = torch.empty(2, 3, device=device, dtype=torch.int16)
    assert (x.shape, x.dtype, x.device.type, x.layout) == ((2, 3), torch.int16, device, torch.strided)
    assert torch.empty(2, 3, 4, 5, device=device, memory_format=torch.channels_last).stride() == (60, 1, 15, 3)
    assert torch.empty_strided((2, 3), (1, 2), device=device).stride() == (1, 2)
    assert torch.empty(0, 3, device=device).numel() == 0
    assert torch.empty((), device=device).dim() == 0
    assert torch.empty_like(torch.empty(2, 3).t(), device=device).stride() == (1, 3)
    assert x.new_empty(4).device == x.device


def test_fill(device: str) -> None:
    for value, dtype in [(1.5, torch.float32), (-1, torch.int64), (True, torch.bool), (2 + 1j, torch.complex64)]:
        assert torch.full((3, 2), value, dtype=dtype, device=device).tolist() == [[value] * 2] * 3
    assert torch.zeros(4, device=device).tolist() == [0] * 4
    assert torch.ones(2, 2, device=device, dtype=torch.bfloat16).cpu().sum() == 4
    with pytest.raises(RuntimeError, match="overflow"):
        torch.empty(3, dtype=torch.int8, device=device).fill_(1000)


def test_tensor_from_data(device: str) -> None:
    assert torch.tensor([[1, 2], [3, 4]], device=device).tolist() == [[1, 2], [3, 4]]
    assert torch.as_tensor([1.0], device=device).item() == 1
    assert torch.scalar_tensor(3, device=device).item() == 3


def test_wrong_requests(device: str) -> None:
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device=device)
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(3, device=device, pin_memory=True)
    with pytest.raises(RuntimeError):
        torch.empty(2**62, 2**10, device=device)


def test_out_of_memory_is_reported_when_memory_is_needed(device: str) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**44, device=device, dtype=torch.uint8).fill_(1)
    assert torch.ones(2, device=device).cpu().sum() == 2


def test_views_share_memory(device: str) -> None:
    x = torch.arange(12.0).to(device)
    views = [x.view(3, 4), x.reshape(4, 3), x.as_strided((3,), (4,)), x.unfold(0, 4, 2), x[3:], x.expand(2, 12), x.t()]
    assert all(view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for view in views)
    x.view(3, 4)[1].zero_()
    assert x.tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 8, 9, 10, 11]
    assert x.view(torch.int32).dtype == torch.int32
    assert torch.view_as_complex(x.view(6, 2)).shape == (6,)
    assert torch.view_as_real(torch.view_as_complex(x.view(6, 2))).shape == (6, 2)
    with pytest.raises(RuntimeError):
        x.view(5)


def test_resize_keeps_contents(device: str) -> None:
    x = torch.arange(4.0).to(device)
    x.resize_(2, 4)
    assert x.shape == (2, 4) and x.cpu()[0].tolist() == [0, 1, 2, 3]
    x.resize_(3)
    assert x.tolist() == [0, 1, 2]
    x.resize_(0).resize_(2)
    assert x.tolist() == [0, 1]
    y = torch.empty(0, device=device).resize_(1, 2, 3, 4, memory_format=torch.channels_last)
    assert y.is_contiguous(memory_format=torch.channels_last)
    z = torch.arange(6.0).to(device)[2:]
    z.resize_(6)
    assert z.cpu()[:4].tolist() == [2, 3, 4, 5]


def test_storage_resize(device: str) -> None:
    x = torch.arange(4.0).to(device)
    storage = x.untyped_storage()
    storage.resize_(32)
    assert storage.nbytes() == 32 and x.tolist() == [0, 1, 2, 3]
    storage.resize_(0)
    with pytest.raises(RuntimeError, match="storage"):
        x.cpu()
    storage.resize_(16)
    x.fill_(3)
    assert x.tolist() == [3] * 4


def test_set(device: str) -> None:
    x = torch.arange(6.0).to(device)
    y = torch.empty(0, device=device)
    y.set_(x)
    assert y.is_set_to(x) and y.tolist() == x.tolist()
    y.set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    assert y.tolist() == [[2, 3], [4, 5]]
    y.set_(x.untyped_storage())
    assert y.shape == (6,)
    y.set_()
    assert y.numel() == 0 and y.device == x.device
    with pytest.raises(RuntimeError):
        y.set_(torch.ones(2).untyped_storage())
    x.data = torch.ones(2, device=device)
    assert x.tolist() == [1, 1]


def test_storages(device: str) -> None:
    storage = torch.UntypedStorage(8, device=device)
    storage.fill_(3)
    assert storage.tolist() == [3] * 8
    assert storage.clone().device.type == device
    assert storage.cpu().tolist() == [3] * 8
    assert getattr(storage, f"is_{device}")
    copy = torch.UntypedStorage(8, device=device).copy_(storage)
    assert copy.tolist() == [3] * 8


def test_the_host_cannot_dereference(device: str) -> None:
    x, y = torch.empty(4, device=device), torch.empty(4, device=device)
    assert x.data_ptr() != y.data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 4


def test_deterministic_fill(device: str) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device=device).isnan().all()
        assert (torch.empty(3, dtype=torch.int32, device=device).cpu() == torch.iinfo(torch.int32).max).all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_printing(device: str, device_module: object) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    expected = repr(x)[:-1] + f", device='{device}:0')"
    assert "".join(repr(x.to(device)).split()) == "".join(expected.split())
    assert "size=(0, 2)" in repr(torch.empty(0, 2, device=device))
    assert "requires_grad=True" in repr(torch.ones(1, device=device, requires_grad=True))
    assert "..." in repr(torch.arange(10000.0).to(device))
    assert "1.+2.j" in repr(torch.tensor([1 + 2j]).to(device))


@pytest.mark.parametrize("arguments", [{}, {"periodic": False}, {"periodic": True, "beta": 5.0}])
def test_kaiser_window(device: str, arguments: dict[str, Any]) -> None:
    expected = torch.kaiser_window(13, **arguments)
    torch.testing.assert_close(torch.kaiser_window(13, **arguments, device=device).cpu(), expected)
