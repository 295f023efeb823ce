# SPDX-License-Identifier: Apache-2.0
"""What moving given amounts of memory takes at least on this CPU, by native code: ``cpp/probes.cpp``, built when it is
first needed."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "benchmarks" / "cpp" / "probes.cpp"
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread")

LINE = 64


@dataclass(frozen=True)
class Traffic:
    """Bytes to read and to write, each once.

    ``in_place``: what is written lies where the first of the reads are, as when an optimizer changes its state.
    ``row``, if not 0: rows of so many bytes are read anywhere in a table of ``table`` bytes, and copied.
    """

    reads: float = 0
    writes: float = 0
    in_place: bool = False
    row: int = 0
    table: int = 0

    @property
    def bytes(self) -> float:
        return self.reads + self.writes

    def __str__(self) -> str:
        how = " in place" if self.in_place else f", rows of {self.row} bytes" if self.row else ""
        return f"{self.reads / 2**20:.4g} MiB read, {self.writes / 2**20:.4g} MiB written{how}"

    def scaled(self, factor: float) -> Traffic:
        """So many times as much, from the same table, in whole cache lines (or rows)."""
        unit = self.row or LINE

        def whole(size: float) -> float:
            return max(1, round(size * factor / unit)) * unit if size else 0

        return Traffic(whole(self.reads), whole(self.writes), self.in_place, self.row, self.table)


@functools.cache
def library() -> ctypes.CDLL:
    """The probes, built for this machine. Raises RuntimeError if there is no C++ compiler, or if it fails."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise RuntimeError("no C++ compiler was found; install g++, or name one in CXX: the roofline needs it")
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    key = hashlib.sha256("\n".join([SOURCE.read_text(), compiler, *FLAGS, cpu]).encode()).hexdigest()[:16]
    built = ROOT / "build" / "probes" / f"{key}.so"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        unfinished = built.with_suffix(f".{os.getpid()}")
        result = subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(unfinished)], capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"{compiler} cannot build {SOURCE}:\n{result.stderr}")
        unfinished.replace(built)
    found = ctypes.CDLL(str(built))
    size, pointer = ctypes.c_uint64, ctypes.c_void_p
    found.outboard_probe_new.restype = pointer
    found.outboard_probe_new.argtypes = [size, size, ctypes.c_int, size, size, ctypes.c_uint]
    found.outboard_probe_search.restype = ctypes.c_double
    found.outboard_probe_search.argtypes = [pointer, ctypes.c_double]
    found.outboard_probe_describe.restype = None
    found.outboard_probe_describe.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t]
    found.outboard_probe_delete.restype = None
    found.outboard_probe_delete.argtypes = [pointer]
    return found


class Probe:
    """A search for the fastest way to move something. ``traffic`` is in whole cache lines: see ``scaled``."""

    def __init__(self, traffic: Traffic, threads: int) -> None:
        self._library = library()
        numbers = int(traffic.reads), int(traffic.writes), int(traffic.in_place), traffic.row, traffic.table
        self._probe = self._library.outboard_probe_new(*numbers, threads)

    def search(self, seconds: float) -> float:
        """Goes on for so many seconds. Returns the seconds of the fastest run so far."""
        return float(self._library.outboard_probe_search(self._probe, seconds))

    def describe(self) -> str:
        """The fastest way so far."""
        text = ctypes.create_string_buffer(200)
        self._library.outboard_probe_describe(self._probe, text, len(text))
        return text.value.decode()

    def close(self) -> None:
        """Gives its memory back."""
        self._library.outboard_probe_delete(self._probe)
