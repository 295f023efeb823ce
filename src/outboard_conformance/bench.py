# SPDX-License-Identifier: Apache-2.0
"""A device on the bench: what clauses do to it, and what is given back when one ends."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from ctypes import c_uint32, c_uint64, c_void_p
from typing import Any

from outboard_conformance.driver import Argument, CopyKind, Driver, Failed, Properties, Status

#: Bytes of the copies with which a stream is kept busy, at most.
_BUSY_BYTES = 4 << 20
#: For how long it is, in seconds, about.
_BUSY = 0.01


@dataclasses.dataclass(frozen=True)
class Language:
    """What a device's programs are written in."""

    name: str = ""
    words: str = ""  #: what each program begins with


class Bench:
    """The first device of a driver, and everything that a clause made there."""

    def __init__(self, driver: Driver, language: Language = Language(), executables: Sequence[dict[str, Any]] = ()):
        self.driver, self.language, self.executables = driver, language, executables
        if not self.count():
            raise OSError(f"the driver finds no device: {driver.error() or 'last_error is empty'}")
        self.device = self.open(0)
        self.properties = self.ask(self.device)
        self._ends: list[tuple[str, tuple[Any, ...]]] = []
        self._streams: list[c_void_p] = []
        self._kept: list[Any] = []  # host memory of copies
        # To keep a stream busy: memory that is copied, its halves' bytes, and how often that takes long enough.
        self._busy = 0
        self._half = min(_BUSY_BYTES, (self.properties.max_allocation or self.properties.total_memory) // 8) // 64 * 64
        self._times = 0

    def open(self, index: int) -> c_void_p:
        """A device's handle."""
        device = c_void_p()
        self.driver.call("device_open", index, ctypes.byref(device))
        return device

    def ask(self, device: c_void_p) -> Properties:
        """A device's properties."""
        properties = Properties(struct_size=ctypes.sizeof(Properties))
        self.driver.call("device_properties", device, ctypes.byref(properties))
        return properties

    def count(self) -> int:
        """How many devices the driver has."""
        count = c_uint32()
        self.driver.call("device_count", ctypes.byref(count))
        return count.value

    # What is made here is given back by ``close``.

    def alloc(self, size: int, *, device: c_void_p | None = None) -> int:
        """The address of new device memory, full of 0xEE."""
        pointer = c_uint64()
        self.driver.call("memory_alloc", device or self.device, size, ctypes.byref(pointer))
        self._ends.append(("memory_free", (device or self.device, pointer)))
        if device is None:
            self.write(pointer.value, b"\xee" * size)
        return pointer.value

    def stream(self, *, device: c_void_p | None = None) -> c_void_p:
        """A new stream."""
        stream = c_void_p()
        self.driver.call("stream_create", device or self.device, ctypes.byref(stream))
        self._streams.append(stream)
        return stream

    def event(self) -> c_void_p:
        """A new event."""
        event = c_void_p()
        self.driver.call("event_create", self.device, ctypes.byref(event))
        self._ends.append(("event_destroy", (event,)))
        return event

    @property
    def streams(self) -> Sequence[c_void_p]:
        """The streams that were made and not forgotten."""
        return tuple(self._streams)

    def forget(self, made: c_void_p) -> None:
        """The clause gives this back by itself."""
        self._ends = [(name, arguments) for name, arguments in self._ends if made not in arguments]
        self._streams = [stream for stream in self._streams if stream is not made]

    def at_end(self, function: str, *arguments: Any) -> None:
        """``close`` calls this function of the driver's, after a wait for all streams."""
        self._ends.append((function, arguments))

    def reset(self) -> c_void_p:
        """Makes the device as new, and forgets what was made on it. Returns the handle that it had."""
        earlier, self.device = self.device, c_void_p()
        try:
            self.driver.call("device_reset", earlier, ctypes.byref(self.device))
        finally:
            self.device = self.device if self.device else earlier
            self._ends, self._streams, self._busy = [], [], 0
        return earlier

    def close(self) -> None:
        """Waits for the streams and gives back all that was made. Raises Failed."""
        for stream in self._streams:
            self.driver.call("stream_wait", stream, 1)
        for name, arguments in reversed(self._ends):
            self.driver.call(name, *arguments)
        for stream in self._streams:
            self.driver.call("stream_destroy", stream)
        self._ends, self._streams, self._kept, self._busy = [], [], [], 0

    # Data.

    def keep(self, data: bytes) -> int:
        """The address of host memory with these bytes, which lives until ``close``."""
        buffer = ctypes.create_string_buffer(data, len(data))
        self._kept.append(buffer)
        return ctypes.addressof(buffer)

    def to_device(self, stream: c_void_p, target: int, data: bytes) -> None:
        """Submits a copy of bytes to the device."""
        self.driver.call("copy", stream, CopyKind.HOST_TO_DEVICE, target, self.keep(data), len(data))

    def to_host(self, stream: c_void_p, source: int, size: int) -> Callable[[], bytes]:
        """Submits a copy to the host. What it returns gives the bytes there, as they are at that moment."""
        address = self.keep(b"\xdd" * size)
        self.driver.call("copy", stream, CopyKind.DEVICE_TO_HOST, address, source, size)
        return lambda: ctypes.string_at(address, size)

    def move(self, stream: c_void_p, target: int, source: int, size: int) -> None:
        """Submits a copy within the device."""
        self.driver.call("copy", stream, CopyKind.DEVICE_TO_DEVICE, target, source, size)

    def fill(self, stream: c_void_p, target: int, pattern: bytes, size: int) -> None:
        """Submits a fill."""
        self.driver.call("fill", stream, target, pattern, len(pattern), size)

    def wait(self, stream: c_void_p) -> None:
        """Waits for all work of a stream."""
        self.driver.call("stream_wait", stream, 1)

    def write(self, target: int, data: bytes) -> None:
        """Writes bytes to the device and waits."""
        with _Passing(self) as stream:
            self.to_device(stream, target, data)

    def read(self, source: int, size: int) -> bytes:
        """Reads bytes of the device and waits."""
        with _Passing(self) as stream:
            read = self.to_host(stream, source, size)
        return read()

    def occupy(self, stream: c_void_p) -> None:
        """Submits copies that keep a stream busy for a while, where the driver does not copy at once."""
        self._busy = self._busy or self.alloc(2 * self._half)
        if not self._times:
            start = time.perf_counter()
            with _Passing(self) as other:
                self.move(other, self._busy + self._half, self._busy, self._half)
            self._times = max(1, min(200, round(_BUSY / max(time.perf_counter() - start, 1e-5))))
        for _ in range(self._times):
            self.move(stream, self._busy + self._half, self._busy, self._half)

    def fill_late(self, stream: c_void_p, target: int, value: int) -> None:
        """Submits a fill of 4096 bytes, behind what keeps the stream busy."""
        self.occupy(stream)
        self.fill(stream, target, bytes([value]), 4096)

    def read_late(self, stream: c_void_p, memory: int, value: int) -> Callable[[], bytes]:
        """Submits such a fill, and a copy of it to the host: what ``to_host`` returns."""
        self.fill_late(stream, memory, value)
        return self.to_host(stream, memory, 4096)

    def poll(self, function: str, made: c_void_p, seconds: float = 20.0) -> None:
        """Asks a stream or an event without waiting until it says OK. Raises Failed for NOT_READY after so long."""
        end = time.monotonic() + seconds
        status = Status.NOT_READY
        while status == Status.NOT_READY and time.monotonic() < end:
            status = self.driver.call(function, made, 0, allow=(Status.OK, Status.NOT_READY))
        if status != Status.OK:
            raise Failed(function, status, f"after {seconds:g} s of asking")

    # Programs.

    def build(self, text: str, options: str = "") -> c_void_p:
        """A program of a text in the words of dialects."""
        program = c_void_p()
        source = (self.language.words + text).encode()
        self.driver.call("program_build", self.device, source, options.encode(), ctypes.byref(program))
        self.at_end("program_release", program)
        return program

    def kernel(self, program: c_void_p, name: str) -> c_void_p:
        """A program's kernel."""
        kernel = c_void_p()
        self.driver.call("kernel_get", program, name.encode(), ctypes.byref(kernel))
        return kernel

    def launch(
        self,
        stream: c_void_p,
        kernel: c_void_p,
        items: Sequence[int],
        group: Sequence[int],
        *arguments: Any,
    ) -> None:
        """Submits a launch. Arguments: an int is an address, a ctypes number itself. What holds them is overwritten
        after the call."""
        packed, values = pack(arguments)
        global_, local = (c_uint64 * 3)(*three(items)), (c_uint32 * 3)(*three(group))
        self.driver.call("launch", stream, kernel, global_, local, packed, len(arguments))
        for value in values:
            ctypes.memset(ctypes.addressof(value), 0xA5, ctypes.sizeof(value))
        ctypes.memset(packed, 0xA5, ctypes.sizeof(packed))
        ctypes.memset(global_, 0xA5, ctypes.sizeof(global_))

    def group_of(self, wanted: int) -> int:
        """The largest power of two that is a size of work-groups here and not above ``wanted``."""
        size = 1
        while 2 * size <= min(wanted, self.properties.max_work_group_size):
            size *= 2
        return size


class _Passing:
    """A stream for a moment: waited for and destroyed at the end."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def __enter__(self) -> c_void_p:
        self._stream = c_void_p()
        self._bench.driver.call("stream_create", self._bench.device, ctypes.byref(self._stream))
        return self._stream

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bench.driver.call("stream_wait", self._stream, 1)
        self._bench.driver.call("stream_destroy", self._stream)


def pack(arguments: Sequence[Any]) -> tuple[Any, list[Any]]:
    """``ob_argument``s of these, and what they point to."""
    values = [c_uint64(each) if isinstance(each, int) else type(each)(each.value) for each in arguments]
    packed = (Argument * max(1, len(arguments)))()
    for each, value, argument in zip(packed, values, arguments, strict=False):
        each.is_pointer = isinstance(argument, int)
        each.size = 0 if isinstance(argument, int) else ctypes.sizeof(value)
        each.value = ctypes.addressof(value)
    return packed, values


def three(sizes: Sequence[int]) -> list[int]:
    """Sizes in three dimensions, 1 where there are fewer."""
    return [*sizes, 1, 1, 1][:3]


def together(work: Callable[[int], None], threads: int) -> None:
    """Runs ``work`` of 0, 1, ... at the same time. Raises what the first of them raised."""
    errors: list[BaseException] = []
    meeting = threading.Barrier(threads)

    def run(number: int) -> None:
        meeting.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below, on the thread that waits
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
