# SPDX-License-Identifier: Apache-2.0
"""A program that starts again has its memory made ready; whatever else is written down is harmless."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outboard import expected_memory

MIB = 1 << 20

#: Uses 100 MiB of device memory, and prints what it computed and what the process had in memory before it did; that it
#: awaits, if it is told how much.
PROGRAM = """
import os
import time
import torch

name = torch._C._get_privateuse1_backend_name()

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

torch.accelerator.device_count()  # opens devices
end = time.monotonic() + 30
while resident() < int(os.environ.get("AWAITED", "0")) and time.monotonic() < end:
    time.sleep(0.01)
before = resident()
x = torch.ones(100 << 18, device=name)
print(x.sum().item(), before)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def run(folder: Path, *arguments: str, **environment: str) -> tuple[float, int]:
    """The program's result, and the bytes that it had before it used the device."""
    result = subprocess.run(
        [sys.executable, "program.py", *arguments],
        cwd=folder,
        env=os.environ | {"OUTBOARD_CACHE_DIR": str(folder / "cache")} | environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    value, before = result.stdout.split()
    return float(value), int(before)


def written(folder: Path) -> list[Path]:
    return list((folder / "cache" / "needs").glob("*"))


def on_one_node() -> bool:
    nodes = Path("/sys/devices/system/node/online")
    return not nodes.exists() or nodes.read_text().strip() == "0"


@pytest.mark.skipif(not on_one_node(), reason="memory is made ready where it does not matter who touches it first")
def test_memory_is_ready_when_the_program_starts_again(folder: Path) -> None:
    value, without = run(folder)
    assert value == 100 << 18
    (path,) = written(folder)
    assert 100 * MIB <= json.loads(path.read_text())["reserved"][0] <= 200 * MIB
    awaited = without + 90 * MIB
    value, before = run(folder, AWAITED=str(awaited))
    assert value == 100 << 18
    assert before >= awaited


def test_another_command_line_is_another_program(folder: Path) -> None:
    without = run(folder)[1]
    assert run(folder, "other")[1] < without + 32 * MIB
    assert len(written(folder)) == 2


def test_it_can_be_switched_off(folder: Path) -> None:
    run(folder, OUTBOARD_FORESIGHT="0")
    assert written(folder) == []


def test_small_programs_leave_nothing(folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM.replace("100 << 18", "100"))
    run(folder)
    assert written(folder) == []


@pytest.mark.parametrize("content", ["", "{}", '["a"]', "[-1]", "[true]", "[1e9]", "nonsense", "[" * 100000])
def test_what_makes_no_sense_is_ignored(folder: Path, content: str) -> None:
    path = folder / "needs"
    for text in (content, f'{{"program": ["a"], "reserved": {content or "null"}}}'):
        path.write_text(text)
        assert expected_memory.needs(path, ["a"]) == []


def test_what_is_written_is_read(folder: Path) -> None:
    path = folder / "needs"
    path.write_text(json.dumps({"program": ["a"], "reserved": [5, 0]}))
    assert expected_memory.needs(path, ["a"]) == [5, 0]
    assert expected_memory.needs(path, ["b"]) == []
    assert expected_memory.needs(folder / "absent", ["a"]) == []
