# SPDX-License-Identifier: Apache-2.0
"""How an adapter takes a place in a library: functions are replaced wherever the library has them by name, and names
are added to lists that are constants of its code."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)


def replace(package: str, name: str, make: Callable[[Any], Any]) -> None:
    """Puts ``make(original)`` in the place of the function ``name`` (``package.module.function``), in its module and in
    all modules of the package that have it already."""
    module_name, _, attribute = name.rpartition(".")
    original = getattr(sys.modules.get(module_name), attribute, None)
    if original is None:
        return missing(package, name)
    made = make(original)
    for other, module in list(sys.modules.items()):
        if other.partition(".")[0] == package and vars(module).get(attribute) is original:
            setattr(module, attribute, made)
    return None


def add_to_list(function: types.FunctionType, member: str, added: str) -> None:
    """Adds a string to each tuple of strings with ``member`` that the function's code has as a constant."""
    package = function.__module__.partition(".")[0]
    found = [const for const in function.__code__.co_consts if isinstance(const, tuple) and member in const]
    if not found:
        return missing(package, f"the list with {member!r} in {function.__qualname__}")
    constants = tuple((*c, added) if c in found else c for c in function.__code__.co_consts)
    function.__code__ = function.__code__.replace(co_consts=constants)
    return None


def missing(package: str, what: str) -> None:
    """Says that a release of a library is another than the adapter was written for."""
    release = getattr(sys.modules.get(package), "__version__", "of another kind")
    _log.warning("%s %s has no %s: it may not find the device by itself", package, release, what)
