# SPDX-License-Identifier: Apache-2.0
"""``benchmarks.scaling``: what it measures and writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scaling import Depth, Memory, Plans, Scaling

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.full("runs the whole benchmark in small")
def test_small_run_writes_json_and_chart(tmp_path: Path) -> None:
    arguments = ["--plans", "10", "--layers", "1", "2", "3", "--models", "--output", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.scaling", *arguments]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    written = json.loads((tmp_path / "scaling.json").read_text())
    assert [each["plans"] for each in written["plans"]] == [1, 10]
    assert [each["layers"] for each in written["depths"]] == [1, 2, 3]
    assert all(each["same"] > 0 for each in written["plans"])
    assert all(each["processor"] > 0 for each in written["depths"])
    # Layers share kernels: another one adds launches, no source.
    one, two, three = (each["text"] for each in written["depths"])
    assert three - two < 0.2 * one
    assert written["depths"][2]["programs"] == written["depths"][1]["programs"] == 0
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_targets() -> None:
    scaling = Scaling(
        {},
        [Plans(1, 1.0, 1.0), Plans(10, 1.5, 2.0)],
        [Depth(2, 1.0, 1.0, 10, 0), Depth(4, 3.0, 2.0, 10, 0), Depth(8, 9.0, 7.0, 10, 0)],
        [Memory("m", 100, 90)],
    )
    values = {target.name: (target.value, target.met) for target in scaling.targets()}
    assert values["growth of an operator's cost"] == (1.5, False)
    assert values["growth of compile time beyond linear"] == (1.25, True)
    assert values["memory of a compiled call over eager's"] == (0.9, True)
