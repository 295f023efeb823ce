# SPDX-License-Identifier: Apache-2.0
"""Nested containers of arguments and results, taken apart and put together as PyTorch does it."""

from __future__ import annotations

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
    """What :func:`text_of` wrote. Raises NotImplementedError for a container that this process has not registered."""
    return pytree.treespec_loads(text)


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
