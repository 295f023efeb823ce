# SPDX-License-Identifier: Apache-2.0
"""A call of an operator for which a kernel is written, in terms of a plan's buffers and symbols."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from ..plans.builder import CallValue, PlanBuilder, TensorArg
from .epilogue import Epilogue


@dataclasses.dataclass
class ExternCall:
    """One operator call.

    ``name`` is the schema's: ``"aten::mm.out"``, ``"aten::topk"`` (no suffix for the default overload).
    ``args`` are positional, ``kwargs`` by name, defaults left out where the graph left them out; a tensor is a
    :class:`TensorArg`, a run-time integer a sympy expression, a run-time float a sympy symbol for which
    ``builder.is_float_symbol`` holds.
    A functional operator (no ``out=``) writes its returned tensors, in order, into ``results``, which are allocated
    already and may have any strides. An ``out=`` variant has ``out`` in ``kwargs`` and no ``results``; an in-place one
    writes its first argument and has no ``results``.
    ``epilogue`` is what its kernel's store makes of the only result, whose memory is that of one of the epilogue's.
    """

    name: str
    args: list[CallValue]
    kwargs: dict[str, CallValue]
    results: list[TensorArg]
    epilogue: Epilogue | None = None

    def tensor(self, position: int) -> TensorArg:
        """The tensor at a position of ``args``. Raises TypeError if it is not a tensor."""
        value = self.args[position]
        if not isinstance(value, TensorArg):
            raise TypeError(f"{self.name}: argument {position} is no tensor")
        return value

    def bind(self) -> dict[str, Any]:
        """The arguments by the name that the operator's schema gives them, defaults filled in. Raises RuntimeError for
        an operator that PyTorch does not know."""
        values: dict[str, Any] = {}
        for position, argument in enumerate(self._schema().arguments):
            if argument.name in self.kwargs:
                values[argument.name] = self.kwargs[argument.name]
            elif position < len(self.args) and not argument.kwarg_only:
                values[argument.name] = self.args[position]
            else:
                values[argument.name] = argument.default_value
        return values

    def outputs(self) -> list[TensorArg]:
        """The tensors that the call writes, in the order of its returns: ``results``, or the arguments that alias
        them."""
        if self.results:
            return list(self.results)
        values = self.bind()
        written = [a.name for a in self._schema().arguments if a.alias_info is not None and a.alias_info.is_write]
        return [values[name] for name in written if isinstance(values[name], TensorArg)]

    def _schema(self) -> Any:
        name, _, overload = self.name.partition(".")
        return torch._C._get_schema(name, overload)


def _nothing(builder: PlanBuilder) -> None:
    """Appends no steps."""


@dataclasses.dataclass
class Parts:
    """A call as other calls of the same operator, and what is appended after them."""

    calls: list[ExternCall]
    finish: Callable[[PlanBuilder], None] = _nothing
