# SPDX-License-Identifier: Apache-2.0
"""Programs as users start them, with torchrun."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from tests.distributed.launch import free_port

ROOT = Path(__file__).parents[2]


def torchrun(*arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Runs a program as two processes of this machine."""
    options = ["--nproc-per-node", "2", "--master-port", str(free_port()), "--monitor-interval", "0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)


def test_a_killed_worker_costs_a_restart(tmp_path: Path) -> None:
    results = {}
    for name, fatal_step in (("whole", -1), ("killed", 3)):
        folder = tmp_path / name
        folder.mkdir()
        program = ["-m", "tests.distributed.programs.elastic", str(folder), str(fatal_step)]
        ended = torchrun("--max-restarts", "1", *program)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        results[name] = torch.load(folder / "result.pt")
    assert results["whole"]["first"] == 0 and results["killed"]["first"] == 3
    assert torch.equal(results["whole"]["weight"], results["killed"]["weight"])


def test_examples_of_the_documentation(tmp_path: Path, device: str) -> None:
    """Each program of docs/distributed.md runs and prints what stands below it."""
    page = (ROOT / "docs" / "distributed.md").read_text()
    examples = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", page, re.DOTALL)
    assert examples
    for index, (source, output) in enumerate(examples):
        program = tmp_path / f"example_{index}.py"
        program.write_text(source.replace('"ocl"', repr(device)))
        ended = torchrun(str(program))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        missing = [line for line in output.splitlines() if line not in ended.stdout]
        assert not missing, ended.stdout


def test_a_mesh_gives_each_process_the_next_device(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One string is printed at once: the processes share their output."""
    program = tmp_path / "mesh.py"
    program.write_text(
        textwrap.dedent(f"""
        import os, torch
        from torch.distributed.device_mesh import init_device_mesh
        if "CHOSEN" in os.environ:
            torch.accelerator.set_device_index(1)
        init_device_mesh({device!r}, (2,))
        print(f"rank {{os.environ['RANK']}} takes {{torch.accelerator.current_device_index()}}\\n", end="", flush=True)
        torch.distributed.destroy_process_group()
        """)
    )
    assert set(chosen_devices(program, {"OUTBOARD_NUM_DEVICES": "2"}, monkeypatch)) == {(0, 0), (1, 1)}
    both = {"OUTBOARD_NUM_DEVICES": "2", "CHOSEN": "1"}
    assert set(chosen_devices(program, both, monkeypatch)) == {(0, 1), (1, 1)}


def chosen_devices(
    program: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, int]]:
    """Ranks with the device that each says it takes."""
    with monkeypatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        ended = torchrun(str(program))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [(int(rank), int(index)) for rank, index in re.findall(r"rank (\d) takes (\d)", ended.stdout)]
