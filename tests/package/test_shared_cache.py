# SPDX-License-Identifier: Apache-2.0
"""A cache that came with an image is used by whoever runs the image; entries that were exchanged are not."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

NOBODY = "65534"
PROGRAM = """
import torch
device = torch._C._get_privateuse1_backend_name()
module = torch.get_device_module(device)
x = torch.full((4,), 0.5, device=device)
print([round(value, 4) for value in (x.tanh().cpu()[0].item(), x.exp().cpu()[0].item(), x.sigmoid().cpu()[0].item())])
from outboard import _C
statistics = [_C.program_statistics(index) for index in range(_C.device_count())]
print(module.compile_stats()["compiled"], sum(each["built"] for each in statistics))
"""
RIGHT = "[0.4621, 1.6487, 0.6225]"


def run(folder: Path, *before: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program's output, with a cache in ``folder``; its lines are results and what was compiled and built."""
    return subprocess.run(
        [*before, sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=os.environ | {"OUTBOARD_CACHE_DIR": str(folder / "cache")} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    first = run(folder)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[0] == RIGHT
    return folder


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def as_nobody() -> list[str]:
    """The words that run a command as another user. It may read what the interpreter's installation hides from others,
    as in an image it would not have to, and write nothing."""
    drop = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
    if subprocess.run([*drop, sys.executable, "-c", ""], capture_output=True).returncode == 0:
        return drop
    return [*drop, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may read. Pytest's are for one user alone, and each start of pytest makes them so."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.mark.parametrize("pocl", ["", "cache/pocl"])
def test_a_cache_that_is_only_read_is_used(warmed: Path, folder: Path, pocl: str) -> None:
    """Warmed by root and run by another user, without a home; where tests do not run as root, without the right to
    write. Nothing is compiled, nothing is said, nothing changes. PoCL may have been told to keep its own cache there,
    too."""
    shutil.copytree(warmed / "cache", folder / "cache")
    (folder / "cache" / "pocl").mkdir()
    for path in [folder / "cache", *(folder / "cache").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = state_of(folder)
    user = as_nobody() if os.geteuid() == 0 else []
    try:
        second = run(
            folder, *user, HOME="/nonexistent", XDG_CACHE_HOME="", XDG_STATE_HOME="", TMPDIR="/tmp", POCL_CACHE_DIR=pocl
        )
    finally:
        for path in [folder / "cache", *(folder / "cache").rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines() == [RIGHT, "0 0"]
    assert second.stderr == ""
    assert state_of(folder) == before


def test_exchanged_programs_are_built_again(warmed: Path, tmp_path: Path) -> None:
    shutil.copytree(warmed / "cache", tmp_path / "cache")
    programs = sorted(path for path in (tmp_path / "cache" / "programs").rglob("*") if path.is_file())
    contents = [path.read_bytes() for path in programs]
    assert len(programs) > 1
    for path, content in zip(programs, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    second, third = run(tmp_path), run(tmp_path)
    assert second.stdout.splitlines() == [RIGHT, f"0 {len(programs)}"]
    assert third.stdout.splitlines() == [RIGHT, "0 0"]


def test_programs_for_another_processor_are_others(warmed: Path, tmp_path: Path, device_module: ModuleType) -> None:
    """PoCL is told by its variables to compile for a processor that is not the machine's."""
    properties = device_module.get_device_properties(0)
    if platform.machine() != "x86_64" or "pthread" not in properties.name:
        pytest.skip("PoCL on x86-64 takes these variables")
    shutil.copytree(warmed / "cache", tmp_path / "cache")
    other = {"POCL_LLVM_CPU_NAME": "ivybridge", "POCL_KERNELLIB_NAME": "avx"}
    second, third = run(tmp_path, **other), run(tmp_path, **other)
    assert second.stdout.splitlines()[0] == third.stdout.splitlines()[0] == RIGHT
    assert int(second.stdout.split()[-1]) > 0
    assert int(third.stdout.split()[-1]) == 0
