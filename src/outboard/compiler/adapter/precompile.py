# SPDX-License-Identifier: Apache-2.0
"""``OUTBOARD_PRECOMPILE=1``: what ``torch.compile`` traced is kept for later processes, which trace nothing.

This is PyTorch's own cache of traces (``torch._dynamo.package``), which is experimental there. Three things are ours:

* Traces are kept when the process ends, below ``OUTBOARD_CACHE_DIR``, apart for each version of the compiler and each
  set of devices. PyTorch keeps them only on request, and does not know what our plans depend on.
* A trace belongs to one function. PyTorch tells functions apart by name and line, we also by file and code.
* PyTorch drops the guards that no other process can check, namely those on the identity of objects, and drops them in
  the process that traced as well. Here that process keeps them all. And a trace is only kept for others if each object
  is one that they find under the same name: a function by its own name, a module.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import guards, package
from torch._dynamo.package import CompilePackage, DynamoCache

from outboard import activation

_log = logging.getLogger(__name__)
#: Guards that PyTorch drops, by type.
_DROPPED = frozenset({"ID_MATCH", "CLOSURE_MATCH", "WEAKREF_ALIVE", "DICT_VERSION"})


@functools.cache
def enable() -> None:
    """Turns the cache of traces on, once."""
    config: Any = torch._dynamo.config
    config.caching_precompile = True
    logging.getLogger("torch._dynamo.guards").addFilter(_is_news)
    _replace(CompilePackage, "source_id_from_fn", staticmethod(_with_code(CompilePackage.source_id_from_fn)))
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


def _with_code(original: Callable[[Any], str]) -> Callable[[Any], str]:
    """The key of a function, told apart from others of its name and line."""
    import hashlib

    from torch._dynamo.eval_frame import innermost_fn

    def key(function: Any) -> str:
        code = innermost_fn(function).__code__
        parts = (original(function), code.co_filename, code.co_code.hex(), repr(code.co_names))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    return key


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
