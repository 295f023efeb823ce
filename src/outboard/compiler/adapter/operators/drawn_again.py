# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint in a graph draws again in the backward pass: the generator's state is kept beside it.

PyTorch's two operators for that know the generators of its own devices. It plans for a state of the size of the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey
from torch._higher_order_ops.utils import registered_hop_fake_fns
from torch._prims import rng_prims


def keep_states(name: str) -> None:
    """Teaches these operators the generators of the devices called ``name``."""
    save, run = rng_prims.run_and_save_rng_state, rng_prims.run_with_rng_state

    def on_ours(function: Callable[..., Any], elsewhere: Callable[..., Any], before: int) -> Callable[..., Any]:
        def choose(*args: Any, **kwargs: Any) -> Any:
            device = rng_prims.get_device(args[before:], kwargs)
            return (function if device == name else elsewhere)(*args, **kwargs)

        return choose

    key = DispatchKey.BackendSelect
    save.py_kernels[key] = on_ours(_run_and_save, save.py_kernels[key], before=1)
    run.py_kernels[key] = on_ours(_run_with, run.py_kernels[key], before=2)
    registered_hop_fake_fns[save] = on_ours(_fake, registered_hop_fake_fns[save], before=1)


def _run_and_save(operator: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    random, device = _generators(args, kwargs)
    state = random.get_rng_state(device)
    return torch.cat([state, torch.zeros_like(torch.get_rng_state()[state.numel() :])]), operator(*args, **kwargs)


def _run_with(saved: torch.Tensor, operator: Any, *args: Any, **kwargs: Any) -> Any:
    random, device = _generators(args, kwargs)
    state = random.get_rng_state(device)
    random.set_rng_state(saved[: state.numel()].clone(), device)
    try:
        return operator(*args, **kwargs)
    finally:
        random.set_rng_state(state, device)


def _fake(operator: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    return torch.get_rng_state(), operator(*args, **kwargs)


def _generators(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, torch.device]:
    """The module that has the states of generators, and the device that an operator with these arguments draws on."""
    values = (value.device if isinstance(value, torch.Tensor) else value for value in args)
    device = kwargs.get("device") or next(value for value in values if isinstance(value, torch.device))
    return getattr(torch, torch.device(device).type), torch.device(device)
