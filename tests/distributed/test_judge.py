# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests as judge: a few of them, and what the program makes of one that does not end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from processes import run_program


def judge(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Runs the program, and returns how each test ended."""
    output = folder / "judge.json"
    run = run_program(["tools/distributed_judge.py", "--output", str(output), *arguments], timeout=300, cold=True)
    return run, {row["name"]: row["kind"] for row in json.loads(output.read_text())["rows"]}


def test_in_every_role(tmp_path: Path) -> None:
    """As NCCL and as gloo, with two ranks and four; an explained failure; and an operator of DTensor's."""
    names = "^(test_all_reduce_sum|test_all_gather_cuda|test_barrier_group_cuda|test_sparse_all_reduce_sum|bmm)$"
    run, ended = judge(tmp_path, "--match", names)
    assert run.returncode == 0, run.stdout + run.stderr
    assert ended.pop("distributed.test_sparse_all_reduce_sum") == "failed"
    assert set(ended.values()) == {"passed"} and len(ended) == 4, run.stdout


def test_one_that_does_not_end_costs_a_row_and_is_an_error(tmp_path: Path) -> None:
    names = ["--suites", "distributed", "--match", "^(test_barrier_timeout_group|test_get_rank)$", "--limit", "8"]
    run, ended = judge(tmp_path, *names)
    assert run.returncode == 1, run.stdout + run.stderr
    assert ended == {"distributed.test_barrier_timeout_group": "hung", "distributed.test_get_rank": "passed"}
    assert "not explained: distributed.test_barrier_timeout_group" in run.stdout
