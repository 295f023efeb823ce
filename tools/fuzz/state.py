# SPDX-License-Identifier: Apache-2.0
"""State of PyTorch's that lines change for those after them: ``state(dtype=torch.float64)``.

Each line is run under the state of its program, and what compares it outside. What must not change any result
(docs/state.md calls it neutral) but does on the CPU is changed for the device alone.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tools.fuzz.program import Namespace

_Context = contextlib.AbstractContextManager[Any]


class Through(TorchFunctionMode):
    """Sees each call and changes none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _set(change: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(before)


def _on_device_alone(change: Callable[[Any], Any], value: Any, usual: Any, device: str) -> _Context:
    return contextlib.nullcontext() if device == "cpu" else _set(change, value, usual)


def _autocast(value: tuple[torch.dtype, bool], device: str) -> _Context:
    return torch.autocast(device, value[0], cache_enabled=value[1])


#: Contexts by the name of a piece of state, for a value and a device. Values are those that are drawn.
_CONTEXTS: dict[str, Callable[[Any, str], _Context]] = {
    "dtype": lambda value, device: _set(torch.set_default_dtype, value, torch.get_default_dtype()),
    "autocast": _autocast,
    "gradients": lambda value, device: torch.inference_mode() if value == "inference" else torch.no_grad(),
    "deterministic": lambda value, device: _set(
        torch.use_deterministic_algorithms, value, torch.are_deterministic_algorithms_enabled()
    ),
    "precision": lambda value, device: _on_device_alone(torch.set_float32_matmul_precision, value, "highest", device),
    "flush": lambda value, device: _on_device_alone(torch.set_flush_denormal, value, False, device),
    "default_device": lambda value, device: torch.device(device),
    "function_mode": lambda value, device: Through(),
    "threads": lambda value, device: _set(torch.set_num_threads, value, torch.get_num_threads()),
}
_VALUES: dict[str, tuple[str, ...]] = {
    "dtype": ("torch.float64", "torch.bfloat16", "torch.float16"),
    "autocast": ("(torch.bfloat16, True)", "(torch.float16, True)", "(torch.bfloat16, False)"),
    "gradients": ("'off'", "'inference'"),
    "deterministic": ("True",),
    "precision": ("'high'", "'medium'"),
    "flush": ("True",),
    "default_device": ("True",),
    "function_mode": ("True",),
    "threads": ("3",),
}


#: Pieces of state that a whole graph has: under autocast, what is fused is not rounded where the CPU rounds it.
OF_GRAPHS = tuple(name for name in _VALUES if name != "autocast")


def draw(numbers: random.Random, names: Sequence[str] = tuple(_VALUES)) -> str:
    """A line that changes one piece of state, or gives it back its usual value."""
    name = numbers.choice(names)
    return f"state({name}={numbers.choice((*_VALUES[name], *('None',) * len(_VALUES[name])))})"


@contextlib.contextmanager
def under(names: Namespace) -> Iterator[None]:
    """Inside, the state is that of a namespace."""
    with contextlib.ExitStack() as stack:
        for name, value in names["STATE"].items():
            if value is not None:
                stack.enter_context(_CONTEXTS[name](value, names["DEVICE"]))
        yield


def evaluate(line: str, names: Namespace) -> Any:
    """The value of a line under the state of its namespace."""
    with under(names):
        return eval(line, names)  # noqa: S307 - our own text
