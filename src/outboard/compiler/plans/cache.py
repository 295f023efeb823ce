# SPDX-License-Identifier: Apache-2.0
"""Compiled plans on disk, shared by all processes of a user. Imports neither sympy nor Inductor.

One file per signature, in ``plans`` of the cache directory (``OUTBOARD_CACHE_DIR``); its name is a hash of the key:
the signature (which holds the device's cache key), the compiler's own source files and the version of torch. A file is
a magic, a checksum of the rest, the whole key, and the plans. Files appear by renaming, so that readers see whole files
only; a file that is damaged or has another key counts as absent and is replaced. One that another user could have
written is not read (``outboard.trusted``). ``eviction`` deletes those used longest ago.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from pathlib import Path

from outboard import settings, trusted

from .. import statistics
from . import files, shipped

_MAGIC = b"OBCACHE2"
_log = logging.getLogger(__name__)
#: Of more plans of one signature than this (all with different guards) only the newest are kept. A network has a dozen
#: 1x1 convolutions of different channel counts, and several networks share the file.
MAX_VARIANTS = 256


def directory() -> Path | None:
    """Where plans are kept; None if nothing can be kept on disk."""
    base = settings.cache_directory()
    return None if base is None else base / "plans"


def load(signature: bytes) -> tuple[bool, list[bytes]]:
    """(whether scalars must be baked, the plans known) for a signature; (False, []) if nothing is known. What came
    with Outboard counts where the user's cache has nothing."""
    path = _path(signature)
    entry = None if path is None else _read(path, signature)
    if path is not None and entry is not None:
        trusted.mark_used(path)
    bake, plans = entry or shipped.find(signature) or (False, [])
    if plans:
        statistics.add("disk_hits", len(plans))
    return bake, plans


def is_kept(signature: bytes) -> bool:
    """Whether the user's cache has a file for a signature."""
    path = _path(signature)
    if path is None or _read(path, signature) is None:
        return False
    trusted.mark_used(path)
    return True


def store(signature: bytes, bake: bool, plan: bytes) -> None:
    """Adds a plan to what is known.

    A cache that is only read stays as it is; one that cannot be written, though it should, is reported once."""
    _add(signature, bake, [plan])


def store_bake(signature: bytes) -> None:
    """Adds the knowledge that scalars must be baked; otherwise as :func:`store`."""
    _add(signature, True, [])


def _add(signature: bytes, bake: bool, added: list[bytes]) -> None:
    path = _path(signature)
    if path is None or settings.writable_cache_directory() is None:
        return
    try:
        with _locked(path):
            known = _read(path, signature) or shipped.find(signature)
            plans = known[1] if known is not None else []
            new = [plan for plan in added if plan not in plans]
            _write(path, signature, bake, [*plans, *new][-MAX_VARIANTS:])
    except OSError as error:
        trusted.say_once("compiled plans are not kept", error)


def _path(signature: bytes) -> Path | None:
    base = directory()
    if base is None:
        return None
    name = hashlib.sha256(_key(signature)).hexdigest()
    return base / name[:2] / name[2:40]


def _key(signature: bytes) -> bytes:
    return files.compiler_fingerprint() + signature


def _read(path: Path, signature: bytes) -> tuple[bool, list[bytes]] | None:
    """The contents of a file, or None if there is none, it is damaged, or it belongs to another signature."""
    try:
        data = trusted.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        trusted.say_once("compiled plans are not used", error)
        return None
    if not data.startswith(_MAGIC):
        return None
    body = files.unsealed(_MAGIC, data)
    if body is None:
        _log.warning("ignoring damaged cache file %s", path)
        return None
    bake, count, length = struct.unpack_from("<BII", body)
    offset = struct.calcsize("<BII")
    if body[offset : offset + length] != _key(signature):
        _log.warning("ignoring cache file %s: it is another's, under this name", path)
        return None
    offset += length
    plans = []
    for _ in range(count):
        (size,) = struct.unpack_from("<I", body, offset)
        offset += 4
        plans.append(body[offset : offset + size])
        offset += size
    return bool(bake), plans


def _write(path: Path, signature: bytes, bake: bool, plans: list[bytes]) -> None:
    key = _key(signature)
    body = struct.pack("<BII", bake, len(plans), len(key)) + key
    body += b"".join(struct.pack("<I", len(plan)) + plan for plan in plans)
    trusted.write(path, files.sealed(_MAGIC, body))


class _locked:
    """Holds the lock of a file's folder, so that two writers do not lose each other's plans."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name("writers.lock")
        self._descriptor = -1

    def __enter__(self) -> None:
        import fcntl

        self._descriptor = trusted.open_file(self._path, os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *unused: object) -> None:
        os.close(self._descriptor)
