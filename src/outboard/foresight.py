# SPDX-License-Identifier: Apache-2.0
"""What a program needed when it last ran, so that it can be made ready while the program starts.

A program is what stands on the command line, run in the same directory. When it ends, the device memory that it had
reserved at most is written down, per device, in ``needs`` of the cache directory. When it starts again, drivers are
told to expect that much (``memory_expect`` in ``driver.h``): threads of theirs make the memory ready meanwhile. An
interactive session is no program, nor is a process of ``multiprocessing``; a program that is called differently each
time has no foresight and loses nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import sys
from pathlib import Path

_log = logging.getLogger(__name__)

#: What is ready at once anyway is not worth a thread, in bytes.
WORTHWHILE = 64 << 20


def install(directory: Path) -> None:
    """Tells drivers what this program needed last time, and writes down at its end what it needed this time.

    ``OUTBOARD_FORESIGHT=0`` does neither."""
    path = _path(directory)
    if path is None or os.environ.get("OUTBOARD_FORESIGHT") == "0":
        return
    atexit.register(_remember, path, os.getpid())
    _announce(path)


def needs(path: Path) -> list[int]:
    """Bytes by device that were written down; empty if nothing was, or nothing that makes sense."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("ignoring %s: %s", path, error)
        return []
    makes_sense = isinstance(found, list) and all(type(each) is int and each >= 0 for each in found)
    return found if makes_sense else []


def _path(directory: Path) -> Path | None:
    """Where the needs of this program are written down; None if it is none."""
    arguments = sys.orig_argv[1:]
    named = any(not argument.startswith("-") for argument in arguments)
    if sys.flags.interactive or not named or "--multiprocessing-fork" in arguments:  # whose line does not tell its work
        return None
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # deleted meanwhile
        return None
    words = (sys.executable, folder, os.environ.get("OUTBOARD_NUM_DEVICES", ""), *arguments)
    return directory / "needs" / hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:40]


def _announce(path: Path) -> None:
    from outboard import _C

    for index, expected in enumerate(needs(path)[: _C.device_count()]):
        if expected >= WORTHWHILE:
            _C.expect_memory(index, expected)


def _remember(path: Path, process: int) -> None:
    """Writes down what this process (not one forked from it) reserved at most."""
    from outboard import _C
    from outboard.compiler import cache

    if process != os.getpid():
        return
    found = [_C.memory_statistics(index)["reserved.peak"] for index in range(_C.device_count())]
    if max(found, default=0) < WORTHWHILE:
        with contextlib.suppress(OSError):  # there was none
            path.unlink()
        return
    try:
        path.parent.mkdir(exist_ok=True)
        cache.replace(path, json.dumps(found).encode())
    except OSError as error:
        _log.info("what this program needs is not written down: %s", error)
