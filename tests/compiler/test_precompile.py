# SPDX-License-Identifier: Apache-2.0
"""``OUTBOARD_PRECOMPILE=1``: a second process traces nothing, and gets nothing that is not its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: A model in a module of its own. Where the trace comes from is printed after the result.
MODEL = """
import torch
from torch import nn
import torch.nn.functional as F
from torch._dynamo.utils import counters

class Model(nn.Module):
    def __init__(self, activation=F.relu):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        nn.init.constant_(self.linear.weight, -0.5)
        nn.init.constant_(self.linear.bias, 1.0)
        self.activation = activation

    def forward(self, x):
        return self.activation(self.linear(x))

def double(x):
    return x * 2

def triple(x):
    return x * 3

scale = double

def scaled(x):
    return scale(x)

device = torch._C._get_privateuse1_backend_name()
x = torch.ones(3, 4, device=device)

def show(*values):
    sums = [round(float(value.sum().cpu()), 4) for value in values]
    print(*sums, dict(counters["dynamo_cache"]), counters["frames"]["ok"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def run(folder: Path, source: str, name: str = "program.py", **environment: str) -> list[str]:
    """What a program prints, in words, with a cache in ``folder``."""
    (folder / name).write_text("from model import *\nimport model\n" + source)
    variables = {
        "OUTBOARD_PRECOMPILE": "1",
        "OUTBOARD_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    result = subprocess.run(
        [sys.executable, name], cwd=folder, env=os.environ | variables | environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def hits(words: list[str]) -> bool:
    return "{'dynamo_cache_hit':" in words


def test_a_second_process_traces_nothing(folder: Path) -> None:
    source = "with torch.no_grad(): show(torch.compile(Model(torch.nn.ReLU()).to(device))(x))"
    first, second = run(folder, source), run(folder, source)
    assert first[0] == second[0] == "0.0"
    assert not hits(first) and first[-1] == "1"
    assert hits(second) and second[-1] == "0"


def test_use_is_marked_for_eviction(folder: Path) -> None:
    source = "show(torch.compile(double)(x))"
    run(folder, source)
    (entry,) = (folder / "cache" / "traces").rglob("entry")
    os.utime(entry, (1.0, 1.0))
    run(folder, source)
    assert entry.stat().st_mtime > 1.0


def test_training_comes_from_the_cache_too(folder: Path) -> None:
    source = """
model = Model(torch.nn.Softplus()).to(device)
torch.compile(model)(x).sum().backward()
show(model.linear.weight.grad)
"""
    first, second = run(folder, source), run(folder, source)
    assert first[0] == second[0] != "0.0"
    assert hits(second) and second[-1] == "0"


def test_another_process_does_not_get_another_models_function(folder: Path) -> None:
    source = "show(torch.compile(Model({}).to(device))(x))"
    assert run(folder, source.format("F.relu"))[0] == "0.0"
    assert run(folder, source.format("torch.neg"))[0] == "12.0"


def test_another_process_does_not_get_what_a_name_meant_before(folder: Path) -> None:
    source = "model.scale = {}\nshow(torch.compile(scaled)(x))"
    assert run(folder, source.format("double"))[0] == "24.0"
    assert run(folder, source.format("triple"))[0] == "36.0"


def test_guards_hold_in_the_process_that_traced(folder: Path) -> None:
    source = """
made = Model().to(device)
compiled = torch.compile(made)
first = compiled(x)
made.activation = torch.neg
second = compiled(x)
scales = torch.compile(scaled)
third = scales(x)
model.scale = triple
show(first, second, third, scales(x))
"""
    assert run(folder, source)[:4] == ["0.0", "12.0", "24.0", "36.0"]


def test_functions_of_the_same_name_and_line_do_not_meet(folder: Path) -> None:
    source = "def f(x):\n    return x {} 2\nshow(torch.compile(f)(x))"
    assert run(folder, source.format("+"), "one.py")[0] == "36.0"
    assert run(folder, source.format("*"), "two.py")[0] == "24.0"
    assert run(folder, source.format("-"), "one.py")[0] == "-12.0"


def test_without_the_variable_nothing_is_kept(folder: Path) -> None:
    source = "show(torch.compile(double)(x))"
    for _ in range(2):
        assert not hits(run(folder, source, OUTBOARD_PRECOMPILE=""))
    assert not (folder / "cache" / "traces").exists()


def test_a_damaged_trace_is_made_again(folder: Path) -> None:
    source = "show(torch.compile(double)(x))"
    assert run(folder, source)[0] == "24.0"
    (entry,) = (folder / "cache" / "traces").rglob("entry")
    entry.write_bytes(entry.read_bytes()[:100])
    assert run(folder, source)[0] == "24.0"
    assert hits(run(folder, source))
