# SPDX-License-Identifier: Apache-2.0
"""A driver's table, as ``driver.h`` declares it, called from Python."""

from __future__ import annotations

import ctypes
import enum
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint8, c_uint32, c_uint64
from ctypes import c_void_p as handle
from typing import Any

ABI_MAJOR = 1


class Status(enum.IntEnum):
    """``ob_status``."""

    OK = 0
    NOT_READY = 1
    INVALID_ARGUMENT = 2
    OUT_OF_MEMORY = 3
    UNSUPPORTED = 4
    BUILD_FAILED = 5
    DEVICE_LOST = 6
    INTERNAL = 7
    INDEX_ERROR = 8
    VALUE_ERROR = 9


class CopyKind(enum.IntEnum):
    """``ob_copy_kind``."""

    HOST_TO_DEVICE = 0
    DEVICE_TO_HOST = 1
    DEVICE_TO_DEVICE = 2


class Properties(Structure):
    """``ob_device_properties``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char * 256),
        ("vendor", c_char * 128),
        ("driver_version", c_char * 256),
        ("dialect", c_char * 32),
        ("cache_key", c_char * 256),
        ("type", c_int),
        ("compute_units", c_uint32),
        ("max_work_group_size", c_uint32),
        ("sub_group_size", c_uint32),
        ("vector_width", c_uint32),
        ("total_memory", c_uint64),
        ("max_allocation", c_uint64),
        ("local_memory", c_uint64),
        ("alignment", c_uint64),
        ("host_accessible", c_uint8),
        ("has_fp16", c_uint8),
        ("has_fp64", c_uint8),
        ("has_int64_atomics", c_uint8),
        ("serial_builds", c_uint8),
        ("max_argument_bytes", c_uint32),
        ("execution", c_uint32),
        ("near_cache", c_uint64),
        ("last_cache", c_uint64),
        ("library", c_char * 128),
        ("compiler", c_char * 128),
        ("static_sizes", c_uint8),
        ("takes_host_memory", c_uint8),
        ("matrix_units", c_uint8),
    ]


#: ``OB_NOT_KNOWN``.
NOT_KNOWN = -(2**63)


class Sensors(Structure):
    """``ob_sensors``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("memory_used", c_int64),
        ("compute_busy", c_int64),
        ("memory_busy", c_int64),
        ("temperature", c_int64),
        ("power", c_int64),
        ("clock", c_int64),
    ]


class KernelProperties(Structure):
    """``ob_kernel_properties``."""

    _fields_ = [("struct_size", c_size_t), ("max_work_group_size", c_uint32), ("local_memory", c_uint64)]


class Argument(Structure):
    """``ob_argument``."""

    _fields_ = [("is_pointer", c_uint32), ("size", c_uint32), ("value", handle)]


class Launch(Structure):
    """``ob_launch``."""

    _fields_ = [
        ("kernel", handle),
        ("global", c_uint64 * 3),
        ("local", c_uint32 * 3),
        ("argument_count", c_uint32),
        ("arguments", POINTER(Argument)),
    ]


class Operand(Structure):
    """``ob_operand``."""

    _fields_ = [
        ("kind", c_uint32),
        ("dtype", c_uint32),
        ("count", c_uint32),
        ("is_result", c_uint32),
        ("data", c_uint64),
        ("sizes", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("integer", c_int64),
        ("number", c_double),
    ]


class Collective(Structure):
    """``ob_collective``."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("reduction", c_uint32),
        ("dtype", c_uint32),
        ("root", c_uint32),
        ("source", c_uint64),
        ("target", c_uint64),
        ("count", c_uint64),
        ("sent", POINTER(c_uint64)),
        ("received", POINTER(c_uint64)),
    ]


_SIZES = (POINTER(c_uint64), POINTER(c_uint32))

#: The functions of the table in their order, with their parameters.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "last_error": (),
    "device_count": (POINTER(c_uint32),),
    "device_open": (c_uint32, POINTER(handle)),
    "device_properties": (handle, POINTER(Properties)),
    "memory_alloc": (handle, c_uint64, POINTER(c_uint64)),
    "memory_free": (handle, c_uint64),
    "stream_create": (handle, POINTER(handle)),
    "stream_destroy": (handle,),
    "stream_wait": (handle, c_int),
    "stream_wait_event": (handle, handle),
    "event_create": (handle, POINTER(handle)),
    "event_destroy": (handle,),
    "event_record": (handle, handle),
    "event_wait": (handle, c_int),
    "event_elapsed": (handle, handle, POINTER(c_int64)),
    "copy": (handle, c_int, c_uint64, c_uint64, c_uint64),
    "fill": (handle, c_uint64, c_char_p, c_uint32, c_uint64),
    "program_build": (handle, c_char_p, c_char_p, POINTER(handle)),
    "program_load": (handle, c_char_p, c_size_t, POINTER(handle)),
    "program_binary": (handle, handle, POINTER(c_size_t)),
    "program_release": (handle,),
    "kernel_get": (handle, c_char_p, POINTER(handle)),
    "launch": (handle, handle, *_SIZES, POINTER(Argument), c_uint32),
    "memory_info": (handle, POINTER(c_uint64), POINTER(c_uint64)),
    "host_alloc": (handle, c_uint64, POINTER(handle)),
    "host_free": (handle, handle),
    "copy_peer": (handle, handle, c_uint64, handle, c_uint64, c_uint64),
    "capture_begin": (handle,),
    "capture_end": (handle, POINTER(handle)),
    "graph_launch": (handle, handle),
    "graph_destroy": (handle,),
    "launch_cost": (handle, *_SIZES),
    "memory_expect": (handle, c_uint64),
    "launch_batch": (handle, POINTER(Launch), c_uint32),
    "kernel_properties": (handle, POINTER(KernelProperties)),
    "library_find": (handle, c_char_p, POINTER(Operand), c_uint32, POINTER(handle)),
    "library_call": (handle, handle, POINTER(Operand), c_uint32),
    "collective_supported": (handle, c_uint32, c_uint32, c_uint32),
    "communicator_id": (handle, handle),
    "communicator_create": (handle, handle, c_uint32, c_uint32, c_uint64, POINTER(handle)),
    "communicator_destroy": (handle,),
    "communicator_abort": (handle,),
    "collective": (handle, handle, POINTER(Collective)),
    "communicator_joined": (handle,),
    "function_load": (handle, c_char_p, c_size_t, POINTER(handle)),
    "function_release": (handle,),
    "device_reset": (handle, POINTER(handle)),
    "device_sensors": (handle, POINTER(Sensors)),
}
#: How many of them, from the first on, a driver must have.
REQUIRED = list(FUNCTIONS)[: list(FUNCTIONS).index("memory_info")]
_RESULTS: dict[str, Any] = {"last_error": c_char_p, "launch_cost": c_uint64}


class Head(Structure):
    """What ``ob_driver`` begins with."""

    _fields_ = [("struct_size", c_size_t), ("abi_major", c_uint32), ("abi_minor", c_uint32), ("name", c_char_p)]


class Failed(Exception):
    """A function of the driver returned a status that was not expected; the text has the driver's own."""

    def __init__(self, function: str, status: int, text: str) -> None:
        name = Status(status).name if status in Status._value2member_map_ else "no ob_status"
        super().__init__(f"{function} returned {name} ({status}): {text or 'last_error is empty'}")
        self.function, self.status, self.text = function, status, text


class Table:
    """A driver's table of functions."""

    def __init__(self, table: int) -> None:
        """The one at this address."""
        self.table = table
        self.head = Head.from_address(table)
        self._functions = {name: self._function(i, name) for i, name in enumerate(FUNCTIONS)}

    def _function(self, index: int, name: str) -> Any:
        offset = ctypes.sizeof(Head) + 8 * index
        if offset + 8 > self.head.struct_size:
            return None
        address = c_uint64.from_address(self.table + offset).value
        return ctypes.CFUNCTYPE(_RESULTS.get(name, c_int), *FUNCTIONS[name])(address) if address else None

    def has(self, *names: str) -> bool:
        """Whether the table has all of these functions."""
        return all(self._functions[name] is not None for name in names)

    def value(self, name: str, *arguments: Any) -> Any:
        """What a function returns, whatever that is. Raises AttributeError if the table does not have it."""
        function = self._functions[name]
        if function is None:
            raise AttributeError(f"the driver's table has no {name}")
        return function(*arguments)

    def error(self) -> str:
        """The calling thread's ``last_error``."""
        return (self.value("last_error") or b"").decode(errors="replace")

    def call(self, name: str, *arguments: Any, allow: tuple[Status, ...] = (Status.OK,)) -> Status:
        """Calls a function and returns its status. Raises Failed if it is not one of ``allow``."""
        status = int(self.value(name, *arguments))
        if status not in allow:
            raise Failed(name, status, self.error())
        return Status(status)


class Driver(Table):
    """A loaded driver library."""

    def __init__(self, path: str) -> None:
        """Raises OSError if the library cannot be loaded, AttributeError if it exports no ``outboard_driver``."""
        self.path = path
        self._entry = ctypes.CDLL(path).outboard_driver
        self._entry.restype = handle
        table = self.again()
        if not table:
            raise OSError(f"outboard_driver of {path} returned NULL")
        super().__init__(table)

    def again(self) -> int:
        """The table's address, asked for once more."""
        return int(self._entry() or 0)
