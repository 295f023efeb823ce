# SPDX-License-Identifier: Apache-2.0
"""The cache stays within its size; what was used last stays, and no process ever reads half an entry."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import sys
import time
from pathlib import Path

import pytest

from outboard import settings
from outboard.compiler.plans import cache, eviction
from tests.conftest import RunPython


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings, "_cache_directory", tmp_path)
    return tmp_path


def entry(directory: Path, name: str, size: int, age: float) -> Path:
    """An entry of ``size`` bytes last used ``age`` seconds ago."""
    path = directory / "programs" / name[:2] / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    used = time.time() - age
    os.utime(path, (used, used))
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 4 << 30), ("1000", 1000), ("512MiB", 512 << 20), ("1.5 KiB", 1536), ("2GiB", 2 << 30)],
)
def test_the_limit_is_a_size(text: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOARD_CACHE_SIZE", text)
    assert eviction.limit() == expected


@pytest.mark.parametrize("text", ["much", "-1", "1 TB", "GiB"])
def test_what_is_no_size_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOARD_CACHE_SIZE", text)
    with pytest.raises(ValueError, match="OUTBOARD_CACHE_SIZE"):
        eviction.limit()


def test_a_wrong_limit_is_reported_and_costs_nothing(run_python: RunPython) -> None:
    text = run_python(
        "import torch; name = torch._C._get_privateuse1_backend_name();"
        "print(torch.ones(3, device=name).sum().item());"
        "import outboard.activation; print(outboard.activation.problems())",
        OUTBOARD_CACHE_SIZE="much",
    )
    assert text.startswith("3.0")
    assert "OUTBOARD_CACHE_SIZE is 'much'" in text


def test_what_was_used_longest_ago_goes_first(directory: Path) -> None:
    paths = [entry(directory, f"e{number}", 100, age=number) for number in range(10)]
    assert eviction.trim(directory, 500) == 600
    assert [path.exists() for path in paths] == [True] * 4 + [False] * 6


def test_within_the_limit_nothing_goes(directory: Path) -> None:
    paths = [entry(directory, f"e{number}", 100, age=number) for number in range(5)]
    assert eviction.trim(directory, 500) == 0
    assert all(path.exists() for path in paths)


def test_loading_a_plan_is_a_use(directory: Path) -> None:
    for name in (b"one", b"two", b"three"):
        cache.store(name, False, name * 100)
    used = [cache._path(name) for name in (b"one", b"two", b"three")]
    for age, path in zip((30, 20, 10), used, strict=True):
        assert path is not None
        os.utime(path, (time.time() - age,) * 2)
    assert cache.load(b"one")[1] == [b"one" * 100]
    sizes = sum(path.stat().st_size for path in used if path is not None)
    eviction.trim(directory, sizes - 1)
    assert cache.load(b"one")[1] == [b"one" * 100]
    assert cache.load(b"two")[1] == []


def test_files_that_somebody_writes_stay_and_abandoned_ones_go(directory: Path) -> None:
    fresh = entry(directory, "aa.1.2.tmp", 100, age=5)
    abandoned = entry(directory, "ab.1.2.tmp", 100, age=2 * eviction.ABANDONED)
    lock = entry(directory, "writers.lock", 0, age=2 * eviction.ABANDONED)
    kept = entry(directory, "ac", 100, age=0)
    entry(directory, "ad", 100, age=10)
    eviction.trim(directory, 150)
    assert (fresh.exists(), abandoned.exists(), lock.exists(), kept.exists()) == (True, False, True, True)


def test_one_process_trims_at_a_time(directory: Path) -> None:
    path = entry(directory, "e0", 100, age=0)
    with open(directory / "trim.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert eviction.trim(directory, 10) == 0
    assert path.exists()
    assert eviction.trim(directory, 10) == 100


def _use(worker: int, rounds: int) -> None:
    """Stores and loads; ends with an error if an entry that is there is not whole."""
    plans = {f"{number}".encode(): bytes([number]) * 2000 for number in range(20)}
    for turn in range(rounds):
        for name, plan in plans.items():
            if (turn + worker) % 2:
                cache.store(name, False, plan)
            found = cache.load(name)[1]
            if found not in ([], [plan]):
                sys.exit(1)


def _trim(directory: Path, rounds: int) -> None:
    for _ in range(rounds):
        eviction.trim(directory, 10_000)


def test_many_processes_use_a_cache_that_is_being_trimmed(directory: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_use, args=(worker, 10)) for worker in range(4)]
    workers += [context.Process(target=_trim, args=(directory, 100)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 6
    eviction.trim(directory, 10_000)
    assert sum(path.stat().st_size for path in (directory / "plans").rglob("*") if path.is_file()) <= 10_000


_COMPUTE = """
import torch
name = torch._C._get_privateuse1_backend_name()
x = torch.arange(6.0, device=name)
assert (x * 2 + 1).sum().item() == 36
"""


def test_a_process_that_compiles_leaves_the_cache_within_its_size(run_python: RunPython, tmp_path: Path) -> None:
    caches = {"OUTBOARD_CACHE_DIR": str(tmp_path)}
    run_python(_COMPUTE, **caches)
    limit = sum(path.stat().st_size for path in (tmp_path / "programs").rglob("*.bin"))
    assert limit > 0
    run_python(_COMPUTE + "assert torch.cos(x)[0].item() == 1", OUTBOARD_CACHE_SIZE=str(limit), **caches)
    files = [path for folder in eviction.FOLDERS for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= limit
    run_python(_COMPUTE, **caches)
