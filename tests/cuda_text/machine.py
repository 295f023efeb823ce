# SPDX-License-Identifier: Apache-2.0
"""The host driver by its table of functions, as a device for CUDA C++, as far as running a plan needs it. Stands where
``tests.oclgrind.simulator.Simulator`` stands for :class:`tests.oclgrind.plans.PlanRun`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from outboard import drivers

#: Functions of ``ob_driver`` in ``include/outboard/driver.h``, in order, as far as they are used; they follow the size,
#: the versions and the name.
_FUNCTIONS = (
    "last_error",
    "device_count",
    "device_open",
    "device_properties",
    "memory_alloc",
    "memory_free",
    "stream_create",
    "stream_destroy",
    "stream_wait",
    "stream_wait_event",
    "event_create",
    "event_destroy",
    "event_record",
    "event_wait",
    "event_elapsed",
    "copy",
    "fill",
    "program_build",
    "program_load",
    "program_binary",
    "program_release",
    "kernel_get",
    "launch",
)
_HEADER_WORDS = 3
#: Around each buffer, and looked at when it is given back.
_ZONE = 4096
_MARK = b"\xa5"


class MachineError(RuntimeError):
    """The driver refused something."""


class _Argument(ctypes.Structure):
    _fields_ = [("is_pointer", ctypes.c_uint32), ("size", ctypes.c_uint32), ("value", ctypes.c_void_p)]


class Machine:
    """The processor as a device whose programs are in CUDA C++. One in a process, which has not loaded the host driver
    for another dialect. Memory of the device is the process'."""

    def __init__(self) -> None:
        os.environ["OUTBOARD_HOST_DIALECT"] = "cuda"
        drivers.prepare(None)
        library = ctypes.CDLL(drivers.host())
        library.outboard_driver.restype = ctypes.POINTER(ctypes.c_void_p * (_HEADER_WORDS + len(_FUNCTIONS)))
        self._table = library.outboard_driver().contents
        self._device, self._stream, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint32()
        self._call("device_count", ctypes.byref(count))
        if count.value == 0:
            raise MachineError(self._last_error())
        self._call("device_open", ctypes.c_uint32(0), ctypes.byref(self._device))
        self._call("stream_create", self._device, ctypes.byref(self._stream))
        self._memory: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._kernels: dict[tuple[str, str, str], ctypes.c_void_p] = {}
        #: Buffers beside which somebody has written.
        self.written_beside = 0

    def buffer(self, contents: bytes) -> ctypes.c_void_p:
        """Memory of this size in whole words, but not empty, between zones that nobody may write."""
        size = max(-(-len(contents) // 4) * 4, 4)
        whole = _MARK * _ZONE + contents.ljust(size, b"\0") + _MARK * _ZONE
        # Memory of ctypes is aligned to 16 bytes.
        memory = ctypes.create_string_buffer(whole, len(whole))
        address = ctypes.addressof(memory) + _ZONE
        self._memory[address] = memory
        return ctypes.c_void_p(address)

    def release(self, buffer: ctypes.c_void_p) -> None:
        """Gives a buffer back."""
        assert buffer.value is not None
        whole = self._memory.pop(buffer.value).raw
        self.written_beside += whole[:_ZONE] != _MARK * _ZONE or whole[-_ZONE:] != _MARK * _ZONE

    def write(self, buffer: ctypes.c_void_p, contents: bytes, offset: int = 0) -> None:
        """Writes bytes at an offset."""
        assert buffer.value is not None
        ctypes.memmove(buffer.value + offset, contents, len(contents))

    def read(self, buffer: ctypes.c_void_p, size: int, offset: int = 0) -> bytes:
        """``size`` bytes from an offset on."""
        assert buffer.value is not None
        return ctypes.string_at(buffer.value + offset, size)

    def kernel(self, source: str, options: str, name: str) -> ctypes.c_void_p:
        """A kernel of a program that is built for it. Raises MachineError with the compiler's messages."""
        key = (source, options, name)
        if key not in self._kernels:
            program, kernel = ctypes.c_void_p(), ctypes.c_void_p()
            self._call("program_build", self._device, source.encode(), options.encode(), ctypes.byref(program))
            self._call("kernel_get", program, name.encode(), ctypes.byref(kernel))
            self._kernels[key] = kernel
        return self._kernels[key]

    def launch(
        self,
        kernel: ctypes.c_void_p,
        arguments: Sequence[ctypes._SimpleCData[object]],
        global_size: Sequence[int],
        local_size: Sequence[int] | None,
    ) -> None:
        """Runs a kernel to its end. ``arguments`` are buffers (``c_void_p``) and numbers; sizes have three entries."""
        passed = (_Argument * len(arguments))()
        for place, each in zip(passed, arguments, strict=True):
            place.is_pointer, place.size = isinstance(each, ctypes.c_void_p), ctypes.sizeof(each)
            place.value = ctypes.addressof(each)
        counts = (ctypes.c_uint64 * 3)(*global_size)
        group = (ctypes.c_uint32 * 3)(*(local_size or (0, 0, 0)))
        self._call("launch", self._stream, kernel, counts, group, passed, ctypes.c_uint32(len(arguments)))

    def _function(self, name: str, result: type = ctypes.c_int) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
        return ctypes.CFUNCTYPE(result)(self._table[_HEADER_WORDS + _FUNCTIONS.index(name)])

    def _last_error(self) -> str:
        text = self._function("last_error", ctypes.c_char_p)()
        return str(text.decode(errors="replace"))

    def _call(self, name: str, *arguments: object) -> None:
        if self._function(name)(*arguments) != 0:
            raise MachineError(f"{name}: {self._last_error()}")
