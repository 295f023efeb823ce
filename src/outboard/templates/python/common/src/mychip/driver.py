"""The driver of mychip: what Outboard calls, as outboard/driver.h says. It runs in a process of its own (trampoline.c),
and imports no PyTorch.

As it stands, the chip is this process: memory is its memory, and a call has done its work when it returns. Replace a
part at a time by your hardware's, and try each with

  outboard conform --driver mychip --level LEVEL_OF_KIND
"""

import ctypes
import itertools
import os
import socket
import struct
import time
import traceback

from mychip.CODE_OF_KIND import Code
from mychip.errors import DriverError
from outboard_conformance.driver import Properties, Status

libc = ctypes.CDLL(None)
libc.aligned_alloc.restype = ctypes.c_void_p
libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


class Driver(Code):
    """A method for each function. Handles are numbers above 0; addresses are those of this process."""

    def __init__(self):
        super().__init__()
        self.handles = itertools.count(1)
        self.events = {}  # nanoseconds

    # ---- devices ----

    def device_count(self):
        return 1

    def device_open(self, index):
        if index != 0:
            raise DriverError(Status.INVALID_ARGUMENT, "there is one device, 0")
        return 1

    def device_properties(self, device, size):
        properties = Properties(
            struct_size=size,
            name=b"mychip",
            vendor=b"its maker",
            driver_version=b"0.1",
            cache_key=b"mychip-0.1-1",  # change it when programs made before are no longer valid
            type=2,  # OB_DEVICE_ACCELERATOR
            compute_units=1,
            vector_width=1,
            total_memory=1 << 32,
            alignment=64,
            **self.properties,
        )
        return bytes(properties)[:size]

    # ---- memory ----

    def memory_alloc(self, device, size):
        address = libc.aligned_alloc(64, (size + 63) // 64 * 64) if size <= 1 << 32 else None
        if address is None:
            raise DriverError(Status.OUT_OF_MEMORY, "no memory is left")
        return address

    def memory_free(self, device, address):
        libc.free(address)

    # ---- streams and events: all work is done when its call returns; else a wait raises Status.NOT_READY ----

    def stream_create(self, device):
        return next(self.handles)

    def stream_destroy(self, stream): ...

    def stream_wait(self, stream): ...

    def stream_wait_event(self, stream, event): ...

    def event_create(self, device):
        return next(self.handles)

    def event_destroy(self, event):
        self.events.pop(event, None)

    def event_record(self, event, stream):
        self.events[event] = time.monotonic_ns()

    def event_wait(self, event): ...

    def event_elapsed(self, start, end):
        return self.events[end] - self.events[start]

    # ---- data ----

    def write(self, stream, to, data):
        ctypes.memmove(to, data, len(data))

    def read(self, stream, address, size):
        return memoryview((ctypes.c_char * size).from_address(address))

    def copy(self, stream, to, address, size):
        ctypes.memmove(to, address, size)

    def fill(self, stream, to, size, pattern):
        ctypes.memmove(to, pattern * (size // len(pattern)), size)


def answer(driver, function, arguments):
    """Status, number and data that a call of the driver gives."""
    try:
        method = getattr(driver, function, None)
        if method is None:
            raise DriverError(Status.UNSUPPORTED, f"mychip has no {function}")
        result = method(*arguments)
        return (Status.OK, result, b"") if isinstance(result, int) else (Status.OK, 0, result or b"")
    except DriverError as error:
        return error.status, 0, error.text.encode()[:4095] + b"\0"
    except Exception:
        return Status.INTERNAL, 0, traceback.format_exc().encode()[-4095:] + b"\0"


def serve():
    """Answers what trampoline.c asks until the program ends: `struct request` and `struct answer` of its header."""
    channel, driver = socket.socket(fileno=os.dup(0)), Driver()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what the driver starts has no part in this
    while head := channel.recv(80, socket.MSG_WAITALL):
        name, count, *numbers, has_data, size = struct.unpack("24s7Q", head)
        data = memoryview(bytearray(size))
        received = 0
        while received < size:
            received += channel.recv_into(data[received:])
        arguments = [*numbers[:count], *([bytes(data)] if has_data else [])]
        status, number, reply = answer(driver, name.rstrip(b"\0").decode(), arguments)
        channel.sendall(struct.pack("QQQ", status, number % 2**64, len(reply)))
        channel.sendall(reply)
