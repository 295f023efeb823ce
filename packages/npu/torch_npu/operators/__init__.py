# SPDX-License-Identifier: Apache-2.0
"""Operators of Ascend's extension, in terms of PyTorch's own: as functions, and as ``torch.ops.npu``.

Names and arguments are those that the extension publishes, ``schemas.txt`` has them. What an argument asks for and
these do not do raises NotImplementedError. Being made of PyTorch's operators, they are differentiated and compiled as
those are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from torch_npu.operators import (
    activations,
    attention,
    boxes,
    caches,
    experts,
    losses,
    normalization,
    optimizers,
    positions,
    products,
    quantization,
    sampling,
    shapes,
)

_MODULES = (
    activations,
    attention,
    boxes,
    caches,
    experts,
    losses,
    normalization,
    optimizers,
    positions,
    products,
    quantization,
    sampling,
    shapes,
)


def _public(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions that a module defines, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def schemas() -> dict[str, list[str]]:
    """The schemas of all operators that the extension publishes, by name: several where it has overloads."""
    found: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / "schemas.txt").read_text().splitlines():
        found.setdefault(line.partition("(")[0].partition(".")[0], []).append(line)
    return found


#: The operators that are there, by name.
FUNCTIONS = {name: function for module in _MODULES for name, function in _public(module).items()}

#: What registers them; they are gone with it.
_LIBRARY = torch.library.Library("npu", "FRAGMENT")


def _register() -> None:
    """Makes the operators ``torch.ops.npu.<name>``, with their published schemas.

    Of overloads with ``out=`` there are those alone whose functions have it.
    """
    published = schemas()
    for name, function in FUNCTIONS.items():
        takes_out = "out" in inspect.signature(function).parameters
        for schema in published[name]:
            if (".out(" in schema) == takes_out:
                _LIBRARY.define(schema)
                _LIBRARY.impl(schema.partition("(")[0], function, "CompositeImplicitAutograd")


_register()
