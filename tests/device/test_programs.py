# SPDX-License-Identifier: Apache-2.0
"""A part of the programs of users' on the device against the CPU; with all tests, every one on every driver."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch

from tests.conftest import FULL
from tools.programs import command, explained, judge
from tools.programs.given import refused
from tools.programs.registry import Program, all_programs

#: Others each day where everything is run.
SEED = datetime.date.today().toordinal() if FULL else 3


def _program(function: Any, **options: Any) -> Program:
    return Program("test.it", function, **{"draws": False, "dtypes": frozenset(), "terms": 1, **options})


@pytest.mark.parametrize("run", command.runs("", ("eager",), share=0.04, seed=SEED), ids=lambda run: run[0])
def test_some_programs(device: str, run: command.Run) -> None:
    found = judge.judge(all_programs()[run[0]], run[1], device)
    assert not found, "\n".join(map(str, found))


@pytest.mark.full("every program, compiled too, for a quarter of an hour each")
@pytest.mark.parametrize("driver", command.DRIVERS)
def test_all_programs(driver: str) -> None:
    found = [each for _, findings in command.judge_all(command.runs("", judge.WAYS), driver) for each in findings]
    assert not found, "\n".join(map(str, found))


def test_there_are_many() -> None:
    assert len(all_programs()) >= 150


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("value", lambda device: torch.ones(3).to(device) + (device != "cpu")),
        ("form", lambda device: torch.ones(3, dtype=torch.float32 if device == "cpu" else torch.float64).to(device)),
        ("form", lambda device: refused(lambda: torch.ones(2)[9 if device == "cpu" else 1])),
        ("strides", lambda device: (torch.ones(3, 2) if device == "cpu" else torch.ones(2, 3).t()).to(device)),
        ("exception", lambda device: torch.ones(0 if device != "cpu" else 1).to(device).item()),
        ("program", lambda device: torch.ones(0).to(device).item()),
        ("warning", lambda device: device == "cpu" or torch.meshgrid(torch.ones(2))[0].sum().item() > 0),
        ("output", lambda device: print(device == "cpu")),
        ("state", lambda device: None if device == "cpu" else torch.rand(1).dtype and None),
        ("fallback", lambda device: torch.special.i0(torch.ones(2).to(device))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_differs_is_found(device: str, monkeypatch: pytest.MonkeyPatch, kind: str, function: Any) -> None:
    monkeypatch.setattr(judge.on_cpu, "KNOWN", ())
    assert kind in [each.kind for each in judge.judge(_program(function), "eager", device)]


def test_what_is_the_same_is_not_found(device: str) -> None:
    def program(device: str) -> Any:
        x = torch.arange(3.0).to(device)
        print(x, x.device, torch.nn.Parameter(x))
        return x.sum(), refused(lambda: x[9]), str(x), x.device

    assert not judge.judge(_program(program), "eager", device)
    assert not explained.reason_for("test.it", "value", "")


def test_a_crash_costs_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        def __init__(self, batch: list[command.Run], driver: str) -> None:
            self.lines = ["\x1e[]\n"] if len(batch) == 3 else ["\x1e[]\n"] * len(batch)
            self.stdout = self

        def __enter__(self) -> Any:
            return iter(self.lines)

        def __exit__(self, *error: object) -> None:
            pass

        def wait(self) -> int:
            return -11

    monkeypatch.setattr(command, "_start", Ended)
    found = dict(command.judge_all([("a", "eager"), ("b", "eager"), ("c", "eager")], "host"))
    assert {name: [each.kind for each in findings] for (name, _), findings in found.items()} == {
        "a": [], "b": ["crash"], "c": [],
    }  # fmt: skip
