# SPDX-License-Identifier: Apache-2.0
"""Nested containers of arguments and results, taken apart and put together as PyTorch does it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils import _pytree as pytree


def flatten(value: Any) -> tuple[list[Any], str]:
    """The leaves of nested containers, and their structure as text. Raises NotImplementedError for a container whose
    structure has no text (register it with ``torch.export.register_dataclass`` or the like)."""
    leaves, spec = pytree.tree_flatten(value)
    return leaves, structure_text(spec)


def structure_text(spec: Any) -> str:
    """A tree specification of PyTorch's as text. Raises NotImplementedError as :func:`flatten` does."""
    return str(pytree.treespec_dumps(spec))


def builder_of(text: str) -> Callable[[Sequence[Any]], Any]:
    """What puts leaves together again. Raises NotImplementedError if the text names a container that this process has
    not registered."""
    spec = pytree.treespec_loads(text)
    return lambda leaves: pytree.tree_unflatten(leaves, spec)


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
