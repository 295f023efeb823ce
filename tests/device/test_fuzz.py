# SPDX-License-Identifier: Apache-2.0
"""Random programs on the device against the CPU, and all that once showed a difference."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_map

from tests.conftest import FULL
from tools.fuzz import allowed, command, compiled, known, operators, sides, sizes, state, ways, worker
from tools.fuzz.operators import OPERATORS

ROOT = Path(__file__).parents[2]
DEVICE = torch.accelerator.current_accelerator().type
PROGRAMS = [json.loads(line) for line in (Path(__file__).parent / "fuzz_regressions.jsonl").read_text().splitlines()]


def _fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.fuzz", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=1200
    )


def test_random_programs() -> None:
    """``OUTBOARD_FUZZ_SEED`` draws others. With OUTBOARD_TEST_FULL they are 2,000 operators that change each day: new
    kinds of differences are still found at a rate that would stop every other change."""
    seed = os.environ.get("OUTBOARD_FUZZ_SEED", str(datetime.date.today().toordinal()) if FULL else "12")
    run = _fuzz("--operators", "2000" if FULL else "60", "--seed", seed, "--variants", "1", "--jobs", "2")
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


# ---- faults that are seeded, one for each dimension of the programs

OPTIONS = {"epoch": 0, "variants": 8, "invalid": 0, "states": 0.0, "ways": 0.0, "salt": 0}
#: Conditions under which the device is made to be wrong, each of a piece of state.
WRONG_UNDER: dict[str, Callable[[], bool]] = {
    "dtype": lambda: torch.get_default_dtype() != torch.float32,
    "autocast": lambda: torch.is_autocast_enabled(DEVICE),
    "gradients": lambda: not torch.is_grad_enabled(),
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "precision": lambda: torch.get_float32_matmul_precision() != "highest",
    "flush": lambda: bool(torch.tensor(1e-40) * 0.5 == 0),
    "default_device": lambda: torch.get_default_device().type == DEVICE,
    "function_mode": lambda: any(isinstance(mode, state.Through) for mode in _get_current_function_mode_stack()),
    "threads": lambda: torch.get_num_threads() == 3,
}
#: What a way of running a line calls, whether that makes a function, and the name of the way.
MADE_BY: dict[str, tuple[Any, str, bool]] = {
    "second": (torch.autograd, "grad", False),
    "jvp": (torch.func, "jvp", False),
    "jacrev": (torch.func, "jacrev", True),
    "hessian": (torch.func, "hessian", True),
    "batched": (torch.func, "vmap", True),
    "traced": (torch.jit, "trace", True),
    "scripted": (torch.jit, "CompilationUnit", True),
    "compiled": (torch, "compile", True),
}


def _finding(match: str, programs: int = 60, **options: Any) -> dict[str, Any] | None:
    """The first finding in programs of the operators that match."""
    memory = worker.Memory()
    for seed in range(programs):
        given = OPTIONS | {"match": match} | options
        program = worker.Program(seed, given, DEVICE, lambda line: None, memory)
        if found := program.run().findings:
            return found[0]
    return None


def _spoilt(result: Any) -> Any:
    """Other numbers, where they are the device's."""
    return tree_map(lambda x: 3 * x + 1 if isinstance(x, torch.Tensor) and x.device.type == DEVICE else x, result)


def test_programs_of_one_operator_show_nothing() -> None:
    assert _finding("sgn", programs=4, states=0.5, ways=0.5) is None
    assert _finding("hypot", programs=4) is None


@pytest.mark.parametrize("name", WRONG_UNDER)
def test_what_is_wrong_under_a_state_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    exact = torch.sgn
    monkeypatch.setattr(torch, "sgn", lambda x: _spoilt(exact(x)) if WRONG_UNDER[name]() else exact(x))
    finding = _finding("sgn", states=0.5)
    assert finding is not None and any(f"state({name}=" in line for line in finding["lines"])


@pytest.mark.parametrize("way", MADE_BY)
def test_what_is_wrong_in_a_way_is_found(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    owner, name, makes = MADE_BY[way]
    exact = getattr(owner, name)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        made = exact(*args, **kwargs)
        if way == "scripted":
            return types.SimpleNamespace(call=lambda *given: _spoilt(made.call(*given)))
        if makes:
            return lambda *given: _spoilt(made(*given))
        return _spoilt(made) if way != "second" or kwargs.get("create_graph") else made

    monkeypatch.setattr(owner, name, wrong)
    monkeypatch.setattr(ways, "_WAYS", (way,))
    finding = _finding("sinh", ways=1.0)
    assert finding is not None and way in finding["line"]


def test_what_is_written_beside_a_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_STYLES", ("out",))
    monkeypatch.setattr(operators, "_OUTS", ("gaps",))
    exact = torch.hypot

    def wrong(*args: Any, out: torch.Tensor | None = None) -> Any:
        result = exact(*args, out=out)
        if out is not None and out.device.type == DEVICE and out.dim() and out.stride(-1) == 2:
            out.as_strided((1,), (1,), 1).fill_(9)
        return result

    monkeypatch.setattr(torch, "hypot", wrong)
    finding = _finding("hypot")
    assert finding is not None and "writes beside" in finding["text"]


@pytest.mark.parametrize("form", ("empty", "wrong size", "expanded", "another dtype"))
def test_what_an_out_must_not_be_is_found(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """The device is made to take anything."""
    monkeypatch.setattr(operators, "_STYLES", ("out",))
    monkeypatch.setattr(operators, "_OUTS", (form,))
    exact = torch.hypot

    def wrong(*args: Any, out: torch.Tensor | None = None) -> Any:
        if out is None or out.device.type != DEVICE:
            return exact(*args, out=out)
        result = exact(*args)
        is_it = {
            "empty": out.numel() == 0,
            "wrong size": out.numel() > 0 and out.shape != result.shape,
            "expanded": 0 in out.stride(),
            "another dtype": out.dtype != result.dtype,
        }[form]
        return out if is_it else exact(*args, out=out)

    monkeypatch.setattr(torch, "hypot", wrong)
    assert _finding("hypot") is not None


def test_what_is_wrong_of_complex_numbers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.sgn
    monkeypatch.setattr(torch, "sgn", lambda x: _spoilt(exact(x)) if x.is_complex() else exact(x))
    finding = _finding("sgn", variants=32)
    assert finding is not None and "complex" in finding["text"]


def test_every_batch_is_run_by_processes_in_other_states() -> None:
    """So what one of them leaves on disk is used under another's state."""
    batches = command._batches(seed=1, size=3, salts=2)
    assert [next(batches) for _ in range(3)] == [
        ([100_000, 100_001, 100_002], 0),
        ([100_000, 100_001, 100_002], 1),
        ([100_003, 100_004, 100_005], 0),
    ]


def test_the_catalogue_is_wide() -> None:
    assert len(OPERATORS) >= 300


def test_numbers_that_a_graph_keeps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["leaf(torch.float32, (3,), (1,), 0, [1.0, 2.0])", "torch.add(v0, v0, alpha=0.5)", "v1 * 3"]
    keeps = False

    def compile_(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        first: list[Any] = []

        def call(x: torch.Tensor, *numbers: Any) -> Any:
            first[:] = first if keeps and first else numbers
            return function(x, *first)

        return call

    monkeypatch.setattr(torch, "compile", compile_)
    assert compiled.run(lines, DEVICE) is None
    keeps = True
    finding = compiled.run(lines, DEVICE)
    assert finding is not None and finding.line == lines[1]


def test_programs_for_several_sizes() -> None:
    lines = [
        "sizes((2, 0), (3, 0))", "leaf(torch.float32, (4, 3), (8, 2), 3, [1.0, 2.0])", "v1[: v1.shape[0] // 2] * 2",
        "v2.view(2, 3)", "v3 + 1", "v2.sum()",
    ]  # fmt: skip
    assert sizes.resized(lines[1], (2, 0)) == "leaf(torch.float32, (8, 6), (14, 2), 3, [1.0, 2.0])"
    assert sizes.fitting(lines) == [*lines[:3], "v2.sum()"]
    assert compiled.calls_of(lines, []) == [([], (1, 0)), ([], (2, 0)), ([], (3, 0))]


def test_a_graph_that_is_for_one_size_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["sizes((2, 0), (3, 0))", "leaf(torch.float32, (4,), (1,), 0, [1.0, 2.0])", "v1 / v1.shape[0]"]
    first: list[int] = []

    def compile_(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        assert options["dynamic"]

        def call(x: torch.Tensor, *numbers: Any) -> Any:
            first[:] = first or list(x.shape)
            return [None, x, x / first[0]]

        return call

    monkeypatch.setattr(torch, "compile", compile_)
    finding = compiled.run(lines, DEVICE)
    assert finding is not None and finding.line == lines[2] and finding.text.endswith("(sizes (2, 0))")
