# SPDX-License-Identifier: Apache-2.0
"""How much of the copying is hidden behind computing, on the simulator with a slow link and slow memory.

    python -m benchmarks.overlap

The simulator's copies and fills take the time that the speeds below give them, whatever else the machine does, so the
figures are about order and waiting alone. Two programs: copies from pinned memory on a second stream beside fills, and
tensors that take turns in too little memory, so that each moves out and in again, beside fills on the stream that uses
them. Each is timed with only its copies slow, with only its computing slow, and with both.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from examples.measure import seconds_of, table

MIB = 1 << 20
SPEED = 512 * MIB  #: bytes per second, of the link and of the memory
SIZE = 16 * MIB
ROUNDS = 8
KEYS = ("copies", "compute", "both")


def pinned_copies(device: str) -> Callable[[], None]:
    """Copies from pinned memory on one stream, fills on the other: eight of each per call."""
    source = torch.ones(SIZE, dtype=torch.uint8).pin_memory()
    target = torch.zeros(SIZE, dtype=torch.uint8, device=device)
    work = torch.zeros(SIZE, dtype=torch.uint8, device=device)
    stream = torch.Stream(device)

    def call() -> None:
        for _ in range(ROUNDS):
            with stream:
                target.copy_(source, non_blocking=True)
            work.fill_(1)

    return call


def too_little_memory(device: str) -> Callable[[], None]:
    """Eight tensors used in turn where four fit, and between them fills of a fifth that stays."""
    module = torch.get_device_module(device)
    module.empty_cache()
    limit = module.memory_reserved() + 5 * SIZE
    module.set_per_process_memory_fraction(limit / module.get_device_properties().total_memory)
    tensors = [torch.full((SIZE,), i, dtype=torch.uint8, device=device) for i in range(8)]
    work = module.memory.pin(torch.ones(SIZE, dtype=torch.uint8, device=device))

    def call() -> None:
        for i in range(ROUNDS):
            for _ in range(2):  # as long as moving one tensor out and another in
                work.fill_(i)
            tensors[i % len(tensors)][:1].fill_(i)

    return call


def measure() -> dict[str, dict[str, float]]:
    """For each program seconds of ``copies``, ``compute``, ``both``, and ``hidden``: the share of the shorter of the
    two that disappears behind the other. For a process whose driver is the simulator."""
    device = torch._C._get_privateuse1_backend_name()
    pace = ctypes.CDLL(os.environ["OUTBOARD_DRIVER"]).outboard_sim_pace
    pace.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
    results = {}
    for program in (pinned_copies, too_little_memory):
        call = program(device)
        seconds_of(call)
        seconds = {}
        for name, speeds in zip(KEYS, ((SPEED, 0), (0, SPEED), (SPEED, SPEED)), strict=True):
            pace(*speeds)
            seconds[name] = seconds_of(call)
        pace(0, 0)
        alone = (seconds["copies"], seconds["compute"])
        results[program.__name__] = {**seconds, "hidden": (sum(alone) - seconds["both"]) / min(alone)}
    return results


def run() -> dict[str, dict[str, float]]:
    """:func:`measure` in a process of its own, on the simulator.

    Raises:
        RuntimeError: if the process fails.
    """
    import outboard.drivers

    simulator = Path(outboard.drivers.__file__).parent / "liboutboard_sim.so"
    environment = os.environ | {"OUTBOARD_DRIVER": str(simulator)}
    command = [sys.executable, "-m", "benchmarks.overlap", "--worker"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    results: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return results


def main() -> None:
    if "--worker" in sys.argv[1:]:
        print(json.dumps(measure()))
        return
    rows = [
        [name.replace("_", " "), *(f"{each[key]:.2f} s" for key in KEYS), f"{each['hidden']:.0%}"]
        for name, each in run().items()
    ]
    print(table(["program", "copies alone", "compute alone", "together", "hidden"], rows))


if __name__ == "__main__":
    main()
