# SPDX-License-Identifier: Apache-2.0
"""Ray Train: its workers take the device and its process group, and train as one process does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.environ.get("OUTBOARD_TEST_ECOSYSTEM") != "1", reason="make test-ecosystem")


def test_two_workers(device: str, tmp_path: Path) -> None:
    pytest.importorskip("ray.train")
    # A worker imports PyTorch, which takes long where others use the machine; nothing is to be reported to anybody.
    variables = {
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integrations.programs.ray_trained", str(tmp_path / "runs"), "2"],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=ROOT,
        env=os.environ | variables | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    backend = distributed.Backend.default_device_backend_map[device]
    assert f"RESULT 2 workers on {device}:0: cpu:gloo,{device}:{backend}" in ended.stdout.splitlines()
    assert list((tmp_path / "runs").rglob("weights.pt"))
