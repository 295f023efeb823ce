# SPDX-License-Identifier: Apache-2.0
"""Device memory and a stream for code that submits work by itself: ``outboard.borrow``."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import torch

from outboard import _C
from outboard.device.devices import name


def borrow(*tensors: torch.Tensor, writes: Iterable[torch.Tensor] = ()) -> Borrow:
    """Tensors of one device, and its current stream, for code that submits work to the driver itself::

        with outboard.borrow(x, w, writes=[y]) as borrowed:
            vendor.multiply(borrowed.stream, borrowed.address(x), borrowed.address(w), borrowed.address(y))

    Within the block the tensors are in device memory and stay in place. The work comes behind all that PyTorch was
    given for the stream before, and before all that it is given afterwards. Nobody waits. C++ has the same in
    ``outboard/extension.h``.

    Args:
        tensors: what is read, of any sizes, strides and dtypes.
        writes: what is written, in whole or in part, and may also be read. Autograd sees a change in place.

    Raises:
        TypeError: for anything but tensors.
        ValueError: if there is no tensor.
        RuntimeError: for tensors of other devices, or of two; for what is more or less than its memory (subclasses,
            sparse tensors, pending conjugates); for ``writes`` that require grad outside of ``torch.no_grad()``, or
            whose elements share memory; while a graph is captured (NotImplementedError).
        torch.OutOfMemoryError: if the device has no room for all of them at once.
    """
    if isinstance(writes, torch.Tensor):
        raise TypeError("`writes` is a list of tensors, not a tensor: write writes=[y]")
    written = list(writes)
    for given in (*tensors, *written):
        if not isinstance(given, torch.Tensor):
            raise TypeError(f"borrow() expects tensors, not {type(given).__name__}")
    return Borrow(list(tensors), written)


class Borrow:
    """What :func:`borrow` gives: of use in its ``with`` block alone, once."""

    def __init__(self, read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        self._tensors: tuple[list[torch.Tensor], list[torch.Tensor]] | None = (read, written)
        self._borrowed: _C.Borrowed | None = None

    def __enter__(self) -> Borrow:
        if self._tensors is None:
            raise RuntimeError("this was used already: call borrow() again")
        self._borrowed = _C.borrow(*self._tensors)
        self._tensors = None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.end()

    @property
    def stream(self) -> int:
        """The driver's stream (``ob_stream``). All that PyTorch was given for it is in the driver's hands when this
        returns: ask again for work behind operators that were called meanwhile. Raises what that work failed with, and
        RuntimeError outside of the block."""
        return self._open.stream()

    def address(self, tensor: torch.Tensor) -> int:
        """Where element 0 of a borrowed tensor is (``ob_ptr``); 0 for a tensor without elements. Raises ValueError for
        one that was not given to ``borrow``, RuntimeError outside of the block."""
        return self._open.address(tensor)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return torch.device(name(), self._open.device)

    @property
    def device_handle(self) -> int:
        """The driver's device (``ob_device``)."""
        return self._open.device_handle

    @property
    def driver(self) -> int:
        """Where the driver's table is (``const ob_driver*``), to which stream, device and addresses belong."""
        return self._open.driver

    @property
    def _open(self) -> _C.Borrowed:
        if self._borrowed is None:
            raise RuntimeError("nothing is borrowed yet: use borrow() in a `with` statement")
        return self._borrowed
