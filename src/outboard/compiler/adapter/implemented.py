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
from torch._functorch.compile_utils import rand_ops
from torch.utils import _pytree as pytree

from ..operators.overloads import find_overload, names_memory

_library: Any = torch.library
#: What the names of operators that stand for others begin with in modules.
PREFIX = "torch.ops.outboard_program."
_STAND_INS = _library.Library("outboard_program", "FRAGMENT")


def overloads() -> list[torch._ops.OpOverload]:
    """What the program implements so far. Operators that write to arguments are left out: graphs have none."""
    found = []
    for key in sorted(_library._impls):
        namespace, _, rest = key.partition("/")
        name, _, dispatch_key = rest.rpartition("/")
        if namespace != "aten" or dispatch_key != "PrivateUse1":
            continue
        made = find_overload(f"aten::{name}")
        if not names_memory(made):
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
            number = next((i for i in _tensors(overload) if i < len(args) and _is_number(args[i])), None)
            return _stand_in(overload, number)(*args, **kwargs)
        return NotImplemented if elsewhere is None else elsewhere(*args, **kwargs)

    return decompose


def _tensors(overload: torch._ops.OpOverload) -> list[int]:
    """The places of arguments that are tensors."""
    return [i for i, argument in enumerate(overload._schema.arguments) if str(argument.type) == "Tensor"]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat))


@functools.cache
def _stand_in(overload: torch._ops.OpOverload, number: int | None = None) -> torch._ops.OpOverload:
    """An operator of the overload's schema that calls it. Where the argument at place ``number`` is a number instead of
    a tensor, as PyTorch allows for sums and products, the schema says so: as a tensor it would decide the dtype."""
    schema, packet = str(overload._schema).removeprefix("aten::"), overload._schema.name.removeprefix("aten::")
    name = overload._schema.overload_name
    if number is not None:
        argument = overload._schema.arguments[number].name
        name = f"{name}_{argument}"
        schema = f"{packet}.{name}({schema.partition('(')[2].replace(f'Tensor {argument}', f'Scalar {argument}', 1)}"
    full = f"{packet}.{name}".rstrip(".")
    _STAND_INS.define(schema, tags=tuple(overload.tags))
    _STAND_INS.impl(full, overload, "CompositeExplicitAutograd")
    _library.register_fake(f"outboard_program::{full}", overload, lib=_STAND_INS)
    made: torch._ops.OpOverload = getattr(getattr(torch.ops.outboard_program, packet), name or "default")
    if overload.overloadpacket in rand_ops or torch.Tag.nondeterministic_seeded in overload.tags:
        rand_ops.append(made.overloadpacket)  # equal calls draw other numbers, and must not become one
    return made


def define() -> None:
    """Defines what stands for the program's operators, which graphs kept on disk call by name."""
    for overload in overloads():
        for number in (None, *_tensors(overload)):
            _stand_in(overload, number)
