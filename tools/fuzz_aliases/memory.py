# SPDX-License-Identifier: Apache-2.0
"""What a program must not do, as PyTorch leaves open what comes of it: write what it reads in the same operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Undefined(Exception):
    """An operator writes memory that it also reads, or writes an element twice."""


def places(x: Tensor) -> Tensor:
    """Where the elements of a CPU tensor lie in its storage, as offsets, in its shape."""
    count = x.untyped_storage().nbytes() // x.element_size()
    return torch.arange(count).as_strided(x.size(), x.stride(), x.storage_offset())


class Checked(TorchDispatchMode):
    """Inside, Undefined is raised by operators that PyTorch defines for no such operands. It refuses most of them, but
    does not look at all layouts."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written, read = [], []
        for number, argument in enumerate(func._schema.arguments):
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            tensors = [each for each in pytree.tree_leaves(value) if isinstance(each, Tensor)]
            (written if is_written else read).extend(tensors)
        for target in written:
            self._check(func, target, read)
        return func(*args, **kwargs)

    def _check(self, func: Any, target: Tensor, read: list[Tensor]) -> None:
        if not target.numel():
            return
        own = places(target)
        if own.unique().numel() < own.numel():
            raise Undefined
        scatters = any(word in func.__name__ for word in ("index", "scatter", "put", "out"))
        for source in read:
            if source.untyped_storage().data_ptr() != target.untyped_storage().data_ptr() or not source.numel():
                continue
            others = places(source)
            is_same = others.shape == own.shape and bool((others == own).all()) and not scatters
            if not is_same and torch.isin(others, own).any():
                raise Undefined
