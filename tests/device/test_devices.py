# SPDX-License-Identifier: Apache-2.0
"""Devices: number, selection, guards, properties."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest
import torch

from tests.conftest import RunPython


def test_there_is_a_current_device(device: str, device_module: ModuleType) -> None:
    assert device_module.is_available()
    assert 0 <= device_module.current_device() < device_module.device_count()
    assert torch.empty(1, device=device).device == torch.device(device, device_module.current_device())


def test_properties_describe_the_hardware(device_module: ModuleType) -> None:
    properties = device_module.get_device_properties()
    assert properties.name == device_module.get_device_name(0)
    assert properties.total_memory > 0
    assert properties.compute_units > 0
    assert torch.float32 in device_module.get_device_capability()["supported_dtypes"]


@pytest.mark.parametrize("spell", [lambda d: 0, lambda d: f"{d}:0", lambda d: torch.device(d, 0), lambda d: d])
def test_a_device_may_be_named_in_several_ways(device: str, device_module: ModuleType, spell: object) -> None:
    named = spell(device)  # type: ignore[operator]
    device_module.set_device(named)
    device_module.synchronize(named)
    with device_module.device(named):
        assert device_module.current_device() == 0


def test_wrong_devices_are_refused(device_module: ModuleType) -> None:
    with pytest.raises(ValueError, match="cpu"):
        device_module.synchronize("cpu")
    for index in (99, 100_000):
        with pytest.raises(RuntimeError, match="nvalid device index"):
            device_module.set_device(index)
    device_module.set_device(-1)


def test_device_of_ignores_other_devices(device: str, device_module: ModuleType) -> None:
    with device_module.device_of(torch.empty(1)):
        assert device_module.current_device() == 0
    with device_module.device_of(torch.empty(1, device=device)):
        assert device_module.current_device() == 0


def test_device_context_and_default_device(device: str) -> None:
    with torch.device(device):
        assert torch.empty(2).device.type == device
    torch.set_default_device(device)
    try:
        assert torch.empty(2).device.type == device
    finally:
        torch.set_default_device(None)


def test_new_threads_start_on_device_zero(device: str, device_module: ModuleType) -> None:
    seen: list[int] = []

    def work() -> None:
        torch.zeros(2, device=device)
        seen.append(device_module.current_device())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0]


def test_two_devices(run_python: RunPython) -> None:
    run_python(
        """
        import torch
        name = torch._C._get_privateuse1_backend_name()
        module = torch.get_device_module(name)
        if module.device_count() < 2:
            raise SystemExit  # a driver that cannot split its device
        a = torch.arange(6.).reshape(2, 3).to(f"{name}:1")
        assert a.device.index == 1
        b = a.to(f"{name}:0")
        assert b.device.index == 0 and torch.equal(a.cpu(), b.cpu())
        assert torch.equal(a.t().to(f"{name}:0").cpu(), a.cpu().t())
        assert torch.equal(a.to(f"{name}:0", torch.float64).cpu(), a.cpu().double())
        with module.device(1):
            assert torch.empty(2, device=name).device.index == 1
            assert module.current_stream().device.index == 1
            with module.device_of(b):
                assert module.current_device() == 0
            assert module.current_device() == 1
        with torch.accelerator.device_index(1):
            assert torch.accelerator.current_device_index() == 1
        assert module.current_device() == 0
        a.copy_(b)
        c = torch.ones(3, device=f"{name}:1")
        assert module.memory_allocated(1) >= c.nbytes
        generators = module.default_generators
        assert [g.device.index for g in generators] == [0, 1]
        module.manual_seed_all(5)
        assert torch.equal(module.get_rng_state(0), module.get_rng_state(1))
        """,
        OUTBOARD_NUM_DEVICES="2",
    )


def test_forked_children_get_an_error(run_python: RunPython) -> None:
    out = run_python(
        """
        import os, torch
        name = torch._C._get_privateuse1_backend_name()
        torch.zeros(3, device=name)
        child = os.fork()
        if child == 0:
            try:
                torch.zeros(3, device=name)
            except RuntimeError as error:
                print("refused:", error, flush=True)
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.zeros(3, device=name).cpu().sum() == 0
        """
    )
    assert "spawn" in out


def test_exit_with_live_tensors_and_threads(run_python: RunPython) -> None:
    run_python(
        """
        import threading, torch
        name = torch._C._get_privateuse1_backend_name()
        kept = [torch.zeros(1000, device=name) for _ in range(50)]
        def work():
            local = torch.zeros(1000, device=name)
            for _ in range(20):
                local.fill_(1)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        event = torch.Event(name); event.record()
        """
    )


def test_dynamo_knows_each_device_that_was_opened(run_python: RunPython) -> None:
    """By its number, too, as soon as there is one; and asks for none before."""
    run_python(
        """
        import torch
        from torch._dynamo.device_interface import get_interface_for_device, get_registered_device_interfaces
        from outboard import _C
        name = torch._C._get_privateuse1_backend_name()
        interface = get_interface_for_device(name)
        assert not _C.devices_opened()
        assert torch.accelerator.device_count() == 2
        assert get_interface_for_device(f"{name}:1") is interface
        assert f"{name}:2" not in dict(get_registered_device_interfaces())
        """,
        OUTBOARD_NUM_DEVICES="2",
    )
