# SPDX-License-Identifier: Apache-2.0
"""How long an operator on tiny tensors keeps its caller, and how fast a chain of them gets done."""

from __future__ import annotations

import time

import torch

from examples.measure import Timing, synchronize

ELEMENTS = 16
CALLS = 500


def measure(device: torch.device, rounds: int) -> dict[str, dict[str, Timing]]:
    """Seconds per operator, by job and then by device; CPU and device take turns.

    ``add, to return`` is what a call of ``torch.add`` takes until it returns, with an idle device before each round and
    no waiting in between. ``chain, to finish`` counts until the last of a chain of dependent adds is finished.
    """
    devices = {"CPU eager": torch.device("cpu"), f"{device.type} eager": device}
    jobs = {"add, to return": _calls, "chain, to finish": _chain}
    result = {job: {name: Timing() for name in devices} for job in jobs}
    for round_number in range(rounds + 1):
        for job, run in jobs.items():
            for name, where in devices.items():
                seconds = run(where)
                if round_number > 0:  # the first round warms up
                    result[job][name].seconds.append(seconds)
    return result


def _operands(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    operands = torch.ones(ELEMENTS, device=device), torch.ones(ELEMENTS, device=device)
    synchronize(device)
    return operands


def _calls(device: torch.device) -> float:
    left, right = _operands(device)
    add = torch.add
    start = time.perf_counter()
    for _ in range(CALLS):
        add(left, right)
    seconds = time.perf_counter() - start
    synchronize(device)
    return seconds / CALLS


def _chain(device: torch.device) -> float:
    total, right = _operands(device)
    add = torch.add
    start = time.perf_counter()
    for _ in range(CALLS):
        total = add(total, right)
    synchronize(device)
    seconds = time.perf_counter() - start
    if total[0].item() != CALLS + 1:
        raise RuntimeError(f"a chain of {CALLS} adds on {device} gave {total[0].item()}")
    return seconds / CALLS
