# SPDX-License-Identifier: Apache-2.0
"""Ranks that find each other, and not what an earlier start of the same job left in the store.

torchrun starts workers again when one has failed. With a fixed port (PyTorch's "static" rendezvous) the store is the
agent's and lives on, and so do the addresses of processes that are gone: the first process would connect to them.
"""

from __future__ import annotations

import datetime
import os
import time
import uuid
from typing import Any

from torch import distributed

_POLL = 0.005  # seconds


def of_this_start(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """A part of ``store`` that nobody has used before, the same for all ranks that call this now. Where workers do not
    live in an agent's store, the store as it is.

    Raises DistStoreError if not all ranks come within the timeout.
    """
    if size == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return store
    name = _lead(store, size, timeout) if rank == 0 else _follow(store, rank, timeout)
    from torch._C._distributed_c10d import PrefixStore

    return PrefixStore(name, store)


def _follow(store: Any, rank: int, timeout: datetime.timedelta) -> str:
    """Says hello with a number that is new, so that an answer to it is from a rank 0 of now."""
    number = uuid.uuid4().hex
    store.set(f"hello {rank}", number)
    store.wait([f"answer {number}"], timeout)
    name: str = store.get(f"answer {number}").decode()
    store.set(f"{name} has {rank}", "")
    return name


def _lead(store: Any, size: int, timeout: datetime.timedelta) -> str:
    """Answers what may be an old hello as well: only those who are there confirm the answer."""
    name = uuid.uuid4().hex
    missing = set(range(1, size))
    answered: set[str] = set()
    end = time.monotonic() + timeout.total_seconds()
    while missing:
        for rank in sorted(missing):
            if store.check([f"{name} has {rank}"]):
                missing.discard(rank)
            elif store.check([f"hello {rank}"]):
                number = store.get(f"hello {rank}").decode()
                if number not in answered:
                    store.set(f"answer {number}", name)
                    answered.add(number)
        if missing and time.monotonic() > end:
            raise distributed.DistStoreError(
                f"timed out after {timeout.total_seconds():g} s: of {size} ranks, {sorted(missing)} did not come"
            )
        time.sleep(_POLL)
    return name
