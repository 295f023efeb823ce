# SPDX-License-Identifier: Apache-2.0
"""``OUTBOARD_PRECOMPILE=1``: what ``torch.compile`` traced is kept for later processes, which trace nothing.

This is PyTorch's own cache of traces (``torch._dynamo.package``), which is experimental there. These things are ours:

* Traces are kept when the process ends, below ``OUTBOARD_CACHE_DIR``, apart for each version of the compiler and each
  set of devices. PyTorch keeps them only on request, and does not know what our plans depend on.
* A trace belongs to one function, compiled in one way. PyTorch tells functions apart by name and line, we also by file
  and code, and by what was said to ``torch.compile``. What another backend than Inductor compiles is not looked up.
* Names that Dynamo makes up are unique. PyTorch counts them from zero in each process, so those of a trace that was
  loaded and of one that is made, for another shape say, are the same, which raises.
* A trace that cannot be loaded, for whatever reason, is made again.
* PyTorch drops the guards that no other process can check, namely those on the identity of objects, and drops them in
  the process that traced as well. Here that process keeps them all. And a trace is only kept for others if each object
  is one that they find under the same name: a function by its own name, a module.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import functools
import hashlib
import itertools
import logging
import os
import sys
import types
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import bytecode_transformation, eval_frame, guards, package
from torch._dynamo.package import CompilePackage, DynamoCache

from outboard import activation

_log = logging.getLogger(__name__)
#: Guards that PyTorch drops, by type.
_DROPPED = frozenset({"ID_MATCH", "CLOSURE_MATCH", "WEAKREF_ALIVE", "DICT_VERSION"})
#: Names made up here have numbers from this many on, at random.
_NAMES = 1 << 62
#: The way of compiling that the function in hand is compiled in.
_way: contextvars.ContextVar[str] = contextvars.ContextVar("outboard_way", default="")


@functools.cache
def enable() -> None:
    """Turns the cache of traces on, once."""
    config: Any = torch._dynamo.config
    config.caching_precompile = True
    # PyTorch does not look whether a module's hooks have changed since it was traced: another process may have others.
    config.skip_nnmodule_hook_guards = False
    logging.getLogger("torch._dynamo.guards").addFilter(_is_news)
    _replace(bytecode_transformation, "_unique_id_counter", itertools.count(uuid.uuid4().int % _NAMES))
    _replace(CompilePackage, "source_id_from_fn", staticmethod(_with_code(CompilePackage.source_id_from_fn)))
    _replace(CompilePackage, "initialize", _keeping_key(CompilePackage.initialize))
    _replace(CompilePackage, "install", _all_or_nothing(CompilePackage.install))
    _replace(eval_frame._TorchDynamoContext, "__call__", _in_one_way(eval_frame._TorchDynamoContext.__call__))
    _replace(guards.CheckFunctionManager, "__init__", _keeping_guards(guards.CheckFunctionManager.__init__))
    _replace(DynamoCache, "path_prefix", _folder)
    _replace(DynamoCache, "load", _marking_use(DynamoCache.load))
    atexit.register(_save, os.getpid())


def _replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _is_news(record: logging.LogRecord) -> bool:
    """False for PyTorch's line on each guard that it drops."""
    return "is dropped with caching_precompile" not in str(record.msg)


def _folder() -> str:
    """Where traces are kept."""
    from .registration import fingerprint

    base = activation.cache_directory() or Path(package.cache_dir())
    return str(base / "traces" / fingerprint().hex()[:24])


def _marking_use(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Traces used longest ago are the first to be deleted (``eviction``)."""

    def load(function: Any) -> Any:
        found = original(function)
        with contextlib.suppress(OSError):  # there is none, or it is read-only
            os.utime(Path(_folder()) / CompilePackage.source_id_from_fn(function) / "entry")
        return found

    return load


def _save(process: int) -> None:
    """Writes what this process (not one forked from it) traced."""
    from torch._dynamo.precompile_context import PrecompileContext

    if process != os.getpid():
        return
    try:
        PrecompileContext.save_to_dynamo_cache()
    except (RuntimeError, OSError) as error:
        _log.warning("what torch.compile traced is not kept for later processes: %s", error)


def _in_one_way(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Has functions looked up under the way that they are compiled in."""

    @functools.wraps(original)
    def call(self: Any, function: Any) -> Any:
        token = _way.set(_way_of(self))
        try:
            return original(self, function)
        finally:
            _way.reset(token)

    return call


def _way_of(context: Any) -> str:
    """What ``torch.compile`` was told. Of other backends than Inductor, which cannot be told apart by what they are,
    none is like another."""
    settings = context.compiler_config
    if settings is None:
        return uuid.uuid4().hex
    said = (context.fullgraph, context.error_on_graph_break, context._dynamic, sorted(settings.items()))
    return hashlib.sha256(repr(said).encode()).hexdigest()


def _with_code(original: Callable[[Any], str]) -> Callable[[Any], str]:
    """The key of a function, told apart from others of its name and line, and from its own in other ways."""
    from torch._dynamo.eval_frame import innermost_fn

    def key(function: Any) -> str:
        code = innermost_fn(function).__code__
        parts = (original(function), code.co_filename, code.co_code.hex(), repr(code.co_names), _way.get())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    return key


def _keeping_key(original: Callable[..., None]) -> Callable[..., None]:
    """The key that a trace is stored under is that of when the function was compiled."""

    def initialize(self: Any, fn: Any, dynamo: Any = None, ignore_inlined_sources: bool = False) -> None:
        original(self, fn, dynamo, ignore_inlined_sources)
        self.__dict__["source_id"] = CompilePackage.source_id_from_fn(self._innermost_fn)

    return initialize


def _all_or_nothing(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """What cannot be put in place whole leaves nothing behind, and is reported as PyTorch expects it."""

    def install(self: Any, backends: Any) -> None:
        try:
            original(self, backends)
        except Exception as error:
            self.uninstall()
            self._codes = {}
            self._initialized = False
            raise RuntimeError(f"the trace cannot be used: {error}") from error

    return install


def _keeping_guards(original: Callable[..., None]) -> Callable[..., None]:
    """Makes the guards that travel first, and then those of this process, which are all."""

    def init(
        self: Any,
        code: types.CodeType,
        graph: Any,
        cache_entries: Any = None,
        fail: Any = None,
        keep: Callable[[Sequence[Any]], Sequence[bool]] | None = None,
        *others: Any,
        save_guards: bool = False,
        **options: Any,
    ) -> None:
        def build(filter_: Any, save: bool) -> None:
            original(self, code, graph, cache_entries, fail, filter_, *others, save_guards=save, **options)

        if not save_guards:
            return build(keep, False)
        lost: list[str] = []

        def watch(entries: Sequence[Any]) -> Sequence[bool]:
            kept = keep(entries) if keep is not None else [True] * len(entries)
            lost.extend(entry.name for entry, stays in zip(entries, kept, strict=True) if stays and _is_lost(entry))
            return kept

        build(watch, True)
        travelling = self.guards_state
        if lost:
            graph.bypass_package(f"other processes cannot check {', '.join(sorted(set(lost)))}")
        config: Any = torch._dynamo.config
        with config.patch(caching_precompile=False):
            build(keep, False)
        self.guards_state = travelling if travelling is not None else b""  # not used if the package is bypassed
        return None

    return init


def _is_lost(entry: Any) -> bool:
    """Whether a guard would be dropped although it tells objects apart that other processes may have in its place."""
    types_of_guard = (entry.guard_type, *entry.derived_guard_types)
    if not any(name in each for name in _DROPPED for each in types_of_guard):
        return False
    return not (entry.has_value and entry.is_global and _is_found_by_name(entry.name, entry.value))


def _is_found_by_name(path: str, value: object) -> bool:
    """Whether ``path``, as in ``G['torch'].arange``, names what it leads to."""
    if isinstance(value, types.ModuleType):
        return sys.modules.get(value.__name__) is value
    last = path.rstrip("']").replace("['", ".").rsplit(".", 1)[-1]
    return getattr(value, "__name__", None) == last
