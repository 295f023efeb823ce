# SPDX-License-Identifier: Apache-2.0
"""Compiled plans on disk, shared by all processes of a user. Imports neither sympy nor Inductor.

One file per signature, in ``plans`` of the cache directory (``OUTBOARD_CACHE_DIR``); its name is a hash of the
signature (which holds the device's cache key), our version, the compiler's own source files and the version of torch.
A file is a magic, a checksum of the rest, the signature, and the plans. Files appear by renaming, so that readers see
whole files only; a damaged file counts as absent and is replaced. ``eviction`` deletes those used longest ago.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import struct
import tempfile
from pathlib import Path

import torch

from . import statistics

_MAGIC = b"OBCACHE1"
_log = logging.getLogger(__name__)
_warned: set[str] = set()
#: Of more plans of one signature than this (all with different guards) only the newest are kept. A network has a dozen
#: 1x1 convolutions of different channel counts, and several networks share the file.
MAX_VARIANTS = 256


def directory() -> Path | None:
    """Where plans are kept; None if nothing can be kept on disk."""
    from outboard import activation

    base = activation.cache_directory()
    return None if base is None else base / "plans"


def compiler_fingerprint() -> bytes:
    """A hash of everything but the signature that a plan depends on."""
    # The environment is asked each time: a program may change it, and its plans must not be taken for others.
    return hashlib.sha256(_sources() + os.environ.get("OUTBOARD_LIBRARY", "").encode()).digest()


@functools.cache
def _sources() -> bytes:
    """A hash of the compiler's sources and PyTorch's version."""
    digest = hashlib.sha256(torch.__version__.encode())
    package = Path(__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode())
        digest.update(path.read_bytes())
    return digest.digest()


def load(signature: bytes) -> tuple[bool, list[bytes]]:
    """(whether scalars must be baked, the plans known) for a signature; (False, []) if nothing is known."""
    path = _path(signature)
    if path is None:
        return False, []
    entry = _read(path, signature)
    if entry is None:
        return False, []
    mark_used(path)
    bake, plans = entry
    if plans:
        statistics.add("disk_hits", len(plans))
    return bake, plans


def store(signature: bytes, bake: bool, plan: bytes) -> None:
    """Adds a plan (or, with an empty one, the knowledge that scalars must be baked) to what is known.

    A cache that cannot be written is reported once and otherwise ignored."""
    path = _path(signature)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            known = _read(path, signature)
            plans = known[1] if known is not None else []
            if plan and plan not in plans:
                plans = [*plans, plan][-MAX_VARIANTS:]
            _write(path, signature, bake, plans)
    except OSError as error:
        _warn_once(path.parent, error)


def mark_used(path: Path) -> None:
    """Makes now the time of a file's last use, as far as this process may."""
    try:
        os.utime(path)
    except OSError:
        _log.debug("%s: its last use is not known to other processes", path)  # deleted meanwhile, or read-only


def _warn_once(path: Path, error: OSError) -> None:
    if str(path) not in _warned:
        _warned.add(str(path))
        _log.warning("compiled plans are not kept: %s is not usable (%s); set OUTBOARD_CACHE_DIR", path, error)


def _path(signature: bytes) -> Path | None:
    base = directory()
    if base is None:
        return None
    name = hashlib.sha256(compiler_fingerprint() + signature).hexdigest()
    return base / name[:2] / name[2:40]


def _read(path: Path, signature: bytes) -> tuple[bool, list[bytes]] | None:
    """The contents of a file, or None if there is none, it is damaged, or it belongs to another signature."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(path.parent, error)
        return None
    if not data.startswith(_MAGIC):
        return None
    body = unsealed(_MAGIC, data)
    if body is None:
        _log.warning("ignoring damaged cache file %s", path)
        return None
    bake, count, length = struct.unpack_from("<BII", body)
    offset = struct.calcsize("<BII")
    if body[offset : offset + length] != signature:
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
    body = struct.pack("<BII", bake, len(plans), len(signature)) + signature
    body += b"".join(struct.pack("<I", len(plan)) + plan for plan in plans)
    replace(path, sealed(_MAGIC, body))


def sealed(magic: bytes, body: bytes) -> bytes:
    """A file's content: what kind of file it is, a checksum, and the body."""
    return magic + hashlib.sha256(body).digest() + body


def unsealed(magic: bytes, content: bytes) -> bytes | None:
    """The body of what ``sealed`` made; None if it is another kind of file, or damaged."""
    body = content[len(magic) + hashlib.sha256().digest_size :]
    return body if content == sealed(magic, body) else None


def replace(path: Path, content: bytes) -> None:
    """Writes a file that appears, or changes, as a whole. Raises OSError, and leaves nothing behind."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


class _locked:
    """Holds the lock of a file's folder, so that two writers do not lose each other's plans."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name("writers.lock")
        self._descriptor = -1

    def __enter__(self) -> None:
        import fcntl

        self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *unused: object) -> None:
        os.close(self._descriptor)
