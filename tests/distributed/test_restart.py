# SPDX-License-Identifier: Apache-2.0
"""Ranks that start again in a store where others have been."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from outboard.distributed.generation import of_this_start

SHORT, LONG = datetime.timedelta(seconds=0.3), datetime.timedelta(seconds=30)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return dist.TCPStore("localhost", 0, is_master=True)


def _clients(store: dist.Store, count: int) -> list[dist.Store]:
    """A client blocks others of its process that share it."""
    return [dist.TCPStore("localhost", store.port, is_master=False) for _ in range(count)]


def _start(stores: list[dist.Store], timeout: datetime.timedelta = LONG) -> list[dist.Store]:
    size = len(stores)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(of_this_start, each, rank, size, timeout) for rank, each in enumerate(stores)]
        return [future.result() for future in futures]


def test_each_start_has_keys_of_its_own(store: dist.Store) -> None:
    for start in ("first", "second"):
        parts = _start(_clients(store, 3))
        assert not parts[2].check(["address"])
        parts[0].set("address", start)
        assert [part.get("address").decode() for part in parts] == [start] * 3


def test_a_start_that_failed_on_its_way_does_not_matter(store: dist.Store) -> None:
    for rank in (0, 1):
        with pytest.raises(dist.DistStoreError, match=r"\[1\] did not come" if rank == 0 else "timeout|timed out"):
            of_this_start(_clients(store, 1)[0], rank, 2, SHORT)
    first, second = _start(_clients(store, 2))
    first.set("address", "here")
    assert second.get("address") == b"here"


def test_without_an_agent_nothing_changes(store: dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_this_start(store, 0, 1, SHORT) is store
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    assert of_this_start(store, 0, 2, SHORT) is store
