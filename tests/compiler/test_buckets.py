# SPDX-License-Identifier: Apache-2.0
"""Sizes that vary on a device whose compiler knows fixed ones: one executable for many, by padding."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from processes import run_program
from test_graph_compilers import PRELUDE

#: Steps of training; prints how many executables there were after each.
TRAINING = """
sizes = [5, 7, 6, 8, 3, 13, 16, 11]
inputs = {
    "perceptron": lambda n: torch.randn(n, 8),
    "convolutional": lambda n: torch.randn(n, 3, 8, 8),
    "language_model": lambda n: torch.randint(0, 11, (2 + n % 3, n)),
}
made = []
expected, model = globals()[chosen](), globals()[chosen]()
model.load_state_dict(expected.state_dict())
model.to(device)

@torch.compile
def step(x):
    result = model(x)
    return result, result.square().mean()

for n in sizes:
    x = inputs[chosen](n)
    y = x.to(device)
    for dim in range(2 if chosen == "language_model" else 1):
        torch._dynamo.maybe_mark_dynamic(y, dim)
    expected.zero_grad(), model.zero_grad()
    wanted = expected(x)
    wanted.square().mean().backward()
    result, loss = step(y)
    loss.backward()
    close(result.detach(), wanted.detach())
    for one, other in zip(model.parameters(), expected.parameters()):
        close(one.grad, other.grad)
    for one, other in zip(model.buffers(), expected.buffers()):
        close(one, other)
    made.append(int(ours.compile_stats()["executables_made"]))
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
print(made)
"""


def run(code: str, cache: Path, **environment: str) -> str:
    """Runs code on the simulator, whose compiler has two buckets; returns what it printed."""
    settings = {"OUTBOARD_DRIVER": "sim", "OUTBOARD_SIM_COMPILER": "1", "OUTBOARD_SIM_BUCKETS": "8,16"}
    settings |= {"OUTBOARD_CACHE_DIR": str(cache), **environment}
    result = run_program(["-c", PRELUDE + code], environment=settings)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert "contract of driver.h is broken" not in result.stderr
    return result.stdout


@pytest.mark.parametrize("model", ["perceptron", "convolutional", "language_model"])
def test_steps_of_training_share_executables(tmp_path: Path, model: str) -> None:
    """One for each bucket, whatever the batch's sizes; a second process makes none."""
    code = f"chosen = {model!r}\n" + TRAINING
    made = ast.literal_eval(run(code, tmp_path))
    assert len(set(made[:5])) == len(set(made[5:])) == 1 and made[5] <= 2 * made[0], made
    driver = {"OUTBOARD_DRIVER": "strict", "OUTBOARD_STRICT_DRIVER": "sim"} if model == "language_model" else {}
    again = ast.literal_eval(run(code, tmp_path, **driver))
    assert driver or not any(again), again


#: Integers that no double is, as padded rows of integers would be.
INTEGERS = """
x = torch.randint(-5, 5, (5, 3))
greatest = 2**63 - 1
def extremes(x):
    return x.amin(0), x.amax(0), x.int().amin(0), torch.full((3,), greatest, dtype=torch.int64, device=x.device)
y = x.to(device)
torch._dynamo.maybe_mark_dynamic(y, 0)
for found, wanted in zip(torch.compile(extremes)(y), extremes(x), strict=True):
    assert torch.equal(found.cpu(), wanted), (found, wanted)
"""


def test_long_integers_are_exact(tmp_path: Path) -> None:
    run(INTEGERS, tmp_path)
