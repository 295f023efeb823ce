# SPDX-License-Identifier: Apache-2.0
"""What a trace of a frame depends on, as a key that another process can compute before it has traced anything.

Dynamo's guards say most of it, but they are made for one process: what a process has no reason to change, such as the
methods of a class, they leave out. Another process may run changed files, or patch a library before it compiles.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import inspect
import itertools
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._dynamo import compiled_autograd, eval_frame
from torch.nn.modules import module as nn_module

from .. import ambient, implemented

#: Containers within containers are looked into to this depth.
_DEPTH = 4
#: Tables of hooks, by attribute: what they do is not known to the next process.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: With these set, somebody wants to see how PyTorch compiles.
_CURIOUS = ("TORCH_LOGS", "TORCH_TRACE", "TORCH_COMPILE_DEBUG", "TORCHDYNAMO_REPRO_AFTER")

#: Of Inductor's settings, those for other devices say nothing of ours; one is the directory a program was started in.
_OF_OTHERS = ("cuda.", "cutlass.", "rocm.", "xpu.")
#: Guards that compare values, by type.
_ON_CONSTANTS = frozenset({"EQUALS_MATCH", "CONSTANT_MATCH", "BOOL_MATCH", "NONE_MATCH", "CONSTANT_SUBCLASS_MATCH"})
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)


class Unknown(Exception):
    """The frame depends on something that another process cannot compare."""


def key_of(
    code: types.CodeType, scope: dict[str, Any], values: dict[str, Any], backend: Any, one_graph: bool, device: str
) -> str | None:
    """A name for all traces that might serve this frame, of the function ``code`` with the globals ``scope`` and the
    locals ``values``. None if it has no tensor on ``device``, or depends on what cannot be compared."""
    names = [name for name in code.co_names if name in scope]
    if not any(_is_on(value, device) for value in (*values.values(), *(scope[name] for name in names))):
        return None
    found = _Description()
    try:
        parts = (
            _way(backend, one_graph),
            scope.get("__name__"),
            code.co_filename,
            code_digest(code),
            [(name, found.of(value)) for name, value in sorted(values.items())],
            [(name, found.of_global(scope[name])) for name in names],
        )
    except Unknown:
        return None
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _is_on(value: Any, device: str, depth: int = 0) -> bool:
    """Whether there is a tensor on the device in a value."""
    if isinstance(value, torch.Tensor):
        return value.device.type == device
    if isinstance(value, torch.nn.Module):
        return any(each.device.type == device for each in itertools.chain(value.parameters(), value.buffers()))
    if isinstance(value, dict):
        value = list(value.values())
    return (
        depth < _DEPTH and isinstance(value, (list, tuple)) and any(_is_on(each, device, depth + 1) for each in value)
    )


def code_digest(code: types.CodeType) -> str:
    """The same for the same source text in the same place, in all processes."""
    digest = hashlib.sha256()
    _add_code(digest, code)
    return digest.hexdigest()


def qualname_of(code: types.CodeType, module: str) -> str | None:
    """The name by which :func:`find_code` may find a function's code in a module. None if it has none there."""
    if sys.version_info >= (3, 11):
        return code.co_qualname
    owner = sys.modules.get(module)  # before, only functions know their names
    return next((name for name, each in _named_codes(owner, module) if each is code), None) if owner else None


def method_written_for(code: types.CodeType) -> tuple[str, str] | None:
    """The module and the qualified name of a method that ``dataclasses`` or ``namedtuple`` wrote for a class."""
    for name, module in list(sys.modules.items()):
        for owner in list(vars(module).values()):
            if _is_class(owner) and owner.__module__ == name:
                method = owner.__dict__.get(code.co_name)
                if any(each is code for each in (*_codes(method), *_enclosed(method))):
                    return name, f"{owner.__qualname__}.{code.co_name}"
    return None


def _is_class(value: Any) -> bool:
    """Nothing of the value's is asked for: what stands for another object answers ``isinstance`` with code of its own,
    and what is deprecated warns."""
    return issubclass(type(value), type)


def find_code(module: str, qualname: str, digest: str) -> types.CodeType | None:
    """The function's code that goes by that name in this process, if it is the one of that digest."""
    owner: Any = sys.modules.get(module)
    if owner is None:
        return None
    path = qualname.split(".<locals>.")
    outer = owner
    for part in path[0].split("."):
        outer = inspect.getattr_static(outer, part, None)
    for code in (*_codes(outer), *_enclosed(outer)):
        for inner in _within(code, path[1:]):
            if code_digest(inner) == digest:
                return inner
    return None


def identity_of(value: object) -> tuple[str, ...] | None:
    """What tells a function, its code, a class, a member of an enumeration or a Python module from others, in all
    processes. None for other objects."""
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__) if sys.modules.get(value.__name__) is value else None
    if isinstance(value, types.CodeType):
        return ("code", value.co_filename, str(value.co_firstlineno), code_digest(value))
    if isinstance(value, enum.Enum):
        kind = type(value)
        return ("member", kind.__module__, kind.__qualname__, _class_digest(kind), value.name, repr(value.value))
    names = (str(getattr(value, "__module__", None)), str(getattr(value, "__qualname__", None)))
    if isinstance(value, type):
        return ("class", *names, _class_digest(value))
    if isinstance(value, types.FunctionType):
        code = value.__code__
        return ("function", *names, code.co_filename, str(code.co_firstlineno), code_digest(code))
    return ("builtin", *names) if isinstance(value, types.BuiltinFunctionType) else None


def guarded_value(value: object, guard: str, is_global: bool, digests: dict[type, str]) -> str:
    """What a guard of that type holds the value to, as text; ``digests`` keeps those of classes for further calls.

    Where guards are made again, what is reached by way of a Python module or class is held to what is found there then:
    whether that is what it was must be asked separately. So must what the methods of a class are."""
    if isinstance(value, torch.Tensor):
        whole = (tuple(value.shape), value.stride()) if is_global else ()
        return repr((_kind(value), value.dtype, str(value.device), value.dim(), value.requires_grad, whole))
    if guard == "TYPE_MATCH":
        kind = type(value)
        return repr((_kind(value), digests.get(kind) or digests.setdefault(kind, _class_digest(kind))))
    if guard not in _ON_CONSTANTS and isinstance(value, (list, tuple, dict)):
        return repr((_kind(value), len(value), [_plain(key) for key in value] if isinstance(value, dict) else None))
    return repr(_plain(value))


def _way(backend: Any, one_graph: bool) -> tuple[object, ...]:
    """How the frame is compiled, and the state of the process. Raises Unknown if that is too special."""
    inner = eval_frame.innermost_backend(backend)
    # What modes and options ask for is decided while tracing, too, and not all of it is known to a stored graph.
    if type(inner) is not torch._TorchCompileInductorWrapper or inner.config or inner.name is not None:
        raise Unknown
    if _is_special() or any(os.environ.get(name) for name in _CURIOUS):
        raise Unknown
    return (
        sys.version,
        one_graph,
        inner.dynamic,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        ambient.state(),
        *(_settings(each) for each in (torch._dynamo.config, torch._functorch.config, torch._inductor.config)),
    )


def _is_special() -> bool:
    """Whether something is under way that a trace takes part in without saying so."""
    functorch: Any = torch._functorch.config
    inductor: Any = torch._inductor.config
    return (
        torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        or bool(compiled_autograd.compiled_autograd_enabled)
        or (torch.distributed.is_available() and torch.distributed.is_initialized())
        or nn_module._has_any_global_hook()
        or bool(implemented.overloads())
        or torch.compiler.is_exporting()
        or not functorch.enable_autograd_cache
        or not inductor.fx_graph_cache
        or inductor.force_disable_caches
        or inductor.freezing
    )


def _settings(config: Any) -> object:
    """PyTorch's settings that matter for what is compiled. Raises Unknown if one is a function: somebody's pass."""
    found = config._get_dict(
        ignored_keys=list(config._compile_ignored_keys), ignored_prefixes=list(_OF_OTHERS), readonly_values=True
    )
    if any(isinstance(value, _FUNCTIONS) for value in found.values()):
        raise Unknown
    return [(name, sorted(value) if isinstance(value, set) else value) for name, value in sorted(found.items())]


class _Description:
    """Describes values by what tracing may depend on and guards may leave out."""

    def __init__(self) -> None:
        self._tensors: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        #: The first tensor seen of each storage.
        self._shared: dict[int, torch.Tensor] = {}
        self._modules: dict[int, int] = {}
        self._classes: dict[type, str] = {}

    def of(self, value: Any, depth: int = 0) -> object:
        """A description made of tuples, lists, strings and numbers."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, (types.FunctionType, types.MethodType)):
            return self._function(value, depth)
        inside: Sequence[Any] = ()
        if isinstance(value, (list, tuple)) and depth < _DEPTH:
            inside = value
        elif isinstance(value, dict) and depth < _DEPTH:
            inside = list(value.values())
        return (self._class(type(value)), [self.of(each, depth + 1) for each in inside])

    def of_global(self, value: Any) -> object:
        """Of a global, which guards look after, only what belongs to modules and tensors is described."""
        return self.of(value) if isinstance(value, (torch.nn.Module, torch.Tensor)) else None

    def _tensor(self, value: torch.Tensor, whole: bool = False) -> object:
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise Unknown
        marks = sorted(name for name in value.__dict__ if name.startswith("_dynamo"))
        if whole:  # Dynamo makes this mark itself
            marks = [name for name in marks if name != "_dynamo_static_input_type"]
        layout = (value.shape, value.stride()) if whole else (value.dim(),)
        if value.layout is torch.strided:
            layout = (*layout, *self._place(value))
        known = self._tensors.setdefault(id(value), len(self._tensors))
        return (
            known,
            str(value.dtype),
            str(value.device),
            str(value.layout),
            value.requires_grad,
            marks,
            *map(tuple_of, layout),
        )

    def _place(self, value: torch.Tensor) -> tuple[Any, ...]:
        """Which of the storages seen it is in, and where if others are in it: graphs depend on what overlaps."""
        storage = value.untyped_storage()._cdata
        known = self._storages.setdefault(storage, len(self._storages))
        if known == len(self._storages) - 1 and storage not in self._shared:
            self._shared[storage] = value
            return (known,)
        first = self._shared[storage]
        return (known, *(each for one in (first, value) for each in (one.shape, one.stride(), one.storage_offset())))

    def _module(self, module: torch.nn.Module) -> object:
        if id(module) in self._modules:
            return self._modules[id(module)]
        self._modules[id(module)] = len(self._modules)
        if any(getattr(module, name, None) for name in _HOOKS):
            raise Unknown
        own = itertools.chain(module._parameters.items(), module._buffers.items())
        return (
            self._class(type(module)),
            module.training,
            [(name, None if value is None else self._tensor(value, whole=True)) for name, value in own],
            [(name, None if value is None else self._module(value)) for name, value in module._modules.items()],
            [(name, self._attribute(value)) for name, value in module.__dict__.items() if name not in _TABLES],
        )

    def _attribute(self, value: Any) -> object:
        """Of a module's attribute, which guards look after, only what they might not."""
        return self.of(value) if isinstance(value, _FUNCTIONS) else None

    def _function(self, value: Any, depth: int) -> object:
        function = inspect.unwrap(getattr(value, "__func__", value))
        if not isinstance(function, types.FunctionType) or depth >= _DEPTH:
            raise Unknown
        owner = getattr(value, "__self__", None)
        return (
            function.__module__,
            code_digest(function.__code__),
            None if owner is None else self.of(owner, depth + 1),
        )

    def _class(self, owner: type) -> str:
        """A digest of a class and its bases, methods included."""
        if owner not in self._classes:
            self._classes[owner] = _class_digest(owner)
        return self._classes[owner]


#: Attributes of every module that are described otherwise, or not at all.
_TABLES = frozenset({*torch.nn.Module().__dict__, "_compiled_call_impl"})


def tuple_of(value: Any) -> tuple[int, ...] | int:
    """A size or strides as a plain tuple, and a number as it is."""
    return value if isinstance(value, int) else tuple(value)


def _class_digest(owner: type) -> str:
    """Of the methods of a class and of its bases, with their defaults. Guards look after other attributes."""
    digest = hashlib.sha256()
    for each in owner.__mro__:
        digest.update(f"{each.__module__}.{each.__qualname__}\0".encode())
        if each.__module__ == "builtins":
            continue
        for name, value in vars(each).items():
            for function in _functions(value):
                defaults = repr(_plain((function.__defaults__, function.__kwdefaults__), describe=_name))
                digest.update(f"{name}\0{defaults}\0".encode())
                _add_code(digest, function.__code__)
    return digest.hexdigest()


def _plain(value: Any, depth: int = 0, describe: Callable[[object], object] | None = None) -> object:
    """A constant, or a container of constants; of other objects what ``describe`` says, or else their types."""
    if isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device)) or value is None:
        return (type(value).__qualname__, repr(value))
    if depth < _DEPTH and isinstance(value, (set, frozenset)):
        return sorted(repr(_plain(each, depth + 1, describe)) for each in value)
    if depth < _DEPTH and isinstance(value, (list, tuple)):
        return (type(value).__qualname__, [_plain(each, depth + 1, describe) for each in value])
    if depth < _DEPTH and isinstance(value, dict):
        pairs = [(_plain(k, depth + 1, describe), _plain(v, depth + 1, describe)) for k, v in value.items()]
        return (type(value).__qualname__, pairs)
    return (describe or _kind)(value)


def _name(value: object) -> object:
    """What an object is called. What a class or function holds is not looked at: it may hold this very object."""
    names = (str(getattr(value, "__module__", None)), str(getattr(value, "__qualname__", type(value).__qualname__)))
    return (*names, value.name, repr(value.value)) if isinstance(value, enum.Enum) else names


def _kind(value: object) -> tuple[str, ...]:
    return identity_of(value) or (type(value).__module__, type(value).__qualname__)


def _codes(value: Any) -> Iterator[types.CodeType]:
    """The codes of these functions."""
    return (function.__code__ for function in _functions(value))


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """The functions behind a function, a method, a property, and what decorators have wrapped."""
    for _ in range(16):
        if isinstance(value, property):
            for part in (value.fget, value.fset):
                yield from _functions(part)
            return
        value = getattr(value, "__func__", value)
        if isinstance(value, types.FunctionType):
            yield value
        if (wrapped := getattr(value, "__wrapped__", None)) is None or isinstance(value, type):
            return
        value = wrapped


def _enclosed(value: Any) -> Iterator[types.CodeType]:
    """The codes of functions that a function stands for, and calls. Dynamo's of ``Module.__init__`` does."""
    for cell in getattr(value, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # it is empty
            yield from _codes(cell.cell_contents)


def _named_codes(owner: Any, module: str, prefix: str = "") -> Iterator[tuple[str, types.CodeType]]:
    """All codes of functions of a module, or of one of its classes, with their qualified names."""
    for name, value in list(vars(owner).items()):
        if _is_class(value) and (value.__module__, value.__qualname__) == (module, prefix + name):
            yield from _named_codes(value, module, f"{prefix}{name}.")
        for code in _codes(value):
            yield from _named_inside(code, prefix + name)


def _named_inside(code: types.CodeType, name: str) -> Iterator[tuple[str, types.CodeType]]:
    yield name, code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _named_inside(const, f"{name}.<locals>.{const.co_name}")


def _within(code: types.CodeType, path: Sequence[str]) -> Iterator[types.CodeType]:
    """Codes of functions defined in functions, by their names."""
    if not path:
        yield code
        return
    for const in code.co_consts:
        if isinstance(const, types.CodeType) and const.co_name == path[0].rsplit(".", 1)[-1]:
            yield from _within(const, path[1:])


def _add_code(digest: Any, code: types.CodeType) -> None:
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)
    digest.update(repr((names, counts)).encode())
    digest.update(code.co_code)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            _add_code(digest, const)
        elif isinstance(const, frozenset):  # whose order differs from process to process
            digest.update(repr(sorted(map(repr, const))).encode())
        else:
            digest.update(repr(const).encode())
