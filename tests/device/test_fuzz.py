# SPDX-License-Identifier: Apache-2.0
"""Random programs on the device against the CPU, and all that once showed a difference."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tools.fuzz import allowed, command, compiled, known, sides, worker
from tools.fuzz.operators import OPERATORS

ROOT = Path(__file__).parents[2]
PROGRAMS = [json.loads(line) for line in (Path(__file__).parent / "fuzz_regressions.jsonl").read_text().splitlines()]


def _fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.fuzz", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=1200
    )


def test_random_programs() -> None:
    """``OUTBOARD_FUZZ_SEED`` draws others. With OUTBOARD_TEST_FULL they are 2,000 operators that change each day: new
    kinds of differences are still found at a rate that would stop every other change."""
    whole = os.environ.get("OUTBOARD_TEST_FULL") == "1"
    seed = os.environ.get("OUTBOARD_FUZZ_SEED", str(datetime.date.today().toordinal()) if whole else "12")
    run = _fuzz("--operators", "2000" if whole else "1000", "--seed", seed, "--variants", "1", "--jobs", "2")
    print(run.stdout)
    assert run.returncode == 0, f"OUTBOARD_FUZZ_SEED={seed}\n{run.stdout}\n{run.stderr}"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program["operator"])
def test_what_once_differed(device: str, program: dict[str, Any]) -> None:
    result = worker.replay(0, program, device, lambda line: None)
    assert not result.findings, result.findings


def test_a_difference_is_found_and_attributed(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["leaf(torch.float32, (3,), (1,), 0, [1.0, 2.0])", "torch.exp(v0)", "v1 * 2"]
    assert sides.run(lines, device) is None
    exact = torch.exp
    monkeypatch.setattr(torch, "exp", lambda x: exact(x) * (1 if x.device.type == "cpu" else 1.0001))
    finding = sides.run(lines, device)
    assert finding is not None
    assert (finding.kind, finding.line) == ("value", "torch.exp(v0)")


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("0 / v3", False), ("0.5 / v3", True), ("torch.mul(v1, 0)", False), ("torch.mul(v1, 0.0)", True),
        ("v1.mul_(0)", False), ("torch.mul(v0, v1)", True),
        ("torch._foreach_add_([v3, v3], [v4, v5])", False), ("torch._foreach_add_([v3, v4], [v3, v5])", True),
        ("torch._foreach_add([v3, v3], [v4, v5])", True), ("torch._foreach_sqrt_([v3[0], v3[0]])", False),
        ("v0.masked_scatter_(v1, v0)", False), ("v0.masked_scatter_(v1, v10)", True),
        ("torch.pow(v0, torch.tensor(2))", True), ("False / v0", False), ("v1.view(torch.int32)", False),
        ("v1.view(-1)", True),
    ],
)  # fmt: skip
def test_what_pytorchs_compiler_changes(line: str, same: bool) -> None:
    assert allowed.in_graphs(line) == same


def test_compiled_programs_are_compared_by_layout() -> None:
    lines = ["leaf(torch.float32, (2, 3), (3, 1), 0, [1.0])", "v0.t()", "v0 + 1"]
    x, view, total = expected = compiled.function(lines)(torch.ones(2, 3))
    assert compiled.layout_difference(lines, expected, expected) is None
    for kind, actual in (
        ("alias", [x, view.clone(), total]),
        ("strides", [x, view, total.t().contiguous().t()]),
    ):
        finding = compiled.layout_difference(lines, actual, expected)
        assert finding is not None and finding.kind == kind


def test_a_crash_is_attributed_and_the_rest_is_run(tmp_path: Path) -> None:
    programs = [["torch.ones(2)", "__import__('os').abort()"], ["torch.ones(2, device=DEVICE)", "v0 + 1"]]
    path = tmp_path / "programs.jsonl"
    path.write_text("".join(json.dumps({"operator": "any", "lines": lines}) + "\n" for lines in programs))
    run = _fuzz("--replay", str(path))
    assert run.returncode == 1
    assert "SIGABRT" in run.stdout and "abort()" in run.stdout
    assert "2 operators" in run.stdout and "1 differences" in run.stdout


def test_known_defects_are_narrow_and_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    defect = known.Defect("quantile", "value", "of equal values, another one gets the gradient", line=r"^gradient\(")
    monkeypatch.setattr(known, "DEFECTS", (defect,))
    of_it = {"operator": "quantile", "kind": "value", "line": "gradient(lambda a0: torch.quantile(a0, 0.3), v0)"}
    others = [
        of_it | {"kind": "strides"},
        of_it | {"mode": "compiled"},
        of_it | {"operator": "sort"},
        of_it | {"line": "torch.quantile(v0, 0.3)"},
    ]
    totals = command.Totals()
    for finding in (of_it, *others):
        totals.find(finding | {"text": "1 differ", "seed": 0, "lines": []})
    assert len(totals.findings) == len(others)
    command.summary(totals, 1.0, command.parse([]))
    assert "1 quantile value, a known open defect: of equal values" in capsys.readouterr().out


def test_the_catalogue_is_wide() -> None:
    assert len(OPERATORS) >= 300
