# SPDX-License-Identifier: Apache-2.0
"""Functions of torch-rbln 0.12 for memory that mean something for an NPU's parts, or for its host's disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from outboard import _C
from outboard.device import devices, memory
from outboard.profiles.notices import say_once

#: A device of Outboard's is one NPU with one memory.
_PART = "npu.0.chiplet.0"


def memory_stats_per_chiplet(device: Any = None) -> dict[str, int]:
    """The statistics of :func:`memory_stats` as those of a device's only part, ``npu.0.chiplet.0``."""
    return {f"{_PART}.{key}": value for key, value in memory.memory_stats(device).items()}


def mem_get_info_per_chiplet(device: Any = None) -> dict[str, int]:
    """Bytes of a device's only part, and of the device: ``total``, ``used`` and ``free``. Its memory is one piece, so
    that ``largest_free`` is all that is free; there are no pages of another size (``largest_free_huge`` 0), and
    ``granularity`` is one byte."""
    free, total = memory.mem_get_info(device)
    whole = {"total": total, "used": total - free, "free": free, "largest_free": free, "largest_free_huge": 0}
    return {f"{_PART}.{key}": value for key, value in whole.items()} | {
        f"npu.0.{key}": value for key, value in (whole | {"granularity": 1}).items()
    }


def bind_device_memory(tensor: torch.Tensor) -> None:
    """Has a tensor take its device memory now, not when work needs it.

    Raises:
        TypeError: for a tensor of another device.
    """
    if tensor.device.type != devices.name():
        raise TypeError(f"bind_device_memory takes a tensor of {devices.name()}, not of {tensor.device}")
    _C.borrow([tensor], []).end()


def huge_host_empty(nbytes: int) -> torch.Tensor:
    """So many bytes of pinned memory of the host, uninitialised, as uint8: the device copies from and to them without
    another copy."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


def set_device_layout_like(target: torch.Tensor, ref: torch.Tensor) -> None:
    """Nothing to do: in device memory a tensor lies as its strides say, like any other."""


@contextmanager
def offload() -> Iterator[None]:
    """A context in which tensors are made; that they can be moved to a file has no effect here, which is said once.
    What does not fit into the device's memory moves to the host's by itself."""
    say_once(
        "torch.rbln.offload() moves nothing to files here: what does not fit into device memory moves to the host's by "
        "itself.",
        stacklevel=4,
    )
    yield


def release_offload_temp_storage() -> int:
    """The number of files removed: none, as there are none."""
    return 0


def is_dummy_device() -> bool:
    """Whether the device can compile only: no device of Outboard's is of that kind."""
    return False
