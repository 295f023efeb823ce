# SPDX-License-Identifier: Apache-2.0
"""Keeps the cache directory below a size: what was used longest ago goes first. Imports neither sympy nor Inductor.

A file's time of modification is the time of its last use: loading an entry sets it. Entries may vanish under other
processes at any time. That costs them nothing but speed: who has opened a file reads it to its end, and who finds none
makes it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outboard import trusted

_log = logging.getLogger(__name__)

DEFAULT_LIMIT = 4 << 30
#: Trimming goes on to this part of the limit, so that it is not needed again at once.
KEPT = 0.8
#: Seconds after which a file that somebody was writing is taken for abandoned.
ABANDONED = 3600.0
#: Folders of the cache directory that hold entries.
FOLDERS = ("plans", "programs", "traces", "libraries", "needs")

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True)
class _Entry:
    used: float
    size: int
    path: str


def limit() -> int:
    """Most bytes to keep: ``OUTBOARD_CACHE_SIZE`` (bytes, or a number with KiB, MiB or GiB), 4 GiB if it is unset.

    Raises ValueError if it is neither."""
    text = os.environ.get("OUTBOARD_CACHE_SIZE", "")
    if not text:
        return DEFAULT_LIMIT
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|)", text)
    if match is None:
        raise ValueError(f"OUTBOARD_CACHE_SIZE is {text!r}: use bytes or a size such as 512MiB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def trim(directory: Path, most: int) -> int:
    """Deletes what was used longest ago until entries take no more than a part of ``most`` bytes, if they take more
    than ``most``. Returns the bytes deleted. If another process is at it, or the directory is not writable: 0."""
    with _alone(directory) as alone:
        if not alone:
            return 0
        entries = list(_entries(directory))
        total = sum(entry.size for entry in entries)
        if total <= most:
            return 0
        deleted = 0
        for entry in sorted(entries, key=lambda entry: entry.used):
            if total - deleted <= KEPT * most:
                break
            if _delete(entry.path):
                deleted += entry.size
        _log.info("deleted %d of %d bytes of cached plans and programs", deleted, total)
        return deleted


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Whether no other process trims the directory; keeps others out meanwhile."""
    try:
        descriptor = trusted.open_file(directory / "trim.lock", os.O_CREAT | os.O_RDWR)
    except OSError:
        yield False
        return
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _entries(directory: Path) -> Iterator[_Entry]:
    """All entries; deletes files that were begun long ago and never finished."""
    for folder in FOLDERS:
        for path, _, names in os.walk(directory / folder):  # follows no links
            for name in names:
                entry = None if name.endswith(".lock") else _stat(os.path.join(path, name))
                if entry is None:
                    continue
                if _is_unfinished(name):
                    if time.time() - entry.used > ABANDONED:
                        _delete(entry.path)
                    continue
                yield entry


def _is_unfinished(name: str) -> bool:
    return name.startswith(".new") or name.endswith(".tmp")


def _stat(path: str) -> _Entry | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None  # another process replaced or deleted it
    return _Entry(status.st_mtime, status.st_size, path)


def _delete(path: str) -> bool:
    try:
        trusted.remove(Path(path))
    except FileNotFoundError:
        return False
    except OSError as error:
        _log.warning("%s cannot be deleted from the cache: %s", path, error)
        return False
    return True
