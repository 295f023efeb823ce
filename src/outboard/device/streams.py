# SPDX-License-Identifier: Apache-2.0
"""Streams (in-order queues of a device) and events (points in them, with timestamps)."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from outboard import _C
from outboard.device.devices import DeviceLike, index_of, name


class _OfDevice(type):
    """Instances are the PyTorch objects of this device: PyTorch's own functions refuse subclasses of them."""

    base: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.base) and getattr(instance, "device", torch.device("cpu")).type == name()


class Stream(metaclass=_OfDevice):
    """An in-order queue of a device: a ``torch.Stream``. Work on different streams is unordered unless events order it.

    Args:
        device: the device (default: the current one).
        priority: accepted for compatibility; all streams are equal.
    """

    base = torch.Stream

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> torch.Stream:  # type: ignore[misc]
        if "stream_id" in kwargs:
            return torch.Stream(**kwargs)
        return torch.Stream(device=torch.device(name(), index_of(device)), priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority: 0 and 0, as all streams are equal."""
        return 0, 0


class Event(metaclass=_OfDevice):
    """A point in a stream: a ``torch.Event``.

    Args:
        enable_timing: whether ``elapsed_time`` (milliseconds) may be asked for.
        blocking: accepted for compatibility.
        interprocess: must be False.
    """

    base = torch.Event

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:  # type: ignore[misc]
        return torch.Event(name(), enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


def current_stream(device: DeviceLike = None) -> torch.Stream:
    """The calling thread's current stream on a device (default: the current one)."""
    return torch._C._accelerator_getStream(index_of(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    """The stream a device uses unless another is selected."""
    current = current_stream(device)
    return torch.Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes ``stream`` the current one of its device, and its device the current one; None is a no-op."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager that selects a stream (and its device); None is a no-op."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: torch.Stream | None = None
        self._previous_device = -1

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self._previous_device = _C.current_device()
        self._previous = current_stream(self.stream.device)
        set_stream(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is None:
            return
        set_stream(self._previous)
        _C.set_device(self._previous_device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager that selects ``stream``."""
    return StreamContext(stream)
