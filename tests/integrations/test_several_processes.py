# SPDX-License-Identifier: Apache-2.0
"""Training in two processes as users start it with their libraries: results are those of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.distributed.launch import free_port

ROOT = Path(__file__).parents[2]
PROGRAMS = "tests.integrations.programs"
FULL = pytest.mark.full("one start of each library guards what all have in common")

pytest.importorskip("accelerate", reason="the extra `test` installs it")


def _run(*command: str, **environment: str) -> str:
    """What a program of Python's prints, which must succeed. Its processes leave one core to each other."""
    ended = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"} | environment,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Outboard" not in ended.stderr, ended.stderr
    return ended.stdout


def _torchrun(program: str, *arguments: str) -> str:
    options = ("--nproc-per-node", "2", "--master-port", str(free_port()))
    return _run("-m", "torch.distributed.run", *options, "-m", f"{PROGRAMS}.{program}", *arguments)


def _devices(output: str) -> set[str]:
    """The lines in which processes say where they are; what a program writes besides may stand before one."""
    return {line[line.index("process ") :] for line in output.splitlines() if "process " in line and " on " in line}


def _accelerate(program: str, *options: str, launcher: tuple[str, ...] = ("accelerate_cli", "launch")) -> str:
    module, *command = launcher
    start = ("-m", f"accelerate.commands.{module}", *command, "--num_processes", "2", "--main_process_port")
    return _run(*start, str(free_port()), *options, "-m", *program.split())


@pytest.mark.parametrize(
    ("launcher", "precisions"),
    [
        pytest.param(("accelerate_cli", "launch"), "no bf16 fp16", id="cli", marks=FULL),
        pytest.param(("launch",), "no bf16", id="module"),
    ],
)
def test_accelerate(device: str, tmp_path: Path, launcher: tuple[str, ...], precisions: str) -> None:
    """As a command, and as a module that Python runs."""
    output = _accelerate(f"{PROGRAMS}.accelerated {tmp_path} {precisions}", launcher=launcher)
    assert _devices(output) == {f"process {rank} on {device}:0: MULTI_GPU" for rank in range(2)}


@FULL
def test_accelerate_with_fsdp2(device: str, tmp_path: Path) -> None:
    output = _accelerate(f"{PROGRAMS}.accelerated {tmp_path} no bf16", "--use_fsdp", "--fsdp_version", "2")
    assert _devices(output) == {f"process {rank} on {device}:0: FSDP" for rank in range(2)}


@FULL
def test_trainer_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra `demo` installs it")
    folders = [tmp_path / name for name in ("one", "two", "resumed")]
    _run("-m", f"{PROGRAMS}.trainer", str(folders[0]), "8")
    _torchrun("trainer", str(folders[1]), "4")
    _torchrun("trainer", str(folders[2]), "4", str(folders[1] / "checkpoint-4"))
    one, two, resumed = (torch.load(folder / "result.pt") for folder in folders)
    assert [one["processes"], two["processes"], resumed["processes"]] == [1, 2, 2]
    torch.testing.assert_close(torch.tensor(two["losses"]), torch.tensor(one["losses"]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(two["weights"], one["weights"], rtol=1e-3, atol=1e-4)
    assert resumed["losses"] == two["losses"] and len(two["losses"]) == 8
    assert all(torch.equal(resumed["weights"][name], value) for name, value in two["weights"].items())


@pytest.mark.parametrize(
    ("kind", "strategy", "devices"),
    [
        pytest.param("trainer", "ddp", "2", marks=FULL),
        pytest.param("trainer", "auto", "auto", marks=FULL),
        ("fabric", "ddp", "2"),
    ],
)
def test_lightning(device: str, kind: str, strategy: str, devices: str) -> None:
    """With a number of devices, processes share one; ``auto`` takes as many processes as there are devices."""
    pytest.importorskip("lightning", reason="the extra `test` installs it")
    count = {"OUTBOARD_NUM_DEVICES": "2"} if devices == "auto" else {}
    output = _run("-m", f"{PROGRAMS}.lightened", kind, strategy, devices, **count)
    indices = (0, 1) if devices == "auto" else (0, 0)
    assert _devices(output) == {f"process {rank} on {device}:{index}" for rank, index in enumerate(indices)}
