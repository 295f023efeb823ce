# SPDX-License-Identifier: Apache-2.0
"""A few of the programs that ``make test-cuda-text`` runs: reductions, which shuffle, and halves, which are converted
by instructions of the GPU's own."""

from __future__ import annotations

import shutil

import pytest

from outboard.drivers import host_compiler
from tests.processes import run_program


@pytest.mark.skipif(
    host_compiler.installed() is None and shutil.which("clang") is None,
    reason="programs are compiled by Clang: pip install ziglang",
)
def test_programs_in_cuda_have_the_cpus_results() -> None:
    result = run_program(["-m", "tests.cuda_text", "--only", "reduction of all", "reduction of rows", "halves"])
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 of 3 seeded faults seen" in result.stdout
    assert "9 programs in CUDA C++, 9 launches: 0 that are not right, 0 buffers" in result.stdout
