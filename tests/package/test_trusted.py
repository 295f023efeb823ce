# SPDX-License-Identifier: Apache-2.0
"""What lies in a cache is run, so it is read only if nobody but the user and root can have written it."""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from outboard import expected_memory, settings, signing, trusted
from outboard.compiler.choice import libraries
from outboard.compiler.plans import cache, eviction

NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory, and a state directory beside it, of a process that has said nothing yet."""
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setenv("OUTBOARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("_cache_directory", "_cache_is_writable"):
        monkeypatch.setattr(settings, name, getattr(settings, name))
    assert settings.find_cache_directory() is None
    trusted._said.clear()
    signing._key.cache_clear()
    yield tmp_path / "cache"
    signing._key.cache_clear()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_written_is_for_the_user_alone(folder: Path) -> None:
    path = folder / "a" / "b" / "file"
    before = os.umask(0)
    try:
        trusted.write(path, b"one")
        trusted.write(path, b"two")
    finally:
        os.umask(before)
    assert trusted.read(path) == b"two"
    assert [mode(each) for each in (path, path.parent, path.parent.parent)] == [0o600, 0o700, 0o700]
    assert os.listdir(path.parent) == ["file"]


CASES = re.findall(r"^case (.*)\n((?:.+\n)*)", Path(__file__).with_name("trusted_files.txt").read_text(), re.MULTILINE)
VERDICTS = {b"one": "content", FileNotFoundError: "none", NotADirectoryError: "none", trusted.Untrusted: "untrusted"}


def carry_out(step: str, path: Path, word: str) -> None:
    """A step of a case."""
    if step == "file":
        trusted.write(path, b"one")
        path.chmod(int(word or "600", 8))
    elif step == "dir":
        path.mkdir(int(word, 8), parents=True)
    elif step == "pipe":
        os.mkfifo(path, 0o600)
    elif step == "link":
        path.symlink_to(word)
    elif step == "mode":
        path.chmod(int(word, 8))
    else:
        assert step == "nobody"
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def verdict(path: Path) -> str:
    """What reading a file ends with."""
    try:
        return VERDICTS[trusted.read(path)]
    except OSError as error:
        assert not isinstance(error, trusted.Untrusted) or "chmod go-w" in str(error)
        return VERDICTS[type(error)]


@pytest.mark.parametrize("steps", [pytest.param(steps, id=name) for name, steps in CASES])
def test_which_files_are_trusted(folder: Path, steps: str) -> None:
    for line in steps.splitlines():
        step, name, word = (*line.split(), "")[:3]
        if step == "read":
            assert verdict(folder / name) == word, line
        elif step == "trusted":
            assert trusted.is_trusted_file(folder / name) == (word == "yes"), line
        elif step == "nobody" and os.geteuid() != 0:
            return  # who is not root can give nothing to others
        else:
            carry_out(step, folder / name, word.replace("@", str(folder)))


@pytest.mark.parametrize(("mode", "writer"), [(0o620, "its group"), (0o602, "everybody")])
def test_what_is_refused_is_told(folder: Path, mode: int, writer: str) -> None:
    path = folder / "file"
    trusted.write(path, b"one")
    path.chmod(mode)
    with pytest.raises(trusted.Untrusted, match=f"{path} can be written by {writer}.*chmod go-w"):
        trusted.read(path)


def test_what_could_be_exchanged_is_not_written(folder: Path) -> None:
    trusted.write(folder / "a" / "file", b"one")
    (folder / "a").chmod(0o702)
    with pytest.raises(trusted.Untrusted):
        trusted.write(folder / "a" / "file", b"two")
    (folder / "a").chmod(0o700)
    assert trusted.read(folder / "a" / "file") == b"one"


def test_a_cache_that_others_can_write_is_not_used(folder: Path) -> None:
    folder.chmod(0o777)
    problem = settings.find_cache_directory()
    assert problem is not None and str(folder) in problem and "chmod go-w" in problem and "\n" not in problem
    assert settings.cache_directory() is None


def test_plans_that_others_can_write_are_not_read_and_that_is_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (b"add", b"mul"):
        cache.store(name, False, b"plan")
    for path in (folder / "plans").rglob("*"):
        path.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        for name in (b"add", b"mul"):
            assert cache.load(name) == (False, [])
    assert len(caplog.records) == 1 and "\n" not in caplog.text.strip()


def test_a_cache_that_is_only_read_is_used_in_silence(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.store(b"add", False, b"plan")
    libraries.write(folder / "libraries" / "which", "driver")
    for path in sorted(folder.rglob("*")) + [folder]:
        path.chmod(mode(path) & ~0o222)
    before = {path: path.stat() for path in folder.rglob("*")}
    if os.geteuid() == 0:  # nothing is read-only for root
        settings._cache_is_writable = False
    else:
        assert settings.find_cache_directory() is None and settings.writable_cache_directory() is None
    with caplog.at_level(logging.INFO):
        assert cache.load(b"add") == (False, [b"plan"])
        assert libraries.read(folder / "libraries" / "which") == "driver"
        cache.store(b"add", False, b"another")
        cache.store(b"mul", False, b"another")
        libraries.write(folder / "libraries" / "which", "dialect")
    assert not caplog.records
    assert {path: path.stat().st_size for path in folder.rglob("*")} == {p: s.st_size for p, s in before.items()}
    for path in [folder, *folder.rglob("*")]:
        path.chmod(mode(path) | 0o700)


def test_entries_under_each_others_names_are_refused_and_replaced(folder: Path) -> None:
    cache.store(b"add", False, b"one")
    cache.store(b"mul", False, b"two")
    first, second = cache._path(b"add"), cache._path(b"mul")
    assert first is not None and second is not None
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    assert cache.load(b"add") == cache.load(b"mul") == (False, [])
    cache.store(b"add", False, b"one")
    assert cache.load(b"add") == (False, [b"one"])

    libraries.write(folder / "libraries" / "which", "driver")
    (folder / "libraries" / "which").rename(folder / "libraries" / "other")
    assert libraries.read(folder / "libraries" / "other") is None

    trusted.write(folder / "needs" / "one", b'{"program": ["a"], "reserved": [5]}')
    assert expected_memory.needs(folder / "needs" / "one", ["a"]) == [5]
    assert expected_memory.needs(folder / "needs" / "one", ["b"]) == []


def test_eviction_deletes_nothing_that_others_chose(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_bytes(b"x" * 1000)
    trusted.write(folder / "plans" / "ab" / "entry", b"x" * 1000)
    (folder / "plans" / "ab" / "link").symlink_to(tmp_path / "mine" / "thesis")
    (folder / "plans" / "cd").mkdir()
    (folder / "plans" / "cd").chmod(0o777)
    (folder / "plans" / "cd" / "entry").write_bytes(b"x" * 1000)
    eviction.trim(folder, 10)
    assert (tmp_path / "mine" / "thesis").exists()
    assert os.listdir(folder / "plans" / "ab") == []
    assert (folder / "plans" / "cd" / "entry").exists()


# ---- signatures


def test_only_what_the_user_sealed_is_unsealed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = signing.sealed(b"trace a", b"body")
    assert content is not None and signing.unsealed(b"trace a", content) == b"body"
    assert signing.unsealed(b"trace b", content) is None
    assert signing.unsealed(b"trace a", content[:-1]) is None
    assert signing.unsealed(b"trace a", bytes(32) + b"body") is None
    key = tmp_path / "state" / "outboard" / "key"
    assert mode(key) == 0o600 and len(key.read_bytes()) == 32
    assert os.listdir(key.parent) == ["key"]
    signing._key.cache_clear()
    assert signing.unsealed(b"trace a", content) == b"body"  # the next process
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    signing._key.cache_clear()
    assert signing.unsealed(b"trace a", content) is None  # another user


@pytest.mark.parametrize("spoil", ["readable", "short", "link"])
def test_a_key_that_others_may_know_is_none(folder: Path, tmp_path: Path, spoil: str) -> None:
    assert signing.available()
    key = tmp_path / "state" / "outboard" / "key"
    if spoil == "readable":
        key.chmod(0o640)
    elif spoil == "short":
        key.write_bytes(b"")
    else:
        key.rename(tmp_path / "elsewhere")
        key.symlink_to(tmp_path / "elsewhere")
    signing._key.cache_clear()
    assert not signing.available() and signing.sealed(b"what", b"body") is None


def test_without_a_home_there_is_no_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    assert not signing.available()


class Exploit:
    """A pickle that leaves a mark when it is read."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.mkdir, (str(self._mark), 0o700)


def test_a_trace_that_somebody_else_wrote_is_not_unpickled(folder: Path, tmp_path: Path) -> None:
    importlib.import_module("torch._dynamo")  # which has what follows imported
    from outboard.compiler.adapter.traces import precompile

    body = pickle.dumps(Exploit(tmp_path / "mark"))
    path = folder / "traces" / "fingerprint" / "key" / "trace"
    trusted.write(path, bytes(32) + body)
    with pytest.raises(precompile._Refused):
        precompile._load(path)
    assert not path.exists(), "the place is for others"
    own = signing.sealed(precompile._what(path.with_name("another")), body)
    assert own is not None
    trusted.write(path, own)  # of the user, but another trace
    with pytest.raises(precompile._Refused):
        precompile._load(path)
    own = signing.sealed(precompile._what(path), body)
    assert own is not None
    trusted.write(path, own)
    path.parent.chmod(0o777)  # right, but others could have put it there
    with pytest.raises(trusted.Untrusted):
        precompile._load(path)
    assert precompile._by_age(path.parent) == []
    assert not (tmp_path / "mark").exists()
    path.parent.chmod(0o700)
    with pytest.raises(precompile._Refused, match="no trace"):
        precompile._load(path)
    assert (tmp_path / "mark").exists(), "so it would have been found"


@pytest.mark.parametrize("wrong", [False, True])
def test_pytorchs_cache_is_not_where_others_write(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    from torch._inductor.runtime import cache_dir_utils

    from outboard.compiler.adapter.graphs import inductor_cache

    usual = tmp_path / "torchinductor_user"
    usual.mkdir()
    if wrong:
        usual.chmod(0o777)
    monkeypatch.setattr(cache_dir_utils, "default_cache_dir", lambda: str(usual))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(usual))
    inductor_cache.place_cache()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder / "inductor" if wrong else usual)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somebody/chose/this")
    inductor_cache.place_cache()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/somebody/chose/this"
