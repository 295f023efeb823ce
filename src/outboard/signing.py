# SPDX-License-Identifier: Apache-2.0
"""Content that this user wrote, told from what anybody else did, by a key that only the user can read (HMAC-SHA256).

For what must not be read unless the user made it, wherever it lies: Python's pickles. The key is made when it is first
needed, in the user's own state directory (``XDG_STATE_HOME``), never in a cache, which may be shared or shipped.
"""

from __future__ import annotations

import functools
import hmac
import logging
import os
import secrets
import stat
from pathlib import Path

from outboard import settings, trusted

_log = logging.getLogger(__name__)
_BYTES = 32


def sealed(what: bytes, body: bytes) -> bytes | None:
    """A file's content from which :func:`unsealed` gets the body. None if there is no key.

    Args:
        what: what the body is and what for, its key in a cache included. It is not part of the content.
    """
    key = _key()
    return None if key is None else _code(key, what, body) + body


def unsealed(what: bytes, content: bytes) -> bytes | None:
    """The body that this user sealed as ``what``; None if nobody or somebody else did, or as something else."""
    key = _key()
    code, body = content[:_BYTES], content[_BYTES:]
    if key is None or not hmac.compare_digest(code, _code(key, what, body)):
        return None
    return body


def available() -> bool:
    """Whether there is a key."""
    return _key() is not None


def _code(key: bytes, what: bytes, body: bytes) -> bytes:
    return hmac.digest(key, len(what).to_bytes(8, "little") + what + body, "sha256")


@functools.cache
def _key() -> bytes | None:
    folder = settings.state_directory()
    if folder is None:
        _log.info("what torch.compile traces is not kept: the user has no home for a key")
        return None
    path = folder / "key"
    try:
        return _read(path)
    except FileNotFoundError:
        return _make(path)
    except OSError as error:
        trusted.say_once("what torch.compile traces is not kept", error)
        return None


def _read(path: Path) -> bytes:
    descriptor = trusted.open_file(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise trusted.Untrusted(str(path), "can be read by others")
        key = os.read(descriptor, _BYTES + 1)
    finally:
        os.close(descriptor)
    if len(key) != _BYTES:
        raise trusted.Untrusted(str(path), "is no key")
    return key


def _make(path: Path) -> bytes | None:
    """A new key, unless another process has just made one: then that one."""
    try:
        temporary = path.with_name(f".new{os.getpid()}.{secrets.token_hex(8)}")
        descriptor = trusted.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
        with trusted.opened(path.parent) as folder:
            try:
                os.link(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except FileExistsError:
                _log.debug("%s: another process was faster", path)
            finally:
                os.unlink(temporary.name, dir_fd=folder)
        return _read(path)
    except trusted.Untrusted as error:
        trusted.say_once("what torch.compile traces is not kept", error)
    except OSError as error:  # a home that is not there or is only read: usual in containers
        _log.info("what torch.compile traces is not kept: %s", error)
    return None
