# SPDX-License-Identifier: Apache-2.0
"""Numbers that are given to operators: few plans for all their values, and the CPU's results for each."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from tools import baked_numbers

aten = torch.ops.aten
#: OpInfos whose numbers are in no plan.
USUAL = ("addcmul", "nn.functional.leaky_relu", "remainder")


@pytest.mark.filterwarnings("ignore")
def test_numbers_that_programs_change(device: str) -> None:
    rows = baked_numbers.judge_all(device, [op for op in op_db if op.name in USUAL], 1, lambda row: None)
    assert {"addcmul:value", "leaky_relu:negative_slope"} <= {row.name for row in rows}
    assert baked_numbers.findings(rows) == []


def test_the_judge_sees_what_is_baked(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baked_numbers, "EXPLAINED", {})
    call = baked_numbers.Call(aten.avg_pool1d.default, {"self": torch.randn(1, 2, 40), "kernel_size": [2]})
    row = baked_numbers.judge(call, "kernel_size", device)
    assert row is not None and row.baked and baked_numbers.findings([row]) == [row]


@pytest.mark.parametrize("p", [1, 2, 1.5, 2.5])
def test_orders_of_margin_losses_lose_their_fraction(device: str, p: float) -> None:
    x, target = torch.randn(4, 5), torch.tensor([0, 3, 1, 4])
    found = aten.multi_margin_loss(x.to(device), target.to(device), p)
    torch.testing.assert_close(found.cpu(), aten.multi_margin_loss(x, target, p))
