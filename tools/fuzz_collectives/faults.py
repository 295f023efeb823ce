# SPDX-License-Identifier: Apache-2.0
"""Faults that tests seed, as a backend might have them: the judge has to find each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor


@contextlib.contextmanager
def seeded(name: str) -> Iterator[None]:
    """A process in which torch.distributed has the fault of this name; none if it is empty."""
    if not name:
        yield
        return
    function, faulty = FAULTS[name]
    with mock.patch.object(dist, function, faulty(getattr(dist, function))):
        yield


def _by_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    """Lists go by the order of memory on the ranks that send, not by index."""

    def all_gather(outputs: list[Tensor], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()).reshape(tensor.shape)
        return original(outputs, sent, *args, **kwargs)

    return all_gather


def _without_order(original: Callable[..., Any]) -> Callable[..., Any]:
    """A collective does not wait for an earlier one of the same tensor: it begins with what was there before."""
    earlier: dict[int, Tensor] = {}

    def all_reduce(tensor: Tensor, op: Any, group: Any, async_op: bool = False) -> Any:
        before = earlier.pop(tensor.data_ptr(), None)
        if async_op:
            earlier[tensor.data_ptr()] = tensor.clone()
        if before is not None and before.shape == tensor.shape:
            tensor.copy_(before)
        return original(tensor, op, group, async_op=async_op)

    return all_reduce


def _past_the_end(original: Callable[..., Any]) -> Callable[..., Any]:
    """One element more than there is."""

    def broadcast(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        longer = tensor.as_strided((tensor.numel() + 1,), (1,), tensor.storage_offset())
        return original(longer, *args, **kwargs)

    return broadcast


def _hanging(original: Callable[..., Any]) -> Callable[..., Any]:
    """The last rank does not come."""

    def scatter(*args: Any, **kwargs: Any) -> Any:
        if dist.get_rank() == dist.get_world_size() - 1:
            return None
        return original(*args, **kwargs)

    return scatter


#: What each replaces, and by what.
FAULTS: dict[str, tuple[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "memory-order": ("all_gather", _by_memory),
    "no-order": ("all_reduce", _without_order),
    "past-the-end": ("broadcast", _past_the_end),
    "absent": ("scatter", _hanging),
}
