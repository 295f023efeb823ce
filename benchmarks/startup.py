# SPDX-License-Identifier: Apache-2.0
"""How long a new process takes to its first result, with empty and with filled caches.

``python -m benchmarks.startup JOB MODE DEVICE`` is the process that is measured; the environment variable ``START`` is
the time of day at which it was started. (The command line is the same each time: it tells programs apart.)
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ADD, RESNET, BERT = "add", "ResNet-50 forward", "BERT-base step"
#: Jobs, and whether each is also measured compiled.
JOBS = {ADD: False, RESNET: True, BERT: True}
COMPILED = "compiled"
#: Compiled, and traced in each process (``OUTBOARD_PRECOMPILE=0``); on our device only.
TRACED = "traced"

# The slowest known, a compiled training step with empty caches on a busy machine, takes a sixth of this.
TIMEOUT = 900

#: Seconds by part: ``process`` from the start of a process to its first result, ``first`` call, ``steady`` call; and of
#: these calls the processor time of all threads, ``first_user``, ``first_system``, ``steady_user``, ``steady_system``.
#: System time is mostly that of memory used for the first time, which some virtual machines give slowly.
Times = dict[str, float]


def measure(job: str, device: str) -> dict[str, Times]:
    """Times of one job by way, on the CPU and the device; ``cold``, then ``warm``.

    All caches are in a folder of their own, so that cold is cold: Outboard's, Inductor's and PoCL's. Raises
    RuntimeError, with what the process said, if one fails.
    """
    result: dict[str, Times] = {}
    for mode in ("eager", COMPILED, TRACED) if JOBS[job] else ("eager",):
        for name, where in (("CPU", "cpu"), (device, device)):
            if mode == TRACED and where == "cpu":
                continue
            with tempfile.TemporaryDirectory() as folder:
                for state in ("cold", "warm"):
                    result[f"{name} {mode}, {state}"] = _run(job, mode, where, Path(folder))
    return result


def _run(job: str, mode: str, device: str, caches: Path) -> Times:
    environment = os.environ | {
        "OUTBOARD_CACHE_DIR": str(caches / "outboard"),
        "POCL_CACHE_DIR": str(caches / "pocl"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
    }
    if mode == TRACED:
        environment["OUTBOARD_PRECOMPILE"] = "0"
    for folder in ("outboard", "pocl", "inductor"):
        (caches / folder).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.startup", job, mode, device]
    what = f"{job}, {mode} on {device}"
    environment["START"] = repr(time.time())
    try:
        process = subprocess.run(command, env=environment, timeout=TIMEOUT, capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{what}: not done after {TIMEOUT} s") from error
    if process.returncode != 0:
        raise RuntimeError(f"{what}: exit code {process.returncode}\n{process.stderr}")
    times: Times = json.loads(process.stdout.splitlines()[-1])
    return times


def main(job: str, mode: str, device: str) -> None:
    """Computes one result and reads it, then does so again; prints the times as JSON."""
    call = _prepare(job, mode != "eager", device)
    first = _timed(call)
    process = time.time() - float(os.environ["START"])
    repeats = [_timed(call) for _ in range(3)]
    steady = [statistics.median(parts) for parts in zip(*repeats, strict=True)]
    names = ("", "_user", "_system")
    times = {"process": process}
    times |= {f"first{name}": seconds for name, seconds in zip(names, first, strict=True)}
    times |= {f"steady{name}": seconds for name, seconds in zip(names, steady, strict=True)}
    print(json.dumps(times))


def _timed(call: Callable[[], object]) -> tuple[float, float, float]:
    """Seconds of one call: of the clock, and of all threads in user and in system mode."""
    start, before = time.perf_counter(), os.times()
    call()
    after = os.times()
    return time.perf_counter() - start, after.user - before.user, after.system - before.system


def _prepare(job: str, compiled: bool, device: str) -> Callable[[], object]:
    import torch

    torch.manual_seed(0)
    where = torch.device(device)
    if job == ADD:
        return lambda: (torch.ones(16, device=where) + 1).sum().item()
    from benchmarks.models import adamw, bert, resnet
    from examples.variant import Variant

    if job == RESNET:
        variant = Variant(*resnet(4), where, compiled)
        return lambda: variant.forward().sum().item()
    variant = Variant(*bert(4, 128), where, compiled, make_optimizer=adamw)
    return lambda: variant.step().item()


if __name__ == "__main__":
    main(*sys.argv[1:])
