# SPDX-License-Identifier: Apache-2.0
"""Names for the device's modules, and a second name for the device, as ``Tensor.<alias>()`` and ``torch.<alias>``.

``torch.device`` has one name for a device. Where the alias is a device type of PyTorch's own, which this build of it
does not have, it says what to write instead.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import torch
from torch.nn.utils.rnn import PackedSequence

from outboard import _C, device

#: What PyTorch gives methods with the device's name.
_CLASSES: tuple[type, ...] = (torch.Tensor, torch.nn.Module, PackedSequence, torch.UntypedStorage, torch.TypedStorage)

#: How the dispatcher calls the two operators that make every tensor.
_FACTORIES = ("empty.memory_format", "empty_strided")

#: The library whose kernels explain; they are there as long as it is.
_libraries: list[torch.library.Library] = []


def name_modules(prefix: str) -> None:
    """Makes the device's module importable as ``prefix``, and those in it below. Python would load others instead."""
    for module in [name for name in sys.modules if f"{name}.".startswith(f"{device.__name__}.")]:
        sys.modules[prefix + module.removeprefix(device.__name__)] = sys.modules[module]


def install(alias: str) -> None:
    """Adds the alias beside the device's own name."""
    name = device.devices.name()
    setattr(torch, alias, device)
    name_modules(f"torch.{alias}")
    for owner in _CLASSES:
        for method, shorthand in ((name, alias), (f"is_{name}", f"is_{alias}")):
            if shorthand not in vars(owner) and method in vars(owner):
                setattr(owner, shorthand, vars(owner)[method])


def explain(alias: str, key: str) -> None:
    """Makes ``Tensor.to(alias)`` and ``device=alias`` raise what to write instead.

    Args:
        alias: a device type of PyTorch's own.
        key: its dispatch key.
    """
    name = device.devices.name()

    def refuse(*arguments: Any, **keywords: Any) -> NoReturn:
        raise RuntimeError(
            f"torch.device({alias!r}) is a device type of PyTorch's own, which this build does not have. The device is "
            f"called {name!r}: write .to({name!r}), device={name!r}, or the method .{alias}()."
        )

    _C.admit_absent_device_type(alias)
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for factory in _FACTORIES:
        library.impl(factory, refuse, key)  # type: ignore[no-untyped-call]
    _libraries.append(library)
