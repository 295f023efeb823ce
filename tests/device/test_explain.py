# SPDX-License-Identifier: Apache-2.0
"""``torch.<device>.explain``: each kind of thing that costs time is found, with the line that has it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from processes import run_program
from torch.autograd import DeviceType
from torch.profiler import profile

from outboard.reporting.findings import find


def _at(place: object, function: Callable[..., object]) -> bool:
    """Whether a place is the line after the head of a function."""
    return str(place) == f"{__file__}:{function.__code__.co_firstlineno + 1}"


def _on_cpu(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvalsh(x)


def _reads(x: torch.Tensor) -> float:
    return x.sum().item()


def _uploads(x: torch.Tensor) -> None:
    x.copy_(torch.ones(x.shape))


def _converts(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float16)


def _waits(x: torch.Tensor) -> None:
    torch.get_device_module().current_stream().synchronize()


@pytest.mark.parametrize(
    ("function", "kind", "what", "moved"),
    [
        (_on_cpu, "fallback", "aten::_linalg_eigh", 0),
        (_reads, "wait", "reading a number (item(), bool(), int())", 0),
        (_uploads, "copy", "a copy from cpu to ocl:0", 4 * 64 * 64),
        (_converts, "conversion", "Float to Half", 0),
        (_waits, "wait", "Stream.synchronize()", 0),
    ],
)
def test_costs_are_found_at_their_lines(
    device_module: ModuleType, function: Callable[[torch.Tensor], object], kind: str, what: str, moved: int
) -> None:
    x = torch.eye(64, device="ocl")
    function(x)
    with device_module.explain() as report:
        for _ in range(3):
            function(x)
    found = [one for one in report.findings if one.kind == kind]
    assert [(one.what, one.count, one.moved) for one in found] == [(what, 3, 3 * moved)]
    assert _at(found[0].place, function) and 0 < found[0].seconds < report.wall
    assert {one.kind for one in report.findings} <= {kind, "launch"}
    assert f"{what}" in str(report) and f"  {kind}: " in str(report) and len(str(report).splitlines()) <= 12
    assert json.loads(json.dumps(report.dump()))["findings"][0].keys() == found[0].dump().keys()


#: Calls an operator in line 4.
_COMPILES = """
import torch
def new_operator(x):
    return torch.special.xlog1py(x, 0.7182)

module = torch.get_device_module()
x = torch.rand(64, device=torch.accelerator.current_accelerator())
cold, steady = module.explain_steady(lambda: new_operator(x), return_cold=True)
(found,) = [one for one in cold.findings if one.kind == "compilation"]
assert found.what == "aten::special_xlog1py" and found.count == 1 and str(found.place) == f"{__file__}:4", found
assert not [one for one in steady.findings if one.kind == "compilation"]
assert not cold.verdict()["clean"] and cold.verdict()["compilation"] == 1
assert any("aten::special_xlog1py" in reason for reason in cold.verdict()["reasons"])
difference = cold.diff(steady)
assert difference.gone == [found] and not difference.persists and "gone" in str(difference)
"""


def test_compilations_are_found_once(tmp_path: Path) -> None:
    """In a process with a cache of its own: what other tests have compiled is compiled there once more."""
    program = tmp_path / "program.py"
    program.write_text(_COMPILES)
    result = run_program([str(program)], environment={"OUTBOARD_CACHE_DIR": str(tmp_path / "cache")})
    assert result.returncode == 0, result.stderr


def test_a_region_is_called_before_it_is_explained(device_module: ModuleType) -> None:
    with pytest.raises(ValueError, match="warmup has to be 1 or more"):
        device_module.explain_steady(lambda: None, warmup=0)


def test_torch_compile_is_a_compilation(device_module: ModuleType) -> None:
    x = torch.rand(64, device="ocl")
    # A number of its own, as traces are kept on disk.
    compiled = torch.compile(eval(f"lambda value: value.sin() * {random.random()}"), dynamic=False)  # noqa: S307
    cold, steady = device_module.explain_steady(lambda: compiled(x), return_cold=True)
    (found,) = [one for one in cold.findings if one.kind == "compilation"]
    assert (found.what, found.count) == ("torch.compile", 1)
    assert steady.verdict()["compilation"] == 0


def _launches(count: int, device_us: float) -> list[Any]:
    """The profiler's events of calls that the host takes 30 microseconds for."""
    kernel = SimpleNamespace(
        name="add_0",
        device_type=DeviceType.PrivateUse1,
        activity_type="kernel",
        time_range=SimpleNamespace(elapsed_us=lambda: device_us),
    )
    call = SimpleNamespace(
        name="aten::add",
        device_type=DeviceType.CPU,
        kernels=[SimpleNamespace(duration=device_us)],
        self_cpu_time_total=30.0,
    )
    return [kernel, call] * count


def test_small_launches_are_counted_where_the_device_idles() -> None:
    (found,) = find([*_launches(40, 2.0), *_launches(5, 20.0)], {}, wall=1.0)
    assert (found.kind, found.what, found.cause) == ("launch", "launches shorter than 10 µs", "of 45")
    assert found.count == 40 and found.seconds == pytest.approx(40 * 28e-6 + 5 * 10e-6)
    assert find(_launches(40, 20.0), {}, wall=1.0) == []  # they fill it
    assert find(_launches(40, 2.0), {}, wall=100e-6) == []  # it is busy
    assert find(_launches(9, 2.0), {}, wall=1.0) == []  # no loop


def test_backward_passes_and_other_threads_are_looked_at(device_module: ModuleType) -> None:
    x = torch.eye(8, device="ocl").requires_grad_()
    half = x.to(torch.float16).sum()
    _reads(x)
    with device_module.explain() as report:
        half.backward()
        thread = threading.Thread(target=_reads, args=(x,))
        thread.start()
        thread.join()
    found = {one.kind: one for one in report.findings}
    assert found["conversion"].what == "Half to Float" and found["wait"].count == 1


def test_nothing_is_found_in_a_quiet_region(device_module: ModuleType) -> None:
    a = torch.rand(512, 512, device="ocl")
    report = device_module.explain_steady(lambda: a @ a)
    assert report.findings == [] and 0 < report.busy <= report.wall
    verdict = report.verdict()
    assert verdict["clean"] and verdict["reasons"] == []
    assert "nothing to look at" in str(report) and "scale" not in report.help()
    assert "reduce-overhead" in report.help("launch")


def test_regions_begin_and_end_once(device_module: ModuleType) -> None:
    report = device_module.explain()
    with pytest.raises(RuntimeError, match="has not begun"):
        report.stop()
    report.start()
    with pytest.raises(RuntimeError, match="one region at a time"):
        device_module.explain().start()
    assert report.stop() is report.stop()
    with pytest.raises(RuntimeError, match="make another one"):
        report.start()
    with profile(), pytest.raises(RuntimeError, match="inside one of torch.profiler"):
        device_module.explain().start()
    with pytest.raises(KeyError), device_module.explain():
        raise KeyError
    with device_module.explain():
        pass
