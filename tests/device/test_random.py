# SPDX-License-Identifier: Apache-2.0
"""Seeds, states and generators. (The numbers that operators draw are tested with the operators.)"""

from __future__ import annotations

from types import ModuleType

import pytest
import torch


def test_seeding(device: str, device_module: ModuleType) -> None:
    torch.manual_seed(42)
    assert device_module.initial_seed() == 42
    device_module.manual_seed(7)
    assert device_module.initial_seed() == 7
    device_module.manual_seed_all(-3)
    assert device_module.initial_seed() == 2**64 - 3
    assert device_module.seed() == device_module.initial_seed()
    device_module.seed_all()
    assert device_module.initial_seed() == device_module.default_generators[0].initial_seed()


def test_state_round_trip(device_module: ModuleType) -> None:
    device_module.manual_seed(5)
    state = device_module.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8
    device_module.manual_seed(6)
    assert not torch.equal(device_module.get_rng_state(), state)
    device_module.set_rng_state(state)
    assert device_module.initial_seed() == 5
    device_module.set_rng_state_all(device_module.get_rng_state_all())
    assert torch.equal(device_module.get_rng_state(), state)


def test_wrong_states(device: str, device_module: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="size"):
        device_module.set_rng_state(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(TypeError):
        device_module.set_rng_state(torch.zeros(16))
    with pytest.raises(TypeError):
        device_module.set_rng_state(torch.zeros(16, dtype=torch.uint8).to(device))


def test_generators(device: str) -> None:
    generator = torch.Generator(device=device)
    assert generator.device.type == device
    assert generator.manual_seed(9) is generator and generator.initial_seed() == 9
    other = torch.Generator(device).set_state(generator.get_state())
    assert other.initial_seed() == 9
    copy = generator.clone_state()
    assert copy.initial_seed() == 9
    generator.set_offset(4)
    assert generator.get_offset() == 4 and copy.get_offset() == 0
    assert generator.seed() == generator.initial_seed()


def test_fork_rng(device: str, device_module: ModuleType) -> None:
    device_module.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type=device):
        device_module.manual_seed(2)
    assert device_module.initial_seed() == 1


def test_draws_follow_seed_and_offset(device: str, device_module: ModuleType) -> None:
    device_module.manual_seed(3)
    first = torch.rand(100, device=device).cpu()
    state = device_module.get_rng_state()
    second = torch.rand(100, device=device).cpu()
    device_module.set_rng_state(state)
    assert torch.equal(torch.rand(100, device=device).cpu(), second)
    device_module.manual_seed(3)
    assert torch.equal(torch.rand(100, device=device).cpu(), first)
    assert not torch.equal(first, second)
    own = torch.Generator(device).manual_seed(3)
    assert torch.equal(torch.rand(100, device=device, generator=own).cpu(), first)
    with pytest.raises(RuntimeError):
        torch.rand(3, device=device, generator=torch.Generator("cpu"))
