# SPDX-License-Identifier: Apache-2.0
"""The disk cache: what was stored comes back, whatever else lies in its place does not."""

from __future__ import annotations

import logging
import multiprocessing
import shutil
from pathlib import Path

import pytest

from outboard import settings
from outboard.compiler.plans import cache
from outboard.compiler.plans import files as plan_files


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(settings, "_cache_directory", tmp_path)
    return tmp_path


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_plans_of_a_signature_come_back_in_order() -> None:
    assert cache.load(b"add") == (False, [])
    cache.store(b"add", False, b"one")
    cache.store(b"add", False, b"two")
    cache.store(b"add", False, b"one")
    assert cache.load(b"add") == (False, [b"one", b"two"])
    assert cache.load(b"mul") == (False, [])


def test_baking_is_remembered() -> None:
    cache.store_bake(b"pow")
    assert cache.load(b"pow") == (True, [])


@pytest.mark.parametrize(
    "damage", [lambda d: d[:10], lambda d: b"", lambda d: d[:-1] + bytes([d[-1] ^ 1]), lambda d: b"?" * 99]
)
def test_a_damaged_file_is_ignored_and_replaced(
    damage, cache_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.store(b"add", False, b"one")
    (path,) = files(cache_directory)
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert cache.load(b"add") == (False, [])
    cache.store(b"add", False, b"two")
    assert cache.load(b"add") == (False, [b"two"])


def test_another_signatures_file_is_ignored(cache_directory: Path) -> None:
    cache.store(b"add", False, b"one")
    (path,) = files(cache_directory)
    other = cache._path(b"mul")
    assert other is not None
    other.parent.mkdir(parents=True, exist_ok=True)
    path.rename(other)
    assert cache.load(b"mul") == (False, [])


def test_the_compilers_version_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store(b"add", False, b"one")
    monkeypatch.setattr(plan_files, "compiler_fingerprint", lambda: b"another compiler")
    assert cache.load(b"add") == (False, [])


def test_plans_are_lost_by_a_change_of_what_decides_them_alone(tmp_path: Path) -> None:
    """Each file of the compiler is changed in turn."""
    package = tmp_path / "compiler"
    shutil.copytree(Path(cache.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__"))
    decides = plan_files._sources.__wrapped__
    before = decides(package)
    spared = set()
    for path in package.rglob("*.py"):
        text = path.read_bytes()
        path.write_bytes(text + b"# changed")
        if decides(package) == before:
            spared.add(path.relative_to(package).as_posix())
        path.write_bytes(text)
    assert spared == plan_files.NO_PART_OF_PLANS


def test_plans_for_another_library_are_not_found(cache_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the program changes the variable while it runs."""
    cache.store(b"mm", False, b"kernels of ours")
    monkeypatch.setenv("OUTBOARD_LIBRARY", "driver")
    assert cache.load(b"mm") == (False, [])
    cache.store(b"mm", False, b"the library's")
    monkeypatch.delenv("OUTBOARD_LIBRARY")
    assert cache.load(b"mm") == (False, [b"kernels of ours"])


def test_without_a_directory_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_cache_directory", None)
    cache.store(b"add", False, b"one")
    assert cache.load(b"add") == (False, [])


def test_an_unusable_directory_costs_nothing_but_a_warning(
    cache_directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    occupied = cache_directory / "file"
    occupied.write_text("not a directory")
    monkeypatch.setattr(settings, "_cache_directory", occupied)
    cache.store(b"add", False, b"one")
    assert "not kept" in caplog.text


def _store_many(worker: int) -> None:
    for number in range(4):
        cache.store(b"shared", False, f"{worker}-{number}".encode())


def test_many_writers_lose_nothing() -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_store_many, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(cache.load(b"shared")[1]) == 16
