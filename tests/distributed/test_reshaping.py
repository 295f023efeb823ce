# SPDX-License-Identifier: Apache-2.0
"""Trainings that go on with another number of ranks, what only four ranks show, and calls between ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from outboard import drivers
from outboard.drivers import host_compiler
from tests.distributed.launch import run_ranks, start

full = pytest.mark.full("four ranks are slow")


def _run(kind: str, folder: Path, ranks: int) -> None:
    for rank, result in enumerate(start(["-m", "tests.distributed.programs.reshaped", kind, str(folder)], ranks)):
        assert result.returncode == 0, f"rank {rank} of {ranks}: {result.stdout}\n{result.stderr}"


@pytest.mark.parametrize(
    ("saved", "loaded"), [(2, (1,)), pytest.param(2, (4, 1), marks=full), pytest.param(4, (2,), marks=full)]
)
def test_checkpoints_of_other_numbers_of_ranks(tmp_path: Path, saved: int, loaded: tuple[int, ...]) -> None:
    _run("save", tmp_path, saved)
    for ranks in loaded:
        _run("load", tmp_path, ranks)


@full
def test_a_mesh_of_two_dimensions() -> None:
    """FSDP2 over two groups of ranks, each of which shares its layers between two."""
    run_ranks("sharded", ranks=4, VARIANT="two_dimensions")


def test_attention_over_parts_of_a_sequence() -> None:
    run_ranks("context")


def test_attention_over_parts_of_a_sequence_on_a_gpu() -> None:
    """Whose attention is products and a softmax elsewhere."""
    gpu = {"OUTBOARD_STRICT_EXECUTION": "simt", "OUTBOARD_STRICT_VECTOR_WIDTH": "1"}
    if host_compiler.installed() is not None:  # PoCL compiles such kernels for a minute, and fails where two ranks do
        gpu["OUTBOARD_STRICT_DRIVER"] = drivers.host()
    run_ranks("context", OUTBOARD_DRIVER="strict", **gpu)


def test_calls_of_functions_on_another_rank() -> None:
    for rank, result in enumerate(start(["-m", "tests.distributed.programs.remote"], 2, timeout=60)):
        assert result.returncode == 0, f"rank {rank}: {result.stdout}\n{result.stderr}"
