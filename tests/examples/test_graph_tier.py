# SPDX-License-Identifier: Apache-2.0
"""A model on a device without a kernel language."""

from __future__ import annotations

import json

from processes import run_program

from examples.graph_tier import Outcome


def test_a_model_runs_on_a_device_without_a_kernel_language() -> None:
    settings = {"OUTBOARD_DRIVER": "sim", "OUTBOARD_SIM_COMPILER": "1"}
    result = run_program(["-m", "examples.graph_tier", "--run", "bert"], environment=settings)
    assert result.returncode == 0, result.stderr
    outcomes = [Outcome(**fields) for fields in json.loads(result.stdout.splitlines()[-1])]
    assert len(outcomes) == 5
    assert all(outcome.passes(warm=False) for outcome in outcomes), outcomes
