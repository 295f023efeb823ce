# SPDX-License-Identifier: Apache-2.0
"""Where Outboard keeps files, by the environment: a leaf that every part may read."""

from __future__ import annotations

import os
from pathlib import Path

from outboard import trusted

_cache_directory: Path | None = None
_cache_is_writable = False


def cache_directory() -> Path | None:
    """Where compiled plans and programs are kept (``OUTBOARD_CACHE_DIR``, else the user's cache directory), or None if
    there is none to be used; then everything works, and is compiled again in each process."""
    return _cache_directory


def writable_cache_directory() -> Path | None:
    """The same, if this process may write there: one that came with an image, or that root made, is only read."""
    return _cache_directory if _cache_is_writable else None


def state_directory() -> Path | None:
    """Where the user's own things lie that no cache may hold (``XDG_STATE_HOME``); None if the user has no home."""
    chosen = os.environ.get("XDG_STATE_HOME")
    if chosen:
        return Path(chosen) / "outboard"
    home = os.path.expanduser("~")
    return None if home in ("", "~", "/") else Path(home) / ".local" / "state" / "outboard"


def find_cache_directory() -> str | None:
    """Decides on the cache directory, and makes it if there is none. Returns what is wrong with it, or None."""
    global _cache_directory, _cache_is_writable
    chosen = os.environ.get("OUTBOARD_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(chosen) if chosen else Path(home) / "outboard"
    _cache_directory, _cache_is_writable = None, False
    try:
        with trusted.opened(directory, make=True, shared=True) as descriptor:
            path = f"/proc/self/fd/{descriptor}"
            usable = os.access(path, os.R_OK | os.X_OK)
            _cache_is_writable = usable and os.access(path, os.W_OK)
    except trusted.Untrusted as error:
        return f"The cache is not used: {error}."
    except OSError as error:
        return f"The cache directory {directory} cannot be made ({error.strerror or error}); nothing is cached."
    if not usable:
        return f"The cache directory {directory} is not readable; nothing is cached."
    _cache_directory = directory
    return None
