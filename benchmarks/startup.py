# SPDX-License-Identifier: Apache-2.0
"""How long a new process takes to its first result, with empty and with filled caches.

``python -m benchmarks.startup JOB DEVICE`` is the process that is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOBS = ("add", "resnet", "resnet-compiled")


def measure(device: str, warm_repeats: int) -> dict[str, dict[str, list[float]]]:
    """Seconds from the start of a process to its end, by job and way; ``cold`` once, ``warm`` several times.

    All caches are in a folder of their own, so that cold is cold: Outboard's, Inductor's and PoCL's.
    """
    result: dict[str, dict[str, list[float]]] = {}
    for job in JOBS:
        result[job] = {}
        for name, where in (("CPU", "cpu"), (device, device)):
            with tempfile.TemporaryDirectory() as folder:
                result[job][f"{name} cold"] = [_run(job, where, Path(folder))]
                result[job][f"{name} warm"] = [_run(job, where, Path(folder)) for _ in range(warm_repeats)]
    return result


def _run(job: str, device: str, caches: Path) -> float:
    environment = os.environ | {
        "OUTBOARD_CACHE_DIR": str(caches / "outboard"),
        "POCL_CACHE_DIR": str(caches / "pocl"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
    }
    for folder in ("outboard", "pocl", "inductor"):
        (caches / folder).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.startup", job, device]
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, timeout=600)
    return time.perf_counter() - start


def main(job: str, device: str) -> None:
    """Computes one result and reads it."""
    import torch

    if job == "add":
        (torch.ones(16, device=device) + 1).sum().item()
        return
    from examples.models import resnet50

    torch.manual_seed(0)
    model = resnet50().eval().to(device)
    call = torch.compile(model) if job == "resnet-compiled" else model
    with torch.no_grad():
        call(torch.randn(4, 3, 224, 224).to(device)).sum().item()


if __name__ == "__main__":
    main(*sys.argv[1:])
