# SPDX-License-Identifier: Apache-2.0
"""What a program needed when it last ran, so that it can be made ready while the program starts.

A program is what stands on the command line, run in the same directory. When it ends, the device memory that it had
reserved at most is written down, per device, in ``needs`` of the cache directory. When it starts again, drivers are
told to expect that much (``memory_expect`` in ``driver.h``): threads of theirs make the memory ready meanwhile. An
interactive session is no program, nor is a process of ``multiprocessing``; a program that is called differently each
time is not recognised and loses nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from outboard import settings, trusted

_log = logging.getLogger(__name__)

#: What is ready at once anyway is not worth a thread, in bytes.
WORTHWHILE = 64 << 20


def install(directory: Path) -> Callable[[int], list[int]]:
    """Writes down at this program's end what it needed. Returns what tells, given how many devices there are, when
    they are opened, how many bytes of each it needed last time, as far as that is known and worth anything.

    ``OUTBOARD_FORESIGHT=0`` does neither."""
    program = _program()
    if program is None or os.environ.get("OUTBOARD_FORESIGHT") == "0":
        return nothing
    path = directory / "needs" / hashlib.sha256("\0".join(program).encode()).hexdigest()[:40]
    if settings.writable_cache_directory() is not None:
        atexit.register(_remember, path, program, os.getpid())
    return functools.partial(_expected, path, program)


def nothing(count: int) -> list[int]:
    """What is expected of ``count`` devices where nothing is known."""
    return []


def needs(path: Path, program: Sequence[str]) -> list[int]:
    """Bytes by device that were written down of a program; empty if nothing was, or nothing that makes sense."""
    try:
        found = json.loads(trusted.read(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        trusted.say_once("what programs needed is not known", error)
        return []
    except (ValueError, RecursionError) as error:
        _log.warning("ignoring %s: %s", path, error)
        return []
    if not isinstance(found, dict) or found.get("program") != list(program):
        return []
    reserved = found.get("reserved")
    makes_sense = isinstance(reserved, list) and all(type(each) is int and 0 <= each < 1 << 63 for each in reserved)
    return reserved if isinstance(reserved, list) and makes_sense else []


def _program() -> tuple[str, ...] | None:
    """What tells this program from others; None for an interactive session."""
    arguments = sys.orig_argv[1:]
    named = any(not argument.startswith("-") for argument in arguments)
    if sys.flags.interactive or not named or "--multiprocessing-fork" in arguments:  # whose line does not tell its work
        return None
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # deleted meanwhile
        return None
    words = (sys.executable, folder, os.environ.get("OUTBOARD_NUM_DEVICES", ""), *arguments)
    return tuple(word.encode(errors="surrogateescape").decode(errors="backslashreplace") for word in words)


def _expected(path: Path, program: Sequence[str], count: int) -> list[int]:
    return [bytes_ if bytes_ >= WORTHWHILE else 0 for bytes_ in needs(path, program)[:count]]


def _remember(path: Path, program: Sequence[str], process: int) -> None:
    """Writes down what this process (not one forked from it) reserved at most."""
    from outboard import _C

    if process != os.getpid() or not _C.devices_opened():
        return
    found = [_C.memory_statistics(index)["reserved.peak"] for index in range(_C.device_count())]
    if max(found, default=0) < WORTHWHILE:
        with contextlib.suppress(OSError):  # there was none
            trusted.remove(path)
        return
    try:
        trusted.write(path, json.dumps({"program": program, "reserved": found}).encode())
    except OSError as error:
        _log.info("what this program needs is not written down: %s", error)
