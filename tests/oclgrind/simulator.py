# SPDX-License-Identifier: Apache-2.0
"""Oclgrind's OpenCL 1.2, which checks every access of every work-item, as far as running a plan needs it."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

LIBRARY = "/usr/lib/oclgrind/liboclgrind-rt.so"

_READ_WRITE = 1
_USE_ALL_DEVICES = 0xFFFFFFFF
_BUILD_LOG = 0x1183
#: Where a kernel reads or writes is an address of Oclgrind's own; what it says before is what went wrong.
_INVALID = re.compile(r"Invalid (read|write) of size")
_RACE = re.compile(r"(Read-write|Write-write) data race")
_DIVERGENCE = re.compile(r"(Work-group divergence|barrier divergence)", re.IGNORECASE)


class SimulatorError(RuntimeError):
    """A call of OpenCL failed."""


class Findings:
    """What Oclgrind said of some launches."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.invalid_reads = sum(match[1] == "read" for match in _INVALID.finditer(text))
        self.invalid_writes = sum(match[1] == "write" for match in _INVALID.finditer(text))
        self.races = len(_RACE.findall(text))
        self.divergences = len(_DIVERGENCE.findall(text))

    def __bool__(self) -> bool:
        return bool(self.text.strip())


class Simulator:
    """A context, a queue and the log of Oclgrind. One in a process: the log's name is read when it is loaded."""

    def __init__(self) -> None:
        handle, log = tempfile.mkstemp(prefix="oclgrind-")
        os.close(handle)
        self._log = Path(log)
        self._seen = 0
        os.environ |= {
            "OCLGRIND_LOG": log,
            "OCLGRIND_DATA_RACES": "1",
            "OCLGRIND_CHECK_API": "1",
            "OCLGRIND_NUM_THREADS": "1",  # messages in order
            "OCLGRIND_LOCAL_MEM_SIZE": "65536",
        }
        # Its symbols are those of any OpenCL, and one may be loaded already.
        self._cl = ctypes.CDLL(LIBRARY, mode=os.RTLD_LOCAL | os.RTLD_NOW | os.RTLD_DEEPBIND)
        for name in ("Context", "CommandQueue", "Buffer", "ProgramWithSource", "Kernel"):
            getattr(self._cl, f"clCreate{name}").restype = ctypes.c_void_p
        platform, device = ctypes.c_void_p(), ctypes.c_void_p()
        self._check("clGetPlatformIDs", 1, ctypes.byref(platform), None)
        self._check("clGetDeviceIDs", platform, ctypes.c_uint64(_USE_ALL_DEVICES), 1, ctypes.byref(device), None)
        self._device = device
        self._context = self._make("clCreateContext", None, 1, ctypes.byref(device), None, None)
        self._queue = self._make("clCreateCommandQueue", self._context, device, ctypes.c_uint64(0))

    def close(self) -> None:
        """Removes the log."""
        self._log.unlink()

    def findings(self) -> Findings:
        """What was said since the last call."""
        text = self._log.read_text()
        new, self._seen = text[self._seen :], len(text)
        return Findings(new)

    def buffer(self, contents: bytes) -> ctypes.c_void_p:
        """Device memory of this size in whole words, but not empty: atomics on halves exchange the word around one,
        and blocks of the runtime's allocator end with whole words."""
        size = max(-(-len(contents) // 4) * 4, 4)
        made = self._make("clCreateBuffer", self._context, ctypes.c_uint64(_READ_WRITE), ctypes.c_size_t(size), None)
        self.write(made, contents)
        return made

    def release(self, buffer: ctypes.c_void_p) -> None:
        """Gives a buffer back."""
        self._check("clReleaseMemObject", buffer)

    def write(self, buffer: ctypes.c_void_p, contents: bytes, offset: int = 0) -> None:
        """Writes bytes at an offset."""
        self._transfer("clEnqueueWriteBuffer", buffer, offset, len(contents), contents)

    def read(self, buffer: ctypes.c_void_p, size: int, offset: int = 0) -> bytes:
        """``size`` bytes from an offset on."""
        into = ctypes.create_string_buffer(max(size, 1))
        self._transfer("clEnqueueReadBuffer", buffer, offset, size, into)
        return into.raw[:size]

    def kernel(self, source: str, options: str, name: str) -> ctypes.c_void_p:
        """A kernel of a program that is built for it. Raises SimulatorError with the compiler's messages."""
        text = source.encode()
        program = self._make("clCreateProgramWithSource", self._context, 1, ctypes.byref(ctypes.c_char_p(text)), None)
        if self._cl.clBuildProgram(program, 0, None, options.encode(), None, None) != 0:
            log = ctypes.create_string_buffer(1 << 16)
            sizes = ctypes.c_size_t(len(log))
            self._check("clGetProgramBuildInfo", program, self._device, _BUILD_LOG, sizes, log, None)
            raise SimulatorError(log.value.decode(errors="replace"))
        return self._make("clCreateKernel", program, ctypes.c_char_p(name.encode()))

    def launch(
        self,
        kernel: ctypes.c_void_p,
        arguments: Sequence[ctypes._SimpleCData[object]],
        global_size: Sequence[int],
        local_size: Sequence[int] | None,
    ) -> None:
        """Runs a kernel to its end. ``arguments`` are buffers (``c_void_p``) and numbers; sizes have three entries."""
        for index, argument in enumerate(arguments):
            size = ctypes.c_size_t(ctypes.sizeof(argument))
            self._check("clSetKernelArg", kernel, index, size, ctypes.byref(argument))
        counts = (ctypes.c_size_t * 3)(*global_size)
        group = (ctypes.c_size_t * 3)(*local_size) if local_size else None
        self._check("clEnqueueNDRangeKernel", self._queue, kernel, 3, None, counts, group, 0, None, None)
        self._check("clFinish", self._queue)

    def _transfer(self, call: str, buffer: ctypes.c_void_p, offset: int, size: int, memory: object) -> None:
        if size == 0:
            return
        where = (ctypes.c_size_t(offset), ctypes.c_size_t(size))
        self._check(call, self._queue, buffer, 1, *where, memory, 0, None, None)

    def _check(self, call: str, *arguments: object) -> None:
        status = getattr(self._cl, call)(*arguments)
        if status != 0:
            raise SimulatorError(f"{call} returned {status}")

    def _make(self, call: str, *arguments: object) -> ctypes.c_void_p:
        status = ctypes.c_int()
        made = getattr(self._cl, call)(*arguments, ctypes.byref(status))
        if not made:
            raise SimulatorError(f"{call} returned {status.value}")
        return ctypes.c_void_p(made)
