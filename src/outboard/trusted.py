# SPDX-License-Identifier: Apache-2.0
"""Files that nobody but the user and root can have written: a leaf, the one way into the cache directory.

What lies there is run: plans, device programs, traces. So a file is read only if it and each directory from the root
down belong to the user or to root and nobody else can write them, as ``sshd`` demands of the files that let somebody
in. A directory that anybody may write but in which nobody can touch what is another's (sticky, as ``/tmp`` is) may be
on the way, because what follows is looked at, too. Each step is taken from the directory before it (``openat``), so
nothing can be exchanged between looking and reading. ``csrc/runtime/base/trusted_file`` is the same in C++, and
is not loaded yet where settings are read. ``tests/package/trusted_files.txt`` holds both to the same.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import logging
import os
import pwd
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

_log = logging.getLogger(__name__)

ADVICE = "make it yours alone (chown, chmod go-w), delete it, or set OUTBOARD_CACHE_DIR to a directory of your own"
_MOST_LINKS = 40
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ACL = "system.posix_acl_access"
_said: set[str] = set()


class Untrusted(PermissionError):
    """Somebody but the user and root may have written a file or directory."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}; {ADVICE}")


def read(path: Path) -> bytes:
    """A file's content.

    Raises Untrusted if another user could have written it, FileNotFoundError or another OSError if it cannot be read.
    """
    descriptor = open_file(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def is_trusted_file(path: Path) -> bool:
    """Whether nobody but the user and root can write a file, or exchange it. Links are followed."""
    try:
        os.close(open_file(path.resolve(), os.O_RDONLY, shared=True))
    except (OSError, RuntimeError):  # of links that lead to themselves
        return False
    return True


def write(path: Path, content: bytes) -> None:
    """Writes a file that appears, or changes, as a whole, and that only the user can read; makes directories likewise.

    Raises OSError (Untrusted, where another user could exchange it) and leaves nothing behind."""
    temporary = f".new{os.getpid()}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with opened(path.parent, make=True) as folder:
        descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
            raise


def remove(path: Path) -> None:
    """Deletes a file. Raises OSError (Untrusted, where another user could exchange the directory)."""
    with opened(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)


def mark_used(path: Path) -> None:
    """Makes now the time of a file's last use, as far as this process may (``eviction`` goes by it)."""
    try:
        with opened(path.parent) as folder:
            os.utime(path.name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        _log.debug("%s: its last use is not known to other processes", path)  # deleted meanwhile, or read-only


def open_file(path: Path, flags: int, shared: bool = False) -> int:
    """A descriptor of a regular file; with ``os.O_CREAT`` in ``flags`` of a new one, if there is none, that only the
    user can read and write. ``shared``: others may have files of theirs beside it. The caller closes it. Raises as
    :func:`read` does."""
    with opened(path.parent, make=bool(flags & os.O_CREAT), shared=shared) as folder:
        try:
            # Without blocking: a pipe of this name would wait for a writer.
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path.name, flags, 0o600, dir_fd=folder)
        except OSError:
            if _is_link(path.name, folder):
                raise Untrusted(str(path), "is a symbolic link") from None
            raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted(str(path), "is no regular file")
        _check(status, descriptor, str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def opened(path: Path, make: bool = False, shared: bool = False) -> Iterator[int]:
    """A descriptor for ``dir_fd`` of a directory, if nobody else can write it or what leads there.

    Args:
        path: the directory. Links on the way are followed if they are the user's or root's.
        make: makes the directories that are missing, for the user alone.
        shared: whether others may have files of theirs in it (``/tmp``); only directories below are used then.
    """
    descriptor = _walk(path, make, shared)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def say_once(what: str, error: OSError) -> None:
    """Warns that ``what`` is not used and why: in one line, once per process and ``what``."""
    if what not in _said:
        _said.add(what)
        text = str(error) if isinstance(error, Untrusted) else f"{error}; set OUTBOARD_CACHE_DIR to another directory"
        _log.warning("%s: %s", what, text)


def _walk(path: Path, make: bool, shared: bool) -> int:
    way = _Way(path.absolute().parts[1:])
    try:
        while way.pending:
            way.step(make)
        way.check_end(shared)
        return os.dup(way.descriptors[-1])
    finally:
        for descriptor in way.descriptors:
            os.close(descriptor)


class _Way:
    """The directories from the root to where a path has led so far, each open, and what of the path is left."""

    def __init__(self, parts: Sequence[str]) -> None:
        self.names = [""]
        self.descriptors = [os.open("/", _LOOK | os.O_DIRECTORY)]
        self.pending = list(reversed(parts))
        self._links = 0
        _check(os.fstat(self.descriptors[0]), self.descriptors[0], "/", sticky=True)

    def step(self, make: bool) -> None:
        name = self.pending.pop()
        if name == "..":
            return self._back(max(len(self.names) - 1, 1))
        found = _open_step(name, self.descriptors[-1], make)
        try:
            status = os.fstat(found)
            here = "/".join([*self.names, name])
            _check(status, found, here, sticky=True)
            target = os.readlink("", dir_fd=found) if stat.S_ISLNK(status.st_mode) else None
        except BaseException:
            os.close(found)
            raise
        if target is None:
            self.names.append(name)
            self.descriptors.append(found)
            return None
        os.close(found)
        return self._follow(target, here)

    def check_end(self, shared: bool) -> None:
        here = "/".join(self.names) or "/"
        status = os.fstat(self.descriptors[-1])
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, f"{here} is no directory")
        _check(status, self.descriptors[-1], here, sticky=shared)

    def _follow(self, target: str, link: str) -> None:
        self._links += 1
        if self._links > _MOST_LINKS:
            raise Untrusted(link, "is a link that leads to itself")
        if target.startswith("/"):
            self._back(1)
        self.pending += [part for part in reversed(target.split("/")) if part not in ("", ".")]

    def _back(self, length: int) -> None:
        while len(self.names) > length:
            self.names.pop()
            os.close(self.descriptors.pop())


def _open_step(name: str, folder: int, make: bool) -> int:
    """A descriptor of what a directory has under a name."""
    try:
        return os.open(name, _LOOK, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another process made it meanwhile; it is looked at like any other
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, _LOOK, dir_fd=folder)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _check(status: os.stat_result, descriptor: int, path: str, sticky: bool = False) -> None:
    """Raises Untrusted if somebody but the user and root owns or can write it. ``sticky``: a directory in which
    everybody has files of their own will do."""
    if status.st_uid not in (0, os.geteuid()):
        raise Untrusted(path, f"belongs to another user (uid {status.st_uid})")
    mode = status.st_mode
    if stat.S_ISLNK(mode) or (sticky and stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return
    if mode & stat.S_IWOTH:
        raise Untrusted(path, "can be written by everybody")
    if mode & stat.S_IWGRP and not _is_private_group(status, descriptor):
        raise Untrusted(path, f"can be written by its group (gid {status.st_gid})")


def _is_private_group(status: os.stat_result, descriptor: int) -> bool:
    """Whether the owner alone is in the group: many systems give each user one of the same name, and let it write.

    Where there is an access control list, the group's rights are those of all that are in it."""
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    alone = group.gr_gid != 0 and group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}
    return alone and not _has_access_list(descriptor)


def _has_access_list(descriptor: int) -> bool:
    try:
        return bool(os.getxattr(f"/proc/self/fd/{descriptor}", _ACL))
    except OSError:  # ENODATA: none; ENOTSUP: a file system without
        return False
