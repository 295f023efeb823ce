# SPDX-License-Identifier: Apache-2.0
"""Whether Python objects are still what they were: what a replay, which runs no Python, has to know before.

All that can be reached from some objects is compared by identity, and tensors by where their elements are: attributes,
slots, items of containers, attributes of classes, and, of functions that were seen to run, globals, variables of
closures and defaults. New elements of a tensor on the device are no change: a replay reads them. What is neither
known to be immutable nor something whose changes can be seen is an obstacle.
"""

from __future__ import annotations

import builtins
import contextvars
import datetime
import decimal
import functools
import logging
import re
import threading
import types
import typing
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from outboard import _C

from .observation import Observation, is_trusted

#: Most objects to be watched: to compare them takes some hundred microseconds.
MOST_VALUES = 1 << 15

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_FROZEN = (tuple, frozenset)  # their items stay, what the items hold may change

# What holds nothing that could change. Subclasses of these that are written in Python may have attributes.
_VALUES: tuple[type, ...] = (
    *(type(None), type(NotImplemented), type(...), bool, int, float, complex, str, bytes, range, slice, re.Pattern),
    *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone, decimal.Decimal),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo),
)
# What belongs to the program and not to these objects, or has no say in what a call computes.
_INERT: tuple[type, ...] = (
    *(types.CodeType, types.GenericAlias, types.UnionType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(torch.Generator, torch.Stream, torch.Event, logging.Logger, type(threading.Lock()), type(threading.RLock())),
    *(torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops._OpNamespace, torch._ops._Ops),
    *(typing.TypeVar, type(namedtuple("_", "a").a)),  # type: ignore[attr-defined] # noqa: PYI024
)
#: What compilers keep for themselves.
_COMPILERS = ("torch._dynamo.", "torch._inductor.", "torch._functorch.")
_TENSORS = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_BUILTINS = frozenset(vars(builtins))


class _Found(typing.NamedTuple):
    """An object that can be reached, and the names that tell how."""

    value: Any
    where: str
    names: frozenset[str] = frozenset()  #: of a module: those of its values that may be read
    texts: frozenset[str] = frozenset()  #: the same, by ``getattr``


class _Watched(typing.NamedTuple):
    """An object, the keys or slots to look at (none: all), and what it is."""

    object: Any
    names: list[Any]
    kind: str


class State:
    """The values within reach of some objects, as they are now.

    Args:
        roots: the objects.
        ignored: objects that are not looked into.
        observation: the functions that ran, whose globals, closures and defaults belong to the state.
    """

    def __init__(
        self, roots: Iterable[object], ignored: Iterable[object] = (), observation: Observation | None = None
    ) -> None:
        self._observation = observation or Observation()
        self._watched: list[_Watched] = []
        self.tensors: list[Tensor] = []  #: all that were found
        self._obstacle = self._observation.obstacle
        self._seen = {id(value) for value in ignored}
        self._functions: set[int] = set()  #: ``id`` of the code of functions that were found
        self._modules: set[tuple[int, frozenset[str]]] = set()
        self._kept: list[Any] = []  #: what was made on the way: an ``id`` must not come again
        scopes = list(self._observation.scopes())
        self._names = frozenset(name for _, names, _ in scopes for name in names)
        self._texts = frozenset(text for _, _, texts in scopes for text in texts)
        self._visit([_Found(root, type(root).__name__) for root in roots])
        for scope, names, texts in scopes:
            self._visit(self._globals(scope, names, texts))
        self._check_functions()
        self._check_tensors()
        self._kept.clear()
        self._watch = None if self._obstacle else _C.Watch([each[:2] for each in self._watched], self.tensors)

    # ---- what can be reached ----

    def _visit(self, found: list[_Found]) -> None:
        while found and not self._obstacle:
            if len(self._seen) > MOST_VALUES:
                self._obstacle = f"more than {MOST_VALUES} Python objects are within its reach"
                return
            each = found.pop()
            if isinstance(each.value, types.ModuleType):
                found.extend(self._module(each))
                continue
            if type(each.value) in _VALUES or id(each.value) in self._seen:
                continue
            self._seen.add(id(each.value))
            self._kept.append(each.value)
            held = self._look(each)
            if held is None:
                kind = type(each.value)
                self._obstacle = f"changes of {each.where}, a {kind.__module__}.{kind.__qualname__}, cannot be seen"
                return
            found.extend(held)

    def _look(self, found: _Found) -> Iterable[_Found] | None:
        """Watches an object; returns what it holds, or None if it cannot be watched."""
        value, where = found.value, found.where
        if isinstance(value, Tensor):
            self.tensors.append(value)
            return self._items(vars(value), f"a {type(value).__name__}")
        if isinstance(value, _INERT) or _is_compilers(value):
            return ()
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, contextvars.ContextVar):
            self._watched.append(_Watched(value, [], f"context variable {value.name!r}"))
            return [_Found(value.get(None), where)]
        pieces = _PARTS.get(type(value))
        if pieces is not None:
            return [_Found(part, where) for part in pieces(value)]
        return self._instance(found)

    def _instance(self, found: _Found) -> list[_Found] | None:
        """An object with attributes, slots or items, if it has nothing else."""
        value = found.value
        kind: Any = type(value)
        module = kind.__module__
        if module == "typing" or _is_scalar(kind):
            return []
        if not isinstance(value, Tensor) and not _is_transparent(kind):
            return None
        held = [_Found(kind, kind.__qualname__)]
        for base in _DESCRIPTORS:
            if isinstance(value, base):
                held.extend(_Found(part, found.where) for part in _PARTS[base](value))
        if isinstance(value, _CONTAINERS):
            held.extend(self._items(value, found.where))
        if hasattr(value, "__dict__"):
            held.extend(self._items(vars(value), kind.__qualname__))
        slots = _slots(kind)
        if slots and isinstance(value, dict):
            return None  # names to look at are keys there
        if slots:
            self._watched.append(_Watched(value, slots, kind.__qualname__))
            for slot in slots:
                content = slot.__get__(value, kind) if _is_set(slot, value) else None
                held.append(_Found(content, f"{kind.__qualname__}.{slot.__name__}"))
        return held

    def _items(self, container: Any, where: str) -> Iterator[_Found]:
        if not isinstance(container, _FROZEN):
            self._watched.append(_Watched(container, [], where))
        if not isinstance(container, dict):
            return (_Found(item, f"an item of {where}") for item in list(container))
        keys = (_Found(key, f"a key of {where}") for key in list(container) if type(key) not in _VALUES)
        values = (_Found(value, f"{key!r} of {where}") for key, value in list(container.items()))
        return (each for part in (keys, values) for each in part)

    def _class(self, kind: type) -> Iterator[_Found]:
        """The attributes of a class written in Python and of its bases."""
        for each in kind.__mro__:
            if each is not kind and id(each) in self._seen:
                continue
            self._seen.add(id(each))
            if is_trusted(each.__module__) or not _is_python_class(each):
                continue
            if each is torch.nn.Module:  # Dynamo leaves notes on it
                continue
            self._watched.append(_Watched(each, [], f"class {each.__qualname__}"))
            for name, value in list(vars(each).items()):
                if isinstance(value, (property, staticmethod, classmethod)) or not _is_of_class(name):
                    yield _Found(value, f"{each.__qualname__}.{name}")

    def _function(self, function: types.FunctionType) -> list[_Found]:
        """The defaults and the closure of a function, if it ran; what it calls, if it was compiled."""
        code, name = function.__code__, function.__qualname__
        if "_torchdynamo_orig_callable" in vars(function):
            return [_Found(vars(function)["_torchdynamo_orig_callable"], name)]
        self._functions.add(id(code))
        # A function's attributes can be read though it does not run.
        held = [] if is_trusted(function.__module__) else [*self._items(vars(function), name)]
        if id(code) not in self._observation.codes:
            return held
        self._watched.append(_Watched(function, [], name))
        held.extend(_Found(value, f"a default of {name}") for value in function.__defaults__ or ())
        held.append(_Found(function.__kwdefaults__, f"the defaults of {name}"))
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._watched.append(_Watched(cell, [], f"variable {variable!r} of {name}"))
            content = cell.cell_contents if _is_filled(cell) else None
            held.append(_Found(content, f"variable {variable!r} of {name}"))
        return held

    def _globals(
        self, scope: dict[str, Any], names: frozenset[str], texts: frozenset[str], free: frozenset[str] = _BUILTINS
    ) -> list[_Found]:
        """The values of a module that a function may read: those of its names that mean something there, and those in
        ``free``, which may be taken later: they would hide Python's own, or are asked for by ``hasattr``."""
        module = scope.get("__name__", "?")
        kept = sorted(name for name in names if name in scope or name in free)
        if not kept:
            return []
        self._watched.append(_Watched(scope, kept, f"module {module}"))
        return [_Found(scope[name], f"{module}.{name}", names, texts) for name in kept if name in scope]

    def _module(self, found: _Found) -> list[_Found]:
        names, texts = found.names, found.texts
        if not names:  # it is an attribute, read by whatever function
            names, texts = self._names, self._texts
        scope = vars(found.value)
        free = _BUILTINS
        if not is_trusted(scope.get("__name__")):
            names = free = names | texts
        key = (id(found.value), names)
        if key in self._modules:
            return []
        self._modules.add(key)
        return self._globals(scope, names, texts, free)

    def _check_functions(self) -> None:
        """Functions have to be found for what their closures hold, unless the call itself makes them."""
        made = self._observation.made_here()
        for key, (code, scope) in self._observation.codes.items():
            found = key in self._functions or key in made or is_trusted(scope.get("__name__"))
            # The variable behind super() is the class that the function was written in, for ever.
            if not found and not self._obstacle and set(code.co_freevars) - {"__class__"}:
                self._obstacle = f"it calls {code.co_name}, whose variables cannot be found"

    def _check_tensors(self) -> None:
        for tensor in self.tensors:
            if self._obstacle:
                return
            if type(tensor) not in _TENSORS or tensor.layout != torch.strided:
                self._obstacle = f"it uses a tensor of type {type(tensor).__name__}, {tensor.layout}"
            elif tensor.device.type == "cpu" and tensor.is_inference():
                self._obstacle = "it uses a CPU tensor made in inference mode, whose changes are not counted"

    # ---- what became of it ----

    def obstacle(self) -> str:
        """Why these objects cannot be watched, or ''."""
        return self._obstacle

    def is_unchanged(self) -> bool:
        """Whether all values are the very same objects, and all tensors where they were."""
        return self._watch is not None and self._watch.is_unchanged()

    def change(self) -> str:
        """What is not as it was, or ''."""
        if self._watch is None or self._watch.is_unchanged():
            return ""
        changed = self._watch.changed()
        if changed is None:
            return "it changes where the elements of a tensor are"
        number, place = changed
        return f"it changes {_name(self._watched[number], place)}"


def _name(watched: _Watched, place: int) -> str:
    """What is at a place of something watched."""
    held, names, kind = watched
    if names:
        name = names[place] if isinstance(held, dict) else names[place].__name__
        return f"{name!r} of a {kind}"
    if isinstance(held, (dict, type)):
        keys = list(held if isinstance(held, dict) else vars(held))
        return f"{keys[place // 2]!r} of a {kind}" if place // 2 < len(keys) else f"how many values a {kind} holds"
    if isinstance(held, (types.CellType, contextvars.ContextVar)):
        return kind
    if isinstance(held, types.FunctionType):
        return f"code or defaults of {kind}"
    return f"value {place} of a {kind}" if place < len(held) else f"how many values a {kind} holds"


#: What stands for an attribute on a class; programs derive from these.
_DESCRIPTORS = (property, staticmethod, classmethod)

#: What objects that do not change themselves refer to.
_PARTS: dict[type, Callable[[Any], list[Any]]] = {
    types.MethodType: lambda value: [value.__self__, value.__func__],
    types.BuiltinFunctionType: lambda value: [] if _is_free(value) else [value.__self__],
    types.MethodWrapperType: lambda value: [value.__self__],
    functools.partial: lambda value: [value.func, value.args, value.keywords, vars(value)],
    staticmethod: lambda value: [value.__func__],
    classmethod: lambda value: [value.__func__],
    property: lambda value: [value.fget],
    weakref.ref: lambda value: [value()],
    functools._lru_cache_wrapper: lambda value: [value.__wrapped__],
}


def _is_free(function: types.BuiltinFunctionType) -> bool:
    """Whether a function of C is none of an object: what pybind11 hangs on those that it makes describes them."""
    return type(function.__self__).__name__.startswith(("PyCapsule", "pybind11_detail_function_record"))


def _is_compilers(value: object) -> bool:
    return str(type(value).__module__).startswith(_COMPILERS) and not isinstance(value, torch.nn.Module)


def _is_of_class(name: str) -> bool:
    """Whether an attribute of a class is one that Python keeps there for itself."""
    return name in _OF_CLASSES


_OF_CLASSES = frozenset(
    {
        *("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__annotations_cache__", "__slots__"),
        *("__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__", "__match_args__", "__annotate__"),
        *("__dataclass_fields__", "__dataclass_params__", "__signature__", "__static_attributes__", "__qualname__"),
        *("__firstlineno__", "__annotate_func__", "__protocol_attrs__", "__non_callable_proto_members__"),
    }
)


def _is_python_class(kind: type) -> bool:
    """Whether a class was written in Python. Some of C's look so but for their methods."""
    return _C.is_python_class(kind) and not any(
        isinstance(value, _METHODS) and (getattr(value, "__objclass__", None) or value.__self__) is kind
        for value in vars(kind).values()
    )


_METHODS: tuple[Any, ...] = (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)


@functools.lru_cache(maxsize=4096)
def _is_transparent(kind: Hashable) -> bool:
    """Whether instances hold nothing but attributes, slots, items of a container or a value that stays."""
    return all(
        base is object or base in _CONTAINERS or base in _VALUES or base in _OPEN or _is_python_class(base)
        for base in cast(type, kind).__mro__
    )


#: Classes of Python's own that hold attributes, or items in the way of those that they inherit from.
_OPEN = frozenset({types.SimpleNamespace, OrderedDict, defaultdict, *_DESCRIPTORS})


def _is_scalar(kind: type) -> bool:
    """Whether this is numpy's idea of a number or a dtype: it has the value that it has."""
    return any(
        base.__module__ == "numpy" and base.__name__ in ("generic", "dtype", "ufunc") for base in kind.__mro__
    ) and not any(base.__name__ == "void" for base in kind.__mro__)


@functools.lru_cache(maxsize=4096)
def _slots(kind: Hashable) -> list[types.MemberDescriptorType]:
    """The slots of instances."""
    found = []
    for base in cast(type, kind).__mro__:
        if _is_python_class(base) or base is defaultdict:
            found += [value for value in vars(base).values() if isinstance(value, types.MemberDescriptorType)]
    return found


def _is_set(slot: types.MemberDescriptorType, value: object) -> bool:
    try:
        slot.__get__(value, type(value))
    except AttributeError:
        return False
    return True


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
