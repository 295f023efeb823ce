# SPDX-License-Identifier: Apache-2.0
"""Programs as users start them, with torchrun."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
