# SPDX-License-Identifier: Apache-2.0
"""Random programs of views, overlaps and writes in place, compiled against eager."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import FULL

ROOT = Path(__file__).parents[2]


def test_random_programs_of_views_and_writes() -> None:
    """Others each day, or those of ``OUTBOARD_FUZZ_SEED``; with OUTBOARD_TEST_FULL more of them."""
    seed = os.environ.get("OUTBOARD_FUZZ_SEED", str(datetime.date.today().toordinal()))
    programs = "320" if FULL else "16"
    command = [sys.executable, "-m", "tools.fuzz_aliases", "--programs", programs, "--together", "8", "--seed", seed]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, f"OUTBOARD_FUZZ_SEED={seed}\n{run.stdout}\n{run.stderr}"
