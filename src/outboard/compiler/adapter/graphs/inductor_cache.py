# SPDX-License-Identifier: Apache-2.0
"""Where PyTorch keeps what it compiled: not where another user can write. And a part of its keys, ahead of time."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from torch._inductor.runtime import cache_dir_utils

from outboard import settings, trusted


def place_cache() -> None:
    """Moves PyTorch's cache if it lies in its usual place and that is not the user's alone.

    The place is a directory below the system's temporary one whose name everybody can guess, and its entries are
    pickles. A ``TORCHINDUCTOR_CACHE_DIR`` that somebody chose stays. Raises OSError if there is nowhere to write."""
    usual = os.path.abspath(cache_dir_utils.default_cache_dir())
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR", usual) != usual:
        return
    try:
        with trusted.opened(Path(usual), make=True):
            return
    except trusted.Untrusted as error:
        trusted.say_once("PyTorch's cache of compiled graphs is not used", error)
    own = settings.writable_cache_directory()
    other = str(own / "inductor") if own is not None else tempfile.mkdtemp(prefix="outboard-inductor-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = other


def hash_sources_ahead() -> None:
    """Has a thread read and hash PyTorch's sources, a part of the keys of Inductor's cache, while Dynamo traces. A
    forked process, which has no such thread, hashes them itself."""
    if not threading.main_thread().is_alive():
        return  # Python is about to end, and starts no more work in threads
    from torch._inductor import codecache

    key: Any = codecache.torch_key
    key.prefetch()
    os.register_at_fork(after_in_child=key.clear)
