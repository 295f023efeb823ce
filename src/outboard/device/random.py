# SPDX-License-Identifier: Apache-2.0
"""Random numbers: seeds and states of the devices' default generators."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from outboard import _C
from outboard.device.devices import DeviceLike, index_of


def default_generators() -> tuple[torch.Generator, ...]:
    """The default generator of every device, by index."""
    return tuple(_C.default_generator(index) for index in range(_C.device_count()))


def _generator(device: DeviceLike) -> torch.Generator:
    generator: torch.Generator = _C.default_generator(index_of(device))
    return generator


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator; no-op without hardware."""
    if _C.device_count() > 0:
        _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator, without opening devices for it; no-op without hardware."""
    if not _C.devices_opened():
        _C.seed_devices_to_come(torch.Generator().manual_seed(int(seed)).initial_seed())
        return
    for generator in default_generators():
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seeds the current device's generator from the system's entropy and returns the seed."""
    return _generator(None).seed()


def seed_all() -> None:
    """Seeds every device's generator with one seed from the system's entropy; no-op without hardware."""
    generators = default_generators()
    if generators:
        manual_seed_all(generators[0].seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator(None).initial_seed()


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """State of a device's generator: a CPU byte tensor of 16 elements."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """State of every device's generator."""
    return [generator.get_state() for generator in default_generators()]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    """Sets a device's generator to a state from :func:`get_rng_state`.

    Raises:
        TypeError: if the state is not a CPU byte tensor.
        RuntimeError: if its size is wrong.
    """
    _generator(device).set_state(new_state.contiguous())


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets every device's generator."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
