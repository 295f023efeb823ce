# SPDX-License-Identifier: Apache-2.0
"""Nested containers of arguments and results, taken apart and put together as PyTorch does it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch.utils import _pytree as pytree

Structure: TypeAlias = Any  #: how leaves are nested; equal for equal nesting


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """The leaves of nested containers, and how they are nested."""
    return pytree.tree_flatten(value)


def build(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Puts leaves together again."""
    return pytree.tree_unflatten(leaves, structure)


def text_of(structure: Structure) -> str:
    """A structure as text. Raises NotImplementedError for a container that PyTorch cannot name."""
    try:
        return str(pytree.treespec_dumps(structure))
    except NotImplementedError as error:
        raise NotImplementedError(f"arguments and results must be nested in containers with a name: {error}") from error


def structure_of(text: str) -> Structure:
    """What :func:`text_of` wrote, or somebody else: nothing is imported for it.

    Raises NotImplementedError for a container that this process has not registered, ValueError for anything that
    :func:`text_of` does not write."""
    try:
        _, root = json.loads(text)
        _check_containers(root)
        return pytree.treespec_loads(text)
    except NotImplementedError:
        raise
    except Exception as error:  # PyTorch raises whatever reading the containers of others raises
        raise ValueError(f"{text!r} is no structure: {error}") from error


def leaf_count(structure: Structure) -> int:
    """Leaves of a structure."""
    return int(structure.num_leaves)


def _check_containers(node: Any) -> None:
    """Raises NotImplementedError where PyTorch would import a module to read a structure: that of a dictionary's
    default values or of an enumeration."""
    if _names_a_module(node["context"]):
        raise NotImplementedError("containers with default values or enumerations in them are not read from files")
    for child in node["children_spec"]:
        _check_containers(child)


#: Default values of dictionaries that are no code of anybody's.
_PLAIN = frozenset({"bool", "dict", "float", "int", "list", "set", "str", "tuple"})


def _names_a_module(context: Any) -> bool:
    if isinstance(context, str):  # mostly JSON once more
        try:
            return _has_enumeration(json.loads(context))
        except ValueError:
            return False
    if not isinstance(context, dict) or "default_factory_module" not in context:
        return _has_enumeration(context)
    return context["default_factory_module"] != "builtins" or context.get("default_factory_name") not in _PLAIN


def _has_enumeration(value: Any) -> bool:
    if isinstance(value, dict):
        return "__enum__" in value or any(map(_has_enumeration, value.values()))
    return isinstance(value, list) and any(map(_has_enumeration, value))


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Nested containers with each leaf replaced."""
    return pytree.tree_map(function, value)


def names_of(value: Any, root: str) -> list[str]:
    """A name for each leaf: the keys and numbers that lead to it, or ``root`` and them if they begin with a number."""
    names = []
    for path, _leaf in pytree.tree_flatten_with_path(value)[0]:
        words = re.findall(r"\w+", pytree.keystr(path))
        names.append("_".join(words if words and not words[0].isdigit() else [root, *words]))
    return names
