# SPDX-License-Identifier: Apache-2.0
"""DLPack: other libraries see a tensor's memory itself, where the host can address it."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from outboard import _C
from tests.conftest import RunPython, WaitOnHost

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _host_accessible(device_module: ModuleType) -> None:
    if not device_module.get_device_properties().host_accessible:
        pytest.skip("needs a device whose memory the host addresses")


def test_numpy_shares_memory_both_ways(device: str, device_module: ModuleType) -> None:
    x = torch.arange(12.0, device=device).reshape(3, 4)
    array = np.from_dlpack(x)
    np.testing.assert_array_equal(array, np.arange(12.0, dtype=np.float32).reshape(3, 4))
    x.add_(1)
    device_module.synchronize()
    np.testing.assert_array_equal(array, np.arange(1.0, 13.0, dtype=np.float32).reshape(3, 4))
    y = torch.from_dlpack(x)
    y[2, 3] = 100
    assert x[2, 3].item() == 100 and array[2, 3] == 100


@pytest.mark.parametrize("export", [lambda x: x.__dlpack__(), torch.to_dlpack, torch.utils.dlpack.to_dlpack])
def test_capsules(export: Any, device: str) -> None:
    x = torch.arange(6, device=device)
    y = torch.from_dlpack(export(x))
    assert y.device.type == "cpu" and y.tolist() == [0, 1, 2, 3, 4, 5]
    y[0] = 7
    assert x[0].item() == 7


def test_queued_work_is_done(device: str) -> None:
    x = torch.ones(512, 512, device=device)
    for _ in range(20):
        x = x @ x / 512
    np.testing.assert_array_equal(np.from_dlpack(x), np.ones((512, 512), dtype=np.float32))


def test_versioned_protocol(device: str) -> None:
    x = torch.ones(5, device=device)
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLCPU, 0)
    copied = torch.from_dlpack(x.__dlpack__(max_version=(1, 0), copy=True))
    copied.zero_()
    assert x.cpu().tolist() == [1.0] * 5
    cpu = (torch.utils.dlpack.DLDeviceType.kDLCPU, 0)
    torch.from_dlpack(x.__dlpack__(max_version=(1, 0), dl_device=cpu)).zero_()
    assert x.cpu().tolist() == [0.0] * 5


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[3:],
        lambda x: x.t(),
        lambda x: x[::2, 1::3],
        lambda x: x[1].expand(4, 10),
        lambda x: x[2, 3],
        lambda x: x[:0],
    ],
)
def test_views(view: Any, device: str) -> None:
    host = torch.arange(80).reshape(8, 10)
    ours = view(host.to(device))
    expected = view(host)
    within = torch.from_dlpack(ours)
    exported = torch.from_dlpack(ours.__dlpack__())
    assert (within.device, exported.device.type) == (ours.device, "cpu")
    for seen in (within, exported):
        assert seen.stride() == expected.stride()
        torch.testing.assert_close(seen.cpu(), expected)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.complex64]
)
def test_dtypes(dtype: torch.dtype, device: str) -> None:
    x = torch.tensor([0, 1, 1]).to(dtype)
    ours = x.to(device)
    within = torch.from_dlpack(ours)
    assert within.device == ours.device
    torch.testing.assert_close(within.cpu(), x)
    torch.testing.assert_close(torch.from_dlpack(ours.__dlpack__()), x)


def test_within_pytorch_memory_is_shared_on_the_device(device: str) -> None:
    x = torch.arange(6, device=device)
    y = torch.from_dlpack(x)
    assert y.device == x.device
    y[0] = 7
    assert x[0].item() == 7
    torch.from_dlpack(x, copy=True)[0] = 8
    assert x[0].item() == 7


def test_what_does_not_exist_yet(device: str, wait_on_host: WaitOnHost) -> None:
    zeros = torch.zeros(1000, device=device)
    waiting = wait_on_host(torch.arange(1000.0))
    assert [_C.memory_state(t) for t in (zeros, waiting)] == ["zero", "host"]
    assert np.from_dlpack(zeros).sum() == 0 and np.from_dlpack(waiting)[999] == 999
    assert [_C.memory_state(t) for t in (zeros, waiting)] == ["device", "device"]


def test_exported_memory_outlives_the_tensor(device: str, device_module: ModuleType) -> None:
    gc.collect()
    before = device_module.memory_allocated()
    x = torch.full((MIB,), 3.0, device=device)
    array = np.from_dlpack(x)
    del x
    gc.collect()
    assert device_module.memory_allocated() == before + 4 * MIB
    assert array[MIB - 1] == 3
    del array
    gc.collect()
    assert device_module.memory_allocated() == before


def test_an_unused_capsule_lets_go(device: str, device_module: ModuleType) -> None:
    before = device_module.memory_allocated()
    torch.ones(MIB, device=device).__dlpack__()
    gc.collect()
    assert device_module.memory_allocated() == before


def test_exported_memory_does_not_move(run_python: RunPython) -> None:
    run_python(
        """
        import gc, numpy, torch
        from outboard import _C
        device = torch._C._get_privateuse1_backend_name()
        make = lambda value: torch.full((1 << 20,), value, device=device)
        x, kept = make(1.0), make(2.0)
        array = numpy.from_dlpack(kept)
        others = [make(float(i)) for i in range(8)]
        assert _C.memory_state(kept) == "device" and _C.memory_state(x) == "spilled"
        array[5] = 9
        assert kept[5].item() == 9 and x[0].item() == 1
        assert [other[7].item() for other in others] == list(range(8))
        del array
        gc.collect()
        others = [make(float(i)) for i in range(8)]
        assert _C.memory_state(kept) == "spilled"
        assert kept[5].item() == 9
        """,
        OUTBOARD_MEMORY_LIMIT="24MiB",
    )


def test_import_is_a_cpu_tensor(device: str) -> None:
    array = np.arange(4.0)
    x = torch.from_dlpack(array)
    assert x.device.type == "cpu"
    array[0] = 5
    assert x[0] == 5 and x.to(device)[0].item() == 5


def test_what_cannot_leave(device: str) -> None:
    with pytest.raises(BufferError, match="detach"):
        torch.ones(2, device=device, requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match="conjugate"):
        torch.ones(2, dtype=torch.complex64).to(device).conj().__dlpack__()
    other = (torch.utils.dlpack.DLDeviceType.kDLCUDA, 0)
    with pytest.raises((BufferError, RuntimeError)):
        torch.ones(2, device=device).__dlpack__(max_version=(1, 0), dl_device=other)


def test_other_devices_refuse(run_python: RunPython) -> None:
    run_python(
        """
        import numpy, torch
        device = torch._C._get_privateuse1_backend_name()
        x = torch.ones(2).to(device)
        exports = (x.__dlpack__, x.__dlpack_device__, lambda: torch.to_dlpack(x),
                   lambda: torch.from_dlpack(x, device="cpu"), lambda: torch.from_dlpack(x.__dlpack__()),
                   lambda: torch.utils.dlpack.to_dlpack(x), lambda: numpy.from_dlpack(x))
        for export in exports:
            try:
                export()
            except BufferError as error:
                assert "cpu()" in str(error)
            else:
                raise AssertionError(f"{export} exported memory that nobody can read")
        within = torch.from_dlpack(x)  # nothing is exported
        assert within.device == x.device
        within.zero_()
        assert x.cpu().tolist() == [0, 0]
        """,
        OUTBOARD_DRIVER="sim",
    )
