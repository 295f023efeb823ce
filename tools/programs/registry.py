# SPDX-License-Identifier: Apache-2.0
"""The list of programs. Each is a function of a device's name that makes its inputs on the CPU and returns anything;
one that takes a second argument gives to it what ``torch.compile`` may be put around."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: The identity, or ``torch.compile``.
Wrap = Callable[..., Any]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """A function with its name ("suite.function"). ``draws``: it draws on the device, whose numbers are others, so only
    the forms of results count. ``dtypes``: of tensors inside, where the results do not show them. ``terms``: how many
    numbers may have been added for one."""

    name: str
    function: Function
    draws: bool
    dtypes: frozenset[torch.dtype]
    terms: int

    @property
    def can_be_compiled(self) -> bool:
        """Whether it says what of it ``torch.compile`` may be put around."""
        return len(inspect.signature(self.function).parameters) == 2

    def run(self, device: str, wrap: Wrap) -> Any:
        """Its results on a device."""
        return self.function(device, wrap) if self.can_be_compiled else self.function(device)


PROGRAMS: dict[str, Program] = {}


def program(
    *, draws: bool = False, dtypes: tuple[torch.dtype, ...] = (), terms: int = 1
) -> Callable[[Function], Function]:
    """Puts a function into the list."""

    def register(function: Function) -> Function:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        if name in PROGRAMS:
            raise ValueError(f"there are two programs {name}")
        PROGRAMS[name] = Program(name, function, draws, frozenset(dtypes), terms)
        return function

    return register


def all_programs() -> dict[str, Program]:
    """Every program by name, in the order of the suites."""
    suites = importlib.import_module("tools.programs.suites")
    for found in pkgutil.iter_modules(suites.__path__):
        importlib.import_module(f"{suites.__name__}.{found.name}")
    return PROGRAMS
