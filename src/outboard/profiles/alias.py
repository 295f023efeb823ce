# SPDX-License-Identifier: Apache-2.0
"""Module aliases: modules that exist only while a profile is in force."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outboard import device
from outboard.profiles.profile import Profile


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the profile's modules, and the packages above them."""

    def __init__(self, modules: Mapping[str, Callable[[], Mapping[str, Any]]]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_package = any(module.startswith(fullname + ".") for module in self._modules)
        if not is_package and fullname not in self._modules:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin="outboard", is_package=is_package)

    def exec_module(self, module: types.ModuleType) -> None:
        if (contents := self._modules.get(module.__name__)) is not None:
            module.__dict__.update(contents())


def install(profile: Profile) -> None:
    """Adds the profile's extra API to ``torch.<name>`` and makes its module aliases importable.

    The finder comes last, so that a package that is really installed under one of these names wins.
    """
    for attribute, value in profile.extra_api.items():
        setattr(device, attribute, value)
    if profile.module_aliases:
        sys.meta_path.append(_AliasFinder(profile.module_aliases))
