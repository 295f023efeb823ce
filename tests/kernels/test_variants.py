# SPDX-License-Identifier: Apache-2.0
"""The same tests for what this process does not use: the host's library, kernels for GPUs and for narrow vectors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outboard.compiler.target import target_of

pytestmark = pytest.mark.full("every kernel test again, for other devices")

HERE = Path(__file__).parent
FAMILIES = sorted(path.name for path in HERE.glob("test_*.py") if path != Path(__file__))
PRODUCTS = ["test_gemm.py", "test_conv.py"]


def _run_tests(name: str, cache: Path, **environment: str) -> None:
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-x", str(HERE / name)],
        cwd=HERE.parent.parent,
        env=os.environ | {"OUTBOARD_CACHE_DIR": str(cache)} | environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("library", ["driver", "auto"])
def test_the_library_of_the_driver(name: str, library: str, tmp_path: Path) -> None:
    if target_of(0).library == "":
        pytest.skip("the driver has no library of ready functions (pip install onednn-cpu-gomp)")
    _run_tests(name, tmp_path, OUTBOARD_LIBRARY=library)


@pytest.mark.parametrize("name", [*PRODUCTS, "test_attention_calls.py", "test_halves.py", "test_pool.py"])
def test_kernels_for_narrow_vectors(name: str, tmp_path: Path) -> None:
    _run_tests(name, tmp_path, OUTBOARD_TEST_TARGET="narrow")


@pytest.mark.parametrize("name", FAMILIES)
def test_kernels_for_gpus(name: str, tmp_path: Path) -> None:
    _run_tests(name, tmp_path, OUTBOARD_TEST_TARGET="gpu")
