"""Programs: built from source, loaded from binaries, and launched. Here the compiler is `c++` of the system."""

import ctypes
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from mychip.errors import DriverError

from outboard_conformance.driver import Status

#: Each kernel gets a function beside it that a launch can call: C++ knows the types of its parameters. A chip's
#: compiler knows them as well, and needs no such thing.
LAUNCHER = """
extern "C" int launch_{0}(void** values, unsigned count, const unsigned long* groups) {{
  return mychip_launch(::{0}, values, count, groups);
}}
"""


def compiled(folder, *arguments):
    """What `c++` writes."""
    result = folder / "result"
    done = subprocess.run(["c++", "-std=c++20", *arguments, "-o", result], capture_output=True, text=True)
    if done.returncode != 0:
        raise DriverError(Status.BUILD_FAILED, done.stderr or "the compiler failed")
    return result.read_bytes()


class Code:
    """What the driver has of programs."""

    properties = {  # of the device
        "dialect": b"mychip",  # dialect.py
        "execution": 2,  # OB_EXECUTION_SIMT: many short work-items
        "max_work_group_size": 1,  # of a group's work-items, which may wait for one another: here none
        "sub_group_size": 1,
        "local_memory": 32 << 10,
        "has_fp64": 1,
        "has_int64_atomics": 1,
    }

    def __init__(self):
        self.programs, self.kernels = {}, {}

    def program_build(self, device, source):
        with TemporaryDirectory(prefix="mychip-") as name:
            folder = Path(name)
            text = folder / "text.cpp"
            text.write_bytes(source)
            whole = compiled(folder, "-E", text).decode()
            names = re.findall(r"\[\[mychip::kernel\]\].*?void\s+(\w+)", whole, re.DOTALL)  # OB_KERNEL
            text.write_text(whole + "".join(LAUNCHER.format(name) for name in names))
            options = "-O2", "-march=native", "-ffp-contract=off", "-w", "-shared", "-fPIC"
            return self.program_load(device, compiled(folder, *options, text))

    def program_load(self, device, binary):
        with TemporaryDirectory(prefix="mychip-") as folder:
            path = Path(folder, "program.so")
            path.write_bytes(binary)
            try:
                library = ctypes.CDLL(str(path))
            except OSError as error:
                raise DriverError(Status.BUILD_FAILED, str(error)) from None
        self.programs[library._handle] = library, binary
        return library._handle

    def program_size(self, program):
        return len(self.programs[program][1])

    def program_binary(self, program):
        return self.programs[program][1]

    def program_release(self, program):
        del self.programs[program]  # its code stays loaded

    def kernel_get(self, program, name):
        try:
            kernel = self.programs[program][0]["launch_" + name.decode()]
        except AttributeError:
            raise DriverError(Status.INVALID_ARGUMENT, "the program has no kernel of that name") from None
        handle = ctypes.cast(kernel, ctypes.c_void_p).value
        self.kernels[handle] = kernel
        return handle

    def launch(self, stream, kernel, data):
        """Three numbers of work-items, and 16 bytes for each argument."""
        memory = ctypes.create_string_buffer(data, len(data))
        start, count = ctypes.addressof(memory), (len(data) - 24) // 16
        values = (ctypes.c_void_p * count)(*range(start + 24, start + len(data), 16))
        if not self.kernels[kernel](values, count, memory):
            raise DriverError(Status.INVALID_ARGUMENT, "the kernel has another number of arguments")
