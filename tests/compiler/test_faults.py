# SPDX-License-Identifier: Apache-2.0
"""Errors of our own compiler are errors; what cannot be compiled runs on the host; plans are kept when they work."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._inductor.exc import LoweringException

from outboard.compiler.adapter.operators.refusals import is_refusal
from outboard.compiler.plans import builder, cache
from tests.conftest import RunPython

Fault = type[Exception]


def broken(kind: Fault) -> Callable[..., Any]:
    """A function of ours that fails."""
    scope: dict[str, Any] = {}
    exec(compile(f"def fail(*args, **kwargs):\n    raise {kind.__name__}('seeded')", builder.__file__, "exec"), scope)
    return scope["fail"]  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _without_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "load", lambda signature: (False, []))


#: Each with a dtype, for a signature (with a rare layout) that this process has not compiled.
FAULTS = [
    (AssertionError, torch.int8),
    (AttributeError, torch.int16),
    (KeyError, torch.uint8),
    (ZeroDivisionError, torch.int32),
    (IndexError, torch.bool),
]


@pytest.mark.parametrize(("kind", "dtype"), FAULTS)
def test_faults_of_ours_are_told(
    device: str, device_module: ModuleType, monkeypatch: pytest.MonkeyPatch, kind: Fault, dtype: torch.dtype
) -> None:
    device_module.reset_fallbacks()
    x = torch.zeros(2, 3, 2, 3, 2, 3, dtype=dtype, device=device).permute(4, 2, 5, 0, 3, 1)
    with monkeypatch.context() as patch:
        patch.setattr(builder.PlanBuilder, "finish", broken(kind))
        with pytest.raises(RuntimeError, match=r"(?s)internal error .*'aten::erfinv'.*seeded.*builder.py") as raised:
            torch.erfinv(x)
    assert raised.value.__context__ is None or raised.value.__suppress_context__
    assert not device_module.fallbacks()
    torch.testing.assert_close(torch.erfinv(x).cpu(), torch.erfinv(x.cpu()))  # nothing of it was remembered


def test_wrong_arguments_stay_the_users_fault(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder.PlanBuilder, "finish", broken(KeyError))
    with pytest.raises(RuntimeError, match="size of tensor a"):
        torch.ones(2, device=device).logaddexp(torch.ones(3, device=device))


def caught(function: Callable[[], Any]) -> Exception:
    """What a call raises."""
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def wrapped(error: Exception) -> Exception:
    """An error as the lowering of a graph raises it."""

    def run() -> None:
        try:
            raise error
        except Exception as inner:
            raise LoweringException(inner, "target", [], {}) from inner

    return caught(run)


def test_what_is_a_refusal() -> None:
    assert is_refusal(caught(broken(NotImplementedError)))
    assert is_refusal(wrapped(builder.NotExpressible("no")))
    assert is_refusal(caught(lambda: torch._inductor.config.no_such_setting))  # PyTorch's, at its limits
    assert not is_refusal(caught(broken(AssertionError)))
    assert not is_refusal(wrapped(caught(broken(TypeError))))
    assert not is_refusal(caught(lambda: torch.ones(2) + torch.ones(3)))


LIMITED = """
import torch, warnings
from outboard.compiler.adapter import lowering

def limited(*call, **named):
    raise NotImplementedError("nothing does that")

lowering.lower_operator = limited
device = torch._C._get_privateuse1_backend_name()
x = torch.rand(3, 4)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.get_device_module(device).set_fallback_policy("warn")
    torch.testing.assert_close(torch.special.log_ndtr(x.to(device)).cpu(), torch.special.log_ndtr(x))
print(sum("runs on the CPU" in str(each.message) for each in caught))
print(torch.get_device_module(device).fallbacks())
"""


def test_limits_of_the_compiler_go_to_the_host(run_python: RunPython, tmp_path: Any) -> None:
    out = run_python(LIMITED, OUTBOARD_CACHE_DIR=str(tmp_path))  # no plan is there that another test has made
    assert out.split("\n")[:2] == ["1", "{'aten::special_log_ndtr': 1}"]


DAMAGED = """
import torch
from outboard.compiler import eager
from outboard.compiler.plans import cache

x = torch.ones(3, device=torch._C._get_privateuse1_backend_name())
kept, compiled = [], eager._compile
eager._compile = lambda *call: ("plan", compiled(*call)[1][:-9])
cache.store = lambda *entry: kept.append(entry)
try:
    x.tan()
except RuntimeError as error:
    print("refused", len(kept))
eager._compile = compiled
y = x.tan()
print("taken", len(kept))
torch.testing.assert_close(y.cpu(), x.cpu().tan())
"""


def test_plans_are_kept_when_they_were_taken(run_python: RunPython, tmp_path: Any) -> None:
    assert run_python(DAMAGED, OUTBOARD_CACHE_DIR=str(tmp_path)).split() == ["refused", "0", "taken", "1"]
