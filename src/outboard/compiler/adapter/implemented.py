# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch's that the program implements for the device (``torch.library``, key ``PrivateUse1``).

Single calls reach the program's function through PyTorch's dispatcher. In graphs, an operator of a namespace of our own
stands for each such operator, so that nothing takes it apart, fuses it or compiles it; it calls the dispatcher.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_library: Any = torch.library
_STAND_INS = _library.Library("outboard_program", "FRAGMENT")


def overloads() -> list[torch._ops.OpOverload]:
    """What the program implements so far. Operators that write to arguments are left out: graphs have none."""
    found = []
    for key in sorted(_library._impls):
        namespace, _, rest = key.partition("/")
        name, _, dispatch_key = rest.rpartition("/")
        if namespace != "aten" or dispatch_key != "PrivateUse1":
            continue
        packet, _, overload = name.partition(".")
        made = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if not any(argument.alias_info for argument in (*made._schema.arguments, *made._schema.returns)):
            found.append(made)
    return found


def decompositions(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions in which operators that the program implements become what stands for them."""
    return table | {overload: _on_device(overload, table.get(overload)) for overload in overloads()}


def _on_device(overload: torch._ops.OpOverload, elsewhere: Callable[..., Any] | None) -> Callable[..., Any]:
    def decompose(*args: Any, **kwargs: Any) -> Any:
        name = torch._C._get_privateuse1_backend_name()
        values = pytree.tree_leaves((args, kwargs))
        devices = [value.device if isinstance(value, torch.Tensor) else value for value in values]
        if any(isinstance(device, torch.device) and device.type == name for device in devices):
            return _stand_in(overload)(*args, **kwargs)
        return NotImplemented if elsewhere is None else elsewhere(*args, **kwargs)

    return decompose


@functools.cache
def _stand_in(overload: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """An operator of the overload's schema that calls it."""
    name = overload._schema.name.removeprefix("aten::")
    full = f"{name}.{overload._schema.overload_name}".rstrip(".")
    _STAND_INS.define(str(overload._schema).removeprefix("aten::"))
    _STAND_INS.impl(full, overload, "CompositeExplicitAutograd")
    _library.register_fake(f"outboard_program::{full}", overload, lib=_STAND_INS)
    made: torch._ops.OpOverload = getattr(getattr(torch.ops.outboard_program, name), overload._overloadname)
    return made


def define() -> None:
    """Defines what stands for the program's operators, which graphs kept on disk call by name."""
    for overload in overloads():
        _stand_in(overload)
