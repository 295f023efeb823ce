# SPDX-License-Identifier: Apache-2.0
"""Registers the device with Dynamo, Inductor and the optimizers when, and only when, a program imports them."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


def _register_interface() -> None:
    from .adapter.interface import register_interface

    register_interface()


def _register_backend() -> None:
    from .adapter.graphs.ahead_of_time import refuse_ahead_of_time
    from .adapter.graphs.arrangements import check_overlaps
    from .adapter.graphs.inductor_cache import hash_sources_ahead, place_cache
    from .adapter.graphs.interpreted import interpret_without_dialect
    from .adapter.graphs.partitions import keep_whole_operators
    from .adapter.registration import register
    from .adapter.traces.isolation import compile_isolated

    place_cache()
    register()
    interpret_without_dialect()
    keep_whole_operators()
    check_overlaps()
    refuse_ahead_of_time()
    compile_isolated()
    hash_sources_ahead()


def _join_updates() -> None:
    from .adapter.optimizers.foreach import install

    install()


def _prepare_tracing() -> None:
    from .adapter.interface import device_name
    from .adapter.operators import shapes
    from .adapter.traces.isolation import leave_devices_alone, trace_isolated

    shapes.register(device_name())
    if os.environ.get("OUTBOARD_PRECOMPILE") != "0":
        from .adapter.traces.precompile import enable

        enable()
    trace_isolated()
    leave_devices_alone()


def _allow_flex_attention() -> None:
    from .adapter.graphs.flex_attention import install

    install()


def _allow_jagged_attention() -> None:
    from .adapter.graphs.jagged import install

    install()


_CALLBACKS: dict[str, Callable[[], None]] = {
    "torch._dynamo.device_interface": _register_interface,
    "torch._inductor.compile_fx": _register_backend,
    "torch._dynamo.convert_frame": _prepare_tracing,
    "torch.nn.attention.flex_attention": _allow_flex_attention,
    "torch.nested._internal.ops": _allow_jagged_attention,
    "torch.optim": _join_updates,
}


def install() -> None:
    """Arranges for the registrations; those whose module is imported already are done at once."""
    for name, callback in _CALLBACKS.items():
        _call_if_imported(name, callback)
    sys.meta_path.insert(0, _Finder())


def call_after(module: str, callback: Callable[[], None]) -> None:
    """Calls back when a program has imported a module, at once if it has already.

    Raises:
        ValueError: if somebody waits for this module already.
    """
    if module in _CALLBACKS:
        raise ValueError(f"somebody waits for {module} already")
    _CALLBACKS[module] = callback
    _call_if_imported(module, callback)


def _call_if_imported(name: str, callback: Callable[[], None]) -> None:
    """Calls back at once if a module is there, and at the end of its import if that has begun: it may be this module
    that imports PyTorch, and so us."""
    module = sys.modules.get(name)
    if module is None:
        return
    if not _is_unfinished(module):
        callback()
        return

    def unless_it_failed() -> None:
        if name in sys.modules:  # an import that failed has taken the module away by now
            callback()

    _call_when_finished(module, unless_it_failed)


def _call_unless_ours_wait(callback: Callable[[], None]) -> None:
    """Calls back at once, but where a module of the adapter's imports what was waited for, when that module is there,
    or has failed: what is called back imports others, which may be in need of it."""
    ours = (module for name, module in [*sys.modules.items()] if name.startswith(_ADAPTER))
    outermost = next(filter(_is_unfinished, ours), None)
    if outermost is None:
        callback()
    else:
        _call_when_finished(outermost, callback)


_ADAPTER = "outboard.compiler.adapter."


def _is_unfinished(module: types.ModuleType) -> bool:
    """Whether its import has begun and not ended."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _call_when_finished(module: types.ModuleType, callback: Callable[[], None]) -> None:
    """Calls back when the import of a module ends that has begun, after what else is called then."""
    spec = module.__spec__
    assert spec is not None
    spec.__class__ = _Unfinished
    spec.__dict__.setdefault("_when_finished", []).append(callback)


class _Unfinished(importlib.machinery.ModuleSpec):
    """What the specification of a module becomes while the module is imported: Python's import says in it, by setting
    ``_initializing``, when it has ended, and in no other place that could be asked."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name != "_initializing" or value:
            return
        callbacks: list[Callable[[], None]] = self.__dict__.pop("_when_finished")
        self.__class__ = importlib.machinery.ModuleSpec  # type: ignore[assignment]
        for callback in callbacks:
            callback()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules waited for with the ordinary finders, and wraps their loaders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _CALLBACKS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _CALLBACKS[fullname])
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, then calls back."""

    def __init__(self, loader: importlib.abc.Loader, callback: Callable[[], None]) -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        """What else loaders have: ``python -m`` asks for a module's code, and packages for their files."""
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _call_unless_ours_wait(self._callback)
