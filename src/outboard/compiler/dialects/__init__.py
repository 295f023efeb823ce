# SPDX-License-Identifier: Apache-2.0
"""Languages of kernels: what they have in common (``c``), and what each calls by a name of its own.

A package brings another one by an entry point of the group ``outboard.dialects``, whose name is the dialect's and which
loads a ``Dialect`` (``docs/dialects.md``).
"""

from __future__ import annotations

import functools
from importlib.metadata import entry_points

from .base import Dialect, Unsupported, uses_doubles, uses_long_atomics
from .cuda import CUDA
from .hip import HIP
from .opencl import OPENCL

__all__ = ["Dialect", "Unsupported", "find", "is_known", "names", "uses_doubles", "uses_long_atomics"]

GROUP = "outboard.dialects"
_OWN = {dialect.name: dialect for dialect in (OPENCL, CUDA, HIP)}


def names() -> list[str]:
    """The names of all dialects, sorted."""
    return sorted({*_OWN, *(entry.name for entry in entry_points(group=GROUP))})


def is_known(name: str) -> bool:
    """Whether there is such a dialect. Loads none."""
    return name in _OWN or any(entry.name == name for entry in entry_points(group=GROUP))


@functools.cache
def find(name: str) -> Dialect:
    """The dialect of that name. Raises Unsupported if there is none or its package is no good."""
    if name in _OWN:
        return _OWN[name]
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return _load(entry.name, entry.load())
    known = ", ".join(names())
    raise Unsupported(f"no package here knows the dialect {name!r} (known: {known})")


def _load(name: str, loaded: object) -> Dialect:
    if not isinstance(loaded, Dialect) or loaded.name != name:
        raise Unsupported(f"the entry point {name!r} of {GROUP} is not a Dialect of that name but {loaded!r}")
    return loaded
