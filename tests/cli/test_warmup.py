# SPDX-License-Identifier: Apache-2.0
"""``outboard warmup``: afterwards the program compiles nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.test_cli import outboard
from tests.conftest import RunPython

PROGRAM = """
import sys, torch
name = torch._C._get_privateuse1_backend_name()
x = torch.linspace(0, 1, 10, device=name)
print("arguments", sys.argv[1:], "main", __name__, (x.sin() @ x).item() > 0)
"""
STATS = "\nstats = torch.get_device_module(name).compile_stats()\nprint(stats['compiled'], stats['programs_built'])\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_that_was_warmed_up_compiles_nothing(script: Path, tmp_path: Path, run_python: RunPython) -> None:
    caches = {"OUTBOARD_CACHE_DIR": str(tmp_path / "cache")}
    first = outboard("warmup", str(script), "--steps", "3", **caches)
    assert first.returncode == 0, first.stderr
    assert "arguments ['--steps', '3'] main __main__ True" in first.stdout
    assert "0 built" not in first.stdout
    second = outboard("warmup", str(script), **caches)
    assert "plans     0 compiled" in second.stdout
    assert "programs  0 built" in second.stdout
    assert run_python(PROGRAM + STATS, **caches).splitlines()[-1] == "0 0"


def test_a_module_can_be_warmed_up(script: Path) -> None:
    result = outboard("warmup", "-m", "program", "-x", PYTHONPATH=f"{script.parent}:{os.environ.get('PYTHONPATH', '')}")
    assert result.returncode == 0, result.stderr
    assert "arguments ['-x']" in result.stdout


@pytest.mark.parametrize(
    ("end", "code", "text"),
    [("sys.exit(3)", 3, ""), ("sys.exit('bad input')", 1, "bad input"), ("1 / 0", 1, "ZeroDivisionError")],
)
def test_the_exit_code_is_the_programs(end: str, code: int, text: str, script: Path) -> None:
    script.write_text(f"import sys\n{end}\n")
    result = outboard("warmup", str(script))
    assert result.returncode == code
    assert text in result.stderr
    assert "outboard warmup: done" in result.stdout


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = outboard("warmup", str(tmp_path / "none.py"))
    assert result.returncode == 2
    assert "none.py" in result.stderr


def test_a_list_of_programs(script: Path, tmp_path: Path, run_python: RunPython) -> None:
    """One that fails does not keep the others from being warmed up."""
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no weights')\n")
    programs = tmp_path / "programs.txt"
    programs.write_text(f"# what we serve\n{broken}\n\n{script} --size 'a b'  # the small one\n")
    caches = {"OUTBOARD_CACHE_DIR": str(tmp_path / "cache")}
    result = outboard("warmup", "--list", str(programs), **caches)
    assert result.returncode == 1
    assert f"[1/2] {broken}" in result.stdout and "arguments ['--size', 'a b']" in result.stdout
    assert "1 of 2 programs ran" in result.stdout and f"failed: {broken}" in result.stderr
    assert run_python(PROGRAM + STATS, **caches).splitlines()[-1] == "0 0"


@pytest.mark.parametrize("arguments", [[], ["--list", "/no/such/file"], ["--list", "/dev/null", "program.py"]])
def test_neither_a_program_nor_a_list(arguments: list[str]) -> None:
    assert outboard("warmup", *arguments).returncode == 2
