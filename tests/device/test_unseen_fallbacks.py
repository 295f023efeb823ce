# SPDX-License-Identifier: Apache-2.0
"""Operators that ran on the CPU with right numbers, which judges of numbers did not see; and that judges now do."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tools import decompositions, on_cpu
from tools.decomposition_grid import Group
from tools.fuzz import sides

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import opinfo  # noqa: E402
import opinfo_case  # noqa: E402


def _gaps(dtype: torch.dtype) -> Tensor:
    return torch.arange(24).view(4, 3, 2).to(dtype)[..., 0].t()


def _into(operator: Callable[..., Any]) -> Callable[[Tensor], Any]:
    return lambda x: operator(x, 1, out=(x.new_empty(0), x.new_empty(0, dtype=torch.int64)))


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (_into(torch.cummax), torch.tensor([[1.0, 3, 2], [torch.nan, 0, 5]])),
        (_into(torch.cummin), torch.tensor([[3, 3, 1], [2, 5, 2]])),
        (lambda x: torch.split_copy(x, 2, 0), _gaps(torch.float32)),
        (torch.detach_copy, _gaps(torch.int16)),
        (lambda x: torch.view_copy(x, (-1,)), torch.arange(6).view(2, 3)),
        (torch.nanmedian, _gaps(torch.int64)),
        (torch.median, _gaps(torch.float32)),
        (lambda x: x.take(torch.tensor(-2, device=x.device)), _gaps(torch.bool)),
        (
            lambda x: torch.ops.aten.upsample_nearest2d_backward(x[:, 1:], [4, 6], [1, 2, 2, 3]),
            torch.arange(72.0).view(1, 3, 4, 6),
        ),
    ],
    ids=[
        *("cummax out", "cummin out", "split_copy", "detach_copy", "view_copy", "nanmedian", "median", "take"),
        "upsample_nearest2d_backward",
    ],
)
def test_runs_on_the_device(
    device: str, device_module: ModuleType, function: Callable[[Tensor], Any], x: Tensor
) -> None:
    device_module.reset_fallbacks()
    result = function(x.to(device))
    assert device_module.fallbacks() == {}
    expected = function(x)
    torch.testing.assert_close(tree_map(Tensor.cpu, result), expected, equal_nan=True, check_stride=True)


def test_a_reason_is_for_some_dtypes() -> None:
    assert on_cpu.unexplained(["aten::add.Tensor", "aten::gcd.out"], [torch.float32]) == ["aten::add.Tensor"]
    assert on_cpu.unexplained(["aten::cumprod_"], [torch.float32, torch.complex64]) == []
    assert on_cpu.unexplained(["aten::add_.Tensor"], [torch.float32, torch.complex64]) == ["aten::add_.Tensor"]
    assert on_cpu.unexplained(["aten::index_add_", "aten::_fft_r2c"], [torch.float32]) == []
    assert on_cpu.unexplained(["aten::sort"], [torch.int64]) == ["aten::sort"]
    assert on_cpu.unexplained(["aten::sort"], [torch.uint16]) == []


def test_judges_see_what_has_no_reason(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["leaf(torch.int64, (3,), (1,), 0, [4, 6, 9])", "torch.gcd(v0, v0 + 2)"]
    group = Group("gcd", lambda x: torch.gcd(x, x + 2), lambda turn: [(torch.arange(3),)], 0)
    assert sides.run(lines, device) is None
    assert [found for _, found in decompositions.check(group, device)] == [None]
    monkeypatch.setattr(on_cpu, "KNOWN", ())
    finding = sides.run(lines, device)
    assert finding is not None
    assert (finding.kind, finding.text) == ("host", "aten::gcd on the CPU")
    ((_, found),) = decompositions.check(group, device)
    assert found is not None
    assert found.text == "aten::gcd on the CPU"


def test_opinfo_fails_for_what_has_no_reason() -> None:
    outcome = opinfo_case.Outcome("host", "add (a reason)", {"aten::add.Tensor": 2})
    assert opinfo._explained(outcome, torch.float32).kind == "unseen"


@pytest.mark.parametrize(
    "call",
    [
        lambda x, h: x @ h,
        lambda x, h: torch.nn.functional.linear(x, h, h[0]),
        lambda x, h: torch.nn.functional.conv1d(x[None], h[None]),
        lambda x, h: x.long().softmax(0),
    ],
)
@pytest.mark.parametrize("policy", ["warn", "error"])
def test_what_pytorch_refuses_is_no_fallback(
    call: Callable[[Tensor, Tensor], Tensor], policy: str, device: str, device_module: ModuleType
) -> None:
    """It is neither counted nor warned of, and where fallbacks are forbidden its own exception comes all the same."""
    x = torch.ones(300, 300)
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        call(x, x.half())
    device_module.set_fallback_policy(policy)
    device_module.reset_fallbacks()
    try:
        with pytest.raises(expected.type) as found, warnings.catch_warnings():
            warnings.simplefilter("error")
            call(x.to(device), x.half().to(device))
    finally:
        device_module.set_fallback_policy("allow")
    assert (str(found.value), device_module.fallbacks()) == (str(expected.value), {})


def test_what_the_values_decide_is_a_fallback(device: str, device_module: ModuleType) -> None:
    """Lengths of zeros would be refused, these are not."""
    x, lengths = torch.randn(5).to(device), torch.tensor([0, 1, 2, 2]).to(device)
    device_module.set_fallback_policy("error")
    try:
        with pytest.raises(NotImplementedError, match="OUTBOARD_FALLBACK=error"):
            torch.segment_reduce(x, "max", lengths=lengths, initial=1)
    finally:
        device_module.set_fallback_policy("allow")
