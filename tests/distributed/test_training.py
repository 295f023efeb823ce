# SPDX-License-Identifier: Apache-2.0
"""What users train with: each against one process."""

from __future__ import annotations

import pytest

from tests.distributed.launch import run_ranks


@pytest.mark.parametrize(
    "driver", [pytest.param("opencl", marks=pytest.mark.full("as with the strict driver, but slower")), "strict"]
)
@pytest.mark.parametrize("program", ["data_parallel", "sharded"])
def test_training_equals_one_process(program: str, driver: str) -> None:
    run_ranks(program, OUTBOARD_DRIVER=driver)


@pytest.mark.parametrize("driver", ["host", "strict"])
def test_gradients_are_exchanged_beside_kernels(driver: str) -> None:
    for output in run_ranks("traced", OUTBOARD_DRIVER=driver):
        assert "collectives" in output
