# SPDX-License-Identifier: Apache-2.0
"""What users train with: each against one process."""

from __future__ import annotations

from tests.distributed.launch import run_ranks


def test_data_parallel() -> None:
    run_ranks("data_parallel")


def test_sharded_and_pipelined() -> None:
    run_ranks("sharded")
