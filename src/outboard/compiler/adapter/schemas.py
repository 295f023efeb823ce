# SPDX-License-Identifier: Apache-2.0
"""Operators by name, with what their schemas say, and implementations of them that can be taken away again."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..operators.overloads import find_overload

#: Of a call: what runs it if this does not, and its arguments, all of them and in the schema's order.
Function = Callable[[Callable[[], Any], list[Any]], Any]


class Operator:
    """An overload that a program implements for the device.

    Args:
        text: its name (``"aten::silu"``, ``"aten::add.Tensor"``), or a whole schema of an operator that is thereby
            defined.

    Raises:
        TypeError: for anything but text.
        ValueError: if there is no operator of that name, or there is one already for a schema, or it returns both new
            tensors and what it wrote to.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"an operator is given by its name or schema, as text, not as a {type(text).__name__}")
        self._library: Any = None
        self._function: Function | None = None
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
    def runs_elsewhere(self) -> bool:
        """Whether a call that this implementation does not take can run: the operator was there before, or has another
        implementation, be it the CPU's."""
        others = _implementations[self.overload].count > 1
        return (
            self._library is None or others or torch._C._dispatch_has_computed_kernel_for_dispatch_key(self.name, "CPU")
        )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """All arguments of a call, in the schema's order."""
        return _bind(self.parameters, args, kwargs)

    def implement(self, function: Function, fake: Callable[..., Any] | None) -> None:
        """Has calls on the device run ``function(elsewhere, arguments)``, where ``elsewhere()`` runs what was
        registered before. ``fake`` gives the results of an operator that is defined here, for tracing."""
        if self._library is not None and fake is not None:
            torch.library.register_fake(
                self.name, lambda *args, **kwargs: fake(*self.bind(args, kwargs)), lib=self._library
            )
        with _lock:
            if self.overload not in _implementations:
                _implementations[self.overload] = _Implementations(self.name, self.overload)
            _implementations[self.overload].add(function)
        self._function = function

    def remove(self) -> None:
        """Takes the implementation away, whenever others were made, and the operator if it was defined here."""
        function, self._function = self._function, None
        with _lock:
            found = None if function is None else _implementations.get(self.overload)
            if found is not None and (found.leaves_none_without(function) or self._library is not None):
                del _implementations[self.overload]
                found.end()
        if self._library is not None:
            self._library._destroy()
        self._library = None


class _Implementations:
    """Those of one overload, each of which may leave a call to the one made before it.

    PyTorch has one registration for all of them: one of a registration's own could not be called any more by later ones
    when it ends.
    """

    def __init__(self, name: str, overload: torch._ops.OpOverload) -> None:
        self._functions: tuple[Function, ...] = ()
        self._before = torch.library.get_kernel(overload, "PrivateUse1")
        self._parameters = list(overload._schema.arguments)
        namespace, _, short = name.partition("::")
        self._library: Any = torch.library.Library(namespace, "IMPL")
        with warnings.catch_warnings():  # that there was a kernel before is known
            warnings.filterwarnings("ignore", message=r"(?s).*Overriding a previously registered kernel")
            self._library.impl(short, self._call, "PrivateUse1", with_keyset=True)

    @property
    def count(self) -> int:
        return len(self._functions)

    def add(self, function: Function) -> None:
        self._functions = (*self._functions, function)

    def leaves_none_without(self, function: Function | None) -> bool:
        """Takes one away, and tells whether there is none left."""
        self._functions = tuple(each for each in self._functions if each is not function)
        return not self._functions

    def end(self) -> None:
        self._library._destroy()
        self._library = None  # at once: when it is collected, PyTorch forgets whatever has the operator's name then

    def _call(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        functions = self._functions  # of this call, whatever others add and remove meanwhile

        def run(count: int) -> Any:
            if count == 0:
                return self._before.call_boxed(keys, *args, **kwargs)
            return functions[count - 1](lambda: run(count - 1), _bind(self._parameters, args, kwargs))

        return run(len(functions))


def _bind(parameters: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    rest = parameters[len(args) :]
    return [*args, *(kwargs.get(each.name, each.default_value) for each in rest)]


_implementations: dict[torch._ops.OpOverload, _Implementations] = {}
_lock = threading.Lock()
