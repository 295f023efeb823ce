# SPDX-License-Identifier: Apache-2.0
"""Programs for GPUs of NVIDIA are what NVRTC takes; ``make test-nvrtc`` has all operators, this one in 128."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("part", "fewest"),
    [
        pytest.param("families", 120, marks=pytest.mark.full("those of the models are of the same families")),
        ("models", 25),
        ("operators", 50),
    ],
)
def test_nvrtc_takes_every_program(part: str, fewest: int) -> None:
    if importlib.util.find_spec("nvidia.cu13") is None:
        pytest.skip("NVRTC is not there: pip install 'nvidia-cuda-nvrtc==13.*'")
    command = [sys.executable, "-W", "ignore", "-m", "tests.gpu_compilers", "--only", part, "--shard", "1/128"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.search(rf"{part}: (\d+) programs for sm_80, sm_90, 0 refused", done.stdout)
    assert counts is not None and int(counts[1]) >= fewest
