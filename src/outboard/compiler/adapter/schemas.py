# SPDX-License-Identifier: Apache-2.0
"""Operators by name, with what their schemas say, and implementations of them that can be taken away again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..operators.overloads import find_overload


class Operator:
    """An overload that a program implements for the device.

    Args:
        text: its name (``"aten::silu"``, ``"aten::add.Tensor"``), or a whole schema of an operator that is thereby
            defined.

    Raises:
        ValueError: if there is no operator of that name, or there is one already for a schema, or it returns both new
            tensors and what it wrote to.
    """

    def __init__(self, text: str) -> None:
        self._library: Any = None
        full, defines = text.partition("(")[0].strip(), "(" in text
        namespace, separator, name = full.partition("::")
        if not (separator and namespace and name):
            raise ValueError(f"an operator's name has a namespace, as in 'shop::op', and {full!r} has none")
        self.name = full
        if defines:
            self._define(namespace, text)
        try:
            self.overload = find_overload(full)
        except AttributeError:
            raise ValueError(f"there is no operator {full}: give its schema, as '{full}(Tensor x) -> Tensor'") from None
        schema = self.overload._schema
        if len({each.alias_info is None for each in schema.returns}) == 2:
            self.remove()
            raise ValueError(f"{full} returns both new tensors and what it writes to, which has no place here")
        self.parameters = list(schema.arguments)
        #: Places of the arguments that it writes to.
        self.written = [i for i, each in enumerate(self.parameters) if each.alias_info and each.alias_info.is_write]
        #: How many new tensors it gives; None if it gives anything else.
        self.results: int | None = 0
        if any(each.alias_info is None for each in schema.returns):
            self.results = len(schema.returns) if all(str(each.type) == "Tensor" for each in schema.returns) else None

    def _define(self, namespace: str, schema: str) -> None:
        self._library = torch.library.Library(namespace, "FRAGMENT")
        try:
            self._library.define(schema.partition("::")[2], tags=torch.Tag.pt2_compliant_tag)
        except RuntimeError as error:
            raise ValueError(str(error)) from error

    @property
    def defined_here(self) -> bool:
        """Whether the operator was not there before."""
        return self._library is not None

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """All arguments of a call, in the schema's order."""
        rest = self.parameters[len(args) :]
        return [*args, *(kwargs.get(each.name, each.default_value) for each in rest)]

    def implement(self, function: Callable[..., Any], fake: Callable[..., Any] | None) -> None:
        """Has calls on the device run ``function(elsewhere, arguments)``, where ``elsewhere()`` runs what was
        registered before. ``fake`` gives the results of an operator that is defined here, for tracing."""
        before = torch.library.get_kernel(self.overload, "PrivateUse1")

        def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
            return function(lambda: before.call_boxed(keys, *args, **kwargs), self.bind(args, kwargs))

        namespace, _, name = self.name.partition("::")
        if self._library is None:
            self._library = torch.library.Library(namespace, "IMPL")
        elif fake is not None:
            torch.library.register_fake(
                self.name, lambda *args, **kwargs: fake(*self.bind(args, kwargs)), lib=self._library
            )
        with warnings.catch_warnings():  # that there was a kernel before is known
            warnings.filterwarnings("ignore", message=r"(?s).*Overriding a previously registered kernel")
            self._library.impl(name, call, "PrivateUse1", with_keyset=True)

    def remove(self) -> None:
        """Takes the implementation away, and the operator if it was defined here."""
        if self._library is not None:
            self._library._destroy()
        self._library = None
