# SPDX-License-Identifier: Apache-2.0
"""Kernels that a program brings, as text or binary: ``outboard.RawKernel``."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from outboard import _C
from outboard.compiler import dialects

from .arguments import device_index, flat, number_of


@functools.cache
def _dialect_of(index: int) -> str:
    return str(_C.device_properties(index)["dialect"])


class RawKernel:
    """A kernel in the language of the device's driver, launched in stream order::

        add = outboard.RawKernel(source, "add")
        add(grid, group, (x, y, out, x.numel()))

    It is built at its first launch on a device, once, and kept on disk as other programs are.

    Args:
        source: text of a program. It begins with the words of the device's dialect (``OB_KERNEL``, ``OB_GLOBAL``, ...),
            which are the same in all dialects; ordinary code of the device's language may follow as well.
        entry: the kernel's name in the program.
        binary: a program in the form that the driver loads, instead of ``source``; see :meth:`binary`.
        dialect: the one dialect that ``source`` is written in, such as ``"opencl-c"``. The text is then taken as it is,
            and devices of another dialect refuse it.
        options: options for the driver's compiler, separated by spaces.

    Raises:
        TypeError: for a text that is none, or a binary that is not bytes.
        ValueError: unless either ``source`` or ``binary`` is given; for a zero byte in a text.
    """

    def __init__(
        self,
        source: str | None = None,
        entry: str = "",
        *,
        binary: bytes | None = None,
        dialect: str | None = None,
        options: str = "",
    ) -> None:
        if (source is None) == (binary is None):
            raise ValueError("a kernel is given as `source` or as `binary`: one of them")
        for what, given in (("source", source), ("entry", entry), ("dialect", dialect), ("options", options)):
            _require_text(what, given)
        if binary is not None and not isinstance(binary, bytes):
            raise TypeError(f"`binary` is bytes, as binary() gives them, not {type(binary).__name__}")
        if not entry:
            raise ValueError("a kernel needs a name: `entry`, as the program calls it")
        self.source, self.entry, self.dialect, self.options = source, entry, dialect, options
        self._binary = binary
        self._made: dict[int, _C.OwnKernel] = {}  # by device

    def __call__(self, grid: int | Sequence[int], group: int | Sequence[int], arguments: Sequence[Any]) -> None:
        """Launches the kernel on the calling thread's current stream of the device that the tensors are on.

        While a graph is captured, the launch is recorded.

        Args:
            grid: the number of work-groups, in up to three dimensions, as CUDA counts. With 0, nothing is launched.
            group: work-items of a work-group, likewise.
            arguments: in the kernel's order. A tensor is a pointer to its element 0, whatever its strides; None a null
                pointer; an ``int`` a ``long`` of 64 bits, a ``float`` a ``float``, a ``bool`` an ``int``; numbers of
                ctypes and numpy have their own types. Lists are taken apart. No driver knows what the kernel expects:
                what fits by size is taken.

        Raises:
            RuntimeError: with the compiler's log if the program cannot be built; if it has no such kernel; for tensors
                of other devices, or of a device of another dialect.
            TypeError: for other arguments.
            ValueError: for a grid or group of no such form.
        """
        values = flat(arguments)
        index = device_index(values)
        packed = [
            value if value is None or isinstance(value, torch.Tensor) else bytes(number_of(value, place))
            for place, value in enumerate(values)
        ]
        groups, items = _three(grid, "grid", 64), _three(group, "group", 32)
        if math.prod(groups) * max(math.prod(items), 1) >= 2**64:
            raise ValueError(f"{groups} groups of {items} have more items than 64 bits count")
        _C.launch_own(self._of(index), packed, groups, items)

    def binary(self, device: torch.device | str | int | None = None) -> bytes:
        """The program as the driver of a device loads it, for ``RawKernel(binary=...)`` on devices of its kind. Empty
        if the driver gives none. Raises what a launch would."""
        from outboard.device.devices import index_of

        return self._of(index_of(device)).binary()

    def refusal(self, index: int) -> str | None:
        """Why the kernel cannot run on the device with this index: it is written for others. None if it can."""
        dialect = _dialect_of(index)
        if dialect == self.dialect or (self.dialect is None and (self.source is None or dialects.is_known(dialect))):
            return None
        written_in = self.dialect or "the words of dialects"
        taken = f"programs in {dialect}" if dialect else "no programs"
        return f"the kernel {self.entry} is written in {written_in}, and the device takes {taken}"

    def _of(self, index: int) -> _C.OwnKernel:
        index = _C.current_device() if index < 0 else index
        if index not in self._made:
            self._made[index] = self._make(index)
        return self._made[index]

    def _make(self, index: int) -> _C.OwnKernel:
        refusal = self.refusal(index)
        if refusal is not None:
            raise RuntimeError(refusal)
        if self._binary is not None:
            return _C.own_binary_kernel(index, self._binary, self.entry)
        assert self.source is not None
        text = dialects.find(_dialect_of(index)).program(self.source) if self.dialect is None else self.source
        return _C.own_kernel(index, text, self.options, self.entry)


def _require_text(what: str, given: object) -> None:
    """Raises TypeError for what is no text, ValueError for a text that C would read only a part of."""
    if given is not None and not isinstance(given, str):
        raise TypeError(f"`{what}` of a kernel is text, not {type(given).__name__}")
    if given is not None and "\0" in given:
        raise ValueError(f"`{what}` of a kernel has a zero byte, where C would end it")


def _three(sizes: int | Sequence[int], what: str, bits: int) -> list[int]:
    """Numbers of three dimensions. Raises ValueError for others than one to three numbers of so many bits."""
    given = sizes if isinstance(sizes, Sequence) else [sizes]
    try:
        numbers = [operator.index(size) for size in given]
    except TypeError:
        numbers = []
    if not 1 <= len(numbers) <= 3 or any(not 0 <= size < 2**bits for size in numbers):
        raise ValueError(f"`{what}` is one to three numbers, none negative, of at most {bits} bits, not {sizes!r}")
    return [*numbers, *[1] * (3 - len(numbers))]
