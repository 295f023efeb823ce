# SPDX-License-Identifier: Apache-2.0
"""NVRTC from the package nvidia-cuda-nvrtc, which needs no GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

from .errors import CompileError


def _folder() -> Path:
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec is not None else ():
        for found in sorted(Path(place).glob("cu*/lib/libnvrtc.so.*")):
            return found.parent.parent
    raise FileNotFoundError("NVRTC is not there: pip install 'nvidia-cuda-nvrtc==13.*'")


#: What ptxas says of a kernel.
_FRAME = re.compile(
    r"Function properties for (\w+)[\s.a-z]+(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
#: Kernels that may have a stack frame, and bytes of it: how many elements an item of ``scan`` keeps varies.
_ALLOWED = {"scan": 64}
#: Bytes that ptxas keeps in memory by its own choice, so that more work-items fit.
_BY_CHOICE = 8


def in_memory(log: str) -> list[str]:
    """A line for each kernel that has a stack frame or spills registers. Raises ValueError if a log tells of none."""
    kernels = _FRAME.findall(log)
    if not kernels:
        raise ValueError(f"no kernel in what ptxas says:\n{log}")
    return [
        f"{name}: {frame} bytes of stack frame, {stores} of registers spilled, {loads} loaded again"
        for name, frame, stores, loads in kernels
        if int(frame) > _ALLOWED.get(name, _BY_CHOICE) or max(int(stores), int(loads)) > _BY_CHOICE
    ]


class Nvrtc:
    """Compiles programs for one architecture."""

    def __init__(self, architecture: str) -> None:
        folder = _folder()
        self._library = ctypes.CDLL(str(next((folder / "lib").glob("libnvrtc.so.*"))))
        self._options = [
            f"--gpu-architecture={architecture}", "--device-as-default-execution-space", "--std=c++17",
            "--fmad=true", "--ptxas-options=-v",
        ]  # fmt: skip

    def compile(self, source: str) -> list[str]:
        """Compiles a program to machine code; returns what each kernel keeps in memory for want of registers. Raises
        CompileError."""
        library, program = self._library, ctypes.c_void_p()
        self._check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"program.cu", 0, None, None))
        try:
            options = (ctypes.c_char_p * len(self._options))(*(option.encode() for option in self._options))
            if library.nvrtcCompileProgram(program, len(options), options) != 0:
                raise CompileError(self._log(program))
            size = ctypes.c_size_t()
            self._check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
            if size.value == 0:
                raise CompileError("no machine code came of it")
            return in_memory(self._log(program))
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def _check(self, code: int) -> None:
        if code != 0:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"NVRTC: {self._library.nvrtcGetErrorString(code).decode()}")

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._check(self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        self._check(self._library.nvrtcGetProgramLog(program, log))
        return log.value.decode(errors="replace")
