# SPDX-License-Identifier: Apache-2.0
"""One plan serves all sizes and scalar values of a layout class: counted, not timed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def compiled(device: str) -> int:
    return int(torch.get_device_module(device).compile_stats()["plans"])


@pytest.mark.parametrize("name", ["add", "mul", "exp", "softmax", "sum", "matmul", "cat", "gelu"])
def test_sizes_are_run_time_arguments(name: str, device: str) -> None:
    calls = {
        "add": lambda x: x + x,
        "mul": lambda x: x * x[0],
        "exp": torch.exp,
        "softmax": lambda x: x.softmax(-1),
        "sum": lambda x: x.sum(0),
        "matmul": lambda x: x @ x.t(),
        "cat": lambda x: torch.cat([x, x]),
        "gelu": torch.nn.functional.gelu,
    }
    call = calls[name]
    for size in (40, 17, 5):  # 5: sizes that fill no vector have kernels of their own
        call(torch.randn(size, size + 9, device=device))
    known = compiled(device)
    for size in (6, 33, 64, 100):
        x = torch.randn(size, 2 * size)
        torch.testing.assert_close(call(x.to(device)).cpu(), call(x), rtol=1e-4, atol=1e-4)
    assert compiled(device) == known


def test_scalars_are_run_time_arguments(device: str) -> None:
    x = torch.randn(30, device=device)
    host = x.cpu()
    for value in (0.5, 2.5):
        x.add(x, alpha=value).mul(value).addcmul(x, x, value=value)
    known = compiled(device)
    for value in (1.5, -3.25, 7.0):
        result = x.add(x, alpha=value).mul(value).addcmul(x, x, value=value)
        expected = host.add(host, alpha=value).mul(value).addcmul(host, host, value=value)
        torch.testing.assert_close(result.cpu(), expected)
    assert compiled(device) == known


def test_momentum_is_a_run_time_argument(device: str) -> None:
    """``momentum=None``, as where statistics are made anew for averaged weights, has another one at each step."""
    norms = {where: torch.nn.BatchNorm1d(5, momentum=None).to(where) for where in ("cpu", device)}
    for step in range(6):
        known = compiled(device)
        x = torch.randn(7, 5)
        for where, norm in norms.items():
            norm(x.to(where))
        assert step < 2 or compiled(device) == known
    for name, expected in norms["cpu"].state_dict().items():
        torch.testing.assert_close(norms[device].state_dict()[name].cpu(), expected)


def test_padding_is_a_run_time_argument(device: str) -> None:
    """Of the sides that are padded."""
    x = torch.randn(2, 3, 4, 5)
    known = compiled(device)
    for number, pad in enumerate([(0, 1, 0, 0, 0, 3), (0, 2, 0, 0, 0, 1), (0, 9, 0, 0, 0, 2), (0, 0, 0, 0, 1, 0)]):
        result = torch.nn.functional.pad(x.to(device), pad, value=0.5)
        assert torch.equal(result.cpu(), torch.nn.functional.pad(x, pad, value=0.5))
        known, before = compiled(device), known
        assert number in (0, 3) or known == before


def test_adam_compiles_nothing_after_its_second_step(device: str) -> None:
    parameter = torch.randn(20, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([parameter], lr=1e-2)

    def step() -> None:
        optimizer.zero_grad()
        parameter.square().sum().backward()
        optimizer.step()

    step()
    step()
    known = compiled(device)
    for _ in range(20):
        step()
    assert compiled(device) == known


@pytest.mark.parametrize("first", [1.0, 2.0, 0.0, float("inf"), float("nan"), -0.0])
def test_a_number_with_code_of_its_own_leaves_the_others_a_plan(device: str, first: float) -> None:
    """The first call decides nothing: what is special has a guard, or a signature of its own."""
    x = torch.tensor([[0.5, -2.0, 3.0], [1.0, 0.25, -4.0]])
    for value in (first, 0.75):
        torch.linalg.vector_norm(x.to(device), value, 0), torch.nan_to_num(x.to(device), value)
    known = compiled(device)
    for value in (0.3, 1.7, 3.0, 5.5):
        for call in (lambda x, n: torch.linalg.vector_norm(x, n, 0), lambda x, n: torch.nan_to_num(x, n)):
            torch.testing.assert_close(call(x.to(device), value).cpu(), call(x, value))
    assert compiled(device) == known


def test_guards_on_numbers_hold_in_another_process(device: str, tmp_path: Path) -> None:
    """Of the plans on disk, each call takes one that was made for its number."""
    program = (
        "import sys, torch, torch.nn.functional as F\n"
        f"x = torch.linspace(-2, 2, 9, device={device!r})\n"
        "for n in map(float, sys.argv[1:]):\n"
        "    loss = F.smooth_l1_loss(x, x * 2, reduction='none', beta=n)\n"
        "    print(loss.tolist(), torch.linalg.vector_norm(x, n).item())\n"
        f"print(torch.get_device_module({device!r}).compile_stats()['compiled'])\n"
    )

    def run(*numbers: float) -> list[str]:
        command = [sys.executable, "-c", program, *map(str, numbers)]
        environment = {**os.environ, "OUTBOARD_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    *first, _ = run(0.5, 1.0, 0.0, 2.5)
    *again, made = run(0.5, 1.0, 0.0, 2.5)
    assert again == first and made == "0"
    *others, made = run(0.7, 0.0, 1.0)
    assert others[1:] == [first[2], first[1]] and made == "0"
