# SPDX-License-Identifier: Apache-2.0
"""PyTorch's overloads, by name or by what they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch


def find_overload(op: str) -> torch._ops.OpOverload:
    """The overload with a schema's name, such as ``"aten::add.Tensor"`` or ``"aten::topk"``.

    Raises AttributeError if there is none."""
    qualified, _, overload = op.partition(".")
    namespace, _, name = qualified.partition("::")
    found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    return found


def overloads_of(packet: torch._ops.OpOverloadPacket) -> Iterator[torch._ops.OpOverload]:
    """All overloads of an operator such as ``torch.ops.aten.add``."""
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    return (getattr(packet, name) for name in names)


def overloads_taking(packet: torch._ops.OpOverloadPacket, arguments: Sequence[Any]) -> Iterator[torch._ops.OpOverload]:
    """Those that take arguments of these names and types, which are arguments of another overload's schema."""
    wanted = [(argument.name, str(argument.type)) for argument in arguments]
    for overload in overloads_of(packet):
        if [(argument.name, str(argument.type)) for argument in overload._schema.arguments] == wanted:
            yield overload


def names_memory(overload: torch._ops.OpOverload) -> bool:
    """Whether it writes to an argument, or returns a view of one."""
    schema = overload._schema
    return any(each.alias_info is not None for each in (*schema.arguments, *schema.returns))
