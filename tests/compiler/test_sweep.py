# SPDX-License-Identifier: Apache-2.0
"""A part of the sweep over operators and grids of their arguments, against the CPU's own kernels; runs that go on."""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.conftest import FULL, of_today
from tools import decompositions
from tools.decomposition_grid import FAMILIES, Group, numbers

#: With all tests it is another part each day, whose plans have to be compiled first.
SEED = datetime.date.today().toordinal() if FULL else 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("way", "count"), [("eager", 1500), ("static", 12), ("dynamic", 60)])
def test_a_part_of_the_sweep(device: str, way: str, count: int) -> None:
    sweep = decompositions.Sweep(device, way, count=count)
    sweep.run(decompositions.groups(list(FAMILIES), SEED))
    print(decompositions.table(sweep.rows))
    assert not [example for row in sweep.rows.values() for example in row.examples]


EXACT = {group.label: group for group in decompositions.FAMILIES["exact"]()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("way", "label"),
    [
        *(("static", label) for label in of_today([*EXACT], 120)),
        *(("eager", label) for label in of_today([*EXACT], 300)),
    ],
)
def test_every_bit_that_is_fixed(device: str, way: str, label: str) -> None:
    sweep = decompositions.Sweep(device, way)
    sweep.run([("exact", EXACT[label])])
    assert sweep.total
    assert not [example for row in sweep.rows.values() for example in row.examples]


def test_differences_of_one_bit_are_found(device: str) -> None:
    parts = {
        "zero": lambda x: -x * 0 if x.device.type == device else x * 0,
        "unit": lambda x: torch.nextafter(x, x + 1) if x.device.type == device else x,
        "same": lambda x: x + 1,
    }
    group = Group("of one bit", lambda x: x, lambda turn: [(torch.ones(5),)], orders=0, parts=parts)
    found = [found and found.part for _, found in decompositions.check(group, device)]
    assert found == ["zero", "unit", None]


def test_differences_are_found(device: str) -> None:
    """Of numbers, of dtypes, of exceptions, and of gradients alone."""

    def differs(x: torch.Tensor) -> bool:
        return x.device.type == device

    wrong = {
        "numbers": lambda x: x.exp() * (1.0001 if differs(x) else 1),
        "dtypes": lambda x: x.double() if differs(x) else x,
        "exceptions": lambda x: x[9] if differs(x) else x,
        "gradients": lambda x: x * 2 if not differs(x) else x * 2 + 3 * (x.detach() - x),
    }
    for label, function in wrong.items():
        group = Group(label, function, lambda turn: [(numbers((5,), turn=turn),)])
        ((_, found),) = decompositions.check(group, device)
        assert found, label
    right = Group("right", F.gelu, lambda turn: [(numbers((5,), turn=turn),)], orders=2)
    assert [found for _, found in decompositions.check(right, device)] == [None]


def test_runs_of_operators_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file with rows, what is whole is kept; rows of other options are refused."""
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # importing the tool sets it
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    opinfo = importlib.import_module("opinfo")
    options = argparse.Namespace(check="out", way="called", dtype="int64", device=None, samples=3)
    kept = tmp_path / "rows"
    assert opinfo.kept_rows(kept, options) == []
    row = opinfo.Row("add", "native", "", 0.1, {})
    with kept.open("a") as file:
        file.write(json.dumps(asdict(row)) + '\n{"name": "mu')
    assert opinfo.kept_rows(kept, options) == [row]
    with kept.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")
    assert opinfo.kept_rows(kept, options) == [row, row]
    options.check = "state"
    with pytest.raises(SystemExit):
        opinfo.kept_rows(kept, options)
